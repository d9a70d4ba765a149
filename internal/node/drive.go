package node

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
)

const (
	// driveRetry is the pause after a connection to an agent that ended by
	// itself.
	driveRetry = 200 * time.Millisecond
	// driveRetryMax is the longest one, for an agent that never answers.
	driveRetryMax = 10 * time.Second
	// driveFinish bounds what is written to the bucket when a sandbox ends.
	driveFinish = 5 * time.Minute
	// driveCalls is how many calls about one mount are answered at a time.
	driveCalls = 64
	// drivesName is the directory of what sandboxes write to drives.
	drivesName = "drives"
)

// Drive answers an agent about one part of a drive.
type Drive interface {
	http.Handler
	// Close writes what is not in the bucket yet.
	Close(ctx context.Context) error
}

// drive is one that is mounted in a box.
type drive struct {
	fleet.DriveMount

	files  Drive // nil if the bucket is not there any more
	served bool  // guarded by mu of the box; a goroutine serves it
}

// driveDir is where a mount has what is being written.
func (n *Node) driveDir(uid, id string) string { return filepath.Join(n.dir(uid), drivesName, id) }

// mounts returns what is mounted, by path.
func (b *Box) mounts() (all []fleet.DriveMount) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.drives {
		all = append(all, d.DriveMount)
	}
	slices.SortFunc(all, func(a, b fleet.DriveMount) int { return strings.Compare(a.MountPath, b.MountPath) })
	return all
}

// DriveMounts implements [fleet.Node].
func (n *Node) DriveMounts(_ context.Context, uid string) ([]fleet.DriveMount, error) {
	if b := n.box(uid); b != nil {
		return b.mounts(), nil
	}
	return nil, nil
}

// DriveUsers implements [fleet.Node].
func (n *Node) DriveUsers(_ context.Context, id string) (uids []string, err error) {
	for _, b := range n.all() {
		if slices.ContainsFunc(b.mounts(), func(m fleet.DriveMount) bool { return m.DriveID == id }) {
			uids = append(uids, b.order.UID)
		}
	}
	return uids, nil
}

// openDrives takes over what an earlier process had mounted in a box that nobody
// else has yet.
func (n *Node) openDrives(b *Box, all []fleet.DriveMount) {
	for _, m := range all {
		files, err := n.openDrive(b, m)
		if err != nil {
			slog.Error("a drive is mounted and cannot be reached", "sandbox", b.order.UID, "drive", m.Drive, "err", err)
		}
		b.drives[m.ID] = &drive{DriveMount: m, files: files}
	}
}

func (n *Node) openDrive(b *Box, m fleet.DriveMount) (Drive, error) {
	return n.Drive(m, n.driveDir(b.order.UID, m.ID))
}

// MountDrive implements [fleet.Node]. The record comes first, so that a crash
// leaves no mount that nobody serves.
func (n *Node) MountDrive(ctx context.Context, uid string, m fleet.DriveMount) (_ fleet.DriveMount, err error) {
	b, mach, done, err := n.administer(ctx, uid)
	if err != nil {
		return m, err
	}
	defer done()
	for _, other := range b.mounts() {
		switch {
		case other.MountPath == m.MountPath && other.DriveID == m.DriveID && other.DrivePath == m.DrivePath && sameWay(other, m):
			return other, nil
		case m.Overlaps(other.MountPath):
			return m, doze.Errorf(doze.Conflict, "%s has the drive %s: unmount that first, or choose a path beside it", other.MountPath, other.Drive)
		}
	}
	if len(b.mounts()) >= doze.DriveMountsMax {
		return m, doze.Errorf(doze.Conflict, "the sandbox has %d drives, which is the limit: unmount one first", doze.DriveMountsMax)
	}
	files, err := n.openDrive(b, m)
	if err != nil {
		return m, err
	}
	var u undo
	defer u.unwind(&err)
	after := context.WithoutCancel(ctx)
	u.push(func() error { return n.forgetDrive(after, b, m.ID) })
	b.mu.Lock()
	b.drives[m.ID] = &drive{DriveMount: m, files: files}
	b.mu.Unlock()
	if err := n.keep(b, doze.Running, ""); err != nil {
		return m, fmt.Errorf("write the record: %w", err)
	}
	return m, b.mount(ctx, mach, m)
}

// sameWay reports whether two mounts show a drive to a sandbox alike.
func sameWay(a, b fleet.DriveMount) bool {
	return a.ReadOnly == b.ReadOnly && a.UIDMap == b.UIDMap && a.GIDMap == b.GIDMap
}

// mount has the agent prepare a mount, makes it, and serves it.
func (b *Box) mount(ctx context.Context, mach machine.Machine, m fleet.DriveMount) error {
	out, err := b.agent().PrepareDrive(ctx, agentapi.Mount{ID: m.ID, Path: m.MountPath, UID: m.UID, GID: m.GID})
	if err != nil {
		if agentapi.Refused(err) {
			return doze.Wrap(err, doze.Conflict, "%s cannot be a mount point: it is one of something else, no directory, or the sandbox is older than drives", m.MountPath)
		}
		return err
	}
	if out.Stale {
		if err := mach.Administer(ctx, "-unmount", "-stale", m.MountPath); err != nil {
			return fmt.Errorf("unmount what is in the way: %w", err)
		}
	}
	if err := mach.Administer(ctx, "-mount", m.ID, m.MountPath); err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serveDrives()
	return nil
}

// administer holds a box and its turn, for a change of what is mounted in its
// machine.
func (n *Node) administer(ctx context.Context, uid string) (b *Box, m machine.Machine, done func(), err error) {
	if b = n.box(uid); b == nil {
		return nil, nil, nil, errUnknown
	}
	release, err := b.Hold(ctx, doze.AgentPort)
	if err != nil {
		return nil, nil, nil, err
	}
	if err := b.lock(ctx); err != nil {
		release()
		return nil, nil, nil, err
	}
	done = func() { b.unlock(); release() }
	if m, err = b.handle(ctx); err != nil {
		done()
		return nil, nil, nil, err
	}
	return b, m, done, nil
}

// UnmountDrive implements [fleet.Node].
func (n *Node) UnmountDrive(ctx context.Context, uid, path string) error {
	b, mach, done, err := n.administer(ctx, uid)
	if err != nil {
		return err
	}
	defer done()
	all := b.mounts()
	i := slices.IndexFunc(all, func(m fleet.DriveMount) bool { return m.MountPath == path })
	if i < 0 {
		return doze.Errorf(doze.Internal, "no drive is mounted on %s", path)
	}
	if err := mach.Administer(ctx, "-unmount", path); err != nil {
		return doze.Wrap(err, doze.Internal, "%s is in use: end the processes that have a file of it open, or that work in it, then try again", path)
	}
	return n.forgetDrive(context.WithoutCancel(ctx), b, all[i].ID)
}

// forgetDrive ends a mount whose file system is not there. Preconditions: the
// turn is held.
func (n *Node) forgetDrive(ctx context.Context, b *Box, id string) error {
	ctx, cancel := context.WithTimeout(ctx, driveFinish)
	defer cancel()
	b.mu.Lock()
	d := b.drives[id]
	b.mu.Unlock()
	if err := b.agent().DropDrive(ctx, id); err != nil {
		slog.WarnContext(ctx, "an agent does not know that a drive is gone", "sandbox", b.order.UID, "err", err)
	}
	if d.files != nil {
		if err := d.files.Close(ctx); err != nil {
			return err // what was written is there still
		}
	}
	b.mu.Lock()
	delete(b.drives, id)
	b.mu.Unlock()
	return errors.Join(n.keep(b, doze.Running, ""), os.RemoveAll(n.driveDir(b.order.UID, id)))
}

// dropDrives ends the mounts of a box without a machine. Preconditions: the turn
// is held, or nobody else has the box.
func (n *Node) dropDrives(ctx context.Context, b *Box) {
	ctx, cancel := context.WithTimeout(ctx, driveFinish)
	defer cancel()
	b.mu.Lock()
	all := slices.Collect(maps.Values(b.drives))
	clear(b.drives)
	b.mu.Unlock()
	for _, d := range all {
		if d.files == nil {
			continue
		}
		if err := d.files.Close(ctx); err != nil {
			slog.ErrorContext(ctx, "what a sandbox wrote to a drive is lost with it", "sandbox", b.order.UID, "drive", d.Drive, "err", err)
		}
	}
}

// serveDrives serves what is mounted in a box that runs. Preconditions: mu is
// held.
func (b *Box) serveDrives() {
	for _, d := range b.drives {
		if b.phase == doze.Running && !d.served && d.files != nil {
			d.served = b.spawn(func() { b.serveDrive(d) })
		}
	}
}

// serveDrive answers the agent about a drive as long as the box runs. Every
// sleep ends the connection, and the wake after it makes another one.
func (b *Box) serveDrive(d *drive) {
	for wait := driveRetry; ; wait = min(2*wait, driveRetryMax) {
		began := time.Now()
		err := b.carry(d)
		if time.Since(began) > driveRetryMax {
			wait = driveRetry // it worked
		}
		b.mu.Lock()
		if b.phase != doze.Running || b.drives[d.ID] != d || b.life.Err() != nil {
			d.served = false
			b.mu.Unlock()
			return
		}
		b.mu.Unlock()
		if errors.Is(err, agentapi.ErrNoMount) {
			b.disown(d)
			return
		}
		slog.Debug("a drive is connected again", "sandbox", b.order.UID, "drive", d.Drive, "err", err)
		select {
		case <-time.After(wait):
		case <-b.life.Done():
		}
	}
}

// disown forgets a mount that its sandbox does not have: a process ended between
// its record and the mount.
func (b *Box) disown(d *drive) {
	if b.lock(b.life) != nil {
		return // the next process finds it so, too
	}
	defer b.unlock()
	b.mu.Lock()
	mine := b.drives[d.ID] == d
	b.mu.Unlock()
	if !mine {
		return // it was being unmounted
	}
	if err := b.n.forgetDrive(b.life, b, d.ID); err != nil {
		slog.Error("a drive that is not mounted is on record", "sandbox", b.order.UID, "drive", d.Drive, "err", err)
	}
}

// carry answers calls over one connection, until that ends.
func (b *Box) carry(d *drive) error {
	ctx, cancel := context.WithTimeout(b.life, dialTimeout)
	defer cancel()
	conn, err := b.dial(ctx, doze.AgentPort)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	from, err := agentapi.ServeDriveOver(ctx, conn, d.ID)
	if err != nil {
		return err
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	one := &single{conn: make(chan net.Conn, 1), ended: make(chan struct{}), addr: conn.LocalAddr()}
	one.conn <- &singleConn{Conn: conn, from: from, end: sync.OnceFunc(func() { close(one.ended) })}
	srv := &http.Server{ //nolint:gosec // G112: the connection is our own, and silent until a process uses the drive
		Handler: d.files, Protocols: &protocols,
		HTTP2:    &http.HTTP2Config{MaxConcurrentStreams: driveCalls},
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	defer func() { _ = srv.Close() }()
	return srv.Serve(one)
}

// single is a listener with one connection. It ends with that.
type single struct {
	conn  chan net.Conn
	ended chan struct{}
	addr  net.Addr
}

// Accept implements [net.Listener].
func (s *single) Accept() (net.Conn, error) {
	select {
	case c := <-s.conn:
		return c, nil
	case <-s.ended:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (*single) Close() error { return nil }

// Addr implements [net.Listener].
func (s *single) Addr() net.Addr { return s.addr }

// singleConn is a connection of which a part was read already.
type singleConn struct {
	net.Conn

	from *bufio.Reader
	end  func()
}

func (c *singleConn) Read(b []byte) (int, error) { return c.from.Read(b) }

func (c *singleConn) Close() error {
	c.end()
	return c.Conn.Close()
}
