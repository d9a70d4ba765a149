// Package backup saves a platform into one file while it runs, and makes a data directory
// of such a file. Sandboxes that are awake are in it as they are at that moment.
//
// What must always hold: a backup has every record and everything that a record names, or
// there is none. A restore refuses what was cut off or altered.
package backup

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/host"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/store"
)

const (
	// toStandard stands for the standard output, or for the standard input.
	toStandard = "-"
	// partial is behind the name of a file that is being written.
	partial = ".partial"
	// roundsMax is how often the records are copied until all is there that they name.
	// Each round takes what was created during the one before.
	roundsMax = 8
	// answerMax bounds an answer of dozed: it has the names of all sandboxes.
	answerMax = 64 << 20
)

// stable are the files and directories of the data directory that are copied as they are.
// Others are copied by dozed, or are made anew: see docs/design/0132-backup.md.
var stable = append(instance.Keys(), "engines", "agents/images", "net/leases", "builds", host.LogsDir, instance.HistoryDir, "sandboxes/era")

// Backup is a backup that is to be made.
type Backup struct {
	To         string
	Passphrase string // a file with it; empty: the backup is not encrypted
	Quiet      bool
	Version    string // of this dozed

	Out, Err io.Writer // the standard ones
	config   *flag.FlagSet
}

// Bind adds the flags that only dozed backup has.
func (b *Backup) Bind(flags *flag.FlagSet) {
	flags.StringVar(&b.To, "to", "", "write the backup to this `file`, or to the standard output if it is -")
	bindPassphrase(flags, &b.Passphrase)
	flags.BoolVar(&b.Quiet, "quiet", false, "do not print what is saved")
	b.config = flags
}

func bindPassphrase(flags *flag.FlagSet, to *string) {
	flags.StringVar(to, "passphrase-file", "", "`file` with the passphrase that the backup is encrypted with (default: it is not encrypted)")
}

// Do makes the backup. The dozed of the data directory must run.
func (b *Backup) Do(ctx context.Context, s settings.Settings) error {
	if b.To == "" {
		return doze.Errorf(doze.Invalid, "name a file with --to, or --to - for the standard output")
	}
	where, err := instance.Remains(s.Data, instance.Instance{Run: s.Run, Cgroup: s.Cgroup})
	if err != nil {
		return err
	}
	j := &job{Backup: b, settings: s, dozed: call(where.Run), saved: map[string]bool{}, left: map[string]string{}, began: time.Now()}
	save := j.write
	if roles := instance.Roles(s.Data); slices.Contains(roles, string(mtls.Control)) {
		save = j.writeControl
	} else if len(roles) > 0 {
		return doze.Errorf(doze.Unsupported, "dozed %s serves %s: a backup of a fleet is that of dozed control. See \"Back up a fleet\" in docs/operations.md",
			strings.Join(roles, " and dozed "), s.Data)
	} else if j.contents, err = j.ask(ctx); err != nil {
		return doze.Wrap(err, doze.Unavailable, "no dozed all serves %s, or it is too old: start it, since only it can copy sandboxes", s.Data)
	}
	if err := j.openStage(); err != nil {
		return err
	}
	defer func() { j.closeStage() }()
	return b.output(func(w io.Writer) error {
		packed, err := pack(w, b.Passphrase)
		if err != nil {
			return err
		}
		if err := save(ctx, packed); err != nil {
			return errors.Join(err, packed.discard())
		}
		return packed.Close()
	}, j)
}

// output calls write with the place for the backup. A file has its name only when it is
// complete and on disk.
func (b *Backup) output(write func(io.Writer) error, j *job) (err error) {
	if b.To == toStandard {
		if f, ok := b.Out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			return doze.Errorf(doze.Invalid, "a backup is no text for a terminal: lead the standard output elsewhere")
		}
		return write(b.Out)
	}
	older, err := os.Lstat(b.To)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !older.Mode().IsRegular():
		return doze.Errorf(doze.Invalid, "%s is no file: name one, or - for the standard output", b.To)
	default:
		j.say("%s is there, from %s: this backup replaces it when it is complete", b.To, older.ModTime().UTC().Format(time.RFC3339))
	}
	f, err := os.OpenFile(b.To+partial, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return doze.Wrap(err, doze.Conflict, "%s%s is there: another backup is under way, or was killed; remove the file in that case", b.To, partial)
	}
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), b.To)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	j.say("%s is complete: it took %s", b.To, time.Since(j.began).Round(time.Second))
	return durable.Sync(filepath.Dir(b.To))
}

// job is a backup that is being made.
type job struct {
	*Backup

	settings settings.Settings
	dozed    caller
	contents host.Contents
	archive  *Writer
	began    time.Time

	stage string // directory of what dozed copies for us
	lock  *os.File

	saved map[string]bool   // by kind and name
	left  map[string]string // what is missing of a sandbox
}

// say tells the operator how it gets on.
func (j *job) say(format string, args ...any) {
	if !j.Quiet {
		fmt.Fprintf(j.Err, format+"\n", args...)
	}
}

func (j *job) ask(ctx context.Context) (c host.Contents, err error) {
	return c, j.dozed.do(ctx, http.MethodGet, &c, "contents")
}

func readJSON(r io.Reader, out any) error {
	return json.NewDecoder(io.LimitReader(r, answerMax)).Decode(out)
}

// openStage makes a directory for what dozed copies, and removes those of backups that
// were killed. It is on the file system of the sandboxes, which can share files with it.
func (j *job) openStage() error {
	root := filepath.Join(j.settings.Data, Dir)
	if err := os.MkdirAll(root, 0o700); err != nil {
		return err
	}
	var err error
	if j.lock, err = os.Open(root); err != nil {
		return err
	}
	if err := unix.Flock(int(j.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Join(doze.Errorf(doze.Conflict, "another backup of %s is under way: wait for it", j.settings.Data), j.lock.Close())
	}
	old, err := os.ReadDir(root)
	for _, e := range old {
		err = errors.Join(err, os.RemoveAll(filepath.Join(root, e.Name())))
	}
	j.stage = filepath.Join(root, strings.ToLower(rand.Text()))
	for _, dir := range []string{"", sandboxesName, volumesName} {
		err = errors.Join(err, os.Mkdir(filepath.Join(j.stage, dir), 0o700))
	}
	return err
}

func (j *job) closeStage() {
	err := errors.Join(os.RemoveAll(j.stage), os.Remove(filepath.Dir(j.stage)), j.lock.Close())
	if err != nil {
		fmt.Fprintln(j.Err, "what was copied for the backup could not be removed:", err)
	}
}

// write writes all of the archive.
func (j *job) write(ctx context.Context, w io.Writer) (err error) {
	j.archive, err = NewWriter(w, Manifest{Format: Format, Version: j.Version, Made: j.began.UTC(), Data: j.settings.Data, Images: j.contents.ImagesDir})
	if err != nil {
		return err
	}
	if err := j.configuration(ctx); err != nil {
		return err
	}
	for _, name := range stable {
		if err := j.archive.Tree(ctx, path.Join(dataName, name), filepath.Join(j.settings.Data, name), nil); err != nil {
			return err
		}
	}
	j.say("saved keys, engines, agents and logs")
	if err := j.rounds(ctx); err != nil {
		return err
	}
	if err := j.images(ctx); err != nil { // those of the sandboxes that came meanwhile, too
		return err
	}
	return j.archive.Close(j.left)
}

// configuration saves the file of --config, if there is one.
func (j *job) configuration(ctx context.Context) error {
	f := j.config.Lookup("config")
	if f == nil || f.Value.String() == "" {
		return nil
	}
	return j.archive.File(ctx, configName, f.Value.String())
}

// images saves the images that cannot be made again.
func (j *job) images(ctx context.Context) error {
	c, err := j.ask(ctx)
	if err != nil {
		return err
	}
	for _, file := range c.Images {
		rel, err := filepath.Rel(j.contents.ImagesDir, file)
		if err != nil {
			return err
		}
		if err := j.archive.File(ctx, path.Join(imagesName, filepath.ToSlash(rel)), file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	j.say("saved %d images", len(c.Images)/2)
	return nil
}

// rounds saves sandboxes, snapshots and volumes, and then the records that name them. What
// comes meanwhile is saved in the next round. What goes meanwhile is no longer named.
func (j *job) rounds(ctx context.Context) error {
	file := filepath.Join(j.stage, recordsName)
	for round := 1; ; round++ {
		if err := j.saveAll(ctx); err != nil {
			return err
		}
		names, err := j.records(ctx, file)
		if err != nil {
			return err
		}
		missing := j.missing(names)
		switch {
		case len(missing) == 0:
			j.say("saved the records")
			return j.archive.File(ctx, recordsName, file)
		case round == roundsMax: // a sandbox of which the node knows nothing has no files
			for _, key := range missing {
				kind, name := path.Split(key)
				if kind != sandboxesName+"/" {
					return doze.Errorf(doze.Conflict, "the records name %s, and its files are not there: see dozed doctor", key)
				}
				j.left[name] = "its memory and files: it was being created, or its node has lost it"
				fmt.Fprintf(j.Err, "sandbox %s: not saved: %s\n", name, j.left[name])
			}
			return j.archive.File(ctx, recordsName, file)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(roundPause):
		}
	}
}

// roundPause is how long a sandbox that is being created gets until the next round.
const roundPause = time.Second

// records copies the records of this moment into a file, and returns what they name.
func (j *job) records(ctx context.Context, file string) (n store.Named, err error) {
	for _, name := range []string{file, file + "-wal", file + "-shm"} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return n, err
		}
	}
	from, err := instance.Where(j.settings.Data, j.settings.Database)
	if err != nil {
		return n, err
	}
	if _, err := (store.Copying{From: from, To: file}).Do(ctx); err != nil {
		return n, err
	}
	return store.NamedIn(ctx, file)
}

// missing are the things that the records name and that were not saved.
func (j *job) missing(n store.Named) (keys []string) {
	for kind, names := range map[string][]string{sandboxesName: n.Sandboxes, snapshotsName: n.Snapshots, volumesName: n.Volumes} {
		for _, name := range names {
			if key := kind + "/" + name; !j.saved[key] {
				keys = append(keys, key)
			}
		}
	}
	slices.Sort(keys)
	return keys
}

const snapshotsName = "snapshots"

// saveAll saves what is there and was not saved yet.
func (j *job) saveAll(ctx context.Context) error {
	c, err := j.ask(ctx)
	if err != nil {
		return err
	}
	for _, uid := range c.Sandboxes {
		if err := j.once(sandboxesName, uid, func() (bool, error) { return j.sandbox(ctx, uid) }); err != nil {
			return fmt.Errorf("sandbox %s: %w", uid, err)
		}
	}
	for _, id := range c.Volumes {
		if err := j.once(volumesName, id, func() (bool, error) { return j.volume(ctx, id) }); err != nil {
			return fmt.Errorf("volume %s: %w", id, err)
		}
	}
	entries, err := os.ReadDir(filepath.Join(j.settings.Data, snapshotsName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if err := j.once(snapshotsName, e.Name(), func() (bool, error) { return j.snapshot(ctx, e.Name()) }); err != nil {
			return fmt.Errorf("snapshot %s: %w", e.Name(), err)
		}
	}
	return nil
}

// once calls save for what was not saved yet. Save reports false for what is not there, or
// not yet.
func (j *job) once(kind, name string, save func() (bool, error)) error {
	key := kind + "/" + name
	if j.saved[key] {
		return nil
	}
	done, err := save()
	j.saved[key] = done
	return err
}

// absent reports whether an error says that a thing is gone, or not there yet.
func absent(err error) bool {
	kind := doze.Public(err).Kind
	return kind == doze.NotFound || kind == doze.Conflict
}

// sandbox saves a sandbox with its volumes.
func (j *job) sandbox(ctx context.Context, uid string) (done bool, err error) {
	start, before := time.Now(), j.archive.Written()
	dir := filepath.Join(j.stage, sandboxesName, uid)
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var c copied
	if err := j.dozed.do(ctx, http.MethodPost, &c, filepath.Base(j.stage), sandboxesName, uid); err != nil {
		_, answered := errors.AsType[*doze.Error](err)
		switch {
		case absent(err):
			return false, os.RemoveAll(dir)
		case !answered || ctx.Err() != nil || doze.Public(err).Kind == doze.Exhausted:
			return false, err
		}
		// One sandbox that cannot be copied must not cost the others their backup.
		c.Left = "its memory and files: " + doze.Public(err).Message
	}
	copying := time.Since(start)
	if err := j.archive.Tree(ctx, path.Join(dataName, sandboxesName, uid), dir, func(rel string) bool { return rel == volumesName }); err != nil {
		return false, err
	}
	volumes, err := os.ReadDir(filepath.Join(dir, volumesName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	for _, v := range volumes {
		if err := j.disk(ctx, v.Name(), filepath.Join(dir, volumesName, v.Name())); err != nil {
			return false, err
		}
	}
	if c.Left != "" {
		j.left[uid] = c.Left
		fmt.Fprintf(j.Err, "sandbox %s: not saved: %s\n", uid, c.Left)
		return true, nil
	}
	j.say("saved sandbox %s: %d MB, copied in %s", uid, (j.archive.Written()-before)>>20, copying.Round(time.Millisecond))
	return true, nil
}

// disk saves the copy of a volume. It replaces the one of before, which a sandbox got
// meanwhile.
func (j *job) disk(ctx context.Context, id, file string) error {
	j.saved[volumesName+"/"+id] = true
	return j.archive.File(ctx, path.Join(dataName, volumesName, "images", id+".img"), file)
}

// volume saves a volume that no awake sandbox has.
func (j *job) volume(ctx context.Context, id string) (done bool, err error) {
	file := filepath.Join(j.stage, volumesName, id)
	defer func() {
		if gone := os.Remove(file); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}()
	if err := j.dozed.do(ctx, http.MethodPost, &copied{}, filepath.Base(j.stage), volumesName, id); err != nil {
		if absent(err) {
			return false, nil
		}
		return false, err
	}
	j.say("saved volume %s", id)
	return true, j.disk(ctx, id, file)
}

// snapshot saves a snapshot. Its files never change, and a second name for each of them
// lasts when somebody deletes it.
func (j *job) snapshot(ctx context.Context, id string) (done bool, err error) {
	from, dir := filepath.Join(j.settings.Data, snapshotsName, id), filepath.Join(j.stage, id)
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if _, err := os.Stat(filepath.Join(from, recordName)); err != nil {
		return false, nil // it is being made, or is gone
	}
	err = filepath.WalkDir(from, func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		if e.IsDir() {
			return os.Mkdir(filepath.Join(dir, rel), 0o700)
		}
		return os.Link(name, filepath.Join(dir, rel)) //nolint:gosec // G122: only root writes there
	})
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // it was deleted just now
	}
	if err != nil {
		return false, err
	}
	j.say("saved snapshot %s", id)
	return true, j.archive.Tree(ctx, path.Join(dataName, snapshotsName, id), dir, nil)
}
