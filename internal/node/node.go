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
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/descent"
	"github.com/dozehq/doze/internal/node/entry"
	"github.com/dozehq/doze/internal/trace"
)

const (
	// bootTimeout bounds the time from the first instruction until the agent
	// answers.
	bootTimeout = 60 * time.Second
)

// Image is what a sandbox is made of.
type Image struct {
	Path    string   // file of the read-only root file system
	Env     []string // KEY=value
	User    string   // whom its processes run as: a name or an id, with an optional :group; empty means root
	WorkDir string   // where they start; empty means /
}

// Options are the settings of a node and what it builds sandboxes with.
type Options struct {
	Dir       string // one directory per sandbox; survives a reboot
	Snapshots string // one directory per snapshot; on the same file system, so that files can be shared
	Ahead     string // directory of what is started ahead, on the same file system; without one nothing is
	Agent     string // file with the agent
	Driver    machine.Driver

	// CheckImage and Image resolve an image's name; Image may take as long as
	// making it takes.
	CheckImage func(ref string) error
	Image      func(ctx context.Context, ref string, login *fleet.Login) (Image, error)
	PinImage   func(ctx context.Context, ref string, login *fleet.Login) (fleet.Pinned, error)
	// HoldImage keeps the file of an image that a sandbox begins with that goes on from
	// a snapshot, until it is on record.
	HoldImage func(path string)
	// ReleaseImage says that no record names an image any more.
	ReleaseImage func(ref string)
	// Images returns what the images of the host take of its disk, without who
	// uses them.
	Images func() ([]fleet.DiskUse, error)
	// Lease returns the network of a sandbox, the same one for the same id
	// until Release.
	Lease   func(ctx context.Context, id string) (machine.Link, error)
	Release func(id string) error
	// Admit has the network of an order obeyed for what was leased under an id,
	// and is NotFound if nothing is. What nobody admitted reaches nothing.
	Admit func(id string, o fleet.Order) error
	// Proxy is host:port of the proxy in every sandbox.
	Proxy string
	// Trust returns the certificate, in PEM, of an authority that signs where a
	// routing rule has connections intercepted.
	Trust func(authority string) ([]byte, error)
	// Volumes keeps the disks of sandboxes.
	Volumes Volumes
	// Drive opens a part of a drive for a sandbox, with a directory for what is
	// being written. Without a bucket it is Unsupported.
	Drive func(m fleet.DriveMount, dir string) (Drive, error)
	// Nameservers are the addresses that sandboxes ask for names, if there are
	// any that they can reach.
	Nameservers []string
	// Report is told of every transition, in order, by one goroutine.
	Report func(fleet.Report)
	// Woke and Sank are told how wakes and moves down ended and how long they
	// took. They must not wait. Either may be nil.
	Woke func(from machine.Tier, took time.Duration, err error)
	Sank func(to machine.Tier, took time.Duration, err error)
	// Traced is told of every wake and every create that has ended. It must not
	// wait. It may be nil.
	Traced func(trace.Record)
	// Room takes bytes of the disk for what is about to be written, until release is
	// called, or is Exhausted; SleepRoom is for checkpoints of sandboxes, which may
	// take more of it. Without them the disk is the node's.
	Room, SleepRoom func(bytes int64) (release func(), err error)
	// Refused is told of each sandbox that may not be awake, by the name of the
	// quota. It must not wait. It may be nil.
	Refused func(quota string)
	// Available returns the bytes of memory that the host can still give.
	Available func() (int64, error)

	PauseAfter time.Duration // unused for this long, a sandbox is paused
	GoBack     bool          // one whose processes end by themselves goes on from its last checkpoint
	SaveAfter  time.Duration // paused for this long, its checkpoint is written
	SwapAfter  time.Duration // paused for this long, its memory is moved to the host's swap; 0, or not before DiskAfter: never
	DiskAfter  time.Duration // paused for this long, its memory is given back
	// CheckpointEvery is how old the last checkpoint of a sandbox in use may get: it
	// is renewed in the next moment in which nobody uses the sandbox. 0: only a
	// sleep writes one.
	CheckpointEvery time.Duration
	Spares          int     // how many machines are started ahead of their sandboxes
	SparesMax       int     // the same, when as many were created within a minute
	Reserve         int64   // with less memory than this available, sandboxes move to disk early
	Budget          int64   // with more memory than this in sandboxes, they move down early; 0: no limit
	Limit           int64   // what all machines can take together, in bytes; 0: no limit
	Overcommit      float64 // how many times the limit may be reserved for machines in memory
}

// Node is the runtime of one host.
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
	births       *births
	way          descent.Way // down, of its sandboxes

	mu       sync.Mutex
	boxes    map[string]*Box // guarded by mu; by UID
	machines map[string]*Box // guarded by mu; by the ID of the machine
}

var (
	_ fleet.Node = (*Node)(nil)
	_ fleet.Gate = (*Node)(nil)
)

var (
	errUnknown = doze.Errorf(doze.NotFound, "there is no such sandbox on this node")
	errDeleted = entry.ErrDeleted
)

// way is the way down of sandboxes.
func (o *Options) way() descent.Way {
	return descent.Way{
		Pause: o.PauseAfter, Save: o.SaveAfter, Swap: o.SwapAfter, Disk: o.DiskAfter, Swaps: o.Driver.Traits().Swap,
	}
}

// Open returns a node that has adopted every sandbox of its directory and
// removed what no record names.
func Open(ctx context.Context, o Options) (_ *Node, err error) {
	if o.Woke == nil {
		o.Woke = func(machine.Tier, time.Duration, error) {}
	}
	if o.Sank == nil {
		o.Sank = func(machine.Tier, time.Duration, error) {}
	}
	boundless := func(int64) (release func(), err error) { return func() {}, nil }
	if o.Room == nil {
		o.Room = boundless
	}
	if o.SleepRoom == nil {
		o.SleepRoom = boundless
	}
	if o.Traced == nil {
		o.Traced = func(trace.Record) {}
	}
	if o.Refused == nil {
		o.Refused = func(string) {}
	}
	n := &Node{Options: o, began: time.Now(), ledger: newLedger(), reports: newReports(), boxes: map[string]*Box{}, machines: map[string]*Box{}}
	n.births = newBirths(runtime.NumCPU() + 1) // one may wait for a disk
	n.reservations = reservations{most: int64(float64(o.Limit) * o.Overcommit), reserved: map[string]int64{}}
	n.ahead = newAhead(n)
	n.way = o.way()
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
	loops.Go(func() { n.watchCheckpoints(ctx) })
	loops.Go(func() { n.ahead.run(ctx) })
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
	n.stop(fleet.ErrStopping)
	loops.Wait()
	for _, b := range n.all() {
		b.hangUp() // it takes mu, after which the box spawns nothing more
	}
	n.tasks.Wait()
	done()
	reporter.Wait()
	return nil
}

func (n *Node) box(uid string) *Box {
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

// Create implements [fleet.Node]: an image, an address, a machine, an agent that
// answers, in that order. If one step fails, those before it are taken back in
// reverse. If that does not work either, Delete tries again.
func (n *Node) Create(ctx context.Context, o fleet.Order) (err error) {
	b := n.newBox(o, machine.Config{ID: o.UID}, doze.Starting)
	ctx, traced := n.traceCreate(ctx, b)
	defer func() { traced(err) }()
	b.turn.try() // nobody else has it
	defer b.unlock()
	if err := n.put(b); err != nil {
		b.life.end(err)
		return err
	}
	var u undo
	defer func() {
		if err != nil {
			b.life.end(doze.Wrap(err, doze.Unavailable, "the sandbox could not be started"))
			b.hangUp()
		}
		u.unwind(&err)
	}()
	u.push(func() error { n.drop(b); return nil })
	if err := n.enter(&o, ""); err != nil {
		return err
	}
	ctx, cancel := b.life.bound(ctx)
	defer cancel()
	return n.build(ctx, b, &u)
}

// build makes the machine of a new box. Preconditions: the turn is held.
func (n *Node) build(ctx context.Context, b *Box, u *undo) error {
	o := b.order
	var err error
	if b.made, err = n.plan(ctx, o); err != nil {
		return err
	}
	u.push(func() error { return os.RemoveAll(n.dir(o.UID)) })
	leave, err := n.births.enter(ctx, o.Workspace)
	if err != nil {
		return err
	}
	defer leave()
	like := b.made.config
	m, err := n.obtain(ctx, b, u)
	if err != nil {
		return err
	}
	if err := n.inhabit(ctx, b, o, m); err != nil {
		return err
	}
	// A crash after this line leaves a sandbox that is adopted.
	if err := n.commit(ctx, b, doze.Running); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if b.life.Err() != nil { // ctx is about to end, too
		return context.Cause(b.life)
	}
	if len(o.Volumes) == 0 {
		n.ahead.want(like)
	}
	return b.move(doze.Booted, "")
}

// plan returns what the machine of an order is made of.
func (n *Node) plan(ctx context.Context, o fleet.Order) (m made, err error) {
	c := &m.config
	*c = machine.Config{
		Driver: n.Driver.Traits().Name, ID: o.UID, Dir: n.machineDir(o.UID), Agent: n.Agent, Hostname: o.Name, Memory: o.Memory.Bytes(), CPUs: o.Memory.CPUs(),
		IPTables: o.IPTables, Tun: o.Tun, GoBack: n.GoBack,
	}
	defer trace.Next(ctx, trace.Image).End()
	if o.From == "" {
		if m.image, err = n.Image(ctx, o.Image, o.Login); err != nil {
			return m, fmt.Errorf("image %s: %w", o.Image, cause(ctx, err))
		}
	} else {
		s, err := n.readSnapshot(o.From)
		if err != nil {
			return m, n.unusable(o.From, err)
		}
		m.image = s.Image
		n.HoldImage(m.image.Path)
		c.Agent, c.Memory, c.CPUs, c.From = s.Agent, s.Memory, s.CPUs, n.copyDir(o.From)
	}
	c.Root, c.Env = m.image.Path, bootEnvironment(m.image, n.Nameservers, o.Tun)
	return m, nil
}

// obtain starts the machine of a new box: a spare one, if there is one for it,
// or else one of its own. Preconditions: the turn is held.
func (n *Node) obtain(ctx context.Context, b *Box, u *undo) (machine.Machine, error) {
	own := b.made.config
	if s := n.spare(b); s != nil {
		taken := s.config
		taken.Hostname = own.Hostname
		n.assign(b, taken)
		trace.Of(ctx).Comes(trace.FromSpare)
		err := n.commit(ctx, b, doze.Starting) // a crash finds whose it is
		if err == nil {
			networking := trace.Start(ctx, trace.Network)
			err = b.rules.admit(taken.ID)
			networking.End()
		}
		if err == nil {
			err = s.Resume(ctx)
		}
		end := func() error { return s.end(context.WithoutCancel(ctx)) }
		if err == nil {
			u.push(end)
			return s.Machine, nil
		}
		slog.Warn("a spare machine does not work", "sandbox", b.order.UID, "err", err)
		if err := errors.Join(context.Cause(ctx), end()); err != nil {
			return nil, err
		}
		n.assign(b, own)
	}
	if err := n.commit(ctx, b, doze.Starting); err != nil {
		return nil, fmt.Errorf("write the record: %w", err)
	}
	return n.boot(ctx, b, b.order, u)
}

// spare is a machine for a new box that was started ahead, or nil. None has
// volumes.
func (n *Node) spare(b *Box) *spare {
	if len(b.order.Volumes) > 0 {
		return nil
	}
	return n.ahead.take(b.made.config)
}

// boot leases the network of the machine that b.made.config says, attaches its volumes
// and starts it.
// Preconditions: the turn is held.
func (n *Node) boot(ctx context.Context, b *Box, o fleet.Order, u *undo) (_ machine.Machine, err error) {
	if err := n.reserveMemory(ctx, b.made.config); err != nil {
		return nil, err
	}
	owner := b.made.config.ID
	u.push(func() error { n.reservations.release(owner); return nil })
	u.push(func() error { return n.Release(o.UID) })
	networking := trace.Start(ctx, trace.Network)
	if b.made.config.Link, err = b.rules.lease(ctx, o.UID); err != nil {
		return nil, fmt.Errorf("lease an address: %w", cause(ctx, err))
	}
	networking.End()
	u.push(func() error { return n.detach(o.UID) })
	attaching := trace.Start(ctx, trace.Volumes)
	if b.made.config.Volumes, err = n.attach(ctx, o); err != nil {
		return nil, fmt.Errorf("attach its volumes: %w", cause(ctx, err))
	}
	attaching.End()
	if from := trace.Of(ctx); b.made.config.From == "" {
		from.Comes(trace.FromImage)
	} else {
		from.Comes(trace.FromSnapshot)
	}
	m, err := n.Driver.Boot(ctx, b.made.config)
	if err != nil {
		err = fmt.Errorf("boot: %w", cause(ctx, err))
		if errors.Is(err, machine.ErrNoVolumes) {
			err = doze.Wrap(err, doze.Unavailable, "this node has a launcher from before there were volumes: its operator has to end that, and the node's log says which")
		}
		if o.From != "" {
			err = n.unusable(o.From, err)
		}
		return nil, err
	}
	u.push(func() error { return m.Close(context.WithoutCancel(ctx)) })
	b.made.config.From = "" // it is a machine like any other now
	return m, nil
}

// inhabit gives a box a machine that has just started and tells its agent whose
// it is. Preconditions: the turn is held.
func (n *Node) inhabit(ctx context.Context, b *Box, o fleet.Order, m machine.Machine) error {
	defer trace.Start(ctx, trace.Agent).End()
	b.mu.Lock()
	b.machine = m
	b.mu.Unlock()
	trust, err := n.trust(o)
	if err != nil {
		return err
	}
	in := agentapi.Identity{Hostname: b.order.Name, Env: n.environment(b.made.image, o), Trust: trust}
	if err := introduce(ctx, b.agent(), m, in); err != nil {
		return fmt.Errorf("wait for the agent: %w", err)
	}
	return nil
}

// cause returns why ctx ended, if it did, or else err.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// dir is where everything of a sandbox is.
func (n *Node) dir(uid string) string { return filepath.Join(n.Dir, uid) }

func (n *Node) machineDir(uid string) string { return filepath.Join(n.dir(uid), "machine") }

// environment is what the agent gets for what it starts: the image's variables,
// who the sandbox is, the caller's, and what is for the agent alone. Of two with
// one name the later wins.
func (n *Node) environment(image Image, o fleet.Order) []string {
	env := slices.Concat(image.Env, []string{
		"HOST=0.0.0.0", // where servers that ask are to listen, so that previews reach them
		"HOSTNAME=" + o.Name, "BL_NAME=" + o.Name, "BL_WORKSPACE=" + o.Workspace, "BL_REGION=" + o.Region,
	}, n.proxyEnvironment(o.Network), o.Env, hostEnvironment(image, n.nameservers(o.Network)))
	last := map[string]int{}
	for i, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		last[name] = i
	}
	var out []string
	for i, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); last[name] == i {
			out = append(out, kv)
		}
	}
	return out
}

// bootEnvironment is what the first process is started with. The rest the agent
// is told when it answers, so that no memory that is copied, and nothing that
// shows how a process was started, has the variables of a sandbox.
func bootEnvironment(image Image, nameservers []string, tun bool) []string {
	env := hostEnvironment(image, nameservers)
	if !tun { // the engine has it everywhere, and programs look whether it is there
		env = append(env, "DOZE_HIDDEN=/dev/net/tun")
	}
	return env
}

// hostEnvironment is what an agent must know at any time. It knows them by these
// names and passes them on to nobody.
func hostEnvironment(image Image, nameservers []string) []string {
	return []string{
		"DOZE_NAMESERVERS=" + strings.Join(nameservers, ","), "DOZE_USER=" + image.User, "DOZE_WORKDIR=" + image.WorkDir,
	}
}

// Delete implements [fleet.Node]. If its caller goes away in between, the next
// Delete goes on, and so does the next start of the node.
func (n *Node) Delete(ctx context.Context, uid string) error {
	b := n.box(uid)
	if b == nil {
		n.ledger.forget(uid) // its place may be reserved
		return nil
	}
	b.part(ctx)
	b.mu.Lock()
	if !b.state.Phase().Ended() {
		if err := b.move(doze.Delete, ""); err != nil {
			b.mu.Unlock()
			return err
		}
	}
	b.life.end(errDeleted) // what is under way ends early; its callers are told
	b.mu.Unlock()
	b.hangUp()

	if err := b.turn.take(ctx); err != nil {
		return err
	}
	defer b.unlock()
	if n.box(uid) == b { // or another Delete was first, or Create took it back
		if err := n.clear(ctx, b); err != nil {
			return err
		}
		n.drop(b)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.machine = nil
	_ = b.move(doze.Gone, "") // the other Delete may have reported it
	return nil
}

// clear removes everything of a sandbox from the host. Preconditions: the turn
// is held, or nobody else has the box.
func (n *Node) clear(ctx context.Context, b *Box) error {
	uid := b.order.UID
	// Without its record the next start of the node removes what is left.
	if err := n.forget(uid); err != nil {
		return fmt.Errorf("remove the record: %w", err)
	}
	if err := n.destroy(ctx, b); err != nil {
		return fmt.Errorf("end the machine: %w", err)
	}
	n.dropDrives(ctx, b)
	if err := n.Release(b.made.config.ID); err != nil {
		return fmt.Errorf("release the address: %w", err)
	}
	if err := n.detach(uid); err != nil {
		return fmt.Errorf("detach its volumes: %w", err)
	}
	if err := errors.Join(os.RemoveAll(b.made.config.Dir), os.RemoveAll(n.dir(uid))); err != nil {
		return fmt.Errorf("remove the sandbox's directory: %w", err)
	}
	return nil
}

// destroy ends the machine of a box, also one that we hold no handle of.
func (n *Node) destroy(ctx context.Context, b *Box) error {
	b.mu.Lock()
	m := b.machine
	b.mu.Unlock()
	if m == nil {
		var err error
		if m, err = n.Driver.Adopt(ctx, b.made.config); errors.Is(err, machine.ErrGone) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return m.Close(ctx)
}

// Disable implements [fleet.Node]. Requests in flight are cut off.
func (n *Node) Disable(ctx context.Context, uid string) error {
	b := n.box(uid)
	if b == nil {
		return errUnknown
	}
	ctx, cancel := b.life.bound(ctx)
	defer cancel()
	if err := b.refuse(ctx, doze.Disable, doze.Disabling, doze.Disabled); err != nil {
		return err
	}
	b.hangUp()
	if err := b.turn.take(ctx); err != nil {
		return err
	}
	defer b.unlock()
	defer b.hangUp() // whoever came in while its agent was asked
	return b.halt(ctx)
}

// refuse moves the box on, to one of the phases in which no request is let in,
// unless it is in one of them.
func (b *Box) refuse(ctx context.Context, on doze.Trigger, to ...doze.Phase) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for !b.state.Is(to...) {
		if b.sinking.stop() {
			// its end is a change
		} else if err := b.move(on, ""); err == nil {
			break
		} else if !b.state.Is(doze.Suspending, doze.Waking, doze.Starting) {
			return err
		}
		if err := b.wait(ctx, nil); err != nil {
			return err
		}
	}
	return nil
}

// halt puts a box that refuses requests to sleep. Preconditions: the turn is
// held.
func (b *Box) halt(ctx context.Context) error {
	switch phase := b.phase(); phase {
	case doze.Disabled:
		return nil // another Disable was first
	case doze.Disabling:
	default:
		return doze.Errorf(doze.Conflict, "the sandbox is %s", phase)
	}
	m, err := b.handle(ctx)
	if err != nil {
		return fmt.Errorf("find the machine: %w", err)
	}
	// In the pause nothing is lost; disk is what makes it cheap, and is
	// tried again, unless it would lose something.
	to := machine.OnDisk
	if b.survey(m) != "" {
		to = machine.Paused
	}
	if err := b.saveBlockers(m); err != nil {
		return err
	}
	if err := b.n.descend(ctx, m, to); err != nil {
		slog.Error("disable", "sandbox", b.order.UID, "tier", m.Tier().String(), "err", err)
		if m.Tier() == machine.Awake {
			return fmt.Errorf("pause: %w", err)
		}
	}
	if err := b.n.save(b, doze.Disabled, ""); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.machine = m
	if m.Tier() >= machine.Saved {
		b.checkpoint.age.Save(time.Now())
	}
	b.sinking.tried.Halt(m.Tier(), to)
	return b.move(doze.Halted, "")
}

// Enable implements [fleet.Node].
func (n *Node) Enable(ctx context.Context, uid string) error {
	b := n.box(uid)
	if b == nil {
		return errUnknown
	}
	if err := b.turn.take(ctx); err != nil { // a Disable may be under way
		return err
	}
	defer b.unlock()
	switch phase := b.phase(); {
	case phase == doze.Disabled:
	case phase == doze.Disabling || phase == doze.Failed || phase.Ended():
		return doze.Errorf(doze.Conflict, "the sandbox is %s", phase)
	default:
		return nil
	}
	if err := n.save(b, doze.Standby, ""); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.move(doze.Enable, "") // or it is being deleted
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

// Cost returns what a sandbox takes of the host now.
func (n *Node) Cost(ctx context.Context, uid string) (machine.Stats, error) {
	b := n.box(uid)
	if b == nil {
		return machine.Stats{}, errUnknown
	}
	c, err := costOf(ctx, b)
	if errors.Is(err, errNoMachine) {
		return machine.Stats{}, nil
	}
	return c.Stats, err
}
