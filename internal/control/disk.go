package control

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze/internal/bell"
	"github.com/dozehq/doze/internal/fleet"
)

// diskLook is how often control asks a node what is on its disk, which that
// measures by itself about once a minute.
const diskLook = 10 * time.Second

// disk is what workspaces take of the disk besides what records reserve for them. It
// counts checkpoints, archives, files on their way to drives, scratch volumes, and
// images that sandboxes use by the name of a registry.
type disk struct {
	at    time.Time // of the measurement; only the loop reads it
	bytes atomic.Pointer[map[string]int64]
}

// of is what a workspace took at the last look, in bytes.
func (d *disk) of(workspace string) int64 {
	if all := d.bytes.Load(); all != nil {
		return (*all)[workspace]
	}
	return 0
}

// measureDisk keeps disk up to date until ctx ends.
func (s *Server) measureDisk(ctx context.Context) {
	for never := bell.New(); ; {
		if err := s.lookAtDisk(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "what workspaces take of the disk is not known", "err", err)
		}
		if !never.Wait(ctx, diskLook) {
			return
		}
	}
}

func (s *Server) lookAtDisk(ctx context.Context) error {
	u, err := s.Node.Usage(ctx)
	if err != nil || u.At.Equal(s.disk.at) {
		return err
	}
	machines, tagged, err := s.Store.DiskOwners(ctx)
	if err != nil {
		return err
	}
	storage, err := s.Store.Storage(ctx)
	if err != nil {
		return err
	}
	u.Uses = unreserved(u.Uses, storage)
	sums := map[string]int64{}
	for workspace, kinds := range u.Of(func(use fleet.DiskUse) []string { return diskOwners(use, machines, tagged) }) {
		for _, n := range kinds {
			sums[workspace] += n
		}
	}
	s.disk.at = u.At
	s.disk.bytes.Store(&sums)
	return nil
}

// unreserved returns uses without what records count already: the disks of sandboxes, by
// machine. Of the files of such a sandbox, only those beyond the size of its disk count.
func unreserved(uses []fleet.DiskUse, storage map[string]int64) []fleet.DiskUse {
	uses = slices.Clone(uses)
	for i := range uses {
		if uses[i].Kind == fleet.DiskCheckpoint {
			uses[i].Bytes = max(0, uses[i].Bytes-storage[uses[i].ID])
		}
	}
	return uses
}

// diskOwners are the workspaces that a thing counts for by what it takes; none
// for what records count, or what is the platform's.
func diskOwners(use fleet.DiskUse, machines map[string]string, tagged map[string][]string) []string {
	switch use.Kind {
	case fleet.DiskCheckpoint, fleet.DiskArchive, fleet.DiskDrive, fleet.DiskScratch:
		if workspace, ok := machines[use.ID]; ok {
			return []string{workspace}
		}
	case fleet.DiskImage:
		if use.Platform {
			return nil
		}
		var counted, owners []string // by a tag, and besides
		for _, ref := range use.Refs {
			counted = append(counted, tagged[ref]...)
		}
		for _, user := range use.Users {
			if workspace, ok := machines[user]; ok && !slices.Contains(counted, workspace) && !slices.Contains(owners, workspace) {
				owners = append(owners, workspace)
			}
		}
		return owners
	case fleet.DiskBuilder: // no record has it
		if use.Workspace != "" {
			return []string{use.Workspace}
		}
	case fleet.DiskSnapshot, fleet.DiskVolume, fleet.DiskLog, fleet.DiskAhead:
	}
	return nil
}
