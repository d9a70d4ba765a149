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
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
)

const (
	// filesName is the archive in the directory of a sandbox: the files that
	// differ from its image.
	filesName = fleet.ArchiveFile
	// processesName are the processes that an archived sandbox had. While the
	// file is there, they are not started again.
	processesName = "processes.json"

	// partTime is what processes get to end before an archive is made, unless
	// the order grants them more.
	partTime = 10 * time.Second
	// backTimeout bounds the way back from an archive that could not be made.
	backTimeout = time.Minute
)

func (n *Node) filesName(uid string) string { return filepath.Join(n.dir(uid), filesName) }

func (n *Node) processesName(uid string) string { return filepath.Join(n.dir(uid), processesName) }

// Archive implements [fleet.Node]. Requests in flight are cut off.
func (n *Node) Archive(ctx context.Context, uid string) (int64, error) {
	b := n.box(uid)
	if b == nil {
		return 0, errUnknown
	}
	ctx, cancel := b.life.bound(ctx)
	defer cancel()
	if err := b.refuse(ctx, doze.Pack, doze.Archiving, doze.Archived); err != nil {
		return 0, err
	}
	b.hangUp()
	if err := b.turn.take(ctx); err != nil {
		return 0, err
	}
	defer b.unlock()
	switch phase := b.status().Phase; phase {
	case doze.Archiving:
		if err := n.pack(ctx, b); err != nil {
			n.unpacked(ctx, b)
			return 0, explained(b.life.cause(ctx, err))
		}
	case doze.Archived: // another Archive was first
	default:
		return 0, doze.Errorf(doze.Conflict, "the sandbox is %s", phase)
	}
	info, err := os.Stat(n.filesName(uid))
	if err != nil {
		return 0, fmt.Errorf("measure the archive: %w", err)
	}
	return info.Size(), nil
}

// pack makes the archive and ends the machine. Preconditions: the turn is held,
// the box refuses requests.
func (n *Node) pack(ctx context.Context, b *Box) error {
	m, err := b.handle(ctx)
	if err != nil {
		return fmt.Errorf("find the machine: %w", err)
	}
	if err := n.reserveMemory(ctx, b.made.config); err != nil {
		return err
	}
	if err := m.Resume(ctx); err != nil {
		return fmt.Errorf("wake: %w", err)
	}
	b.mu.Lock()
	b.machine = m
	b.mu.Unlock()
	release, err := roomFor(ctx, m, n.Room)
	if err != nil {
		return fmt.Errorf("make room for the archive: %w", err)
	}
	defer release()
	uid := b.order.UID
	if err := n.noteProcesses(ctx, b); err != nil {
		return fmt.Errorf("end the processes: %w", err)
	}
	half := n.filesName(uid) + newSuffix
	if err := os.RemoveAll(half); err != nil { // an attempt that was cut off
		return err
	}
	if err := m.Archive(ctx, half); err != nil {
		return err
	}
	if err := os.Rename(half, n.filesName(uid)); err != nil {
		return err
	}
	b.forgetCopy() // what the bucket has is older
	// It is complete; a crash after this line leaves an archived sandbox.
	if err := n.save(b, doze.Archived, ""); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	b.mu.Lock()
	err = b.move(doze.Packed, "")
	b.mu.Unlock()
	if err != nil {
		return err // it is being deleted
	}
	b.hangUp()
	if err := m.Close(ctx); err != nil {
		slog.Error("an archived sandbox still has a machine; the next start of the node, or its end, removes it", "sandbox", uid, "err", err)
		return nil
	}
	b.mu.Lock()
	b.machine = nil
	b.mu.Unlock()
	n.dropDrives(ctx, b)
	if err := n.save(b, doze.Archived, ""); err != nil {
		slog.Error("the record of an archived sandbox has drives", "sandbox", uid, "err", err)
	}
	n.tidy(b)
	return nil
}

// tidy removes what an archived sandbox without a machine does not need.
func (n *Node) tidy(b *Box) {
	if err := errors.Join(n.Release(b.made.config.ID), n.detach(b.order.UID), os.RemoveAll(b.made.config.Dir)); err != nil {
		slog.Error("an archived sandbox costs more than its files", "sandbox", b.order.UID, "err", err)
	}
}

// noteProcesses has the agent end its processes and writes down what they were,
// so that neither a crash nor a second attempt forgets them.
func (n *Node) noteProcesses(ctx context.Context, b *Box) error {
	b.mu.Lock()
	wait := max(partTime, b.use.Grace())
	b.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, wait+idleAskTimeout)
	defer cancel()
	ran, err := b.agent().Quiesce(bounded, wait)
	if err != nil {
		return err
	}
	return durable.Replace(n.processesName(b.order.UID), ran.Processes, recordMode)
}

// unpacked takes an archive back that could not be made: the sandbox goes on.
// Preconditions: the turn is held.
func (n *Node) unpacked(ctx context.Context, b *Box) {
	if b.life.Err() != nil { // it is being deleted, or the next node goes on with it
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), backTimeout)
	defer cancel()
	// Before the archive is removed, for the record may name it.
	if err := n.save(b, doze.Running, ""); err != nil {
		slog.Error("write a record", "sandbox", b.order.UID, "err", err)
	} else if b.status().Tier == machine.Awake.String() {
		if err := b.agent().ResumeArchive(ctx); err != nil {
			slog.Error("resume after an archive", "sandbox", b.order.UID, "err", err)
		}
		n.relaunch(ctx, b, false)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = b.move(doze.Stayed, "") // or it is being deleted, or its machine ended
	b.lieDown("")
}

// Unarchive implements [fleet.Node].
func (n *Node) Unarchive(ctx context.Context, o fleet.Order) error {
	b := n.box(o.UID)
	if b == nil {
		return errUnknown
	}
	ctx, cancel := b.life.bound(ctx)
	defer cancel()
	if err := n.unpack(ctx, b, o); err != nil {
		return b.life.cause(ctx, err)
	}
	if _, err := os.Stat(n.processesName(o.UID)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	// A node stopped before it had started them.
	release, err := b.Hold(ctx, doze.AgentPort)
	if err != nil {
		return err
	}
	defer release()
	n.relaunch(ctx, b, true)
	return nil
}

// unpack gives an archived box a machine with its files and processes.
func (n *Node) unpack(ctx context.Context, b *Box, o fleet.Order) (err error) {
	if err := b.turn.take(ctx); err != nil {
		return err
	}
	defer b.unlock()
	b.mu.Lock()
	phase := b.state.Phase()
	if phase == doze.Archived {
		if err = n.enter(&b.order, ""); err == nil {
			err = b.move(doze.Unpack, "")
		}
	}
	b.mu.Unlock()
	switch {
	case err != nil:
		return err
	case phase == doze.Failed || phase.Ended():
		return doze.Errorf(doze.Conflict, "the sandbox is %s", phase)
	case phase != doze.Archived:
		return nil // it was unpacked before
	}
	var u undo
	defer func() {
		if err != nil {
			b.hangUp()
		}
		u.unwind(&err)
	}()
	u.push(func() error { return n.save(b, doze.Archived, "") })
	u.push(func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.machine = nil
		_ = b.move(doze.Stayed, "") // or it is being deleted
		return nil
	})
	if err := n.unearth(ctx, b); err != nil {
		return err
	}
	if err := n.rebuild(ctx, b, o, &u); err != nil {
		return err
	}
	n.relaunch(ctx, b, true)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.move(doze.Unpacked, "") // or it is being deleted
}

// rebuild boots the machine of an archived box. Preconditions: the turn is held.
func (n *Node) rebuild(ctx context.Context, b *Box, o fleet.Order, u *undo) (err error) {
	if err := n.destroy(ctx, b); err != nil { // one that could not be ended
		return fmt.Errorf("end the machine before: %w", err)
	}
	was := b.made.config
	u.push(func() error { n.assign(b, was); return nil })
	u.push(func() error { return os.RemoveAll(n.machineDir(o.UID)) })
	own := was
	own.ID, own.Dir, own.Agent, own.Env = o.UID, n.machineDir(o.UID), n.Agent, bootEnvironment(b.made.image, n.Nameservers, was)
	n.assign(b, own)
	b.mu.Lock()
	b.entry.last = agentapi.ImageState{} // another machine counts anew
	b.mu.Unlock()
	m, err := n.boot(ctx, b, o, u)
	if err != nil {
		return err
	}
	if err := n.inhabit(ctx, b, o, m); err != nil {
		return err
	}
	files, err := os.Open(n.filesName(o.UID))
	if err != nil {
		return err
	}
	defer func() { _ = files.Close() }() // it was read
	if err := b.agent().Unpack(ctx, files); err != nil {
		return fmt.Errorf("unpack the files: %w", err)
	}
	b.forgetCopy() // it has no memory
	// A crash after this line leaves a sandbox that is adopted.
	if err := n.save(b, doze.Running, ""); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	return nil
}

// relaunch starts the processes that were noted, and forgets them and the
// archive. One that cannot be started is reported, and the others are started. The agent of
// a fresh machine is told of the program of its image, which is one of them if it ran.
// Preconditions: the turn is held, or the box is.
func (n *Node) relaunch(ctx context.Context, b *Box, fresh bool) {
	uid := b.order.UID
	if fresh {
		n.beginProgram(ctx, b, true)
	}
	raw, err := os.ReadFile(n.processesName(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return // none were noted
	}
	var all []map[string]any
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	if err != nil {
		slog.Error("the processes of an archive are lost", "sandbox", uid, "err", err)
	}
	for _, p := range all {
		delete(p, "waitForCompletion") // nobody does
		delete(p, "waitForPorts")
		if err := b.agent().StartProcess(ctx, p); err != nil {
			slog.Error("start a process again", "sandbox", uid, "process", p["name"], "err", err)
			b.mu.Lock()
			b.note(fmt.Sprintf("its process %.80q could not be started again", p["name"]))
			b.mu.Unlock()
		}
	}
	if ctx.Err() != nil {
		return // the next attempt starts those that do not run
	}
	if err := errors.Join(remove(n.processesName(uid)), remove(n.filesName(uid))); err != nil {
		slog.Error("remove an archive that is no longer needed", "sandbox", uid, "err", err)
	}
}

// remove removes a file that may not be there.
func remove(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
