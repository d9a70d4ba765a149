// Package watch reports what changes in a directory or, if wanted, in all
// directories below it. It asks the kernel directly: only so is it certain what
// is still watched after directories moved about.
package watch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/dozehq/doze"
)

const (
	// directoriesMax bounds what one watch takes of the kernel's memory.
	directoriesMax = 16384
	bufferSize     = 64 << 10
	fullText       = "there are more than 16384 directories; the others are not watched"
)

// Temporary files of our own writes have these prefixes, which say what the
// rename at the end of the write means. A watch reports that instead of them.
const (
	Creating  = ".doze-new-" // a file that was not there before
	Replacing = ".doze-put-" // a file that was
)

// The operations of events.
const (
	create = "CREATE"
	write  = "WRITE"
	remove = "REMOVE"
	rename = "RENAME" // away; the new name is created
	chmod  = "CHMOD"
)

// Event is one change.
type Event struct {
	Op    string  `json:"op"`   // CREATE, WRITE, REMOVE, RENAME or CHMOD; empty with an error
	Name  string  `json:"name"` // base name
	Path  string  `json:"path"` // absolute directory, without a slash at its end
	Error *string `json:"error"`
}

// Watch is an open watch. It belongs to one goroutine.
type Watch struct {
	root      string
	recursive bool
	ignore    []string // parts of paths

	queue *os.File
	fd    int
	dirs  map[int32]string  // by watch descriptor
	moved map[uint32]string // names of ours that a rename took away, by its cookie
	full  bool              // there are more directories than we watch
	emit  func(Event) error
}

// Open begins to watch root, an absolute path. Paths that contain one of ignore
// are left out. It is Invalid if root is no directory, and Unprocessable if it
// cannot be watched.
func Open(root string, recursive bool, ignore []string) (*Watch, error) {
	info, err := os.Stat(root)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return nil, doze.Wrap(err, doze.Invalid, "no such directory")
	case err != nil:
		return nil, doze.Wrap(err, doze.Unprocessable, "%v", err)
	case !info.IsDir():
		return nil, doze.Errorf(doze.Invalid, "path is not a directory")
	}
	fd, err := syscall.InotifyInit1(syscall.IN_NONBLOCK | syscall.IN_CLOEXEC)
	if err != nil {
		return nil, doze.Wrap(err, doze.Unprocessable, "too many watches are open: %v", err)
	}
	w := &Watch{
		root:      root,
		recursive: recursive,
		ignore:    ignore,
		queue:     os.NewFile(uintptr(fd), "inotify"),
		fd:        fd,
		dirs:      map[int32]string{},
		moved:     map[uint32]string{},
		emit:      func(Event) error { return nil }, // what is there already is no news
	}
	if err := w.add(root); err != nil {
		w.Close()
		return nil, doze.Wrap(err, doze.Unprocessable, "watch: %v", err)
	}
	return w, nil
}

// Close ends the watch.
func (w *Watch) Close() { _ = w.queue.Close() } // nothing is buffered

// mask is what we ask of the kernel.
const mask = syscall.IN_CREATE | syscall.IN_MODIFY | syscall.IN_DELETE | syscall.IN_ATTRIB |
	syscall.IN_MOVED_FROM | syscall.IN_MOVED_TO | syscall.IN_DELETE_SELF | syscall.IN_MOVE_SELF |
	syscall.IN_ONLYDIR | syscall.IN_EXCL_UNLINK

// add watches a directory and, if wanted, those below it. What it finds there
// is reported, since it may have come before the watch.
func (w *Watch) add(dir string) error {
	if len(w.dirs) >= directoriesMax {
		if w.full {
			return nil
		}
		w.full = true
		return w.trouble(fullText)
	}
	flags := uint32(mask)
	if dir != w.root {
		flags |= syscall.IN_DONT_FOLLOW
	}
	wd, err := syscall.InotifyAddWatch(w.fd, dir, flags)
	switch {
	case err != nil && dir == w.root:
		return err
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.ENOMEM):
		return w.trouble("the system watches as many directories as it can; " + dir + " is not watched")
	case err != nil:
		return nil //nolint:nilerr // it is gone, or no directory any more
	}
	w.dirs[int32(wd)] = dir //nolint:gosec // the kernel's are 32 bits
	if !w.recursive {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil //nolint:nilerr // it is gone
	}
	for _, e := range entries {
		full := path.Join(dir, e.Name())
		if w.ignored(full) {
			continue
		}
		if err := w.report(create, full); err != nil {
			return err
		}
		if e.IsDir() {
			if err := w.add(full); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *Watch) ignored(full string) bool {
	for _, part := range w.ignore {
		if strings.Contains(full, part) {
			return true
		}
	}
	name := path.Base(full)
	return strings.HasPrefix(name, Creating) || strings.HasPrefix(name, Replacing)
}

// drop ends the watches at and below a directory that moved away.
func (w *Watch) drop(dir string) {
	maps.DeleteFunc(w.dirs, func(wd int32, d string) bool {
		gone := d == dir || strings.HasPrefix(d, dir+"/")
		if gone {
			_, _ = syscall.InotifyRmWatch(w.fd, uint32(wd)) //nolint:gosec // never negative; it may be gone
		}
		return gone
	})
}

func (w *Watch) report(op, full string) error {
	if w.ignored(full) {
		return nil
	}
	return w.emit(Event{Op: op, Name: path.Base(full), Path: path.Dir(full)})
}

// trouble reports that the events are not complete.
func (w *Watch) trouble(text string) error {
	return w.emit(Event{Name: path.Base(w.root), Path: path.Dir(w.root), Error: &text})
}

// Run calls emit for every event and idle when there was none for a while. It
// returns when the root is gone (nil), with the error of emit or idle, or with
// that of ctx.
func (w *Watch) Run(ctx context.Context, emit func(Event) error, silence time.Duration, idle func() error) error {
	w.emit = emit
	if w.full { // nobody heard it when it was found
		if err := w.trouble(fullText); err != nil {
			return err
		}
	}
	defer context.AfterFunc(ctx, func() { _ = w.queue.SetReadDeadline(time.Unix(1, 0)) })()
	buf := make([]byte, bufferSize)
	for {
		_ = w.queue.SetReadDeadline(time.Now().Add(silence)) // the read reports what is wrong
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := w.queue.Read(buf)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			if err := idle(); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		for rest := buf[:n]; len(rest) > 0; {
			var e notice
			if e, rest = parse(rest); e.wd == 0 {
				break
			}
			if over, err := w.handle(e); over || err != nil {
				return err
			}
		}
	}
}

// notice is what the kernel says.
type notice struct {
	wd     int32 // -1 for none; 0 for nonsense
	mask   uint32
	cookie uint32
	name   string
}

// parse cuts one notice off b. What is not one ends the buffer.
func parse(b []byte) (n notice, rest []byte) {
	const head = syscall.SizeofInotifyEvent // four words: wd, mask, cookie, length of the name
	if len(b) < head {
		return notice{}, nil
	}
	size := binary.NativeEndian.Uint32(b[12:])
	if int64(size) > int64(len(b)-head) {
		return notice{}, nil
	}
	name, _, _ := bytes.Cut(b[head:head+int(size)], []byte{0})
	return notice{
		wd:     int32(binary.NativeEndian.Uint32(b)), //nolint:gosec // it is one
		mask:   binary.NativeEndian.Uint32(b[4:]),
		cookie: binary.NativeEndian.Uint32(b[8:]),
		name:   string(name),
	}, b[head+int(size):]
}

// handle reports a notice. over means that the root is gone.
func (w *Watch) handle(n notice) (over bool, err error) {
	if n.mask&syscall.IN_Q_OVERFLOW != 0 {
		if err := w.trouble("changes came faster than they were read; some are lost"); err != nil {
			return false, err
		}
		return false, w.refresh()
	}
	dir, known := w.dirs[n.wd]
	switch {
	case !known:
		return false, nil // of a watch that we have dropped
	case n.mask&syscall.IN_IGNORED != 0:
		delete(w.dirs, n.wd)
		return dir == w.root, nil
	case n.name == "":
		return w.itself(dir, n.mask)
	}
	full := path.Join(dir, n.name)
	isDir := n.mask&syscall.IN_ISDIR != 0
	switch {
	case n.mask&syscall.IN_CREATE != 0:
		return false, w.appeared(full, isDir)
	case n.mask&syscall.IN_MOVED_TO != 0:
		return false, w.arrived(full, isDir, n.cookie)
	case n.mask&syscall.IN_MOVED_FROM != 0:
		if w.ours(n) {
			return false, nil
		}
		if isDir {
			w.drop(full)
		}
		return false, w.report(rename, full)
	case n.mask&syscall.IN_DELETE != 0:
		return false, w.report(remove, full)
	case n.mask&syscall.IN_MODIFY != 0:
		return false, w.report(write, full)
	case n.mask&syscall.IN_ATTRIB != 0:
		return false, w.report(chmod, full)
	}
	return false, nil
}

// itself reports what happened to a watched directory. What its parent reports
// as well is left to that.
func (w *Watch) itself(dir string, mask uint32) (over bool, err error) {
	if dir != w.root {
		return false, nil
	}
	switch {
	case mask&(syscall.IN_DELETE_SELF|syscall.IN_UNMOUNT) != 0:
		return true, w.report(remove, dir)
	case mask&syscall.IN_MOVE_SELF != 0:
		return true, w.report(rename, dir)
	case mask&syscall.IN_ATTRIB != 0:
		if _, err := os.Lstat(dir); err == nil { // else it is being removed
			return false, w.report(chmod, dir)
		}
	}
	return false, nil
}

// ours notes that a temporary file of ours goes to its place.
func (w *Watch) ours(n notice) bool {
	if !strings.HasPrefix(n.name, Creating) && !strings.HasPrefix(n.name, Replacing) {
		return false
	}
	clear(w.moved) // the other half of a rename comes next, if at all
	w.moved[n.cookie] = n.name
	return true
}

func (w *Watch) arrived(full string, isDir bool, cookie uint32) error {
	name, ours := w.moved[cookie]
	if !ours {
		return w.appeared(full, isDir)
	}
	delete(w.moved, cookie)
	if strings.HasPrefix(name, Creating) {
		if err := w.report(create, full); err != nil {
			return err
		}
	}
	return w.report(write, full)
}

// appeared reports a new name, and what is already below it.
func (w *Watch) appeared(full string, isDir bool) error {
	if err := w.report(create, full); err != nil {
		return err
	}
	if !isDir || !w.recursive || w.ignored(full) {
		return nil
	}
	return w.add(full)
}

// refresh watches directories whose coming was lost, without a word.
func (w *Watch) refresh() error {
	emit := w.emit
	w.emit = func(Event) error { return nil }
	defer func() { w.emit = emit }()
	if err := w.add(w.root); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
