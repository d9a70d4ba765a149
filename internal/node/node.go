// Package node runs the sandboxes of one host. It owns their machines and is
// the only writer of the transitions marked [doze.ByNode].
//
// It keeps one small record per sandbox on disk, from which the next process
// adopts the machines; what is in memory decides, and control hears of it.
// Nothing between a request and the first instruction of a sleeping sandbox
// touches a database or a disk, but for the checkpoint itself.
package node

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/bell"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/descent"
	"github.com/dozehq/doze/internal/node/entry"
)

// Node is the runtime of one host. With a [fleet.Builder] it is a [fleet.Node].
type Node struct {
	Options
	life         context.Context //nolint:containedctx // ends with the node
	stop         context.CancelCauseFunc
	tasks        sync.WaitGroup // goroutines of the boxes
	reports      *reports
	events       <-chan machine.Event
	era          int64 // where the sequence of reports begins
	began        time.Time
	ledger       *ledger
	ahead        *ahead
	usage        atomic.Pointer[fleet.Usage] // of the disk, as it was measured last
	reservations reservations                // of memory
	creates      *admission
	arrivals     *admission    // of memory from the bucket
	wakes        *admission    // of machines whose memory is on disk
	wanted       bell.Bell     // rings when there is a box whose memory is to come
	collectors   chan struct{} // holds a token for each answer about output
	snapshots    snapshots
	away         snapshots // copies for other nodes
	schedule     descent.Schedule
	hiddenly     descent.Schedule // schedule of the machines of the platform itself

	mu       sync.Mutex
	boxes    map[string]*Box // guarded by mu; by UID
	machines map[string]*Box // guarded by mu; by the ID of the machine
}

var _ fleet.Gate = (*Node)(nil)

var (
	errUnknown = doze.Wrap(fleet.ErrMoved, doze.NotFound, "there is no such sandbox on this node")
	errDeleted = entry.ErrDeleted
	errMoved   = doze.Wrap(fleet.ErrMoved, doze.Unavailable, "the sandbox has moved to another node")
)

// Open returns a node that has adopted every sandbox of its directory and
// removed what no record names.
func Open(ctx context.Context, o Options) (_ *Node, err error) {
	o.fill()
	n := &Node{Options: o, began: time.Now(), ledger: newLedger(), reports: newReports(), boxes: map[string]*Box{}, machines: map[string]*Box{}}
	n.collectors = make(chan struct{}, collectorsMax)
	n.creates = newAdmission(runtime.NumCPU()+1, nil)  // one may wait for a disk
	n.arrivals = newAdmission(runtime.NumCPU()+1, nil) // or for the bucket
	n.wakes = newAdmission(wakesPerProcessor*runtime.NumCPU(), o.Crowded)
	n.wanted = bell.New()
	n.reservations = reservations{most: int64(float64(o.Limit) * o.Overcommit), reserved: map[string]int64{}}
	n.ahead = newAhead(n)
	n.schedule = o.schedule()
	n.hiddenly = hiddenSchedule(n.schedule)
	n.snapshots = snapshots{root: o.Snapshots, driver: o.Driver}
	n.life, n.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	defer func() {
		if err != nil {
			n.stop(err)
		}
	}()
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the node's directory: %w", err)
	}
	if n.era, err = n.beginEra(); err != nil {
		return nil, fmt.Errorf("begin an era: %w", err)
	}
	// We listen before we look, so that no end of a machine is missed.
	if n.events, err = n.Driver.Events(n.life); err != nil {
		return nil, fmt.Errorf("listen to machines: %w", err)
	}
	if err := n.adopt(ctx); err != nil {
		return nil, fmt.Errorf("adopt: %w", err)
	}
	if err := n.openAway(); err != nil {
		return nil, err
	}
	if err := n.ahead.open(n.Owns); err != nil {
		return nil, fmt.Errorf("look at what was started ahead: %w", err)
	}
	return n, nil
}

// Run hands on reports and machine events until ctx ends. Sandboxes are left
// as they are: they run or sleep on, and the next node adopts them.
func (n *Node) Run(ctx context.Context) error {
	var loops, reporter sync.WaitGroup
	loops.Go(func() { n.relieve(ctx) })
	loops.Go(func() { n.renewCheckpoints(ctx) })
	loops.Go(func() { n.ahead.run(ctx) })
	loops.Go(func() { n.receiveAll(ctx) })
	loops.Go(func() { n.watchUsage(ctx) })
	loops.Go(func() {
		for e := range n.events {
			if b := n.of(e.ID); b != nil {
				b.event(e)
			}
		}
	})
	last, done := context.WithCancel(context.WithoutCancel(ctx))
	reporter.Go(func() { n.reports.run(last, n.Report) })

	<-ctx.Done()
	n.Stop()
	loops.Wait()
	for _, b := range n.all() {
		b.hangUp() // it takes mu, after which the box spawns nothing more
	}
	n.tasks.Wait()
	done()
	reporter.Wait()
	return nil
}

// Stop has the node begin nothing more with its sandboxes, and cut short what it is at. It does not
// wait. The end of Run does the same.
func (n *Node) Stop() { n.stop(fleet.ErrStopping) }

// box returns the box of a sandbox. Nobody finds a hidden one by its UID.
func (n *Node) box(uid string) *Box {
	if hidden(uid) {
		return nil
	}
	return n.lookup(uid)
}

// lookup returns the box of a UID, be it hidden or not.
func (n *Node) lookup(uid string) *Box {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.boxes[uid]
}

// of returns the box of a machine.
func (n *Node) of(machine string) *Box {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.machines[machine]
}

// assign makes a box that of another machine. Preconditions: the turn is held.
func (n *Node) assign(b *Box, c machine.Config) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.machines, b.made.config.ID)
	b.made.config = c
	n.machines[c.ID] = b
}

// become has a box made of something. Preconditions: the turn is held.
func (n *Node) become(b *Box, m made) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b.made = m
}

// Owns reports whether a sandbox of this node has the machine of that id.
func (n *Node) Owns(machine string) bool { return n.of(machine) != nil }

func (n *Node) all() []*Box {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Collect(maps.Values(n.boxes))
}

func (n *Node) put(b *Box) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.boxes[b.order.UID] != nil {
		return doze.Errorf(doze.Conflict, "the node has this sandbox already")
	}
	n.boxes[b.order.UID], n.machines[b.made.config.ID] = b, b
	return nil
}

func (n *Node) drop(b *Box) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.boxes[b.order.UID] == b {
		n.ledger.leave(b.order.Workspace, b.order.UID)
		delete(n.boxes, b.order.UID)
		delete(n.machines, b.made.config.ID)
	}
}

// CheckImage implements [fleet.Node].
func (n *Node) CheckImage(_ context.Context, ref string) error { return n.Options.CheckImage(ref) }

// FetchImage implements [fleet.Node].
func (n *Node) FetchImage(ctx context.Context, ref string, login *fleet.Login) error {
	_, err := n.Image(ctx, ref, login)
	return cause(ctx, err)
}

// PinImage implements [fleet.Node].
func (n *Node) PinImage(ctx context.Context, ref string, login *fleet.Login) (fleet.Pinned, error) {
	pinned, err := n.Options.PinImage(ctx, ref, login)
	return pinned, cause(ctx, err)
}

// ReleaseImage implements [fleet.Node].
func (n *Node) ReleaseImage(_ context.Context, ref string) error {
	n.Options.ReleaseImage(ref)
	return nil
}

// Statuses implements [fleet.Node].
func (n *Node) Statuses(_ context.Context, uids []string) (map[string]fleet.Status, error) {
	all := make(map[string]fleet.Status, len(uids))
	for _, uid := range uids {
		if b := n.box(uid); b != nil {
			all[uid] = b.status()
		}
	}
	return all, nil
}
