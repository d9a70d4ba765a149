package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/sparse"
)

// Names in the backup of a sandbox. They are those of its directory, except for its
// volumes.
const (
	machineName       = "machine"
	checkpointName    = "image" // what a driver calls the checkpoint of a machine that is OnDisk
	backupVolumesName = "volumes"
)

// Sandboxes returns the UIDs of all sandboxes of the node, in order.
func (n *Node) Sandboxes() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	uids := slices.Collect(maps.Keys(n.boxes))
	slices.Sort(uids)
	return slices.DeleteFunc(uids, hidden)
}

// Backup makes a directory with everything that the disk of a node has of a sandbox, as it
// is now. The next node finds it as a sandbox that sleeps on disk. An awake one stands
// still for a moment, and for as long as its volumes are copied. Left says what is missing
// of a sandbox whose memory cannot be copied. Then its record alone is there. Dir does not exist
// yet, and is on the file system of the node.
func (n *Node) Backup(ctx context.Context, uid, dir string) (left string, err error) {
	b := n.box(uid)
	if b == nil {
		return "", errUnknown
	}
	ctx, cancel := b.life.bound(ctx)
	defer cancel()
	if err := b.turn.take(ctx); err != nil {
		return "", err
	}
	defer b.unlock()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("make the directory of a backup: %w", err)
	}
	b.mu.Lock()
	phase, memory := b.state.Phase(), b.hasMemory() == nil
	b.mu.Unlock()
	switch {
	case memory:
		if left, err = n.backupMachine(ctx, b, dir); err != nil {
			return "", err
		}
	case phase == doze.Archived:
		if err := shareAll(n.dir(uid), dir, filesName, processesName); err != nil {
			return "", err
		}
	case phase != doze.Failed:
		return "", doze.Errorf(doze.Conflict, "the sandbox is %s", phase)
	}
	return left, shareAll(n.dir(uid), dir, recordName, damagedName)
}

// shareAll gives files a second name in another directory. Those that are not there are
// left out. Nobody writes to them again: each is replaced by another file.
func shareAll(from, to string, names ...string) error {
	for _, name := range names {
		if err := os.Link(filepath.Join(from, name), filepath.Join(to, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("back up %s: %w", name, err)
		}
	}
	return nil
}

// backupMachine is Backup for a sandbox with memory. Preconditions: the turn is held.
func (n *Node) backupMachine(ctx context.Context, b *Box, dir string) (left string, err error) {
	m, err := b.handle(ctx)
	if err != nil {
		return "", fmt.Errorf("find the machine: %w", err)
	}
	if blocked := b.survey(m); blocked != "" {
		return "its memory and files: a checkpoint would leave out " + blocked, nil
	}
	if !n.Driver.Traits().Copies {
		return "its memory and files: the driver makes no copies", nil
	}
	release, err := roomFor(ctx, m, n.Room)
	if err != nil {
		return "", fmt.Errorf("make room for the backup: %w", err)
	}
	defer release()
	if err := b.precopy(ctx, m); err != nil && ctx.Err() == nil {
		slog.WarnContext(ctx, "a sandbox stands still while all its memory is copied", "sandbox", b.order.UID, "err", err)
	}
	freeze := func() (func(), error) {
		return b.freeze("it could not go on after a backup, and sleeps until the next request")
	}
	if err := os.Mkdir(filepath.Join(dir, machineName), 0o700); err != nil {
		return "", err
	}
	to := filepath.Join(dir, machineName, checkpointName)
	if len(b.order.Volumes) == 0 && len(b.mounted()) == 0 {
		return "", b.backedUp(m.Snapshot(ctx, to, freeze))
	}
	// What it has besides must be of the same moment.
	return "", b.backedUp(still(ctx, m, freeze, func(ctx context.Context) error {
		if err := m.Snapshot(ctx, to, nil); err != nil {
			return err
		}
		return n.backupBesides(ctx, b, dir)
	}))
}

// backedUp classifies why the memory of a box could not be copied.
func (*Box) backedUp(err error) error {
	if errors.Is(err, machine.ErrGone) {
		return doze.Wrap(err, doze.Conflict, "the sandbox's processes ended while it was copied")
	}
	return missing("the sandbox cannot be copied", err)
}

// still calls do while the machine stands still.
func still(ctx context.Context, m machine.Machine, freeze machine.Freeze, do func(context.Context) error) (err error) {
	if m.Tier() == machine.Awake {
		thaw, err := freeze.Begin()
		if err != nil {
			return err
		}
		defer thaw()
		if err := m.Suspend(ctx, machine.Paused); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Resume(context.WithoutCancel(ctx))) }()
	}
	return do(ctx)
}

// backupBesides copies the volumes of a box, and what it is writing to drives.
// Preconditions: the machine stands still.
func (n *Node) backupBesides(ctx context.Context, b *Box, dir string) error {
	if err := os.Mkdir(filepath.Join(dir, backupVolumesName), 0o700); err != nil {
		return err
	}
	for i, v := range b.order.Volumes {
		if v.ID == "" {
			v.ID = passingID(b.order.UID, i)
		}
		if err := n.BackupVolume(ctx, v.ID, filepath.Join(dir, backupVolumesName, v.ID)); err != nil {
			return err
		}
	}
	return copyTree(ctx, filepath.Join(n.dir(b.order.UID), drivesName), filepath.Join(dir, drivesName))
}

// BackupVolume copies a volume into a new file, as it is now.
func (n *Node) BackupVolume(ctx context.Context, id, file string) error {
	bytes, _, err := n.Options.Volumes.Measure(id)
	if err != nil {
		return err
	}
	release, err := n.Room(bytes)
	if err != nil {
		return fmt.Errorf("make room for the copy of a volume: %w", err)
	}
	defer release()
	if err := n.Options.Volumes.Copy(ctx, id, file); err != nil {
		return fmt.Errorf("copy a volume: %w", err)
	}
	return nil
}

// copyTree copies the files of a directory into a new one. A directory that is not there
// is none.
func copyTree(ctx context.Context, from, to string) error {
	return filepath.WalkDir(from, func(name string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was never there, or is written by now
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		switch {
		case e.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		case e.Type().IsRegular():
			return copyFile(ctx, name, filepath.Join(to, rel))
		}
		return nil
	})
}

func copyFile(ctx context.Context, from, to string) (err error) {
	source, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }() // it was read
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, recordMode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	return sparse.Clone(ctx, target, source)
}

// RelocateSandbox is the record of a sandbox for another node, which has its backup in a
// directory of the same name in dir. Move says where a file is now that was at a path. Each
// node makes links and mounts anew.
func RelocateSandbox(uid, dir string, raw []byte, move func(path string) string) ([]byte, error) {
	r, err := parseRecord(raw, uid)
	if err != nil {
		return nil, err
	}
	r.Config.Dir = filepath.Join(dir, uid, machineName) // a machine that was started ahead had another one
	for _, path := range []*string{&r.Config.Root, &r.Config.Agent, &r.Image.Path} {
		*path = move(*path)
	}
	return json.Marshal(r)
}

// RelocateSnapshot is the same for the record of a snapshot.
func RelocateSnapshot(raw []byte, move func(path string) string) ([]byte, error) {
	var s savedSnapshot
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	s.Agent, s.Image.Path = move(s.Agent), move(s.Image.Path)
	return json.Marshal(s)
}
