package drive

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/dozehq/doze/internal/drive/op"
)

// requestsMax is how many requests of the kernel are under way at a time: more
// wait in the kernel.
const requestsMax = 64

// Owner is who all files of a mount belong to.
type Owner struct{ UID, GID uint32 }

// entry is one of a directory that is being read.
type entry struct {
	name string
	id   uint64
	kind uint32
}

// open is a file or a directory that a process has.
type open struct {
	node    uint64
	file    *file   // if it is open for writing
	ahead   *ahead  // if it is a file that is open for reading
	entries []entry // guarded by the mu of the server; of a directory, since its reader began
}

// server answers the kernel about one mount.
type server struct {
	device *os.File
	owner  Owner
	link   *link
	names  *names
	busy   *atomic.Int32 // calls under way, of all mounts
	last   atomic.Uint64 // handle
	held   atomic.Int64  // bytes that the host does not have yet
	ahead  atomic.Int64  // parts that were read ahead
	tasks  sync.WaitGroup

	mu    sync.Mutex
	opens map[uint64]*open // guarded by mu
	files map[uint64]*file // guarded by mu; by their number, those that are open for writing
}

func newServer(device *os.File, owner Owner, l *link, busy *atomic.Int32) *server {
	s := &server{device: device, owner: owner, link: l, names: newNames(), busy: busy, opens: map[uint64]*open{}, files: map[uint64]*file{}}
	s.last.Store(rand.Uint64() >> 1) //nolint:gosec // G404: it only must not meet that of an earlier mount
	return s
}

// run answers until the device is closed, or the file system unmounted.
func (s *server) run(ctx context.Context) {
	defer s.tasks.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	places := make(chan struct{}, requestsMax)
	for {
		room := newRoom()
		n, err := s.device.Read(room[:])
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			if !errors.Is(err, fs.ErrClosed) {
				slog.Info("a drive is not served any more", "err", err)
			}
			return
		}
		r, err := parseRequest(room[:n])
		if err != nil {
			continue // nobody knows whom to answer
		}
		places <- struct{}{}
		s.tasks.Go(func() {
			defer func() { <-places }()
			defer rooms.Put(room)
			s.serve(ctx, r)
		})
	}
}

// serve answers one request.
func (s *server) serve(ctx context.Context, r request) {
	if r.op == opForget || r.op == opForgets {
		return // they have no answer
	}
	s.busy.Add(1)
	body, err := s.answer(ctx, r)
	s.busy.Add(-1)
	// The kernel may have given up on it: there is nobody to tell.
	room := newRoom()
	defer rooms.Put(room)
	_, _ = s.device.Write(reply(room[:0], r.unique, errnoOf(err), body))
}

func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	slog.Warn("a call about a drive", "err", err)
	return syscall.EIO
}

// handlers are what we can do; the kernel does without the rest.
var handlers = map[uint32]func(*server, context.Context, request) ([]byte, error){
	opInit:       func(*server, context.Context, request) ([]byte, error) { return initReply(), nil },
	opStatfs:     func(*server, context.Context, request) ([]byte, error) { return statfsReply(), nil },
	opSetxattr:   (*server).noAttributes,
	opGetxattr:   (*server).noAttributes,
	opListxattr:  (*server).noAttributes,
	opDelxattr:   (*server).noAttributes,
	opAccess:     func(*server, context.Context, request) ([]byte, error) { return nil, nil },
	opFsyncdir:   func(*server, context.Context, request) ([]byte, error) { return nil, nil },
	opLookup:     (*server).lookup,
	opGetattr:    (*server).getattr,
	opSetattr:    (*server).setattr,
	opMkdir:      (*server).mkdir,
	opUnlink:     (*server).unlink,
	opRmdir:      (*server).rmdir,
	opRename:     (*server).rename,
	opOpen:       (*server).openFile,
	opCreate:     (*server).create,
	opRead:       (*server).read,
	opWrite:      (*server).write,
	opFlush:      (*server).flush,
	opFsync:      (*server).flush,
	opRelease:    (*server).release,
	opOpendir:    (*server).opendir,
	opReaddir:    (*server).readdir,
	opReleasedir: (*server).release,
}

// noAttributes tells that S3 keeps no extended attributes. Programs go on
// without them, which they do not after ENOSYS.
func (*server) noAttributes(context.Context, request) ([]byte, error) { return nil, syscall.EOPNOTSUPP }

func (s *server) answer(ctx context.Context, r request) ([]byte, error) {
	do, ok := handlers[r.op]
	if !ok {
		return nil, syscall.ENOSYS
	}
	return do(s, ctx, r)
}

// ask makes a call whose answer is a node.
func (s *server) ask(ctx context.Context, c op.Call) (op.Node, error) {
	var a op.Answer
	_, err := s.link.ask(ctx, c, nil, &a)
	return a.Node, err
}

// child is the path of the first name behind n bytes of fields.
func (s *server) child(r request, n int) (string, error) {
	all, err := r.names(n, 1)
	if err != nil {
		return "", err
	}
	return s.names.below(r.node, all[0])
}

func (s *server) lookup(ctx context.Context, r request) ([]byte, error) {
	path, err := s.child(r, 0)
	if err != nil {
		return nil, err
	}
	if f := s.writtenAt(path); f != nil {
		return entryReply(s.names.id(path), f.look(), s.owner), nil
	}
	n, err := s.ask(ctx, op.Call{Op: op.Stat, Path: path})
	if err != nil {
		return nil, err
	}
	return entryReply(s.names.id(path), n, s.owner), nil
}

func (s *server) getattr(ctx context.Context, r request) ([]byte, error) {
	b, err := r.fields(16)
	if err != nil {
		return nil, err
	}
	c := op.Call{Op: op.Stat}
	if le.Uint32(b)&getHandle != 0 {
		c.Handle = s.writing(le.Uint64(b[8:]))
	}
	return s.attributes(ctx, r.node, c)
}

// attributes asks for those of a file, by its number or an open one.
func (s *server) attributes(ctx context.Context, node uint64, c op.Call) ([]byte, error) {
	f := s.written(node)
	if f != nil && c.Op == op.Stat {
		return attrReply(node, f.look(), s.owner), nil
	}
	path, err := s.names.path(node)
	if err != nil && c.Handle == 0 {
		return nil, err
	}
	c.Path = path
	n, err := s.ask(ctx, c)
	if err != nil {
		return nil, err
	}
	if f != nil {
		f.become(n)
	}
	return attrReply(node, n, s.owner), nil
}

// setattr changes sizes. A bucket knows no owners, modes and times of files.
func (s *server) setattr(ctx context.Context, r request) ([]byte, error) {
	b, err := r.fields(88)
	if err != nil {
		return nil, err
	}
	c, valid := op.Call{Op: op.Stat}, le.Uint32(b)
	if valid&attrHandle != 0 {
		c.Handle = s.writing(le.Uint64(b[8:]))
	}
	if valid&attrSize != 0 {
		c.Op, c.Size = op.Truncate, int64(le.Uint64(b[16:])) //nolint:gosec // G115: the host refuses a negative one
		if err := s.written(r.node).settle(ctx); err != nil {
			return nil, err
		}
	}
	return s.attributes(ctx, r.node, c)
}

func (s *server) mkdir(ctx context.Context, r request) ([]byte, error) {
	path, err := s.child(r, 8)
	if err != nil {
		return nil, err
	}
	n, err := s.ask(ctx, op.Call{Op: op.Mkdir, Path: path})
	if err != nil {
		return nil, err
	}
	return entryReply(s.names.id(path), n, s.owner), nil
}

func (s *server) unlink(ctx context.Context, r request) ([]byte, error) {
	return nil, s.remove(ctx, r, op.Unlink)
}

func (s *server) rmdir(ctx context.Context, r request) ([]byte, error) {
	return nil, s.remove(ctx, r, op.Rmdir)
}

func (s *server) remove(ctx context.Context, r request, how op.Name) error {
	path, err := s.child(r, 0)
	if err != nil {
		return err
	}
	if _, err := s.ask(ctx, op.Call{Op: how, Path: path}); err != nil {
		return err
	}
	s.names.forget(path)
	return nil
}

func (s *server) rename(ctx context.Context, r request) ([]byte, error) {
	all, err := r.names(8, 2)
	if err != nil {
		return nil, err
	}
	from, err := s.names.below(r.node, all[0])
	if err != nil {
		return nil, err
	}
	to, err := s.names.below(le.Uint64(r.body), all[1])
	if err != nil {
		return nil, err
	}
	if err := s.writtenAt(from).settle(ctx); err != nil { // the host gives the bucket what it has
		return nil, err
	}
	if _, err := s.ask(ctx, op.Call{Op: op.Rename, Path: from, To: to}); err != nil {
		return nil, err
	}
	s.names.move(from, to)
	return nil, nil
}

// add gives an open file its handle.
func (s *server) add(handle uint64, o *open) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opens[handle] = o
}

// opened returns an open file; EBADF if there is none.
func (s *server) opened(handle uint64) (*open, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.opens[handle]; o != nil {
		return o, nil
	}
	return nil, syscall.EBADF
}

// writing returns a handle if its file is open for writing, else 0: the host
// knows no others.
func (s *server) writing(handle uint64) uint64 {
	if o, err := s.opened(handle); err == nil && o.file != nil {
		return handle
	}
	return 0
}

func (s *server) openFile(ctx context.Context, r request) ([]byte, error) {
	b, err := r.fields(8)
	if err != nil {
		return nil, err
	}
	path, err := s.names.path(r.node)
	if err != nil {
		return nil, err
	}
	_, handle, err := s.open(ctx, op.Call{Path: path}, le.Uint32(b))
	return openReply(handle), err
}

func (s *server) create(ctx context.Context, r request) ([]byte, error) {
	path, err := s.child(r, 16)
	if err != nil {
		return nil, err
	}
	flags := le.Uint32(r.body)
	c := op.Call{Path: path, Create: true, Exclusive: flags&syscall.O_EXCL != 0}
	n, handle, err := s.open(ctx, c, flags|syscall.O_WRONLY)
	if err != nil {
		return nil, err
	}
	return append(entryReply(s.names.id(path), n, s.owner), openReply(handle)...), nil
}

// open opens the file of a path. If other handles write to it already, the host first gets
// what they wrote.
func (s *server) open(ctx context.Context, c op.Call, flags uint32) (op.Node, uint64, error) {
	handle := s.last.Add(1)
	writes := flags&syscall.O_ACCMODE != syscall.O_RDONLY || flags&syscall.O_TRUNC != 0
	c.Op, c.Write, c.Truncate = op.Open, writes, flags&syscall.O_TRUNC != 0
	if writes {
		c.Handle = handle
	}
	if err := s.writtenAt(c.Path).settle(ctx); err != nil {
		return op.Node{}, handle, err
	}
	n, err := s.ask(ctx, c)
	if err != nil {
		return n, handle, err
	}
	o := &open{node: s.names.id(c.Path)}
	if writes {
		o.file = s.writer(o.node, n)
	} else {
		o.ahead = s.newAhead(n.Size)
	}
	s.add(handle, o)
	return n, handle, nil
}

func (s *server) read(ctx context.Context, r request) ([]byte, error) {
	b, err := r.fields(20)
	if err != nil {
		return nil, err
	}
	c := op.Call{Op: op.Read, Handle: le.Uint64(b)}
	o, err := s.opened(c.Handle)
	if err != nil {
		return nil, err
	}
	path, err := s.names.path(r.node)
	if o.file == nil {
		if err != nil {
			return nil, err
		}
		c.Handle = 0
	}
	at, size := int64(le.Uint64(b[8:])), int64(min(le.Uint32(b[16:]), op.DataMax)) //nolint:gosec // G115: the host refuses a negative one
	f := s.written(r.node)
	if o.ahead != nil && at >= 0 && f == nil {
		return o.ahead.read(ctx, path, at, size)
	}
	if err := f.settle(ctx); err != nil {
		return nil, err
	}
	c.Path, c.Offset, c.Size = path, at, size
	return s.link.ask(ctx, c, nil, nil)
}

func (s *server) write(ctx context.Context, r request) ([]byte, error) {
	b, err := r.fields(40)
	if err != nil {
		return nil, err
	}
	handle, data := le.Uint64(b), b[40:]
	o, err := s.opened(handle)
	at := int64(le.Uint64(b[8:])) //nolint:gosec // G115: see below
	switch {
	case err != nil || o.file == nil || len(data) != int(le.Uint32(b[16:])):
		return nil, syscall.EBADF
	case at < 0 || at > math.MaxInt64-int64(len(data)):
		return nil, syscall.EFBIG
	}
	out := make([]byte, 8)
	le.PutUint32(out, uint32(len(data))) //nolint:gosec // G115: at most DataMax
	return out, o.file.write(ctx, handle, at, data)
}

// flush gives the bucket what was written, for close and fsync.
func (s *server) flush(ctx context.Context, r request) ([]byte, error) {
	b, err := r.fields(8)
	if err != nil {
		return nil, err
	}
	handle := le.Uint64(b)
	o, err := s.opened(handle)
	if err != nil || o.file == nil {
		return nil, nil //nolint:nilerr // nothing was written by it
	}
	if err := o.file.drain(ctx); err != nil {
		return nil, err
	}
	_, err = s.ask(ctx, op.Call{Op: op.Flush, Handle: handle})
	return nil, err
}

func (s *server) release(ctx context.Context, r request) ([]byte, error) {
	b, err := r.fields(8)
	if err != nil {
		return nil, err
	}
	handle := le.Uint64(b)
	if o, opened := s.opened(handle); opened == nil {
		switch {
		case o.file != nil:
			err = o.file.drain(ctx)
			_, gone := s.ask(ctx, op.Call{Op: op.Release, Handle: handle})
			err = errors.Join(err, gone)
			s.leave(o.node, o.file)
		case o.ahead != nil:
			o.ahead.close()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.opens, handle)
	return nil, err
}

func (s *server) opendir(_ context.Context, r request) ([]byte, error) {
	if _, err := s.names.path(r.node); err != nil {
		return nil, err
	}
	handle := s.last.Add(1)
	s.add(handle, &open{})
	return openReply(handle), nil
}

// readdir lists a directory when its reader begins, or begins again. A process that
// only opens files in it asks for no list. A process that removes the files it has read
// sees the rest.
func (s *server) readdir(ctx context.Context, r request) ([]byte, error) {
	b, err := r.fields(20)
	if err != nil {
		return nil, err
	}
	o, err := s.opened(le.Uint64(b))
	if err != nil {
		return nil, err
	}
	from := le.Uint64(b[8:])
	if from == 0 {
		all, err := s.list(ctx, r.node)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		o.entries = all
		s.mu.Unlock()
	}
	s.mu.Lock()
	all := o.entries
	s.mu.Unlock()
	return dirReply(all, from, le.Uint32(b[16:])), nil
}

// list asks for what is in a directory.
func (s *server) list(ctx context.Context, node uint64) ([]entry, error) {
	path, err := s.names.path(node)
	if err != nil {
		return nil, err
	}
	var a op.Answer
	if _, err := s.link.ask(ctx, op.Call{Op: op.List, Path: path}, nil, &a); err != nil {
		return nil, err
	}
	all := []entry{{".", node, syscall.DT_DIR}, {"..", rootID, syscall.DT_DIR}}
	for _, n := range a.Nodes {
		below, err := s.names.below(node, n.Name)
		if err != nil || len(n.Name) > nameMax {
			continue // somebody else put into the bucket what no file is called
		}
		kind := uint32(syscall.DT_REG)
		if n.Dir {
			kind = syscall.DT_DIR
		}
		all = append(all, entry{n.Name, s.names.id(below), kind})
	}
	return all, nil
}
