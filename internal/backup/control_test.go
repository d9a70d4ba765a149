package backup_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/backup"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/testkit/postgres"
)

// killedVar names the backup that a process of [TestKilled] restores, and killedDir where.
const killedVar, killedDir = "DOZE_TEST_RESTORE", "DOZE_TEST_RESTORE_DIR"

func TestMain(m *testing.M) {
	from := os.Getenv(killedVar) //nolint:forbidigo // this process is one of its own
	if from == "" {
		os.Exit(m.Run()) //nolint:forbidigo // the status of the tests
	}
	if err := restore(context.Background(), from, os.Getenv(killedDir)); err != nil { //nolint:forbidigo // as above
		_, _ = os.Stderr.WriteString(err.Error())
		os.Exit(1) //nolint:forbidigo // its status says whether it ended well
	}
}

func at(dir string) settings.Settings {
	var s settings.Settings
	s.Data, s.Run, s.Cgroup = dir, filepath.Join(dir, "run"), "doze"
	s.ImagesDir, s.FleetKeys = filepath.Join(dir, "images"), filepath.Join(dir, instance.FleetDir)
	return s
}

func restore(ctx context.Context, from, dir string) error {
	return (&backup.Restore{From: from, Quiet: true, Err: os.Stderr}).Do(ctx, at(dir))
}

// records opens those of a data directory.
func records(t *testing.T, dir string) *store.Store {
	t.Helper()
	cipher, err := seal.Open(instance.SealFile(dir))
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), instance.DatabaseFile(dir), cipher)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// control returns a data directory that a control serves, and its files that a backup has.
func control(t *testing.T) (dir string, files map[string]string) {
	t.Helper()
	dir = t.TempDir()
	unlock, err := instance.LockRole(string(mtls.Control), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(unlock)
	s := records(t, dir)
	files = map[string]string{"egress.key": "e", "admin.key": "a", "fleet/ca.key": "ca", "fleet/ca.crt": "crt"}
	files["builds/upload"] = strings.Repeat("u", 1<<20)
	for name, text := range files {
		err = errors.Join(err, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	key, unread := os.ReadFile(instance.SealFile(dir))
	files["seal.key"] = string(key)
	_, unwritten := s.PutNode(t.Context(), "n", store.NodeBody{}, time.Now())
	place := store.Place{Kind: "machine", ID: "m", Node: "n", Epoch: 7}
	err = errors.Join(err, unread, unwritten, s.LoseNode(t.Context(), "n", 1), s.PutPlace(t.Context(), place), os.WriteFile(filepath.Join(dir, instance.NodeFile), []byte("n"), 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return dir, files
}

// save makes a backup of what serves a directory.
func save(t *testing.T, dir string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "backup")
	if _, err := saveTo(t, dir, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// saveTo makes a backup in a file, and returns what it said.
func saveTo(t *testing.T, dir, file string) (said string, err error) {
	t.Helper()
	var out bytes.Buffer
	b := &backup.Backup{Version: "test", Out: new(bytes.Buffer), Err: &out}
	flags := flag.NewFlagSet("", flag.ContinueOnError)
	b.Bind(flags)
	b.To = file
	err = b.Do(t.Context(), at(dir))
	return out.String(), err
}

// whole is an error unless a directory has all of a backup.
func whole(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		if raw, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(raw) != text {
			t.Errorf("%s has %d bytes, %v", name, len(raw), err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, instance.NodeFile)); err == nil {
		t.Error("a control that was restored has the identity of a node")
	}
	s := records(t, dir)
	restored, err := s.Restored(t.Context())
	least, unread := s.LeastEpoch(t.Context())
	n, unknown := s.Node(t.Context(), "n")
	if err := errors.Join(err, unread, unknown); err != nil || !restored || least < 1<<40 || n.State != doze.NodeReady {
		t.Errorf("marked: %t, the least epoch is %d, the node is %s, %v", restored, least, n.State, err)
	}
}

// TestBackupOfControl: control comes back from a backup with its keys and its records, which say that they
// were restored.
func TestBackupOfControl(t *testing.T) {
	t.Parallel()
	dir, files := control(t)
	to := filepath.Join(t.TempDir(), "restored")
	if err := restore(t.Context(), save(t, dir), to); err != nil {
		t.Fatal(err)
	}
	whole(t, to, files)
	if restored, err := records(t, dir).Restored(t.Context()); restored || err != nil {
		t.Errorf("the records that were saved are marked: %t, %v", restored, err)
	}
}

// TestBackupOfLinks: certificates are saved as Kubernetes mounts them: each is a link to a file in
// another directory. Without any, there is no backup.
func TestBackupOfLinks(t *testing.T) {
	t.Parallel()
	dir, files := control(t)
	keys := filepath.Join(dir, instance.FleetDir)
	if err := os.Rename(keys, keys+".away"); err != nil {
		t.Fatal(err)
	}
	if _, err := saveTo(t, dir, filepath.Join(t.TempDir(), "none")); err == nil || !strings.Contains(err.Error(), "--fleet-keys") {
		t.Errorf("a backup without certificates: %v", err)
	}
	err := errors.Join(os.Mkdir(keys, 0o700), os.Rename(keys+".away", filepath.Join(keys, "..2026")), os.Symlink("..2026", filepath.Join(keys, "..data")),
		os.Symlink("..data/ca.crt", filepath.Join(keys, "ca.crt")), os.Symlink("..data/ca.key", filepath.Join(keys, "ca.key")))
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "restored")
	if err := restore(t.Context(), save(t, dir), to); err != nil {
		t.Fatal(err)
	}
	whole(t, to, files)
}

// TestReplace: a backup says that it replaces an older one, and replaces nothing but a file.
func TestReplace(t *testing.T) {
	t.Parallel()
	dir, _ := control(t)
	file := save(t, dir)
	was, unread := os.Stat(file)
	said, err := saveTo(t, dir, file)
	now, gone := os.Stat(file)
	if err := errors.Join(unread, err, gone); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said, file+" is there, from ") || os.SameFile(was, now) {
		t.Errorf("it says:\n%s", said)
	}
	if _, err := saveTo(t, dir, filepath.Dir(file)); err == nil || !strings.Contains(err.Error(), "is no file") {
		t.Errorf("over a directory: %v", err)
	}
}

// TestMark: records that other means restored are marked, unless a control serves them, or they are those of
// no fleet.
func TestMark(t *testing.T) {
	t.Parallel()
	dir, files := control(t)
	mark := func(dir string) error {
		return (&backup.Restore{Mark: true, Quiet: true, Err: new(bytes.Buffer)}).Do(t.Context(), at(dir))
	}
	if err := mark(dir); err == nil || !strings.Contains(err.Error(), "stop dozed control first") {
		t.Errorf("while a control runs: %v", err)
	}
	to := t.TempDir()
	if err := mark(to); err == nil || !strings.Contains(err.Error(), "has no records") {
		t.Errorf("without records: %v", err)
	}
	_ = records(t, to).Close()
	if err := mark(to); err == nil || !strings.Contains(err.Error(), "no node") {
		t.Errorf("without a node: %v", err)
	}
	for name := range files {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(to, name)), 0o700), os.WriteFile(filepath.Join(to, name), []byte(files[name]), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Remove(instance.DatabaseFile(to)), func() error {
		_, err := store.Copying{From: instance.DatabaseFile(dir), To: instance.DatabaseFile(to)}.Do(t.Context())
		return err
	}()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := mark(to); err != nil {
			t.Fatal(err)
		}
	}
	whole(t, to, files)
}

// TestKilled: a restore that is killed leaves nothing or all. What it leaves is not started, and the
// next one begins anew. What somebody else has in a directory of that name stays.
func TestKilled(t *testing.T) {
	t.Parallel()
	dir, files := control(t)
	file := save(t, dir)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// It is killed as soon as each of these is there.
	steps := []string{"", "lock", "restore", "restore/mark", "restore/data/seal.key", "restore/records.db", "restore/records.db-wal", "seal.key", "fleet", "builds", "doze.db", "records"}
	cut := 0
	for _, step := range steps {
		to := filepath.Join(t.TempDir(), "restored")
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), killedVar+"="+file, killedDir+"="+to)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }() // it ends with the process
		for there := false; !there && len(ended) == 0; {
			there = exists(filepath.Join(to, step))
		}
		_ = cmd.Process.Kill() // it may have ended
		err := <-ended
		switch _, missing := os.Lstat(instance.DatabaseFile(to)); {
		case instance.CutShort(to) != nil:
			cut++
		case missing != nil && (exists(instance.SealFile(to)) || err == nil):
			t.Errorf("killed at %q, it left keys without records, %v", step, err)
		case missing == nil:
			whole(t, to, files)
			continue
		}
		if err := restore(t.Context(), file, to); err != nil {
			t.Fatalf("after one that was killed at %q: %v", step, err)
		}
		whole(t, to, files)
	}
	if cut == 0 {
		t.Error("no restore was cut short")
	}
	to := t.TempDir()
	other := filepath.Join(to, instance.RestoreDir, "of somebody")
	if err := errors.Join(os.Mkdir(filepath.Dir(other), 0o700), os.WriteFile(other, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := restore(t.Context(), file, to); err == nil || !strings.Contains(err.Error(), "is not empty") || !exists(other) {
		t.Errorf("where somebody has something: %v", err)
	}
}

// TestRestoreAfterOthers: files that a dozed locked and left do not keep a restore from a directory. One that
// serves it does.
func TestRestoreAfterOthers(t *testing.T) {
	t.Parallel()
	dir, files := control(t)
	file, to := save(t, dir), t.TempDir()
	unlock, err := instance.LockRole(string(mtls.Control), to)
	if err != nil {
		t.Fatal(err)
	}
	if err := restore(t.Context(), file, to); err == nil || !strings.Contains(err.Error(), "another dozed serves") {
		t.Errorf("while a control runs: %v", err)
	}
	unlock()
	unlock, err = instance.LockRole(string(mtls.Control), to)
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	if !exists(filepath.Join(to, "lock.control")) {
		t.Error("a control left no lock")
	}
	if err := restore(t.Context(), file, to); err != nil {
		t.Fatal(err)
	}
	whole(t, to, files)
}

// TestRestoreOnOthers: a restore into a database with other records fails, and leaves nothing in the
// directory. Into an empty one, it says how to start what it restored.
func TestRestoreOnOthers(t *testing.T) {
	t.Parallel()
	dir, _ := control(t)
	file, s := save(t, dir), at(filepath.Join(t.TempDir(), "restored"))
	s.Database, s.DatabaseFile = postgres.Database(t), "/etc/doze.database"
	said := new(bytes.Buffer)
	into := func() error {
		return (&backup.Restore{From: file, Err: said}).Do(t.Context(), s)
	}
	if err := into(); err != nil || !strings.Contains(said.String(), "next: dozed control --data "+s.Data+" --database-file /etc/doze.database\n") {
		t.Errorf("it says %s, %v", said, err)
	}
	s.Data += ".again"
	if err := into(); err == nil || !strings.Contains(err.Error(), "name an empty database") || exists(s.Data) {
		t.Errorf("with other records: %v; the directory is there: %t", err, exists(s.Data))
	}
}

// TestRestoreThatFailsLate: what was put into its place is removed when the rest cannot be.
func TestRestoreThatFailsLate(t *testing.T) {
	t.Parallel()
	dir, _ := control(t)
	s := at(filepath.Join(t.TempDir(), "restored"))
	s.Database = postgres.Database(t)
	if _, err := (store.Copying{From: instance.DatabaseFile(dir), To: s.Database, Dry: true}).Do(t.Context()); err != nil { // it has the tables now
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", s.Database)
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.ExecContext(t.Context(), `ALTER TABLE nodes ADD CONSTRAINT none CHECK (id = '')`)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	err = (&backup.Restore{From: save(t, dir), Quiet: true, Err: os.Stderr}).Do(t.Context(), s)
	if err == nil || !strings.Contains(err.Error(), "none") || exists(s.Data) {
		t.Errorf("where a row is refused: %v; the directory is there: %t", err, exists(s.Data))
	}
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}
