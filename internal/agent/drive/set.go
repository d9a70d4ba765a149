package drive

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/proc"
)

const (
	// handOver is how long the file system of a mount may take to appear.
	handOver = 30 * time.Second
	mountMax = doze.DriveMountsMax
)

// Set is the drives that are mounted. Its zero value is none.
type Set struct {
	busy  atomic.Int32
	tasks sync.WaitGroup

	mu     sync.Mutex
	all    map[string]*mount // guarded by mu; by the id that the host gave it
	closed bool              // guarded by mu
}

type mount struct {
	path   string
	owner  Owner
	link   *link
	end    context.CancelFunc
	device *os.File // guarded by the mu of the set; nil until the file system is there
}

// Prepare makes the directory that a drive is mounted on, and waits in the
// background for [Mount] in another process. A path that has a mount is a
// Conflict; if that is a drive nobody serves any more, stale says that it must
// be unmounted first. The same id again changes nothing. The mount lives until
// ctx ends.
func (s *Set) Prepare(ctx context.Context, id, path string, owner Owner) (stale bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return false, doze.Errorf(doze.Unavailable, "the sandbox is stopping")
	case s.all[id] != nil:
		return false, nil
	case len(s.all) >= mountMax:
		return false, doze.Errorf(doze.Conflict, "the sandbox has %d drives, which is the limit: unmount one first", len(s.all))
	}
	kind, err := mountedAt(path)
	switch {
	case err != nil:
		return false, err
	case kind == fuseType:
		stale = true
	case kind != "":
		return false, doze.Errorf(doze.Conflict, "%s is a mount point of something else: choose another path", path)
	default:
		if err := os.MkdirAll(path, 0o755); err != nil { //nolint:gosec // G301: all users of the sandbox pass through it
			return false, doze.Wrap(err, doze.Conflict, "%s cannot be made a directory: %v", path, err)
		}
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket(id), Net: "unix"})
	if err != nil {
		return stale, fmt.Errorf("wait for a file system: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	m := &mount{path: path, owner: owner, link: newLink(), end: cancel}
	if s.all == nil {
		s.all = map[string]*mount{}
	}
	s.all[id] = m
	s.tasks.Go(func() {
		defer cancel()
		s.live(ctx, id, m, ln)
	})
	return stale, nil
}

// live serves a mount from the moment its file system is there until that is
// unmounted.
func (s *Set) live(ctx context.Context, id string, m *mount, ln *net.UnixListener) {
	defer s.drop(id, m)
	_ = ln.SetDeadline(time.Now().Add(handOver)) // a socket always can
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	device, err := receive(ln)
	stop()
	_ = ln.Close() // it may be closed already
	if err != nil {
		return
	}
	s.mu.Lock()
	m.device = device
	gone := ctx.Err() != nil
	s.mu.Unlock()
	if gone {
		_ = device.Close() // its end did not see it
		return
	}
	newServer(device, m.owner, m.link, &s.busy).run(ctx)
	_ = device.Close() // it may be closed already
}

func (s *Set) drop(id string, m *mount) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[id] == m {
		delete(s.all, id)
	}
}

// Serve answers the kernel about a mount over a connection to the host, until
// that or ctx ends. It is NotFound if there is no such mount.
func (s *Set) Serve(ctx context.Context, id string, accept func() (net.Conn, error)) error {
	s.mu.Lock()
	m := s.all[id]
	s.mu.Unlock()
	if m == nil {
		return doze.Errorf(doze.NotFound, "there is no such mount")
	}
	conn, err := accept()
	if err != nil {
		return err
	}
	m.link.serve(ctx, conn)
	return nil
}

// Drop ends a mount whose file system is gone. One that is not there is no
// error.
func (s *Set) Drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.all[id]; m != nil {
		m.stop()
		delete(s.all, id)
	}
}

// stop ends a mount. Preconditions: the mu of its set is held.
func (m *mount) stop() {
	m.link.set(nil, true)
	m.end()
	if m.device != nil {
		_ = m.device.Close() // it may be closed already
	}
}

// Abandon ends all mounts: this is another sandbox now, whose host serves none of
// them. What still uses them gets ENOTCONN.
func (s *Set) Abandon() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.all {
		m.stop()
	}
	clear(s.all)
}

// Close ends all mounts, for good.
func (s *Set) Close() {
	s.Abandon()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.tasks.Wait()
}

// Busy reports whether a process waits for an answer about a drive: what was
// asked of the host should be answered before the sandbox sleeps.
func (s *Set) Busy() bool { return s.busy.Load() > 0 }

// fuseType is the type of our file systems among the mounts.
const fuseType = "fuse"

// mountedAt returns the type of what is mounted on a path; empty if nothing is.
func mountedAt(path string) (kind string, err error) {
	all, err := proc.Root.Mounts()
	for _, m := range all {
		if m.Point == path {
			kind = m.Type // the last one is on top
		}
	}
	return kind, err
}

// socket is where the process that mounts hands over the device: a name without
// a file.
func socket(id string) string { return "@doze-drive-" + id }

// receive takes over the device of a mount.
func receive(ln *net.UnixListener) (*os.File, error) {
	conn, err := ln.AcceptUnix()
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(handOver)); err != nil {
		return nil, err
	}
	rights := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(err, errors.New("a message without a device"))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(err, errors.New("a message without a device"))
	}
	unix.CloseOnExec(fds[0])
	if err := unix.SetNonblock(fds[0], true); err != nil { // so that Close ends a Read
		return nil, errors.Join(err, unix.Close(fds[0]))
	}
	return os.NewFile(uintptr(fds[0]), "/dev/fuse"), nil
}

// Mount mounts the file system that a [Set] has prepared, and hands it over. The
// caller needs the power to mount.
func Mount(id, path string) (err error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the device: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket(id), Net: "unix"})
	if err != nil {
		return fmt.Errorf("find who serves it: %w", err)
	}
	defer func() { _ = conn.Close() }()
	options := fmt.Sprintf("fd=%d,rootmode=40755,user_id=0,group_id=0,default_permissions,allow_other", fd)
	if err := unix.Mount("drive", path, fuseType, unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil); err != nil {
		return errors.Join(fmt.Errorf("hand it over: %w", err), unix.Unmount(path, unix.MNT_DETACH))
	}
	return nil
}

// Unmount takes a file system away: at once if stale says that nobody serves it,
// else only if nobody has a file of it open.
func Unmount(path string, stale bool) error {
	flags := unix.UMOUNT_NOFOLLOW
	if stale {
		flags |= unix.MNT_DETACH
	}
	if kind, err := mountedAt(filepath.Clean(path)); err != nil || kind != fuseType {
		return errors.Join(err, fmt.Errorf("%s is no drive", path))
	}
	return unix.Unmount(path, flags)
}
