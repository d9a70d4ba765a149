package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/conn"
	"github.com/dozehq/doze/internal/node/mount"
)

const (
	// driveRetry is the pause after a connection to an agent that ended by
	// itself.
	driveRetry = 200 * time.Millisecond
	// driveRetryMax is the longest one, for an agent that never answers.
	driveRetryMax = 10 * time.Second
	// driveFinish bounds what is written to the bucket when a sandbox ends.
	driveFinish = 5 * time.Minute
	// drivesName is the directory of what sandboxes write to drives.
	drivesName = "drives"
)

// Drive answers an agent about one part of a drive.
type Drive = mount.Files

// driveDir is where a mount has what is being written.
func (n *Node) driveDir(uid, id string) string { return filepath.Join(n.dir(uid), drivesName, id) }

// mounted returns what is mounted, by path.
func (b *Box) mounted() []fleet.DriveMount {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mounts.List()
}

// DriveMounts implements [fleet.Node].
func (n *Node) DriveMounts(_ context.Context, uid string) ([]fleet.DriveMount, error) {
	if b := n.box(uid); b != nil {
		return b.mounted(), nil
	}
	return nil, nil
}

// DriveUsers implements [fleet.Node].
func (n *Node) DriveUsers(_ context.Context, id string) (uids []string, err error) {
	for _, b := range n.all() {
		if slices.ContainsFunc(b.mounted(), func(m fleet.DriveMount) bool { return m.DriveID == id }) {
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
		b.mounts.Add(m, files)
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
	for _, other := range b.mounted() {
		switch {
		case mount.Alike(other, m):
			return other, nil
		case m.Overlaps(other.MountPath):
			return m, doze.Errorf(doze.Conflict, "%s has the drive %s: unmount that first, or choose a path beside it", other.MountPath, other.Drive)
		}
	}
	if len(b.mounted()) >= doze.DriveMountsMax {
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
	b.mounts.Add(m, files)
	b.mu.Unlock()
	if err := n.save(b, doze.Running, ""); err != nil {
		return m, fmt.Errorf("write the record: %w", err)
	}
	return m, mountIn(ctx, b, mach, m)
}

// mountIn has the agent of a box prepare a mount, makes it, and serves it.
func mountIn(ctx context.Context, b *Box, mach machine.Machine, m fleet.DriveMount) error {
	out, err := b.agent().PrepareDrive(ctx, agentapi.Mount{ID: m.ID, Path: m.MountPath, UID: m.UID, GID: m.GID})
	if err != nil {
		if agentapi.Refused(err) {
			return doze.Wrap(err, doze.Conflict, "%s cannot be a mount point: it must be a directory where nothing else is mounted, in a sandbox with an agent that knows drives", m.MountPath)
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
	if err := b.turn.take(ctx); err != nil {
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
	all := b.mounted()
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
	d := b.mounts.Get(id)
	b.mu.Unlock()
	if err := b.agent().DropDrive(ctx, id); err != nil {
		slog.WarnContext(ctx, "an agent does not know that a drive is gone", "sandbox", b.order.UID, "err", err)
	}
	if d.Files != nil {
		if err := d.Files.Close(ctx); err != nil {
			return err // what was written is there still
		}
	}
	b.mu.Lock()
	b.mounts.Remove(id)
	b.mu.Unlock()
	return errors.Join(n.save(b, doze.Running, ""), os.RemoveAll(n.driveDir(b.order.UID, id)))
}

// dropDrives ends the mounts of a box without a machine. Preconditions: the turn
// is held, or nobody else has the box.
func (n *Node) dropDrives(ctx context.Context, b *Box) {
	ctx, cancel := context.WithTimeout(ctx, driveFinish)
	defer cancel()
	b.mu.Lock()
	all := b.mounts.Clear()
	b.mu.Unlock()
	for _, d := range all {
		if d.Files == nil {
			continue
		}
		if err := d.Files.Close(ctx); err != nil {
			slog.ErrorContext(ctx, "what a sandbox wrote to a drive is lost with it", "sandbox", b.order.UID, "drive", d.Drive, "err", err)
		}
	}
}

// serveDrives serves what is mounted in a box that runs. Preconditions: mu is
// held.
func (b *Box) serveDrives() {
	if !b.state.Is(doze.Running) {
		return
	}
	b.mounts.Serve(func(m *mount.Mount) bool {
		return b.life.spawn((&driveServer{b, m}).run)
	})
}

// A driveServer answers the agent of a box about a mount, as long as the box runs.
// Every sleep ends the connection, and the wake after it makes another one.
type driveServer struct {
	b *Box
	*mount.Mount
}

// run serves the mount until the box does not run, or has no such mount.
func (d *driveServer) run() {
	for wait := driveRetry; ; wait = min(2*wait, driveRetryMax) {
		began := time.Now()
		err := d.carry()
		if time.Since(began) > driveRetryMax {
			wait = driveRetry // it worked
		}
		if !d.goesOn() {
			return
		}
		if errors.Is(err, agentapi.ErrNoMount) {
			d.disown()
			return
		}
		slog.Debug("a drive is connected again", "sandbox", d.b.order.UID, "drive", d.Drive, "err", err)
		select {
		case <-time.After(wait):
		case <-d.b.life.Done():
		}
	}
}

// goesOn reports whether the mount is to be served. If not, the next wake may serve
// it.
func (d *driveServer) goesOn() bool {
	d.b.mu.Lock()
	defer d.b.mu.Unlock()
	if d.b.state.Is(doze.Running) && d.b.mounts.Has(d.Mount) && d.b.life.Err() == nil {
		return true
	}
	d.Left()
	return false
}

// disown forgets a mount that its sandbox does not have: a process ended between
// its record and the mount.
func (d *driveServer) disown() {
	b := d.b
	if b.turn.take(b.life) != nil {
		return // the next process finds it so, too
	}
	defer b.unlock()
	b.mu.Lock()
	mine := b.mounts.Has(d.Mount)
	b.mu.Unlock()
	if !mine {
		return // it was being unmounted
	}
	if err := b.n.forgetDrive(b.life, b, d.ID); err != nil {
		slog.Error("a drive that is not mounted is on record", "sandbox", b.order.UID, "drive", d.Drive, "err", err)
	}
}

// carry answers calls over one connection, until that ends.
func (d *driveServer) carry() error {
	ctx, cancel := context.WithTimeout(d.b.life, conn.Timeout)
	defer cancel()
	c, err := d.b.conns.Dial(ctx, doze.AgentPort)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return d.Answer(ctx, c)
}
