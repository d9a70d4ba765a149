package fleet

import (
	"maps"
	"slices"
	"time"
)

// DiskKind is a kind of thing that takes disk on a node.
type DiskKind string

// The kinds. The ID of a [DiskUse] depends on the kind.
const (
	DiskImage      DiskKind = "image"      // a root file system; ID is the name of its file
	DiskCheckpoint DiskKind = "checkpoint" // the memory of a sleeping sandbox; ID is the UID of its machine
	DiskArchive    DiskKind = "archive"    // the files of an archived sandbox; ID is the UID of its machine
	DiskDrive      DiskKind = "drive"      // files that a sandbox writes to drives; ID is the UID of its machine
	DiskScratch    DiskKind = "scratch"    // a volume that ends with its machine; ID is the UID of that machine
	DiskSnapshot   DiskKind = "snapshot"   // ID is that of the snapshot
	DiskVolume     DiskKind = "volume"     // a volume, or a version of a volume template; ID is that of the disk
	DiskLog        DiskKind = "log"        // what a sandbox wrote; ID is the UID of its machine, which may be gone
	DiskAhead      DiskKind = "ahead"      // machines that were started ahead; no workspace has them
	DiskBuilder    DiskKind = "builder"    // the memory of a sleeping builder, with its cache; ID is the UID of its machine
)

// DiskKinds are all kinds, in the order of their constants.
var DiskKinds = []DiskKind{
	DiskImage, DiskCheckpoint, DiskArchive, DiskDrive, DiskScratch, DiskSnapshot, DiskVolume, DiskLog, DiskAhead, DiskBuilder,
}

// DiskUse is what one thing takes of the disk of a node. Bytes are those of
// allocated blocks: holes in a file take nothing.
type DiskUse struct {
	Kind DiskKind
	ID   string // see the kinds
	// Workspace is the one that the node knows for a sandbox, or a builder. The node
	// does not know that of a snapshot, a volume or an image: it is empty.
	Workspace string
	// Bytes are of files that belong to this thing alone.
	Bytes int64
	// Shared are the bytes of files that other things may have too, by inode: a
	// snapshot and the sandboxes that began as it have the same files until each
	// writes a checkpoint of its own.
	Shared map[uint64]int64
	// Reserved is the size of a volume that its guest may fill.
	Reserved int64

	// Of an image: the references that lead to it, as [Pinned] has them; the
	// sandboxes and snapshots that need it, by ID; and whether this platform made
	// it, so that it belongs to no workspace.
	Refs     []string
	Users    []string
	Platform bool
}

// Total returns all bytes of the thing, with those that other things share.
func (d *DiskUse) Total() int64 {
	total := d.Bytes
	for _, n := range d.Shared {
		total += n
	}
	return total
}

// Usage is what a node has on its disk.
type Usage struct {
	At   time.Time // when it was measured
	Uses []DiskUse
}

// Of adds up the bytes of each workspace, by kind. owners returns the workspaces
// that a thing is counted for, with the workspace that the node knows as hint; none
// for a thing of the platform. A file that several things of one workspace share
// counts once for that workspace, with the first of them in the order of
// [DiskKinds].
func (u *Usage) Of(owners func(DiskUse) []string) map[string]map[DiskKind]int64 {
	sums, seen := map[string]map[DiskKind]int64{}, map[string]map[uint64]bool{}
	ordered := slices.SortedStableFunc(slices.Values(u.Uses), func(a, b DiskUse) int {
		return slices.Index(DiskKinds, a.Kind) - slices.Index(DiskKinds, b.Kind)
	})
	for _, use := range ordered {
		for _, workspace := range owners(use) {
			if sums[workspace] == nil {
				sums[workspace], seen[workspace] = map[DiskKind]int64{}, map[uint64]bool{}
			}
			n := use.Bytes
			for inode, bytes := range use.Shared {
				if !seen[workspace][inode] {
					seen[workspace][inode] = true
					n += bytes
				}
			}
			sums[workspace][use.Kind] += n
		}
	}
	return sums
}

// Host adds up all bytes, by kind. Each kind is there.
func (u *Usage) Host() map[DiskKind]int64 {
	sums := map[DiskKind]int64{}
	for _, kind := range DiskKinds {
		sums[kind] = 0
	}
	maps.Copy(sums, u.Of(func(DiskUse) []string { return []string{""} })[""])
	return sums
}
