package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/lease"
	"github.com/dozehq/doze/internal/machine/hostproc"
	"github.com/dozehq/doze/internal/node"
	"github.com/dozehq/doze/internal/volume"
)

// Placed is what records say that the node of a data directory has.
type Placed struct {
	Machines  []string          // UIDs
	Volumes   map[string]uint64 // their epochs, by id
	Snapshots []string          // ids
	Images    []string          // references of those that were built or loaded
}

// Lacking returns in words what of p is not whole in a data directory and its directory of images. It is
// in the bucket alone, or nowhere. Nobody may serve the data directory.
func Lacking(data, images string, p Placed) (lacks []string, err error) {
	absent, err := node.Absent(filepath.Join(data, sandboxesDir))
	if err != nil {
		return nil, err
	}
	for _, uid := range p.Machines {
		switch is, has := absent[uid]; {
		case !has:
			lacks = append(lacks, "the sandbox "+uid)
		case is:
			lacks = append(lacks, "the memory of the sandbox "+uid)
		}
	}
	for id, epoch := range p.Volumes {
		has, err := volume.EpochIn(filepath.Join(data, volumesDir), id)
		if err != nil {
			return nil, err
		}
		if has == 0 || has < epoch {
			lacks = append(lacks, "the volume "+id)
		}
	}
	for _, id := range p.Snapshots {
		_, err := os.Stat(filepath.Join(data, snapshotsDir, id))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if err != nil {
			lacks = append(lacks, "the snapshot "+id)
		}
	}
	refs, err := disk.Lacking(images, p.Images)
	for _, ref := range refs {
		lacks = append(lacks, "the image "+ref)
	}
	return lacks, err
}

// Unlease has the sandboxes of a node run without a lease from now on: nobody else may have
// them. Those that stand still since the lease is over go on. No process may have the node.
func Unlease(ctx context.Context, data, run, cgroup string) error {
	marker := filepath.Join(data, leasedFile)
	if _, err := os.Lstat(marker); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if _, err := os.Stat(run); err == nil { // after a restart of the host there is none
		if err := lease.FileOf(run).Write(time.Time{}); err != nil {
			return fmt.Errorf("tell sandboxes that they need no lease: %w", err)
		}
		if err := hostproc.Freeze(ctx, cgroup, false); err != nil && !errors.Is(err, hostproc.ErrNoFreezer) {
			return fmt.Errorf("have sandboxes go on: %w", err)
		}
	}
	if err := os.Remove(marker); err != nil {
		return err
	}
	return durable.Sync(data)
}
