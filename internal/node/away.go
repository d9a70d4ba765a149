package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/idle"
)

// A copy for other nodes is a snapshot that no record of control names. It is in a
// directory of its own, by the UID of its sandbox, while it goes to the bucket or comes
// from there.

// CopyRecord is the file in a copy that [Node.Revive] reads.
const CopyRecord = recordName

// Copyable is a sandbox that can be copied for other nodes.
type Copyable struct {
	UID   string
	Awake bool
	// Since is when it fell asleep or, while it is awake, when it was made or adopted here.
	Since time.Time
	// State is the same as long as a sandbox that sleeps does not wake.
	State string
}

// Copyable returns all sandboxes that can be copied, those first that are so for longest.
func (n *Node) Copyable() (all []Copyable) {
	for _, b := range n.all() {
		b.mu.Lock()
		awake := b.state.Is(doze.Running)
		ok := !b.hidden() && b.state.Is(doze.Running, doze.Standby, doze.Disabled) && b.machine != nil &&
			b.checkpoint.blocked() == "" && !b.gate.Leaving()
		c := Copyable{b.order.UID, awake, b.asleep, fmt.Sprint(b.asleep.UnixNano())}
		if awake {
			c.Since = b.spent.since
		}
		if b.archivable() && b.copied.IsZero() { // it does not change: nothing is gained by waiting
			ok, c.Since, c.State = true, time.Time{}, filesName+" "+b.outdated.String()
		}
		b.mu.Unlock()
		if ok && (!awake || n.light(&b.order)) {
			all = append(all, c)
		}
	}
	slices.SortFunc(all, func(a, b Copyable) int { return a.Since.Compare(b.Since) })
	return all
}

const (
	// partLook is how often Depart looks whether a sandbox is in use.
	partLook = 10 * time.Millisecond
	// partMoment is how long new requests to a sandbox that is to move may wait for those that
	// are under way. What takes longer is a stream.
	partMoment = time.Second
	// partOpen is how long Depart waits for streams to end, while requests enter.
	partOpen = 30 * time.Second
	// partShut is how long new requests wait after that for streams that began meanwhile.
	// Streams that follow one another without a gap would keep the sandbox for ever.
	partShut = 10 * time.Second
)

var errEngaged = doze.Errorf(doze.Conflict, "the sandbox cannot move, for somebody is in the middle of a request: end streams and sockets to it")

// CopyDeparting is CopyOut for a sandbox that moves to another node. When nobody is in the middle
// of a request, new ones wait, and the sandbox sleeps. It does not wake until Return. An error takes
// that back.
func (n *Node) CopyDeparting(ctx context.Context, uid string) (dir string, needs Files, done func() error, err error) {
	b := n.box(uid)
	if b == nil {
		return "", needs, nil, errUnknown
	}
	b.mu.Lock()
	if b.state.Is(doze.Archived) {
		b.mu.Unlock()
		return n.CopyOut(ctx, uid) // control alone takes it out, and moves it now
	}
	if !b.state.Is(copied...) {
		err = doze.Errorf(doze.Conflict, "the sandbox is %s: only one that runs or sleeps can move", b.state.Phase().Status())
	}
	b.mu.Unlock()
	if err != nil {
		return "", needs, nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Return(context.WithoutCancel(ctx), uid))
		}
	}()
	ctx, cancel := b.life.bound(ctx)
	defer cancel()
	if err := b.disengage(ctx); err != nil {
		return "", needs, nil, err
	}
	if err := b.turn.take(ctx); err != nil {
		return "", needs, nil, err
	}
	defer b.unlock()
	if err := b.rest(ctx); err != nil {
		return "", needs, nil, err
	}
	s, err := b.copyHeld(ctx, &n.away, uid)
	if err != nil {
		return "", needs, nil, err
	}
	if err := b.depart(true); err != nil {
		return "", needs, nil, err
	}
	return n.away.dir(uid), Files{s.Image.Path, s.Agent, lasting(&b.order)}, func() error { return n.away.drop(uid) }, nil
}

// depart writes down whether another node may have a box. A process that begins after this one must
// not let anybody wake it before control has decided that. Preconditions: the turn is held.
func (b *Box) depart(is bool) error {
	b.mu.Lock()
	changed := b.departed != is
	b.departed = is
	phase, message := b.state.Phase(), b.state.Message()
	b.mu.Unlock()
	if !changed {
		return nil
	}
	return b.n.save(b, phase, message)
}

// disengage closes the gate when nobody is in the middle of a request. While a stream is waited for,
// requests enter.
func (b *Box) disengage(ctx context.Context) error {
	open, cancel := context.WithTimeoutCause(ctx, partOpen, errEngaged)
	defer cancel()
	first := b.mark()
	for open.Err() == nil {
		last := b.mark()
		if b.ended(open, last, partMoment) != nil { // a stream
			continue
		}
		if err := b.shut(open, partMoment); !errors.Is(err, errEngaged) {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if b.before(first) > 0 { // to keep others waiting would not help
		return errEngaged
	}
	return b.shut(ctx, partShut)
}

// shut closes the gate, and opens it again if a request is still under way after a time.
func (b *Box) shut(ctx context.Context, most time.Duration) error {
	b.mu.Lock()
	b.gate.Leave()
	b.mu.Unlock()
	if err := b.ended(ctx, b.mark(), most); err != nil {
		b.admit()
		return err
	}
	return nil
}

// admit opens the gate again that shut closed.
func (b *Box) admit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gate.Return()
	b.state.Signal()
	b.sinking.arm()
}

func (b *Box) mark() idle.Mark {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.use.Mark()
}

// before is how many requests in flight began before a mark.
func (b *Box) before(m idle.Mark) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.use.Before(m)
}

// ended waits until the requests have ended that began before a mark. After a time, it returns
// errEngaged.
func (b *Box) ended(ctx context.Context, m idle.Mark, most time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, most, errEngaged)
	defer cancel()
	look := time.NewTicker(partLook)
	defer look.Stop()
	for b.before(m) > 0 {
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// rest puts a box to sleep in memory, whatever its processes do. Preconditions: the turn is
// held.
func (b *Box) rest(ctx context.Context) error {
	m, err := b.handle(ctx)
	if err != nil {
		return missing("the sandbox cannot be copied", fmt.Errorf("find the machine: %w", err))
	}
	if err := b.copyable(m); err != nil {
		return err
	}
	if m.Tier() == machine.Awake {
		if err := m.Suspend(ctx, machine.Paused); err != nil {
			return fmt.Errorf("pause: %w", cause(ctx, err))
		}
	}
	b.mu.Lock()
	slept := b.lieDown("")
	b.mu.Unlock()
	if slept {
		b.hangUp()
	}
	return nil
}

// Return lets requests into a sandbox again that was to move.
func (n *Node) Return(_ context.Context, uid string) error {
	b := n.box(uid)
	if b == nil {
		return nil
	}
	defer b.admit()
	b.mu.Lock()
	departed := b.departed
	b.mu.Unlock()
	if !departed || b.turn.take(b.life) != nil { // or it is being deleted
		return nil
	}
	defer b.unlock()
	return b.depart(false)
}

// Leaving returns the UIDs of the sandboxes that do not wake, since they are to move.
func (n *Node) Leaving() (uids []string) {
	for _, b := range n.all() {
		b.mu.Lock()
		if b.gate.Leaving() {
			uids = append(uids, b.order.UID)
		}
		b.mu.Unlock()
	}
	return uids
}

// Leave removes a sandbox that has moved. Its processes sleep, and get no time to end.
func (n *Node) Leave(ctx context.Context, uid string) error {
	b := n.box(uid)
	if b == nil {
		return nil
	}
	b.mu.Lock()
	b.gate.Move()
	b.state.Signal()
	b.mu.Unlock()
	if err := b.doom(errMoved); err != nil {
		return err
	}
	return n.undo(ctx, b)
}

// Files are those that a copy needs besides its own.
type Files struct {
	Root, Agent string   // paths on this host
	Volumes     []string // ids of volumes that outlive the machine; a copy on this host has them below VolumesName
}

// CopyOut makes a copy of a sandbox for other nodes, and returns the directory that has
// it, and what else it needs. The caller calls done when it has read that. If the sandbox
// sleeps, it is not woken; if it runs, it stands still for a moment.
func (n *Node) CopyOut(ctx context.Context, uid string) (dir string, needs Files, done func() error, err error) {
	b := n.box(uid)
	if b == nil {
		return "", needs, nil, errUnknown
	}
	if b.phase() == doze.Archived {
		return n.archiveOut(ctx, b)
	}
	s, err := b.copyTo(ctx, &n.away, uid)
	if err != nil {
		return "", needs, nil, err
	}
	return n.away.dir(uid), Files{s.Image.Path, s.Agent, lasting(&b.order)}, func() error { return n.away.drop(uid) }, nil
}

// archiveOut is CopyOut for an archived box.
func (n *Node) archiveOut(ctx context.Context, b *Box) (dir string, needs Files, done func() error, err error) {
	ctx, cancel := b.life.bound(ctx)
	defer cancel()
	if err := b.turn.take(ctx); err != nil {
		return "", needs, nil, err
	}
	defer b.unlock()
	if needs, err = n.copyArchive(b); err != nil {
		return "", needs, nil, err
	}
	return n.away.dir(b.order.UID), needs, func() error { return n.away.drop(b.order.UID) }, nil
}

// Has reports whether a sandbox is on this node.
func (n *Node) Has(uid string) bool { return n.box(uid) != nil }

// Incoming is where a copy of a sandbox is to be put that comes from another node. What
// was left there is removed.
func (n *Node) Incoming(uid string) (dir string, err error) {
	if !idPattern.MatchString(uid) {
		return "", doze.Errorf(doze.Invalid, "%.80q is no UID of a sandbox", uid)
	}
	return n.away.dir(uid), n.away.drop(uid)
}

// Needs returns what a copy of a sandbox needs, as paths on the node that made it, and
// of when its memory is.
func (n *Node) Needs(uid string) (f Files, at time.Time, err error) {
	s, err := n.away.read(uid)
	if err != nil {
		return f, at, n.away.unusable(uid, err)
	}
	return Files{Root: s.Image.Path, Agent: s.Agent}, s.At, nil
}

// ReviveNow is Revive with all of a copy, which has come: the sandbox begins at once. has are the
// files that the copy needs, on this host. The volumes that outlive the machine are as the
// copy needs them. Call ReviveNow again after an error.
func (n *Node) ReviveNow(ctx context.Context, o fleet.Order, has Files, used time.Time) (at time.Time, err error) {
	s, err := n.away.read(o.UID)
	if err != nil {
		return at, n.away.unusable(o.UID, err)
	}
	if b := n.box(o.UID); b != nil {
		if b.phase() == doze.Starting {
			return at, errStartedAlready
		}
		return s.At, n.away.drop(o.UID)
	}
	if err := n.mayLose(&s, used); err != nil {
		return at, err
	}
	if err := n.away.relocate(o.UID, has); err != nil {
		return at, err
	}
	if err := n.receivePassing(ctx, &o, n.away.dir(o.UID)); err != nil {
		return at, err
	}
	o.From = o.UID
	err = n.create(ctx, o, func(ctx context.Context, o fleet.Order) (made, error) { return n.planOf(ctx, o, &n.away) })
	if err != nil {
		return at, err
	}
	if b := n.box(o.UID); b != nil && used.After(s.At) {
		b.mu.Lock()
		b.note("its node was lost: " + b.setBack(s.At, time.Now()))
		b.mu.Unlock()
		b.writeDown()
	}
	return s.At, n.away.drop(o.UID)
}

// Sending takes note that the bucket may have a copy of a sandbox from now on, whose memory is of
// a moment. After a crash, only the bucket can say. It returns when that is on disk.
func (n *Node) Sending(uid string, at time.Time) error {
	b := n.box(uid)
	if b == nil {
		return errUnknown
	}
	b.mu.Lock()
	b.sending = at
	b.mu.Unlock()
	return b.tryToWriteDown()
}

// Copied takes note that the bucket has a copy of a sandbox, whose memory is of a moment. If
// nothing newer is left here after a crash, the sandbox goes on from there. The copy is still here.
func (n *Node) Copied(uid string, at time.Time) {
	b := n.box(uid)
	if b == nil {
		return
	}
	s, err := n.away.read(uid)
	archived := err == nil && s.Archive
	b.mu.Lock()
	current := archived == b.state.Is(doze.Archived) // else it went into its archive meanwhile, or out
	if current {
		b.copied, b.sending, b.received = at, time.Time{}, false
	}
	b.mu.Unlock()
	if !current {
		return
	}
	b.writeDown()
}

// openAway removes what an earlier process left of copies. Each is made, or comes, again.
func (n *Node) openAway() error {
	n.away = snapshots{root: n.Away, driver: n.Driver}
	if err := os.MkdirAll(n.Away, 0o700); err != nil {
		return fmt.Errorf("make the directory of copies: %w", err)
	}
	entries, err := os.ReadDir(n.Away)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !idPattern.MatchString(e.Name()) { // a copy that was coming
			if err := os.RemoveAll(filepath.Join(n.Away, e.Name())); err != nil {
				return err
			}
			continue
		}
		if err := n.away.drop(e.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// HasSnapshot reports whether a snapshot is on this node.
func (n *Node) HasSnapshot(id string) bool {
	_, err := n.snapshots.read(id)
	return err == nil
}

// SnapshotOut returns the directory of a snapshot, which does not change, and what it needs.
func (n *Node) SnapshotOut(id string) (dir string, needs Files, err error) {
	if !idPattern.MatchString(id) {
		return "", needs, doze.Errorf(doze.Invalid, "%.80q is no id of a snapshot", id)
	}
	s, err := n.snapshots.read(id)
	if err != nil {
		return "", needs, n.snapshots.unusable(id, err)
	}
	return n.snapshots.dir(id), Files{Root: s.Image.Path, Agent: s.Agent}, nil
}

// SnapshotIn takes over a snapshot that has come from another node. has are the files that it needs,
// on this host.
func (n *Node) SnapshotIn(id string, has Files) error {
	if err := n.away.relocate(id, has); err != nil {
		return err
	}
	if err := n.snapshots.drop(id); err != nil { // what an attempt left
		return err
	}
	if err := os.Rename(n.away.dir(id), n.snapshots.dir(id)); err != nil {
		return fmt.Errorf("take over a snapshot: %w", err)
	}
	return durable.Sync(n.snapshots.root)
}

// relocate has the record of a copy name the files that it needs as they are on this host.
func (k *snapshots) relocate(id string, has Files) error {
	s, err := k.read(id)
	if err != nil {
		return k.unusable(id, err)
	}
	s.Image.Path, s.Agent = has.Root, has.Agent
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := durable.Replace(filepath.Join(k.dir(id), recordName), raw, recordMode); err != nil {
		return fmt.Errorf("write the record of the copy: %w", err)
	}
	return nil
}
