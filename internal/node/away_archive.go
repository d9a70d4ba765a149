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
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/fleet"
)

// The copy of an archived sandbox has its archive instead of a memory. On another node, the sandbox
// is archived, and its files come from the bucket when somebody wants it back.

// archiveFiles are those of an archive, in the directory of a sandbox and in a copy. The second one
// may be missing.
var archiveFiles = []string{filesName, processesName}

// forgetCopy takes note that what the bucket has is older than the sandbox.
func (b *Box) forgetCopy() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.copied, b.received, b.outdated = time.Time{}, false, time.Now()
}

// archivable reports whether the archive of a box can be copied: a volume that the box has would be
// left out. Preconditions: mu is held.
func (b *Box) archivable() bool {
	return b.state.Is(doze.Archived) && len(b.order.Volumes) == 0 && !b.hidden()
}

// copyArchive makes a copy of an archived box for other nodes. Preconditions: the turn is held.
func (n *Node) copyArchive(b *Box) (needs Files, err error) {
	uid := b.order.UID
	b.mu.Lock()
	ok, absent := b.archivable(), b.absent != nil
	b.mu.Unlock()
	switch {
	case !ok:
		return needs, doze.Errorf(doze.Conflict, "the sandbox is archived with a volume, and stays on its node: unarchive it first")
	case absent:
		return needs, doze.Errorf(doze.Conflict, "the archive of the sandbox is in the bucket alone")
	}
	info, err := os.Stat(n.filesName(uid))
	if err != nil {
		return needs, fmt.Errorf("look at the archive: %w", err)
	}
	s := savedSnapshot{
		ID: uid, Driver: b.made.config.Driver, Image: b.made.image, fixed: fixedOf(&b.made.config), Bytes: info.Size(), At: info.ModTime(), Archive: true,
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return needs, err
	}
	if err := n.away.drop(uid); err != nil {
		return needs, err
	}
	dir := n.away.dir(uid)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return needs, err
	}
	for _, name := range archiveFiles { // nobody writes to them
		err := os.Link(filepath.Join(n.dir(uid), name), filepath.Join(dir, name))
		if err != nil && (name == filesName || !errors.Is(err, fs.ErrNotExist)) {
			return needs, fmt.Errorf("copy the archive: %w", err)
		}
	}
	return Files{Root: s.Image.Path, Agent: s.Agent}, durable.Replace(filepath.Join(dir, recordName), raw, recordMode)
}

// reviveArchive gives the node a sandbox that another one had, and whose newest copy is an archive.
func (n *Node) reviveArchive(o fleet.Order, s *savedSnapshot, used time.Time) (at time.Time, err error) {
	if !o.Archived { // it was taken out, and what it did since is lost
		if err := n.mayLose(s, used); err != nil {
			return at, err
		}
	}
	c := n.configOf(o)
	s.fix(&c)
	b := n.newBox(o, c, doze.Archived)
	b.made.image = s.Image
	b.entry.of(&b.made.image, &b.order)
	b.absent, b.copied, b.stranger = &absence{}, s.At, true
	lost := ""
	if !o.Archived {
		lost = "its node was lost: " + b.setBack(s.At, time.Now())
	}
	if err := n.save(b, doze.Archived, ""); err != nil {
		return at, fmt.Errorf("write the record: %w", err)
	}
	return s.At, n.install(b, lost)
}

// Buried reports whether a sandbox is archived here that control does not know to be.
func (n *Node) Buried(o *fleet.Order) bool {
	b := n.box(o.UID)
	return b != nil && !o.Archived && b.phase() == doze.Archived
}

// Rests reports whether a sandbox is archived here, and its archive is in the bucket alone. It can go
// elsewhere without a copy.
func (n *Node) Rests(uid string) bool {
	b := n.box(uid)
	return b != nil && b.phase() == doze.Archived && b.isAbsent()
}

// unearth gets the archive of a box that is absent. Preconditions: the turn is held.
func (n *Node) unearth(ctx context.Context, b *Box) error {
	if !b.isAbsent() {
		return nil
	}
	uid := b.order.UID
	if n.Fetch == nil {
		return errNoFetch
	}
	has, err := n.Fetch(ctx, uid)
	if err != nil {
		return fmt.Errorf("%w: %w", errNotFetched, err)
	}
	s, err := n.away.read(uid)
	if err != nil {
		return n.away.unusable(uid, err)
	}
	if !s.Archive {
		return doze.Errorf(doze.Conflict, "the bucket has no archive of the sandbox any more")
	}
	for _, name := range archiveFiles {
		err := os.Rename(filepath.Join(n.away.dir(uid), name), filepath.Join(n.dir(uid), name))
		if err != nil && (name == filesName || !errors.Is(err, fs.ErrNotExist)) {
			return fmt.Errorf("take over the archive: %w", err)
		}
	}
	if err := durable.Sync(n.dir(uid)); err != nil {
		return err
	}
	c := b.made.config
	s.fix(&c)
	s.Image.Path, s.Agent = has.Root, has.Agent
	c.Root, c.Agent, c.Driver = has.Root, has.Agent, n.Driver.Traits().Name
	n.HoldImage(has.Root)
	n.become(b, made{c, s.Image})
	b.mu.Lock()
	was := b.absent
	b.absent, b.copied = nil, s.At
	b.mu.Unlock()
	if err := n.save(b, doze.Archived, ""); err != nil {
		b.mu.Lock()
		b.absent = was // as the record has it
		b.mu.Unlock()
		return fmt.Errorf("write the record: %w", err)
	}
	slog.InfoContext(ctx, "the archive of a sandbox is here", "sandbox", uid, "made", s.At)
	return n.away.drop(uid)
}
