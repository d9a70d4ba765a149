package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
)

const (
	// absentLook is how often the node looks for boxes whose memory is to come.
	absentLook = 200 * time.Millisecond
	// absentRetry is the pause after memory that did not come.
	absentRetry = 5 * time.Second
	// stayLook is how soon a box that was due in a lower tier is looked at again, if it had
	// to stay. It stays for stayMost at most: the others need memory, too.
	stayLook, stayMost = time.Second, time.Minute
)

// errNoFetch is for a node without the bucket.
var errNoFetch = doze.Errorf(doze.Unavailable, "the sandbox is in the bucket of copies, which its node has not: its operator names one with --remote and --remote-credentials")

// errNotFetched is why memory is not here yet.
var errNotFetched = errors.New("its memory did not come from the bucket of copies")

// absence says that the memory of a box is in the bucket, and that what is here does not
// count. The box sleeps. Its memory comes when somebody wants it, or when the node has
// time.
type absence struct {
	Ran  bool      `json:"ran,omitempty"` // it is to go on by itself
	Told time.Time `json:"told,omitzero"` // of when its memory is, as its owner was told; zero: nothing is lost
	// Made is of when a checkpoint is that is here. It counts after all if the bucket has nothing
	// newer. Zero: there is none.
	Made time.Time `json:"made,omitzero"`
	next time.Time // of the next try by itself
}

// Revive gives the node a sandbox that another one had. The record is that of its copy in the
// bucket. The sandbox was used last at the time used, and ran says that its processes did. What
// it did after the copy was made is lost, and its owner hears of that. On a node whose
// sandboxes do not go back, such a sandbox is NotFound. Revive returns of when the copy is.
// One that is here already is no error.
func (n *Node) Revive(_ context.Context, o fleet.Order, record []byte, used time.Time, ran bool) (at time.Time, err error) {
	s, err := parseSnapshot(record, o.UID)
	if err != nil {
		return at, n.away.unusable(o.UID, err)
	}
	if b := n.box(o.UID); b != nil {
		if b.phase() == doze.Starting {
			return at, errStartedAlready
		}
		return s.At, nil
	}
	if err := n.sameDriver("the sandbox", s.Driver); err != nil {
		return at, err
	}
	if s.Archive {
		return n.reviveArchive(o, &s, used)
	}
	if err := n.mayLose(&s, used); err != nil {
		return at, err
	}
	lost := used.After(s.At)
	b := n.newBox(o, n.configOf(o), doze.Standby)
	s.fix(&b.made.config)
	b.made.image = s.Image
	b.entry.of(&b.made.image, &b.order)
	b.absent, b.copied, b.stranger = &absence{Ran: ran}, s.At, true
	b.checkpoint.age.Save(s.At)
	message := ""
	if lost {
		message = "its node was lost: " + b.lose(s.At, time.Now())
	}
	if ran {
		if err := n.spareMemory(b); err != nil {
			return at, err
		}
	}
	if err := n.save(b, doze.Standby, ""); err != nil {
		n.reservations.release(b.made.config.ID)
		return at, fmt.Errorf("write the record: %w", err)
	}
	if err := n.install(b, message); err != nil {
		return at, err
	}
	n.wanted.Ring()
	return s.At, nil
}

// errStartedAlready is the answer to a second try while the first one goes on.
var errStartedAlready = doze.Errorf(doze.Conflict, "the sandbox is being started already")

// mayLose is NotFound if a sandbox that was used at a time would lose something with a
// copy, and the operator wants none of that.
func (n *Node) mayLose(s *savedSnapshot, used time.Time) error {
	if n.GoBack || !used.After(s.At) {
		return nil
	}
	return doze.Errorf(doze.NotFound, "its node was lost, and what it did since its copy of %s with it: with --on-crash fail it does not go on from there",
		s.At.UTC().Format(time.RFC3339))
}

// spareMemory keeps memory for a box that will run soon: a node that is full refuses it.
func (n *Node) spareMemory(b *Box) error {
	if err := n.never(b.made.config); err != nil {
		return err
	}
	if n.reservations.reserve(b.made.config.ID, n.need(b.made.config)) {
		return nil
	}
	n.reservations.refuse()
	return doze.Wrap(errors.Join(machine.ErrNoMemory, fleet.ErrFull), doze.Unavailable, "the node has no memory left: it is reserved for sandboxes that run")
}

// lose is setBack for a box that is absent.
func (b *Box) lose(since, now time.Time) string {
	b.absent.Told = since
	return b.setBack(since, now)
}

// setBack takes note that a box goes on from its copy, and that what it did since a moment is
// lost. It returns that as a clause. Preconditions: mu is held, or nobody else has the box yet.
func (b *Box) setBack(since, now time.Time) string {
	b.checkpoint.fell, b.checkpoint.back = nil, &setback{Setback: fleet.Setback{Checkpoint: since, At: now}}
	return fmt.Sprintf("it goes on from its copy of %s, %s old, and what it did since is lost",
		since.UTC().Format(time.RFC3339), now.Sub(since).Round(time.Second))
}

// resort has a box without processes go on from its copy in the bucket, if it may go back,
// and the copy is newer than what is left here. Otherwise another node could go on later from a
// state that the box had left. What is left here is of the time made, which is zero if nothing is.
// Volumes stay as they are here, as with a checkpoint. resort returns what is lost, or nothing for
// a box that has no such copy. The caller has writeDown write it down. Preconditions: the turn and
// mu are held, or nobody else has the box yet.
func (b *Box) resort(made, now time.Time) (lost string) {
	newest := b.copied
	if b.sending.After(newest) { // the bucket may have that
		newest = b.sending
	}
	if b.absent != nil || b.n.Fetch == nil || !b.n.GoBack || newest.IsZero() || !newest.After(made) || b.hidden() {
		return ""
	}
	b.machine, b.absent = nil, &absence{Made: made}
	b.checkpoint.age.Save(newest)
	b.n.wanted.Ring()
	return b.lose(newest, now)
}

// receive gets the memory of a box that is absent, and returns its machine, which is
// OnDisk. Preconditions: the turn is held.
func (b *Box) receive(ctx context.Context) (machine.Machine, error) {
	n, uid := b.n, b.order.UID
	if n.Fetch == nil {
		return nil, errNoFetch
	}
	began := time.Now()
	has, err := n.Fetch(ctx, uid)
	if doze.Public(err).Kind == doze.NotFound {
		if b.hasNewer(time.Time{}) {
			return b.stayHere(ctx, time.Time{})
		}
		b.mu.Lock()
		b.absent, b.copied, b.sending = nil, time.Time{}, time.Time{}
		b.mu.Unlock()
		slog.ErrorContext(ctx, "the copy of a sandbox is gone from the bucket", "sandbox", uid, "err", err)
		return b.find(ctx) // something older may be left here
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotFetched, err)
	}
	fetched := time.Since(began)
	s, err := n.away.read(uid)
	if err != nil {
		return nil, n.away.unusable(uid, err)
	}
	if b.hasNewer(s.At) {
		return b.stayHere(ctx, s.At)
	}
	c := b.made.config
	s.fix(&c)
	s.Image.Path, s.Agent = has.Root, has.Agent
	c.Root, c.Agent, c.Driver, c.From = has.Root, has.Agent, n.Driver.Traits().Name, n.away.copyDir(uid)
	c.Env = bootEnvironment(s.Image, n.Nameservers, c)
	n.HoldImage(has.Root)
	if c.Link, err = b.rules.lease(ctx, c.ID); err != nil {
		return nil, fmt.Errorf("lease an address: %w", err)
	}
	// Its volumes are here, and do not go back.
	if c.Volumes, err = n.attach(ctx, b.order); err != nil {
		return nil, fmt.Errorf("attach its volumes: %w", err)
	}
	m, err := n.Driver.Receive(ctx, c)
	if err != nil {
		return nil, n.away.unusable(uid, err)
	}
	c.From = ""
	n.become(b, made{c, s.Image})
	phase, was := b.present(&s)
	if err := n.save(b, phase, ""); err != nil {
		b.mu.Lock()
		b.absent = was // as the record has it
		b.mu.Unlock()
		return nil, fmt.Errorf("write the record: %w", err)
	}
	slog.InfoContext(ctx, "the memory of a sandbox is here", "sandbox", uid, "made", s.At, "fetch", fetched.String(), "took", time.Since(began).String())
	return m, n.away.drop(uid)
}

// hasNewer reports whether what is left here of a box that is absent is no older than a copy of a
// moment.
func (b *Box) hasNewer(at time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	made := b.absent.Made
	return !made.IsZero() && !at.After(made)
}

// stayHere is the end of receive for a box whose last copy did not get into the bucket. The bucket
// has an older one of a moment, or none: zero. The box goes on from its checkpoint here, and its
// owner hears of that. Preconditions: the turn is held.
func (b *Box) stayHere(ctx context.Context, at time.Time) (machine.Machine, error) {
	b.mu.Lock()
	phase := doze.Standby
	if b.state.Is(doze.Disabled) {
		phase = doze.Disabled
	}
	was := b.absent
	b.absent = nil
	b.mu.Unlock()
	m, err := b.find(ctx)
	if err == nil {
		b.mu.Lock()
		b.copied, b.sending = at, time.Time{}
		b.note("its last copy is not in the bucket: " + b.checkpoint.goBack(m, was.Made, time.Now()))
		b.mu.Unlock()
		err = b.n.save(b, phase, "")
	}
	if err != nil {
		b.mu.Lock()
		b.absent = was // as the record has it
		b.mu.Unlock()
		return nil, err
	}
	slog.InfoContext(ctx, "what is here of a sandbox is newer than its copy", "sandbox", b.order.UID, "copy", at, "made", was.Made)
	return m, b.n.away.drop(b.order.UID)
}

// present takes note that the memory of a box is here, and returns which phase its record
// has, and what was known of its absence. Preconditions: the turn is held.
func (b *Box) present(s *savedSnapshot) (phase doze.Phase, was *absence) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if told := b.absent.Told; !told.IsZero() && !told.Equal(s.At) { // a newer copy than anybody knew of
		b.note("its memory was lost: " + b.lose(s.At, time.Now()))
	}
	was = b.absent
	b.absent, b.copied, b.sending, b.received = nil, s.At, time.Time{}, true
	b.entry.of(&s.Image, &b.order)
	if b.state.Is(doze.Disabled) {
		return doze.Disabled, was
	}
	return doze.Standby, was
}

// arrive gets the memory of a box that is absent, when it is its turn among those that
// somebody waits for.
func (b *Box) arrive(ctx context.Context) error {
	if !b.isAbsent() {
		return nil
	}
	leave, err := b.n.arrivals.enter(ctx, b.order.Workspace)
	if err != nil {
		return err
	}
	defer leave()
	return b.arriveNow(ctx)
}

// arriveNow is arrive without a turn among others.
func (b *Box) arriveNow(ctx context.Context) error {
	if err := b.turn.take(ctx); err != nil {
		return err
	}
	defer b.unlock()
	if !b.isAbsent() {
		return nil
	}
	m, err := b.receive(ctx)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.machine = m
	b.sinking.arm()
	return nil
}

func (b *Box) isAbsent() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.absent != nil
}

// receiveAll gets the memory of boxes that are absent, one after the other, while nobody
// waits for another one. Those that ran come first, and go on. It ends with ctx.
func (n *Node) receiveAll(ctx context.Context) {
	if n.Fetch == nil {
		return
	}
	for n.wanted.Wait(ctx, absentLook) {
		for _, b := range n.absentees(time.Now()) {
			leave, ok := n.arrivals.try()
			if !ok {
				break // somebody waits for another one
			}
			err := b.arriveAlone(ctx)
			leave()
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				slog.WarnContext(ctx, "the memory of a sandbox is still in the bucket alone", "sandbox", b.order.UID, "err", err, "again", absentRetry)
			}
		}
	}
}

// Receiving reports whether memory is coming from the bucket.
func (n *Node) Receiving() bool { return n.arrivals.busyFor(time.Now()) > 0 }

// stays reports whether boxes stay in their tiers. They do while memory comes from the
// bucket, and while wakes wait for each other. A checkpoint would take the processors from
// what somebody waits for.
func (n *Node) stays(now time.Time) bool {
	d := max(n.arrivals.busyFor(now), n.wakes.queuedFor(now))
	return d > 0 && d < stayMost
}

// absentees are boxes that are absent and have not been tried just now, those that ran
// first.
func (n *Node) absentees(now time.Time) (all []*Box) {
	var rest []*Box
	for _, b := range n.all() {
		b.mu.Lock()
		switch {
		case b.absent == nil || now.Before(b.absent.next) || !b.state.Is(doze.Standby, doze.Disabled):
		case b.absent.Ran:
			all = append(all, b)
		default:
			rest = append(rest, b)
		}
		b.mu.Unlock()
	}
	return slices.Concat(all, rest)
}

// arriveAlone gets the memory of a box that nobody waits for. If the box ran, it goes on.
func (b *Box) arriveAlone(ctx context.Context) error {
	b.mu.Lock()
	a := b.absent
	if a == nil {
		b.mu.Unlock()
		return nil
	}
	a.next = time.Now().Add(absentRetry)
	ran := a.Ran && b.state.Is(doze.Standby)
	b.mu.Unlock()
	ctx, cancel := b.life.bound(ctx)
	defer cancel()
	err := b.arriveNow(ctx)
	if errors.Is(err, machine.ErrGone) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return errors.Join(err, b.move(doze.Broke, goneMessage))
	}
	if err != nil || !ran {
		return err
	}
	ctx, end := context.WithTimeout(ctx, wakeTimeout)
	defer end()
	return b.n.Wake(ctx, b.order.UID)
}
