package drive

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/drive/op"
)

const (
	// fileMax is how large a file can be that is written: all of it is on the
	// disk of the host meanwhile.
	fileMax = 16 << 30
	// draftsMax is how many files of a mount can be open for writing.
	draftsMax = 1024
	// noteSuffix is of the file that says what a draft is.
	noteSuffix = ".json"
	// newSuffix ends the name of a file that is being written.
	newSuffix = ".new"
	// diskReserve is what must stay free on the disk of the host: what sandboxes
	// write must not keep others from sleeping.
	diskReserve = 1 << 30
)

// A draft is a file that somebody has open for writing, on the disk of the host.
// It outlives this process; the bucket gets it whole, whenever one of those who
// have it closes it.
type draft struct {
	name string // of its file on the host

	mu    sync.Mutex
	file  *os.File // guarded by mu
	path  string   // guarded by mu; empty when it was removed
	dirty bool     // guarded by mu; the bucket has something else
	users []uint64 // guarded by mu; the handles by which it is open
}

// note is what the next process must know of a draft.
type note struct {
	Path  string   `json:"path"`
	Dirty bool     `json:"dirty"`
	Users []uint64 `json:"users"`
}

// newDraft makes one in a directory. Nobody has it yet.
func newDraft(dir, name string, d *draft) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	d.name, d.file = name, f
	return nil
}

// loadDrafts opens those that an earlier process left.
func loadDrafts(dir string) (all []*draft, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		name, isNote := strings.CutSuffix(e.Name(), noteSuffix)
		if !isNote {
			if err := sweep(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
			continue
		}
		d, err := loadDraft(dir, name)
		if err != nil {
			return nil, fmt.Errorf("a file that was being written: %w", err)
		}
		all = append(all, d)
	}
	return all, nil
}

// sweep removes a file without a note: nobody had it when its process ended.
func sweep(name string) error {
	if _, err := os.Stat(name + noteSuffix); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Remove(name)
}

func loadDraft(dir, name string) (*draft, error) {
	raw, err := os.ReadFile(filepath.Join(dir, name+noteSuffix))
	if err != nil {
		return nil, err
	}
	var n note
	if err := json.Unmarshal(raw, &n); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &draft{name: name, file: f, path: n.Path, dirty: n.Dirty, users: n.Users}, nil
}

// save writes down what the next process must know. Preconditions: mu is held.
func (d *draft) save() error {
	raw, err := json.Marshal(note{d.path, d.dirty, d.users})
	if err != nil {
		return err
	}
	name := d.file.Name() + noteSuffix
	if err := os.WriteFile(name+newSuffix, raw, 0o600); err != nil { //nolint:gosec // G703: the name is a number of ours
		return err
	}
	return os.Rename(name+newSuffix, name) //nolint:gosec // G703: likewise
}

// discard removes it. Preconditions: mu is held.
func (d *draft) discard() error {
	name := d.file.Name()
	err := d.file.Close()
	for _, n := range []string{name + noteSuffix, name} {
		if e := os.Remove(n); !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// node is how it looks. Preconditions: mu is held.
func (d *draft) node() (op.Node, error) {
	info, err := d.file.Stat()
	if err != nil {
		return op.Node{}, err
	}
	return op.Node{Size: info.Size(), Modified: info.ModTime().UnixNano()}, nil
}

// room is ENOSPC if there is none for n bytes more on the disk of the host.
// Preconditions: mu is held.
func (d *draft) room(n int64) error {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(d.file.Fd()), &s); err != nil {
		return err
	}
	if free := int64(s.Bavail) * s.Bsize; free-n < diskReserve { //nolint:gosec // G115: no disk has that many blocks
		return syscall.ENOSPC
	}
	return nil
}

// touch notes that the bucket has something else from now on. Preconditions: mu
// is held.
func (d *draft) touch() error {
	if d.dirty {
		return nil
	}
	d.dirty = true
	return d.save()
}
