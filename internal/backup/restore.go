package backup

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/node"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/store"
)

const (
	// recordName is the record of a sandbox or a snapshot, in its directory.
	recordName = "record.json"
	// recordMax bounds it.
	recordMax = 16 << 20
	// foreign is what an empty file system has.
	foreign = "lost+found"
)

// Restore is a backup that is to be restored.
type Restore struct {
	From       string
	Passphrase string // a file with it, for a backup that is encrypted
	Quiet      bool
	Mark       bool // the records were restored by other means

	In       io.Reader // the standard input
	Out, Err io.Writer
}

// Bind adds the flags that only dozed restore has.
func (r *Restore) Bind(flags *flag.FlagSet) {
	flags.StringVar(&r.From, "from", "", "read the backup from this `file`, or from the standard input if it is -")
	bindPassphrase(flags, &r.Passphrase)
	flags.BoolVar(&r.Quiet, "quiet", false, "do not print what is restored")
	flags.BoolVar(&r.Mark, "mark", false, "restore nothing: say that PostgreSQL restored the records of dozed control, so that nodes keep what these do not know")
}

// Do restores the backup into an empty data directory. It leaves nothing if it fails, unless
// the disk fails when all is right and is moved to its place.
func (r *Restore) Do(ctx context.Context, s settings.Settings) (err error) {
	if r.Mark {
		return r.mark(ctx, s)
	}
	if r.From == "" {
		return doze.Errorf(doze.Invalid, "name a file with --from, or --from - for the standard input")
	}
	from := r.In
	if r.From != toStandard {
		f, err := os.Open(r.From)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // it was read
		from = f
	}
	fresh, err := empty(s.Data)
	if err != nil {
		return err
	}
	unlock, err := instance.Lock(s.Data) // nobody may start on the half of it
	if err != nil {
		return err
	}
	defer unlock()
	if err := sweep(s.Data); err != nil {
		return err
	}
	stage := filepath.Join(s.Data, instance.RestoreDir)
	begun := false
	defer func() {
		if begun && err != nil { // the mark stays: nobody is to start on a part of it
			return
		}
		if err = errors.Join(err, os.RemoveAll(stage)); err == nil {
			return
		}
		for _, name := range instance.LockFiles() {
			_ = os.Remove(filepath.Join(s.Data, name)) // it may not be there
		}
		if fresh {
			_ = os.Remove(s.Data) // not if something is in it
		}
	}()
	if err := os.Mkdir(stage, 0o700); err != nil {
		return err
	}
	mark := instance.RestoreMark(s.Data)
	if err := errors.Join(os.WriteFile(mark, nil, 0o600), durable.Sync(stage)); err != nil { // in one step
		return err
	}
	m, end, err := r.extract(ctx, from, stage)
	if err != nil {
		return err
	}
	p := placing{settings: s, from: m, stage: stage}
	if err := p.relocate(); err != nil {
		return err
	}
	if m.Format == FormatControl {
		if err := p.mark(ctx); err != nil {
			return err
		}
	}
	if err := p.checkDatabase(ctx); err != nil {
		return err
	}
	begun = true
	if err := p.place(ctx); err != nil {
		if left := sweep(s.Data); left != nil {
			return fmt.Errorf("%w: the next attempt removes what is in %s: %w", err, s.Data, left)
		}
		begun = false
		return err
	}
	if err := errors.Join(os.Remove(mark), durable.Sync(stage)); err != nil {
		return err
	}
	for uid, left := range end.Left {
		fmt.Fprintf(r.Err, "sandbox %s: not restored: %s\n", uid, left)
	}
	r.tell(s, m)
	return nil
}

// empty fails for a directory that has something. What a restore left that was killed does not count.
func empty(dir string) (fresh bool, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if instance.CutShort(dir) != nil {
		return false, err
	}
	_ = os.Remove(filepath.Join(dir, instance.RestoreDir)) // not if something is in it
	for _, e := range entries {
		if e.Name() == instance.RestoreDir && !exists(filepath.Join(dir, e.Name())) {
			continue
		}
		if e.Name() != foreign && !slices.Contains(instance.LockFiles(), e.Name()) { // to lock it fails later if another process holds it
			return false, doze.Errorf(doze.Conflict, "%s is not empty: restore into a new directory, or move it away first", dir)
		}
	}
	return false, err
}

// sweep removes what a restore left that was killed, whose mark is there. The mark goes last.
// Preconditions: the directory is locked.
func sweep(dir string) error {
	if instance.CutShort(dir) == nil {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch e.Name() {
		case foreign, filepath.Base(instance.LockFile(dir)), instance.RestoreDir: // the lock is held
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	stage := filepath.Join(dir, instance.RestoreDir)
	if entries, err = os.ReadDir(stage); err != nil {
		return err
	}
	for _, e := range entries {
		if name := filepath.Join(stage, e.Name()); name != instance.RestoreMark(dir) {
			if err := os.RemoveAll(name); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(stage)
}

// extract reads the archive into a directory.
func (r *Restore) extract(ctx context.Context, from io.Reader, stage string) (m Manifest, end End, err error) {
	plain, err := unpack(interruptible{ctx, from}, r.Passphrase)
	if err != nil {
		return m, end, err
	}
	defer func() { err = errors.Join(err, plain.Close()) }()
	root, err := os.OpenRoot(stage)
	if err != nil {
		return m, end, err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	m, end, err = Extract(ctx, plain, root, func(m Manifest) error {
		if !filepath.IsAbs(m.Data) || !filepath.IsAbs(m.Images) {
			return damaged("%s has no directories", manifestName)
		}
		r.say("restoring what dozed %.40s saved on %s", m.Version, m.Made.UTC().Format(time.RFC3339))
		return nil
	})
	if err != nil {
		return m, end, err
	}
	dir, err := os.Open(stage)
	if err != nil {
		return m, end, err
	}
	return m, end, errors.Join(unix.Syncfs(int(dir.Fd())), dir.Close())
}

func (r *Restore) say(format string, args ...any) {
	if !r.Quiet {
		fmt.Fprintf(r.Err, format+"\n", args...)
	}
}

// tell says what comes next.
func (r *Restore) tell(s settings.Settings, m Manifest) {
	r.say("restored %s of %s", s.Data, m.Made.UTC().Format(time.RFC3339))
	role := "all"
	if m.Format == FormatControl {
		role = string(mtls.Control)
		r.say("sandboxes, volumes and snapshots are on the nodes and in the bucket. Nodes keep those that these records do not know, until doze node settle")
	}
	if file := filepath.Join(s.Data, instance.RestoredConfig); exists(file) {
		r.say("the configuration that it had is in %s: give it to dozed %s with --config, once its addresses and directories are right for this host", file, role)
	}
	database := ""
	switch {
	case s.DatabaseFile != "":
		database = " --database-file " + s.DatabaseFile
	case s.Database != "": // its address may have a password
		database = ", with its --database or --database-file"
	}
	r.say("next: dozed %s --data %s%s", role, s.Data, database)
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

// placing moves what was extracted to where a dozed looks for it.
type placing struct {
	settings settings.Settings
	from     Manifest
	stage    string
}

// moved says where a file is that was at a path of the platform of the backup.
func (p placing) moved(path string) string {
	for _, at := range []struct{ was, is string }{{p.from.Images, p.settings.ImagesDir}, {p.from.Data, p.settings.Data}} {
		if rel, err := filepath.Rel(at.was, path); err == nil && filepath.IsLocal(rel) {
			return filepath.Join(at.is, rel)
		}
	}
	return path // a record without one
}

// relocate rewrites the records of sandboxes and snapshots.
func (p placing) relocate() error {
	sandboxes := filepath.Join(p.settings.Data, sandboxesName)
	return errors.Join(
		p.rewrite(sandboxesName, func(uid string, raw []byte) ([]byte, error) {
			return node.RelocateSandbox(uid, sandboxes, raw, p.moved)
		}),
		p.rewrite(snapshotsName, func(_ string, raw []byte) ([]byte, error) { return node.RelocateSnapshot(raw, p.moved) }),
	)
}

// rewrite changes the record in each directory of one kind.
func (p placing) rewrite(kind string, change func(name string, raw []byte) ([]byte, error)) error {
	dir := filepath.Join(p.stage, dataName, kind)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue // it is the file with the era
		}
		file := filepath.Join(dir, e.Name(), recordName)
		info, err := os.Lstat(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the record was set aside
		}
		if err != nil {
			return err
		}
		if info.Size() > recordMax {
			return damaged("the record of %s has %d bytes", e.Name(), info.Size())
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if raw, err = change(e.Name(), raw); err != nil {
			return fmt.Errorf("the record of %s: %w", e.Name(), err)
		}
		if err := durable.Replace(file, raw, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// place moves everything to its place. What makes a data directory of it comes last: the
// records.
func (p placing) place(ctx context.Context) error {
	s := p.settings
	if err := p.images(); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(p.stage, dataName))
	if err != nil {
		return damaged("it has no %s", dataName)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "doze.db") || e.Name() == instance.RestoreDir {
			return damaged("it has %s/%s", dataName, e.Name())
		}
		if err := os.Rename(filepath.Join(p.stage, dataName, e.Name()), filepath.Join(s.Data, e.Name())); err != nil {
			return err
		}
	}
	if file := filepath.Join(p.stage, configName); exists(file) {
		if err := os.Rename(file, filepath.Join(s.Data, instance.RestoredConfig)); err != nil {
			return err
		}
	}
	records := filepath.Join(p.stage, recordsName)
	if s.Database == "" {
		if err := os.Rename(records, instance.DatabaseFile(s.Data)); err != nil {
			return err
		}
	} else if _, err := (store.Copying{From: records, To: s.Database, Alone: true}).Do(ctx); err != nil {
		return err
	}
	if _, err := instance.Records(s.Data, s.Database); err != nil {
		return err
	}
	return durable.Sync(s.Data)
}

// checkDatabase is a Conflict if the database has records already, other than those that are restored.
func (p placing) checkDatabase(ctx context.Context) error {
	if p.settings.Database == "" {
		return nil
	}
	_, err := store.Copying{From: filepath.Join(p.stage, recordsName), To: p.settings.Database, Alone: true, Dry: true}.Do(ctx)
	return err
}

// images adds the images to the directory of images, which other dozeds may share: one
// that is there stays. It may be on another file system.
func (p placing) images() error {
	from := filepath.Join(p.stage, imagesName, imagesName)
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	to := filepath.Join(p.settings.ImagesDir, imagesName)
	if err := os.MkdirAll(to, 0o755); err != nil { //nolint:gosec // G301: as the library makes it
		return err
	}
	for _, records := range []bool{false, true} { // the record of an image comes last
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".json") != records || exists(filepath.Join(to, e.Name())) {
				continue
			}
			if err := move(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
				return err
			}
		}
	}
	return durable.Sync(to)
}

// move renames a file, or copies it where it goes to another file system.
func move(from, to string) error {
	err := os.Rename(from, to)
	if !errors.Is(err, unix.EXDEV) {
		return err
	}
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }() // it was read
	info, err := source.Stat()
	if err != nil {
		return err
	}
	half := to + partial
	target, err := os.OpenFile(half, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	if err = errors.Join(err, target.Sync(), target.Close()); err == nil {
		err = os.Rename(half, to)
	}
	if err != nil {
		return errors.Join(err, os.Remove(half))
	}
	return nil
}
