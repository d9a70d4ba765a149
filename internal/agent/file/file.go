// Package file answers the calls about files: it reads, writes, lists, searches and
// watches them.
package file

import (
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/account"
	"github.com/dozehq/doze/internal/agent/owner"
	"github.com/dozehq/doze/internal/agent/place"
	"github.com/dozehq/doze/internal/agent/upload"
)

// listMax bounds a listing, which is held in memory.
const listMax = 100_000

// Calls answers the calls about files.
type Calls struct {
	places  place.Finder
	who     account.User
	uploads *upload.Store
	watches atomic.Int32 // streams of changes that are open
}

// New returns the calls about files that belong to a user.
func New(places place.Finder, who account.User, uploads *upload.Store) *Calls {
	return &Calls{places: places, who: who, uploads: uploads}
}

// Owner returns who owns what callers make.
func (c *Calls) Owner() owner.Owner { return owner.Of(c.who) }

// File describes a file in answers (spec 2.15).
type File struct {
	Path         string `json:"path"`
	Name         string `json:"name"`
	Permissions  string `json:"permissions"` // octal
	Size         int64  `json:"size"`        // bytes
	LastModified string `json:"lastModified"`
	Owner        string `json:"owner"` // a name, or a number without one
	Group        string `json:"group"`
}

// Directory is a listing of one level (spec 2.15).
type Directory struct {
	Path           string         `json:"path"`
	Name           string         `json:"name"`
	Files          []File         `json:"files"`
	Subdirectories []Subdirectory `json:"subdirectories"`
}

// Subdirectory is a directory in a listing.
type Subdirectory struct {
	Path string `json:"path"`
	Name string `json:"name"`
}

// Names remembers the names of users and groups for one answer.
type Names struct{ users, groups map[uint32]string }

// NewNames returns names that were not looked up yet.
func NewNames() Names { return Names{map[uint32]string{}, map[uint32]string{}} }

func (o Names) user(id uint32) string {
	if _, ok := o.users[id]; !ok {
		o.users[id] = strconv.FormatUint(uint64(id), 10)
		if u, err := user.LookupId(o.users[id]); err == nil {
			o.users[id] = u.Username
		}
	}
	return o.users[id]
}

func (o Names) group(id uint32) string {
	if _, ok := o.groups[id]; !ok {
		o.groups[id] = strconv.FormatUint(uint64(id), 10)
		if g, err := user.LookupGroupId(o.groups[id]); err == nil {
			o.groups[id] = g.Name
		}
	}
	return o.groups[id]
}

// Describe makes a file out of what the kernel says.
func (o Names) Describe(shown, name string, info fs.FileInfo) File {
	f := File{
		Path:         shown,
		Name:         name,
		Permissions:  strconv.FormatUint(uint64(unixMode(info.Mode())), 8),
		Size:         info.Size(),
		LastModified: info.ModTime().UTC().Format(time.RFC3339Nano),
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		f.Owner, f.Group = o.user(st.Uid), o.group(st.Gid)
	}
	return f
}

// unixMode returns the twelve permission bits of m.
func unixMode(m fs.FileMode) uint32 {
	bits := uint32(m.Perm())
	for _, b := range []struct {
		mode fs.FileMode
		bit  uint32
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if m&b.mode != 0 {
			bits |= b.bit
		}
	}
	return bits
}

// Open opens a file that looked like info. The caller must close it.
func Open(at place.Place, info fs.FileInfo) (*os.File, fs.FileInfo, error) {
	if !info.Mode().IsRegular() {
		return nil, nil, doze.Errorf(doze.Unprocessable, "%s is not a regular file; use a process to read it", at.Shown)
	}
	// It may be another file by now, which must not block the open.
	f, err := os.OpenFile(at.Abs, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, doze.Wrap(err, doze.Unprocessable, "%v", err)
	}
	if info, err = f.Stat(); err != nil || !info.Mode().IsRegular() {
		_ = f.Close() // it was not even read
		return nil, nil, doze.Wrap(err, doze.Unprocessable, "%s is not a regular file any more; try again", at.Shown)
	}
	return f, info, nil
}

// List returns one level of the directory at. Links are files: they are shown,
// not followed.
func List(at place.Place) (Directory, error) {
	entries, err := os.ReadDir(at.Abs)
	if err != nil {
		return Directory{}, doze.Wrap(err, doze.Unprocessable, "%v", err)
	}
	if len(entries) > listMax {
		return Directory{}, doze.Errorf(doze.Unprocessable, "%s has %d entries; at most %d can be listed, so use a process", at.Shown, len(entries), listMax)
	}
	d := Directory{Path: at.Shown, Name: path.Base(at.Abs), Files: []File{}, Subdirectories: []Subdirectory{}}
	names := NewNames()
	for _, e := range entries {
		shown := path.Join(at.Shown, e.Name())
		if e.IsDir() {
			d.Subdirectories = append(d.Subdirectories, Subdirectory{Path: shown, Name: e.Name()})
		} else if info, err := e.Info(); err == nil { // else it is gone by now
			d.Files = append(d.Files, names.Describe(shown, e.Name(), info))
		}
	}
	return d, nil
}

// StatError reports a path that cannot be looked at.
func StatError(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return doze.Wrap(err, doze.NotFound, "%v", err)
	}
	return doze.Wrap(err, doze.Internal, "%v", err)
}
