package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/sparse"
)

// Volumes keeps disks. Each has at most one owner, which here is a sandbox, by
// its UID, for as long as it has a machine.
type Volumes interface {
	// Make makes a disk, perhaps with the content of another one; one that is
	// there stays.
	Make(ctx context.Context, id string, size doze.Megabytes, from string) error
	// Import makes a disk with the files of a tar.
	Import(ctx context.Context, id string, size doze.Megabytes, archive io.Reader) (bytes int64, err error)
	// Resize makes a disk larger for the next machine that attaches it.
	Resize(id string, size doze.Megabytes) error
	// Remove removes a disk that nobody has; one that is not there is no error.
	Remove(id string) error
	// IDs returns all disks.
	IDs() ([]string, error)
	// Measure returns the bytes of the blocks that a disk takes, and those that its
	// owner may fill.
	Measure(id string) (allocated, reserved int64, err error)
	// Copy copies a disk into a new file, as it is now. Nobody may write to it meanwhile.
	Copy(ctx context.Context, id, file string) error
	// Attach gives a disk to an owner, also again, and returns the directory with
	// its files.
	Attach(ctx context.Context, id, owner string, readOnly bool) (dir string, err error)
	// Detach takes all disks of an owner back.
	Detach(owner string) error
	// Sweep takes back those of owners that known does not name.
	Sweep(known func(owner string) bool) error
	Traveller
}

// Traveller is what a node asks of [Volumes] about disks that go to other hosts.
type Traveller interface {
	// Lend has read get the file of a disk that nobody has, until somebody wants the disk.
	Lend(ctx context.Context, id string, read func(ctx context.Context, path string) error) error
	// Owner is the UID of the sandbox that has a disk; empty if no sandbox has it.
	Owner(id string) string
	// Epoch is that in which a disk is here; 0 if it is not.
	Epoch(id string) (uint64, error)
	// Receive makes a disk of size bytes with content from another host. It replaces the disk of
	// that id that is here. One with an owner is Unavailable.
	Receive(id string, epoch uint64, size int64, write func(*os.File) error) error
	// Evict removes a disk that is here in an earlier epoch than elsewhere.
	Evict(id string, epoch uint64) error
	// SetSaved and Saved note what a copy of a disk is known by, until somebody attaches
	// the disk.
	SetSaved(id, text string) error
	Saved(id string) (string, error)
}

// passing begins the ids of disks that begin and end with a machine. Ids of
// others have no hyphen.
const passing = "passing-"

// passingID is the disk of a sandbox that is the i-th of its order.
func passingID(uid string, i int) string { return passing + uid + "-" + strconv.Itoa(i) }

// attach mounts what an order says, and makes what begins with the machine.
// What is mounted already stays.
func (n *Node) attach(ctx context.Context, o fleet.Order) (all []machine.Volume, err error) {
	if t := n.Driver.Traits(); len(o.Volumes) > 0 && !t.Directories {
		return nil, doze.Errorf(doze.Unsupported, "the driver %s has no volumes", t.Name)
	}
	for i, v := range o.Volumes {
		if v.ID == "" {
			v.ID = passingID(o.UID, i)
			err = n.Options.Volumes.Make(ctx, v.ID, v.Size, "")
		} else { // a crash may have come between its record and its disk
			err = n.Options.Volumes.Resize(v.ID, v.Size)
		}
		if err != nil {
			return nil, fmt.Errorf("make a volume: %w", err)
		}
		dir, err := n.Options.Volumes.Attach(ctx, v.ID, o.UID, v.ReadOnly)
		if err != nil {
			return nil, err
		}
		all = append(all, machine.Volume{Source: dir, Path: v.Path, ReadOnly: v.ReadOnly})
	}
	return all, nil
}

// detach takes back what a sandbox without a machine has, and removes what ends
// with it.
func (n *Node) detach(uid string) error {
	if err := n.Options.Volumes.Detach(uid); err != nil {
		return err
	}
	return n.removePassing(func(owner string) bool { return owner == uid })
}

// removePassing removes the disks that begin and end with machines of some
// sandboxes.
func (n *Node) removePassing(of func(uid string) bool) error {
	ids, err := n.Options.Volumes.IDs()
	for _, id := range ids {
		rest, ok := strings.CutPrefix(id, passing)
		if at := strings.LastIndexByte(rest, '-'); ok && at > 0 && of(rest[:at]) {
			err = errors.Join(err, n.Options.Volumes.Remove(id))
		}
	}
	return err
}

// sweepVolumes takes back what an earlier process left to nobody. Preconditions:
// all sandboxes were adopted.
func (n *Node) sweepVolumes() error {
	known := func(uid string) bool { return n.box(uid) != nil }
	if err := n.Options.Volumes.Sweep(known); err != nil {
		return err
	}
	if err := n.removePassing(func(uid string) bool { return !known(uid) }); err != nil {
		slog.Error("volumes of sandboxes that are gone are not removed yet", "err", err)
	}
	return nil
}

// MakeVolume implements [fleet.Node].
func (n *Node) MakeVolume(ctx context.Context, id string, size doze.Megabytes, from string) error {
	return n.Options.Volumes.Make(ctx, id, size, from)
}

// ImportVolume implements [fleet.Node].
func (n *Node) ImportVolume(ctx context.Context, id string, size doze.Megabytes, archive io.Reader) (int64, error) {
	return n.Options.Volumes.Import(ctx, id, size, archive)
}

// ResizeVolume implements [fleet.Node].
func (n *Node) ResizeVolume(_ context.Context, id string, size doze.Megabytes) error {
	return n.Options.Volumes.Resize(id, size)
}

// DropVolume implements [fleet.Node].
func (n *Node) DropVolume(_ context.Context, id string) error { return n.Options.Volumes.Remove(id) }

// Volumes implements [fleet.Node].
func (n *Node) Volumes(context.Context) (ids []string, err error) {
	all, err := n.Options.Volumes.IDs()
	for _, id := range all {
		if !strings.Contains(id, "-") {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// LeaveVolume implements [fleet.Mover].
func (n *Node) LeaveVolume(_ context.Context, id string, epoch uint64) error {
	return n.Options.Volumes.Evict(id, epoch)
}

// Travels are the disks of this node, for those who copy them.
func (n *Node) Travels() Traveller { return n.Options.Volumes }

// VolumesName is the directory in a copy that has a file for each disk of the sandbox, by id.
const VolumesName = "volumes"

const (
	// volumesAwakeMost is how much the disks of a sandbox may take that is copied while it runs:
	// it stands still meanwhile.
	volumesAwakeMost = 512 << 20
	// volumeDirMode is of the directory with their copies.
	volumeDirMode = 0o700
)

// lasting are the ids of the disks of an order that outlive its machine.
func lasting(o *fleet.Order) (ids []string) {
	for _, v := range o.Volumes {
		if v.ID != "" {
			ids = append(ids, v.ID)
		}
	}
	return ids
}

// diskIDs are the ids of all disks of an order.
func diskIDs(o *fleet.Order) (ids []string) {
	for i, v := range o.Volumes {
		if v.ID == "" {
			v.ID = passingID(o.UID, i)
		}
		ids = append(ids, v.ID)
	}
	return ids
}

// light reports whether the disks of a sandbox are small enough to be copied while it stands
// still.
func (n *Node) light(o *fleet.Order) bool {
	total := int64(0)
	for _, id := range diskIDs(o) {
		bytes, _, err := n.Options.Volumes.Measure(id)
		if err != nil {
			return false
		}
		total += bytes
	}
	return total <= volumesAwakeMost
}

// copyVolumes copies the disks of a box below the directory of a copy. A request that wants a
// box which sleeps ends it: nobody waits for a copy. Preconditions: the turn is held, and the
// machine stands still.
func (b *Box) copyVolumes(ctx context.Context, dir string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	b.mu.Lock()
	if b.copying = cancel; b.wakes.awaited() {
		cancel(errAwaited)
	}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		b.copying = nil
		b.mu.Unlock()
	}()
	to := filepath.Join(dir, VolumesName)
	if err := os.Mkdir(to, volumeDirMode); err != nil {
		return err
	}
	for _, id := range diskIDs(&b.order) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := b.n.BackupVolume(ctx, id, filepath.Join(to, id)); err != nil {
			return err
		}
	}
	return nil
}

// errAwaited ends the copy of a box that somebody wants to use.
var errAwaited = doze.Errorf(doze.Unavailable, "the sandbox was wanted while its volumes were copied")

// receivePassing makes the disks of an order that begin with its machine as they are below the
// directory of a copy.
func (n *Node) receivePassing(ctx context.Context, o *fleet.Order, dir string) error {
	for i, v := range o.Volumes {
		if v.ID != "" {
			continue
		}
		id := passingID(o.UID, i)
		from, err := os.Open(filepath.Join(dir, VolumesName, id))
		if err != nil {
			return fmt.Errorf("a volume of the copy: %w", err)
		}
		info, err := from.Stat()
		if err == nil {
			err = n.Options.Volumes.Receive(id, 0, info.Size(), func(to *os.File) error { return sparse.Clone(ctx, to, from) })
		}
		if err := errors.Join(err, from.Close()); err != nil {
			return fmt.Errorf("a volume of the copy: %w", err)
		}
	}
	return nil
}
