package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
)

const (
	// usageEvery is how often the disk is measured. Ten thousand sandboxes take a
	// second of a processor. A tenant cannot fill a disk unnoticed in between: each
	// call that writes much looks at the free space itself.
	usageEvery = time.Minute
	// blockUnit is what stat counts blocks in.
	blockUnit = 512
)

// Usage implements [fleet.Node].
func (n *Node) Usage(ctx context.Context) (fleet.Usage, error) {
	if u := n.usage.Load(); u != nil {
		return *u, nil
	}
	return n.measure(ctx) // the node started just now
}

// watchUsage measures the disk until ctx ends.
func (n *Node) watchUsage(ctx context.Context) {
	every := time.NewTicker(usageEvery)
	defer every.Stop()
	for {
		switch u, err := n.measure(ctx); {
		case ctx.Err() != nil:
			return
		case err != nil:
			slog.Warn("the disk could not be measured", "err", err)
		default:
			n.usage.Store(&u)
		}
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
	}
}

// measure looks at everything on the disk. It goes by the records there and not by the
// boxes, so that a change of a box does not wait for a disk.
func (n *Node) measure(ctx context.Context) (fleet.Usage, error) {
	m := measuring{u: fleet.Usage{At: time.Now()}, users: map[string][]string{}}
	err := errors.Join(n.measureSandboxes(ctx, &m), n.measureSnapshots(&m), n.measureVolumes(&m), n.measureAhead(&m))
	if n.Logbook != nil {
		m.u.Uses = append(m.u.Uses, n.Logbook.Uses()...)
	}
	images, bad := n.Images()
	for _, i := range images {
		i.Users = m.users[i.ID]
		m.u.Uses = append(m.u.Uses, i)
	}
	return m.u, errors.Join(err, bad)
}

// measuring is a measurement under way.
type measuring struct {
	u     fleet.Usage
	users map[string][]string // by the file of an image: the sandboxes and snapshots that need it
	// workspaces is, by UID, whose the sandboxes are.
	workspaces map[string]string
}

// add notes what is below some paths, unless that is nothing.
func (m *measuring) add(use fleet.DiskUse, paths ...string) error {
	var errs []error
	for _, p := range paths {
		errs = append(errs, tally(&use, p))
	}
	if use.Bytes > 0 || len(use.Shared) > 0 {
		m.u.Uses = append(m.u.Uses, use)
	}
	return errors.Join(errs...)
}

// tally adds the blocks of everything below a path to a use. What is not there, or
// goes away meanwhile, takes nothing.
func tally(use *fleet.DiskUse, top string) error {
	return filepath.WalkDir(top, func(name string, _ fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = os.Lstat(name)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		switch {
		case !ok:
		case st.Nlink > 1 && info.Mode().IsRegular():
			if use.Shared == nil {
				use.Shared = map[uint64]int64{}
			}
			use.Shared[st.Ino] = st.Blocks * blockUnit
		default:
			use.Bytes += st.Blocks * blockUnit
		}
		return nil
	})
}

func (n *Node) measureSandboxes(ctx context.Context, m *measuring) error {
	m.workspaces = map[string]string{}
	entries, err := os.ReadDir(n.Dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !e.IsDir() || !idPattern.MatchString(e.Name()) {
			continue
		}
		uid := e.Name()
		r, err := readRecord(n.dir(uid), uid)
		if err != nil { // its bytes are on the disk all the same
			slog.Debug("measure a sandbox without its record", "sandbox", uid, "err", err)
		}
		if r.Image.Path != "" {
			file := filepath.Base(r.Image.Path)
			m.users[file] = append(m.users[file], uid)
		}
		m.workspaces[uid] = r.Order.Workspace
		use := fleet.DiskUse{ID: uid, Workspace: r.Order.Workspace}
		memory := []string{n.machineDir(uid)}
		if dir := r.Config.Dir; dir != "" && dir != memory[0] { // it began as a spare machine
			memory = append(memory, dir)
		}
		files := []string{n.filesName(uid), n.filesName(uid) + newSuffix, n.processesName(uid)}
		use.Kind = fleet.DiskCheckpoint
		if hidden(uid) {
			use.Kind = fleet.DiskBuilder
		}
		errs = append(errs, m.add(use, memory...))
		use.Kind = fleet.DiskArchive
		errs = append(errs, m.add(use, files...))
		use.Kind = fleet.DiskDrive
		errs = append(errs, m.add(use, filepath.Join(n.dir(uid), drivesName)))
	}
	return errors.Join(errs...)
}

func (n *Node) measureSnapshots(m *measuring) error {
	var errs []error
	err := n.snapshots.each(func(id string, s savedSnapshot, _ error) error { // one that is being made has no record yet
		if s.Image.Path != "" {
			file := filepath.Base(s.Image.Path)
			m.users[file] = append(m.users[file], id)
		}
		errs = append(errs, m.add(fleet.DiskUse{Kind: fleet.DiskSnapshot, ID: id}, n.snapshots.dir(id)))
		return nil
	})
	return errors.Join(append(errs, err)...)
}

func (n *Node) measureVolumes(m *measuring) error {
	ids, err := n.Options.Volumes.IDs()
	if err != nil {
		return fmt.Errorf("list volumes: %w", err)
	}
	for _, id := range ids {
		use := fleet.DiskUse{Kind: fleet.DiskVolume, ID: id}
		if use.Bytes, use.Reserved, err = n.Options.Volumes.Measure(id); err != nil {
			continue // it was removed just now
		}
		if rest, ok := strings.CutPrefix(id, passing); ok {
			use.Kind, use.ID = fleet.DiskScratch, rest[:max(0, strings.LastIndexByte(rest, '-'))]
			use.Workspace = m.workspaces[use.ID]
		}
		m.u.Uses = append(m.u.Uses, use)
	}
	return nil
}

// measureAhead measures what was started ahead and is nobody's. The machines of
// sandboxes that began as spare ones are theirs.
func (n *Node) measureAhead(m *measuring) error {
	if n.Ahead == "" {
		return nil
	}
	var errs []error
	machines := filepath.Join(n.Ahead, machineDir)
	entries, err := os.ReadDir(machines)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, e := range entries {
		if !n.Owns(e.Name()) {
			errs = append(errs, m.add(fleet.DiskUse{Kind: fleet.DiskAhead, ID: e.Name()}, filepath.Join(machines, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// roomFor takes room on the disk for the memory and the disk of a machine. That is what a
// checkpoint or an archive of it takes at most. One that has a checkpoint needs no
// room: a copy shares the files of that.
func roomFor(ctx context.Context, m machine.Machine, room func(int64) (func(), error)) (release func(), err error) {
	if m.Tier() >= machine.Saved {
		return func() {}, nil
	}
	s, err := m.Stats(ctx)
	if err != nil { // the next checkpoint reports the error
		slog.WarnContext(ctx, "the room for a checkpoint is unknown", "err", err)
	}
	return room(s.MemoryBytes + s.SwapBytes + s.StorageBytes)
}
