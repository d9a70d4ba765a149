package drive

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/dozehq/doze/internal/drive/op"
)

// A Mount answers one sandbox about one part of a drive, and about nothing else:
// what the sandbox sends is believed in nothing but paths below that part.
type Mount struct {
	files    files
	readOnly bool
	dir      string // of its drafts

	mu     sync.Mutex
	serial uint64            // guarded by mu; of drafts
	drafts map[string]*draft // guarded by mu; by path
	users  map[uint64]*draft // guarded by mu; by handle
}

// Mount returns a part of a drive, a clean path that begins with a slash. Mount makes
// the directory dir for files that are being written. It may have files that an earlier
// mount left.
func (b *Bucket) Mount(id, part string, readOnly bool, dir string) (*Mount, error) {
	root := prefix(id) + strings.TrimPrefix(path.Clean(part)+"/", "/")
	if part == "/" {
		root = prefix(id)
	}
	m := &Mount{files: files{b, root}, readOnly: readOnly, dir: dir, drafts: map[string]*draft{}, users: map[uint64]*draft{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	all, err := loadDrafts(dir)
	if err != nil {
		return nil, err
	}
	for _, d := range all {
		if n, err := strconv.ParseUint(d.name, 10, 64); err == nil {
			m.serial = max(m.serial, n)
		}
		if d.path != "" {
			m.drafts[d.path] = d
		}
		for _, u := range d.users {
			m.users[u] = d
		}
	}
	return m, nil
}

// Close writes what is not in the bucket yet, and forgets who had it open.
func (m *Mount) Close(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := map[*draft]bool{}
	for _, d := range m.drafts {
		all[d] = true
	}
	for _, d := range m.users { // some have no path any more
		all[d] = true
	}
	var errs []error
	for d := range all {
		d.mu.Lock()
		err := m.upload(ctx, d)
		if err == nil {
			err = d.discard()
		}
		d.mu.Unlock()
		errs = append(errs, err)
	}
	clear(m.drafts)
	clear(m.users)
	return errors.Join(errs...)
}

// changes are the calls that a read-only mount refuses.
var changes = []op.Name{op.Write, op.Truncate, op.Mkdir, op.Unlink, op.Rmdir, op.Rename}

// ServeHTTP answers a call of package op.
func (m *Mount) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, err := op.Parse(r)
	var data []byte
	if err == nil {
		data, err = op.ReadBody(http.MaxBytesReader(w, r.Body, op.DataMax), r.ContentLength)
	}
	if err == nil && m.readOnly && (slices.Contains(changes, c.Op) || c.Op == op.Open && (c.Write || c.Create || c.Truncate)) {
		err = syscall.EROFS
	}
	var a op.Answer
	var out []byte
	if err == nil {
		a, out, err = m.answer(r.Context(), c, data)
	}
	if err != nil {
		op.Refuse(w, errnoOf(err))
		return
	}
	if c.Op != op.Read {
		if out, err = json.Marshal(a); err != nil {
			op.Refuse(w, syscall.EIO)
			return
		}
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(out)))
	_, _ = w.Write(out) //nolint:gosec // G705: bytes for an agent, which shows them to no browser; one that has gone asks again
}

func (m *Mount) answer(ctx context.Context, c op.Call, data []byte) (a op.Answer, out []byte, err error) {
	switch c.Op {
	case op.Stat:
		a.Node, err = m.stat(ctx, c)
	case op.List:
		a.Nodes, err = m.list(ctx, c.Path)
	case op.Open:
		a.Node, err = m.open(ctx, c)
	case op.Read:
		out, err = m.read(ctx, c)
	case op.Write:
		err = m.write(c, data)
	case op.Flush:
		err = m.flush(ctx, c.Handle)
	case op.Release:
		err = m.release(ctx, c.Handle)
	case op.Truncate:
		a.Node, err = m.truncate(ctx, c)
	case op.Mkdir:
		a.Node, err = m.mkdir(ctx, c)
	case op.Unlink:
		err = m.unlink(ctx, c)
	case op.Rmdir:
		err = again(c, m.rmdir(ctx, c.Path), syscall.ENOENT)
	case op.Rename:
		err = m.rename(ctx, c)
	default:
		err = syscall.ENOSYS
	}
	return a, out, err
}

// again is err, unless it says that a call that was sent before has done its
// work.
func again(c op.Call, err error, done syscall.Errno) error {
	if c.Again && err != nil && errors.Is(err, done) {
		return nil
	}
	return err
}

// at returns the draft of a handle, or of a path; nil if there is none.
func (m *Mount) at(handle uint64, name string) (*draft, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if handle == 0 {
		return m.drafts[name], nil
	}
	if d := m.users[handle]; d != nil {
		return d, nil
	}
	return nil, syscall.EBADF
}

func (m *Mount) stat(ctx context.Context, c op.Call) (op.Node, error) {
	d, err := m.at(c.Handle, c.Path)
	if err != nil {
		return op.Node{}, err
	}
	if d == nil {
		return m.files.stat(ctx, c.Path)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.node()
}

// list returns a directory, with the files in it that are not in the bucket yet.
func (m *Mount) list(ctx context.Context, name string) ([]op.Node, error) {
	nodes, err := m.files.list(ctx, name)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for p := range m.drafts {
		dir, base := path.Split(p)
		if strings.TrimSuffix(dir, "/") == name && !slices.ContainsFunc(nodes, func(n op.Node) bool { return n.Name == base }) {
			nodes = append(nodes, op.Node{Name: base})
		}
	}
	return nodes, nil
}

// open opens a file. One that is written has a draft, with what is in the bucket
// unless that is not wanted.
func (m *Mount) open(ctx context.Context, c op.Call) (op.Node, error) {
	if !c.Write {
		n, err := m.stat(ctx, op.Call{Path: c.Path})
		if err == nil && n.Dir {
			err = syscall.EISDIR
		}
		return n, err
	}
	if _, err := m.files.key(c.Path); err != nil || c.Handle == 0 || c.Path == "" {
		return op.Node{}, orErr(err, syscall.EINVAL)
	}
	if d, err := m.at(c.Handle, ""); err == nil && c.Again { // it is open
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.node()
	}
	d, err := m.draft(ctx, c)
	if err != nil {
		return op.Node{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.Truncate {
		if err := errors.Join(d.file.Truncate(0), d.touch()); err != nil {
			return op.Node{}, err
		}
	}
	return d.node()
}

// draft returns that of a path, and makes it if there is none. The handle has it
// from now on.
func (m *Mount) draft(ctx context.Context, c op.Call) (*draft, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.drafts[c.Path]
	switch {
	case d != nil && c.Exclusive && !c.Again:
		return nil, syscall.EEXIST
	case d != nil:
	case len(m.drafts) >= draftsMax:
		return nil, syscall.ENFILE
	default:
		var err error
		if d, err = m.begin(ctx, c); err != nil {
			return nil, err
		}
		m.drafts[c.Path] = d
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users = append(d.users, c.Handle)
	if err := d.save(); err != nil {
		return nil, err
	}
	m.users[c.Handle] = d
	return d, nil
}

// begin makes a draft. Preconditions: mu is held.
func (m *Mount) begin(ctx context.Context, c op.Call) (*draft, error) {
	n, err := m.files.stat(ctx, c.Path)
	missing := err != nil && errnoOf(err) == syscall.ENOENT
	switch {
	case err != nil && !missing:
		return nil, err
	case missing && !c.Create:
		return nil, syscall.ENOENT
	case err == nil && n.Dir:
		return nil, syscall.EISDIR
	case err == nil && c.Exclusive && !c.Again:
		return nil, syscall.EEXIST
	case n.Size > fileMax:
		return nil, syscall.EFBIG
	}
	m.serial++
	d := &draft{path: c.Path, dirty: missing}
	if err := newDraft(m.dir, strconv.FormatUint(m.serial, 10), d); err != nil {
		return nil, err
	}
	if !missing && !c.Truncate {
		err := d.room(n.Size)
		if err == nil {
			err = m.files.fetch(ctx, c.Path, d.file)
		}
		if err != nil {
			return nil, errors.Join(err, d.discard())
		}
	}
	return d, nil
}

func (m *Mount) read(ctx context.Context, c op.Call) ([]byte, error) {
	if c.Size > op.DataMax {
		return nil, syscall.EINVAL
	}
	d, err := m.at(c.Handle, c.Path)
	if err != nil {
		return nil, err
	}
	if d == nil {
		return m.files.read(ctx, c.Path, c.Offset, c.Size)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	b := make([]byte, c.Size)
	n, err := d.file.ReadAt(b, c.Offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}

func (m *Mount) write(c op.Call, data []byte) error {
	d, err := m.at(c.Handle, "")
	if err != nil || d == nil {
		return orErr(err, syscall.EBADF)
	}
	if c.Offset > fileMax-int64(len(data)) {
		return syscall.EFBIG
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := errors.Join(d.room(int64(len(data))), d.touch()); err != nil {
		return err
	}
	_, err = d.file.WriteAt(data, c.Offset)
	return err
}

// flush writes what a process has written to the bucket.
func (m *Mount) flush(ctx context.Context, handle uint64) error {
	d, err := m.at(handle, "")
	if err != nil || d == nil {
		return orErr(err, syscall.EBADF)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return m.upload(ctx, d)
}

// upload writes a draft to the bucket, if that has something else. Preconditions:
// its mu is held.
func (m *Mount) upload(ctx context.Context, d *draft) error {
	if !d.dirty || d.path == "" {
		return nil
	}
	info, err := d.file.Stat()
	if err != nil {
		return err
	}
	if err := m.files.put(ctx, d.path, io.NewSectionReader(d.file, 0, info.Size()), info.Size()); err != nil {
		return err
	}
	d.dirty = false
	return d.save()
}

// release notes that a handle is not used any more. What could not be written to
// the bucket stays a draft, until somebody opens the file again, or the mount
// ends.
func (m *Mount) release(ctx context.Context, handle uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.users[handle]
	if d == nil {
		return nil // it was sent before
	}
	delete(m.users, handle)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.users = slices.DeleteFunc(d.users, func(u uint64) bool { return u == handle })
	if len(d.users) > 0 {
		return d.save()
	}
	if err := m.upload(ctx, d); err != nil {
		slog.Error("a file of a drive is kept until it can be written", "path", d.path, "err", err)
		return d.save()
	}
	if m.drafts[d.path] == d {
		delete(m.drafts, d.path)
	}
	return d.discard()
}

// truncate changes the size of a file, which may be open.
func (m *Mount) truncate(ctx context.Context, c op.Call) (op.Node, error) {
	if c.Size > fileMax {
		return op.Node{}, syscall.EFBIG
	}
	d, err := m.at(c.Handle, c.Path)
	if err != nil {
		return op.Node{}, err
	}
	if d == nil { // it is opened for that
		handle := m.passing()
		if _, err := m.open(ctx, op.Call{Path: c.Path, Handle: handle, Write: true, Truncate: c.Size == 0}); err != nil {
			return op.Node{}, err
		}
		n, err := m.truncate(ctx, op.Call{Handle: handle, Size: c.Size})
		return n, errors.Join(err, m.flush(ctx, handle), m.release(ctx, handle))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := errors.Join(d.file.Truncate(c.Size), d.touch()); err != nil {
		return op.Node{}, err
	}
	return d.node()
}

// passing returns a handle that no sandbox has: theirs are chosen at random.
func (m *Mount) passing() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		if handle := rand.Uint64(); handle != 0 && m.users[handle] == nil { //nolint:gosec // G404: it only must not be in use
			return handle
		}
	}
}

func (m *Mount) mkdir(ctx context.Context, c op.Call) (op.Node, error) {
	_, err := m.stat(ctx, op.Call{Path: c.Path})
	switch {
	case err == nil && !c.Again:
		return op.Node{}, syscall.EEXIST
	case err != nil && errnoOf(err) != syscall.ENOENT:
		return op.Node{}, err
	}
	return op.Node{Dir: true}, m.files.mkdir(ctx, c.Path)
}

// rmdir removes an empty directory: in the bucket, and of drafts.
func (m *Mount) rmdir(ctx context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for p := range m.drafts {
		if strings.HasPrefix(p, name+"/") {
			return syscall.ENOTEMPTY
		}
	}
	return m.files.rmdir(ctx, name)
}

// unlink removes a file. Processes that have it open go on with it.
func (m *Mount) unlink(ctx context.Context, c op.Call) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.drafts[c.Path] == nil {
		n, err := m.files.stat(ctx, c.Path)
		if err != nil {
			return again(c, err, syscall.ENOENT)
		}
		if n.Dir {
			return syscall.EISDIR
		}
	}
	if err := m.files.remove(ctx, c.Path); err != nil {
		return err
	}
	return m.orphan(c.Path)
}

// orphan takes its path from a draft. Preconditions: mu is held.
func (m *Mount) orphan(name string) error {
	d := m.drafts[name]
	if d == nil {
		return nil
	}
	delete(m.drafts, name)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.path = ""
	if len(d.users) == 0 {
		return d.discard()
	}
	return d.save()
}

// rename gives a file another path. One that is being written goes on there.
func (m *Mount) rename(ctx context.Context, c op.Call) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.files.key(c.To); err != nil || c.Path == c.To {
		return err
	}
	d := m.drafts[c.Path]
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if err := m.upload(ctx, d); err != nil {
			return err
		}
	}
	if err := m.files.rename(ctx, c.Path, c.To); err != nil {
		return again(c, err, syscall.ENOENT)
	}
	if err := m.orphan(c.To); err != nil || d == nil {
		return err
	}
	delete(m.drafts, c.Path)
	m.drafts[c.To] = d
	d.path = c.To
	return d.save()
}
