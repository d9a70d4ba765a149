package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/machine"
)

// savedSnapshot is the record of a snapshot: what a machine that goes on from it needs.
// It is written last, so that a snapshot without one is not complete.
type savedSnapshot struct {
	ID     string `json:"id"`
	Driver string `json:"driver"` // that can read it; records from before there were two have none
	Image  Image  `json:"image"`
	fixed
	Bytes int64     `json:"bytes"`       // on disk
	At    time.Time `json:"at,omitzero"` // of when the memory is; of copies for other nodes
	// Archive says that the copy has an archive instead of a memory; of copies for other nodes.
	Archive bool `json:"archive,omitempty"`
}

// fixed is what a snapshot fixes of a machine: each that goes on from it has the same.
type fixed struct {
	Agent  string  `json:"agent"` // file with the agent that is in the snapshot
	Memory int64   `json:"memory"`
	CPUs   float64 `json:"cpus"`
	Disk   int64   `json:"disk,omitempty"`
}

func fixedOf(c *machine.Config) fixed {
	return fixed{Agent: c.Agent, Memory: c.Memory, CPUs: c.CPUs, Disk: c.Disk}
}

// fix makes a configuration that of a machine which goes on from the snapshot.
func (f *fixed) fix(c *machine.Config) {
	c.Agent, c.Memory, c.CPUs, c.Disk = f.Agent, f.Memory, f.CPUs, f.Disk
}

// copyName is the copy of the machine, below the directory of a snapshot.
const copyName = "copy"

// snapshots are the snapshots of a node on its disk.
type snapshots struct {
	root   string
	driver machine.Driver
}

// dir is where everything of a snapshot is.
func (k *snapshots) dir(id string) string { return filepath.Join(k.root, id) }

// copyDir is where the copy of the machine is.
func (k *snapshots) copyDir(id string) string { return filepath.Join(k.dir(id), copyName) }

// Snapshot implements [fleet.Node].
func (n *Node) Snapshot(ctx context.Context, uid, id string) (int64, error) {
	if !idPattern.MatchString(id) {
		return 0, doze.Errorf(doze.Invalid, "%.80q is no id of a snapshot", id)
	}
	if s, err := n.snapshots.read(id); err == nil {
		return s.Bytes, nil
	}
	b := n.box(uid)
	if b == nil {
		return 0, errUnknown
	}
	s, err := b.copyTo(ctx, &n.snapshots, id)
	return s.Bytes, err
}

// copyTo makes a snapshot of a box.
func (b *Box) copyTo(ctx context.Context, k *snapshots, id string) (s savedSnapshot, err error) {
	if t := b.n.Driver.Traits(); !t.Copies {
		return s, doze.Errorf(doze.Unsupported, "the driver %s makes no snapshots", t.Name)
	}
	ctx, cancel := b.life.bound(ctx)
	defer cancel()
	if err := b.turn.take(ctx); err != nil {
		return s, err
	}
	defer b.unlock()
	return b.copyHeld(ctx, k, id)
}

// copyHeld is copyTo. Preconditions: the turn is held.
func (b *Box) copyHeld(ctx context.Context, k *snapshots, id string) (s savedSnapshot, err error) {
	n, uid := b.n, b.order.UID
	b.mu.Lock()
	err = b.hasMemory()
	b.mu.Unlock()
	if err != nil {
		return s, err
	}
	if len(b.order.Volumes) > 0 && k != &n.away {
		return s, doze.Errorf(doze.Conflict, "a snapshot would leave out the volumes of the sandbox: take one of a sandbox without")
	}
	m, err := b.handle(ctx) // if it is found only now, the next wake decides what it is
	if err != nil {
		return s, missing("the sandbox cannot be copied", fmt.Errorf("find the machine: %w", err))
	}
	if err := b.copyable(m); err != nil {
		return s, err
	}
	release, err := roomFor(ctx, m, n.Room)
	if err != nil {
		return s, fmt.Errorf("make room for the snapshot: %w", err)
	}
	defer release()
	if err := b.precopy(ctx, m); err != nil && ctx.Err() == nil {
		slog.WarnContext(ctx, "a sandbox stands still while all its memory is copied", "sandbox", uid, "err", err)
	}
	s = savedSnapshot{ID: id, Driver: b.made.config.Driver, Image: b.made.image, fixed: fixedOf(&b.made.config), At: b.since(m)}
	freeze := func() (func(), error) {
		return b.freeze("it could not go on after a snapshot, and sleeps until the next request")
	}
	if len(b.order.Volumes) == 0 {
		err = k.take(ctx, m, &s, freeze)
	} else { // they must be of the same moment
		err = still(ctx, m, freeze, func(ctx context.Context) error {
			if err := k.take(ctx, m, &s, nil); err != nil {
				return err
			}
			return b.copyVolumes(ctx, k.dir(id))
		})
	}
	if errors.Is(err, machine.ErrGone) {
		return s, doze.Wrap(err, doze.Conflict, "the sandbox's processes ended while it was copied: see its events, and take the snapshot again when it runs")
	}
	return s, missing("the sandbox cannot be copied", err)
}

// since returns from when on the memory of a machine is as it is now.
func (b *Box) since(m machine.Machine) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.Tier() == machine.Awake || b.state.Is(doze.Running) {
		return time.Now()
	}
	return b.asleep
}

// copyable is a Conflict if a copy of the machine would leave something out.
// Preconditions: the turn is held.
func (b *Box) copyable(m machine.Machine) error {
	if blocked := b.survey(m); blocked != "" {
		return doze.Errorf(doze.Conflict, "a snapshot would leave out %s: put the network inside back as it was, then try again", blocked)
	}
	return nil
}

// copied are the phases of sandboxes that snapshots are taken of. In the others a
// sandbox has no memory, or is about to lose it.
var copied = []doze.Phase{doze.Running, doze.Suspending, doze.Standby, doze.Waking, doze.Disabled}

// hasMemory is a Conflict for a box without. Preconditions: mu is held.
func (b *Box) hasMemory() error {
	if !b.state.Is(copied...) {
		return doze.Errorf(doze.Conflict, "the sandbox is %s", b.state.Phase())
	}
	return nil
}

// freeze lets requests wait until thaw is called. It fails for a box that has
// no memory. If the box does not run any more then, the message says why.
// Preconditions: the turn is held.
func (b *Box) freeze(message string) (thaw func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.hasMemory(); err != nil {
		return nil, err
	}
	b.gate.Freeze()
	return func() {
		b.mu.Lock()
		b.gate.Thaw()
		stuck := b.lieDown(message)
		b.state.Signal()
		b.sinking.arm()
		b.mu.Unlock()
		if stuck {
			b.hangUp() // nothing may write to a connection while it sleeps
		}
	}, nil
}

// take makes the copy and then its record.
func (k *snapshots) take(ctx context.Context, m machine.Machine, s *savedSnapshot, freeze machine.Freeze) (err error) {
	// What an attempt that was cut off left is in the way.
	if err := k.drop(s.ID); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.drop(s.ID))
		}
	}()
	if err := os.MkdirAll(k.dir(s.ID), 0o700); err != nil {
		return fmt.Errorf("make the snapshot's directory: %w", err)
	}
	if err := m.Snapshot(ctx, k.copyDir(s.ID), freeze); err != nil {
		return fmt.Errorf("copy the machine: %w", cause(ctx, err))
	}
	if s.Bytes, err = sizeOf(k.copyDir(s.ID)); err != nil {
		return fmt.Errorf("measure the snapshot: %w", err)
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	// A crash after these lines leaves a snapshot.
	if err := errors.Join(durable.Replace(filepath.Join(k.dir(s.ID), recordName), raw, recordMode), durable.Sync(k.root)); err != nil {
		return fmt.Errorf("write the record of the snapshot: %w", err)
	}
	return nil
}

// sizeOf returns the bytes that all files below a directory take of the disk. The
// memory of a machine has holes: what it never used.
func sizeOf(dir string) (bytes int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		size := info.Size()
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			size = min(size, st.Blocks*blockUnit)
		}
		bytes += size
		return nil
	})
	return bytes, err
}

// DropSnapshot implements [fleet.Node].
func (n *Node) DropSnapshot(_ context.Context, id string) error { return n.snapshots.drop(id) }

// drop removes a snapshot, if it is there.
func (k *snapshots) drop(id string) error {
	if !idPattern.MatchString(id) {
		return nil // there is none
	}
	dir := k.dir(id)
	if err := os.Remove(filepath.Join(dir, recordName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of the snapshot: %w", err)
	}
	if err := k.driver.Discard(k.copyDir(id)); err != nil {
		return fmt.Errorf("remove the snapshot: %w", err)
	}
	return os.RemoveAll(dir)
}

// Snapshots implements [fleet.Node].
func (n *Node) Snapshots(context.Context) (map[string]int64, error) {
	all := map[string]int64{}
	err := n.snapshots.each(func(_ string, s savedSnapshot, err error) error {
		if err == nil {
			all[s.ID] = s.Bytes
		}
		return nil
	})
	return all, err
}

// each calls fn with the record of every snapshot, or with why there is
// none that can be used.
func (k *snapshots) each(fn func(id string, s savedSnapshot, err error) error) error {
	entries, err := os.ReadDir(k.root)
	if err != nil {
		return fmt.Errorf("read the snapshots: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() || !idPattern.MatchString(e.Name()) {
			continue
		}
		s, err := k.read(e.Name())
		if err := fn(e.Name(), s, err); err != nil {
			return err
		}
	}
	return nil
}

// read returns the record of a complete snapshot. Without one the
// error is [fs.ErrNotExist].
func (k *snapshots) read(id string) (s savedSnapshot, err error) {
	raw, err := os.ReadFile(filepath.Join(k.dir(id), recordName))
	if err != nil {
		return s, err
	}
	return parseSnapshot(raw, id)
}

// parseSnapshot reads the record of a snapshot. One that cannot be ours is errDamaged.
func parseSnapshot(raw []byte, id string) (s savedSnapshot, err error) {
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if s.ID != id {
		return s, fmt.Errorf("%w: it is of the snapshot %q", errDamaged, s.ID)
	}
	return s, nil
}

// unusable classifies why nothing could go on from a snapshot: it may be gone,
// also under a machine that was being made, or damaged.
func (k *snapshots) unusable(id string, err error) error {
	if _, now := k.read(id); errors.Is(now, fs.ErrNotExist) {
		return doze.Wrap(err, doze.NotFound, "there is no such snapshot on this node")
	}
	if errors.Is(err, machine.ErrDamaged) || errors.Is(err, errDamaged) {
		return doze.Wrap(err, doze.Conflict, "the snapshot is damaged and cannot be used")
	}
	return missing("the snapshot cannot be used", err)
}

// sweep removes what a crash left of snapshots that were being made.
// What cannot be removed stops no sandbox.
func (k *snapshots) sweep() error {
	if err := os.MkdirAll(k.root, 0o700); err != nil {
		return fmt.Errorf("make the directory of snapshots: %w", err)
	}
	return k.each(func(id string, _ savedSnapshot, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			slog.Warn("removing a snapshot that was not finished", "snapshot", id)
			if err := k.drop(id); err != nil {
				slog.Error("it is not removed yet", "snapshot", id, "err", err)
			}
		case err != nil:
			slog.Error("a snapshot cannot be used", "snapshot", id, "err", err)
		}
		return nil
	})
}
