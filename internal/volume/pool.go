// Package volume stores the volumes of one host. Each is a file with a file system of
// its own, so that a guest sees its size and cannot exceed it. At most one owner uses a
// volume at a time. It knows nothing of sandboxes.
//
// Everything is in one directory, from which the next process goes on. A complete file
// has its final name. The mount points tell which owner has which volume.
package volume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/sparse"
)

// Names in the directory of a pool.
const (
	dirDisks  = "images"
	dirMounts = "mounts" // by owner and volume
	suffix    = ".img"
	unmade    = ".making" // behind the name of what is being made
	// content is the directory in a volume that a guest gets: it does not see
	// what the file system has beside it.
	content = "content"
)

// form is what names of volumes and owners look like.
var form = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,127}$`)

// A Ledger knows how much of the disk is reserved for volumes.
type Ledger interface {
	// Reserve reserves the whole size of a volume, or is Exhausted. The same again
	// costs nothing.
	Reserve(id string, size int64) error
	// Record takes note of a volume that is there.
	Record(id string, size int64)
	// Forget takes a reservation back.
	Forget(id string)
}

// Pool is the volumes of one directory. It is safe for concurrent use.
type Pool struct {
	dir    string
	ledger Ledger

	mu     sync.Mutex
	owners map[string]string   // guarded by mu; by volume
	lent   map[string]*lending // guarded by mu; by volume
}

// Open returns the pool of a directory, with the owners that an earlier process
// left: Sweep takes what is nobody's from them. The ledger gets to know the volumes
// that are there.
func Open(dir string, ledger Ledger) (*Pool, error) {
	p := &Pool{dir: dir, ledger: ledger, owners: map[string]string{}, lent: map[string]*lending{}}
	for _, name := range []string{dirDisks, dirMounts} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			return nil, fmt.Errorf("make the directory of volumes: %w", err)
		}
	}
	mounts, err := filepath.Glob(p.mount("*", "*")) // the pattern is well formed, unless dir is a pattern
	for _, m := range mounts {
		p.owners[filepath.Base(m)] = filepath.Base(filepath.Dir(m))
	}
	ids, bad := p.IDs()
	for _, id := range ids {
		_, size, unreadable := p.Measure(id)
		bad = errors.Join(bad, unreadable)
		ledger.Record(id, size)
	}
	return p, errors.Join(err, bad)
}

// Written is how many bytes all volumes take on the host.
func (p *Pool) Written() (total int64) {
	ids, _ := p.IDs() // without the directory there are none
	for _, id := range ids {
		if n, _, err := p.Measure(id); err == nil { // one that is removed now takes nothing
			total += n
		}
	}
	return total
}

func (p *Pool) disk(id string) string { return filepath.Join(p.dir, dirDisks, id+suffix) }

func (p *Pool) mount(owner, id string) string { return filepath.Join(p.dir, dirMounts, owner, id) }

// check refuses names that are none.
func check(names ...string) error {
	for _, n := range names {
		if !form.MatchString(n) {
			return doze.Errorf(doze.Invalid, "%.80q is no id of a volume", n)
		}
	}
	return nil
}

// Make makes a volume of a size: empty, or with the content of another one that
// nobody has, and that is not larger. One that is there is left as it is.
func (p *Pool) Make(ctx context.Context, id string, size doze.Megabytes, from string) error {
	if err := check(id, cmp.Or(from, id)); err != nil {
		return err
	}
	if _, err := os.Lstat(p.disk(id)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := p.ledger.Reserve(id, size.Bytes()); err != nil {
		return err
	}
	err := p.make(id, func(name string) error {
		if from == "" {
			return format(ctx, name, size)
		}
		return clone(ctx, name, p.disk(from), size)
	})
	if err != nil {
		p.ledger.Forget(id)
	}
	return err
}

// make writes the file of a volume beside its place, and puts it there when it
// is on disk.
func (p *Pool) make(id string, write func(name string) error) (err error) {
	name := p.disk(id)
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(name+unmade))
		}
	}()
	if err := os.RemoveAll(name + unmade); err != nil { // of an attempt that was cut short
		return err
	}
	if err := write(name + unmade); err != nil {
		return err
	}
	if err := durable.Sync(name + unmade); err != nil {
		return err
	}
	if err := os.Rename(name+unmade, name); err != nil {
		return err
	}
	return durable.Sync(filepath.Dir(name))
}

// Resize makes a volume larger. The owner sees that when it is attached the next time.
// A smaller size leaves it as it is.
func (p *Pool) Resize(id string, size doze.Megabytes) error {
	if err := check(id); err != nil {
		return err
	}
	_, was, err := p.Measure(id)
	if err != nil || was >= size.Bytes() {
		return err
	}
	if err := p.ledger.Reserve(id, size.Bytes()); err != nil {
		return err
	}
	if err := lengthen(p.disk(id), size); err != nil {
		p.ledger.Record(id, was)
		return unknown(err)
	}
	return nil
}

// unknown classifies the absence of a volume.
func unknown(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return doze.Wrap(err, doze.NotFound, "the volume is not on the disk of this node")
	}
	return err
}

// Remove removes a volume that nobody has. One that is not there is no error.
func (p *Pool) Remove(id string) error {
	if err := check(id); err != nil {
		return err
	}
	if err := p.claim(id, id); err != nil {
		return err
	}
	defer p.release(id)
	if err := p.erase(id); err != nil {
		return err
	}
	p.ledger.Forget(id)
	return nil
}

// IDs returns all volumes that are complete.
func (p *Pool) IDs() (ids []string, err error) {
	entries, err := os.ReadDir(filepath.Join(p.dir, dirDisks))
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), suffix); ok {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// Measure returns the bytes of the blocks that a volume takes on the host, and
// its size, which is what a guest may fill.
func (p *Pool) Measure(id string) (allocated, reserved int64, err error) {
	if err := check(id); err != nil {
		return 0, 0, err
	}
	var st unix.Stat_t
	if err := unix.Lstat(p.disk(id), &st); err != nil {
		return 0, 0, unknown(&fs.PathError{Op: "lstat", Path: p.disk(id), Err: err})
	}
	return st.Blocks * blockUnit, st.Size, nil
}

// blockUnit is what stat counts blocks in.
const blockUnit = 512

// Copy copies a volume into a new file, as it is now. The file system of a volume that is
// mounted is frozen meanwhile, so that writers wait. Nobody can attach a volume that is
// copied and has no owner.
func (p *Pool) Copy(ctx context.Context, id, file string) (err error) {
	if err := check(id); err != nil {
		return err
	}
	p.mu.Lock()
	owner := p.owners[id]
	if owner == "" {
		p.owners[id] = id
	}
	p.mu.Unlock()
	if owner == "" {
		defer p.release(id)
	} else if at := p.mount(owner, id); mounted(at) {
		if err := freeze(at); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, thaw(at)) }()
	}
	source, err := os.Open(p.disk(id))
	if err != nil {
		return unknown(err)
	}
	defer func() { _ = source.Close() }() // it was read
	target, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(sparse.Clone(ctx, target, source), target.Close())
}

// claim notes the owner of a volume. Of two owners the second is told to wait.
// One that is lent comes back first.
func (p *Pool) claim(id, owner string) error {
	p.reclaim(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.owners[id]; now != "" && now != owner || p.lent[id] != nil {
		return errInUse
	}
	p.owners[id] = owner
	return nil
}

func (p *Pool) release(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.owners, id)
}

// Attach gives a volume to an owner and returns the directory with its files.
// What is read-only is so for everybody who comes by this directory. To attach
// it again is no error, and finds the same directory; after a restart of the
// host it is needed.
func (p *Pool) Attach(ctx context.Context, id, owner string, readOnly bool) (dir string, err error) {
	if err := check(id, owner); err != nil {
		return "", err
	}
	if err := p.claim(id, owner); err != nil {
		return "", err
	}
	at := p.mount(owner, id)
	if err := os.MkdirAll(at, 0o700); err != nil {
		return "", err
	}
	if err := p.settle(ctx, id, at); err != nil {
		return "", errors.Join(err, p.leave(id, owner))
	}
	if readOnly {
		if err := unix.Mount("", at, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|mountFlags, ""); err != nil {
			return "", errors.Join(fmt.Errorf("make a volume read-only: %w", err), p.leave(id, owner))
		}
	}
	return filepath.Join(at, content), nil
}

// settle mounts a volume, unless it is mounted.
func (p *Pool) settle(ctx context.Context, id, at string) error {
	if mounted(at) {
		if err := thaw(at); err != nil { // of a copy that was cut short
			return err
		}
	} else {
		if err := p.unsave(id); err != nil {
			return err
		}
		dev, err := p.device(ctx, id)
		if err != nil {
			return unknown(err)
		}
		defer func() { _ = dev.Close() }() // the mount has it
		if err := unix.Mount(dev.Name(), at, fileSystem, mountFlags, mountOptions); err != nil {
			return unsupported(fmt.Errorf("mount a volume: %w", err))
		}
	}
	if err := os.Mkdir(filepath.Join(at, content), 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // G301: it is the root of what any user inside sees
		return err
	}
	return nil
}

// Detach takes all volumes of an owner back. It is no error if there are none.
func (p *Pool) Detach(owner string) error {
	if err := check(owner); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Dir(p.mount(owner, "any")))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		err = errors.Join(err, p.leave(e.Name(), owner))
	}
	if err != nil {
		return fmt.Errorf("detach the volumes of %s: %w", owner, err)
	}
	return os.Remove(filepath.Dir(p.mount(owner, "any")))
}

// leave takes one volume back. What was written is on disk then.
func (p *Pool) leave(id, owner string) error {
	at := p.mount(owner, id)
	for mounted(at) { // once for each time that it was mounted
		if err := flush(at); err != nil { // the error is of the disk, and nobody is left to tell
			slog.Error("a volume could not be written to the disk", "volume", id, "err", err)
		}
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount: %w", err)
		}
	}
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	p.release(id)
	return nil
}

// Sweep takes back what belongs to owners that keep does not name, and removes
// what a crash left half made. Preconditions: nobody attaches or makes anything.
func (p *Pool) Sweep(live func(owner string) bool) error {
	owners, err := os.ReadDir(filepath.Join(p.dir, dirMounts))
	if err != nil {
		return err
	}
	var errs []error
	for _, o := range owners {
		if !live(o.Name()) {
			slog.Warn("detaching volumes of a machine that nobody knows", "machine", o.Name())
			errs = append(errs, p.Detach(o.Name()))
		}
	}
	ids, err := p.IDs()
	errs = append(errs, err)
	for _, id := range ids {
		if strings.HasPrefix(id, importing) {
			errs = append(errs, p.Remove(id))
		}
	}
	half, _ := filepath.Glob(filepath.Join(p.dir, dirDisks, "*"+unmade)) // the pattern is well formed
	for _, name := range half {
		errs = append(errs, os.RemoveAll(name))
	}
	return errors.Join(errs...)
}
