package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine"
)

// Names in a machine's directory. A checkpoint is made beside its place, gets there
// in one rename, and leaves in another to dirStale, so that there is never a
// doubt which one counts.
const (
	dirCheckpoint = "image"
	dirStale      = "image.stale"
	dirLast       = "image.last"    // the checkpoint that a machine woke from, if it may go back to it
	fileBegun     = "image.begun"   // the file of pages of a checkpoint that was stopped
	dirNext       = "image.next"    // a checkpoint of a machine that runs on, until it is the last one
	dirPrecopy    = "image.precopy" // memory that was copied while the machine ran
	fileRan       = "image.ran"     // the machine ran since its checkpoint, which it may go back to
	unmade        = ".making"       // behind the name of what is being made
)

// Dir is where the checkpoint of a sleeping machine is.
func Dir(c machine.Config) string { return filepath.Join(c.Dir, dirCheckpoint) }

// Making is where the checkpoint of dir is made.
func Making(dir string) string { return dir + unmade }

// Last is where the checkpoint is that a machine woke from, if it may go back to it.
func Last(c machine.Config) string { return filepath.Join(c.Dir, dirLast) }

// Next is where a new checkpoint of a machine that runs on is made, for [Renew].
func Next(c machine.Config) string { return filepath.Join(c.Dir, dirNext) }

// Precopy is where memory is that was copied while the machine ran: layers and an
// index, and nothing else. The next checkpoint shares what is still the same.
func Precopy(c machine.Config) string { return filepath.Join(c.Dir, dirPrecopy) }

func stale(c machine.Config) string { return filepath.Join(c.Dir, dirStale) }

// Has reports whether a committed checkpoint is there, and its size.
func Has(c machine.Config) (bytes int64, ok bool) { return Size(Dir(c)) }

// Size reports whether a committed checkpoint is in dir, and its size.
func Size(dir string) (bytes int64, ok bool) {
	return weigh(dir, func(os.FileInfo) bool { return true })
}

// Freed reports whether a committed checkpoint is in dir, and how much of the disk
// its end would give back: files that another checkpoint has too stay.
func Freed(dir string) (bytes int64, ok bool) {
	return weigh(dir, unshared)
}

// unshared reports whether no other checkpoint has a file, too.
func unshared(info os.FileInfo) bool {
	st, is := info.Sys().(*syscall.Stat_t)
	return is && st.Nlink == 1
}

// weigh reports whether a committed checkpoint is in dir, and how much of the host's disk
// those of its files take that count. The disk of the machine does not.
func weigh(dir string, counts func(os.FileInfo) bool) (bytes int64, ok bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, false
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		if counts(info) && e.Name() != FileDisk { // which may share its blocks
			bytes += allocated(info)
		}
		ok = ok || e.Name() == FileManifest
	}
	return bytes, ok
}

// statBlock is the unit of stat's blocks, whatever the file system's is.
const statBlock = 512

// allocated is how much of the disk a file takes: checkpoints have holes.
func allocated(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * statBlock
	}
	return info.Size()
}

// retired is where the checkpoint of a machine goes when it wakes.
func retired(c machine.Config) string {
	if c.GoBack {
		return Last(c)
	}
	return stale(c)
}

// Retire makes a checkpoint count no more, at once and in one step; what takes
// time, giving its blocks back, is Sweep's work.
func Retire(c machine.Config) error {
	if err := failpoint.Reach(failpoint.Retire, c.ID); err != nil {
		return err
	}
	if _, err := os.Lstat(Dir(c)); errors.Is(err, fs.ErrNotExist) {
		return UnmarkRan(c) // it was retired before
	}
	to := retired(c)
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("remove an old checkpoint: %w", err)
	}
	if err := os.Rename(Dir(c), to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("retire the checkpoint: %w", err)
	}
	return UnmarkRan(c)
}

// MarkRan says that the machine runs out of its checkpoint, which counts until all
// memory is loaded. What the machine does meanwhile is lost in a crash, and this is
// how anybody can tell.
func MarkRan(c machine.Config) error {
	return os.WriteFile(filepath.Join(c.Dir, fileRan), nil, 0o600)
}

// Ran reports whether the machine ran since its checkpoint.
func Ran(c machine.Config) bool {
	_, err := os.Lstat(filepath.Join(c.Dir, fileRan))
	return err == nil
}

// UnmarkRan undoes MarkRan.
func UnmarkRan(c machine.Config) error {
	if err := os.Remove(filepath.Join(c.Dir, fileRan)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmark the checkpoint: %w", err)
	}
	return nil
}

// IsOther reports whether the checkpoint of a machine is, or may be, a copy of another.
func IsOther(c machine.Config) bool {
	raw, err := os.ReadFile(filepath.Join(Dir(c), FileManifest))
	if err != nil {
		return true
	}
	m, err := unseal(raw)
	return err != nil || m.Other
}

// Outdate makes the last checkpoint of a machine one that nobody goes back to: a
// newer one is complete, or needs the room.
func Outdate(c machine.Config) error {
	if err := RemoveStale(c); err != nil {
		return fmt.Errorf("remove an old checkpoint: %w", err)
	}
	if err := os.Rename(Last(c), stale(c)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("retire the last checkpoint: %w", err)
	}
	return nil
}

// GoBack makes the last checkpoint of a machine without processes its checkpoint
// again, and returns when it was made. Without one it returns [machine.ErrGone].
func GoBack(c machine.Config) (made time.Time, err error) {
	made, err = MadeAt(Last(c))
	if !c.GoBack || errors.Is(err, fs.ErrNotExist) {
		return made, machine.ErrGone
	}
	if err != nil {
		return made, fmt.Errorf("go back: %w", err)
	}
	if err := cmp.Or(UnmarkRan(c), os.Rename(Last(c), Dir(c))); err != nil {
		return made, fmt.Errorf("go back: %w", err)
	}
	return made, durable.Sync(c.Dir)
}

// MadeAt returns when the checkpoint in dir was made, or the beginning of time if it
// is damaged: the wake refuses it then.
func MadeAt(dir string) (time.Time, error) {
	raw, err := os.ReadFile(filepath.Join(dir, FileManifest))
	if err != nil {
		return time.Time{}, err
	}
	m, err := unseal(raw)
	if err != nil {
		return time.Unix(0, 0), nil //nolint:nilerr // see above
	}
	return m.Made, nil
}

// Discount makes a checkpoint count no more that is older than what runs. What
// keeps it from being renamed may not keep it from being removed.
func Discount(c machine.Config) error {
	c.GoBack = c.GoBack && !IsOther(c)
	err := Retire(c)
	if err == nil {
		return nil
	}
	if gone := cmp.Or(os.Remove(filepath.Join(Dir(c), FileManifest)), os.RemoveAll(Dir(c)), UnmarkRan(c)); gone != nil {
		return errors.Join(err, gone)
	}
	return nil
}

// TakeBack undoes Retire.
func TakeBack(c machine.Config) error {
	if err := os.Rename(retired(c), Dir(c)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("take back the checkpoint: %w", err)
	}
	return nil
}

// Sweep removes what counts no more, or does not yet.
func Sweep(c machine.Config) error {
	if err := failpoint.Reach(failpoint.Sweep, c.ID); err != nil {
		return err
	}
	if _, newer := Has(c); newer || !c.GoBack {
		if err := Outdate(c); err != nil {
			return err
		}
	}
	return cmp.Or(RemoveStale(c), Cancel(Dir(c)), DropPrecopy(c), DropNext(c))
}

// DropPrecopy removes what was copied while the machine ran.
func DropPrecopy(c machine.Config) error { return Discard(Precopy(c)) }

// DropNext removes what [Next] says of a machine.
func DropNext(c machine.Config) error { return Discard(Next(c)) }

// Renew makes the complete checkpoint in [Next] the last one, in one step, and removes
// the one of before.
func Renew(c machine.Config) error {
	if err := failpoint.Reach(failpoint.Renew, c.ID); err != nil {
		return err
	}
	err := unix.Renameat2(unix.AT_FDCWD, Next(c), unix.AT_FDCWD, Last(c), unix.RENAME_EXCHANGE)
	if errors.Is(err, fs.ErrNotExist) { // there was none
		err = os.Rename(Next(c), Last(c))
	}
	if err != nil {
		return fmt.Errorf("renew the last checkpoint: %w", err)
	}
	if err := durable.Sync(c.Dir); err != nil {
		return fmt.Errorf("renew the last checkpoint: %w", err)
	}
	return DropNext(c)
}

// RemoveStale gives back the blocks of a checkpoint that counts no more.
func RemoveStale(c machine.Config) error { return os.RemoveAll(stale(c)) }
