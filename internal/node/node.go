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
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"doze"
	"doze/internal/machine"
	"doze/internal/peer"
)

const (
	// bootTimeout bounds the time from the first instruction until the agent
	// answers.
	bootTimeout = 60 * time.Second
	bootPoll    = 2 * time.Millisecond

	// pressureEvery is how often memory is looked at.
	pressureEvery = 2 * time.Second
)

// Image is what a sandbox is made of.
type Image struct {
	Path string   // file of the read-only root file system
	Env  []string // KEY=value
}

// Options are the settings of a node and what it builds sandboxes with.
type Options struct {
	Dir    string // one directory per sandbox; survives a reboot
	Agent  string // file with the agent
	Driver machine.Driver

	// CheckImage and Image resolve an image's name; Image may take as long as
	// making it takes.
	CheckImage func(ref string) error
	Image      func(ctx context.Context, ref string) (Image, error)
	// Lease returns the network of a sandbox, the same one for the same id
	// until Release.
	Lease   func(ctx context.Context, id string) (machine.Link, error)
	Release func(id string) error
	// Report is told of every transition, in order, by one goroutine.
	Report func(peer.Report)
	// Available returns the bytes of memory that the host can still give.
	Available func() (int64, error)

	PauseAfter time.Duration // unused for this long, a sandbox is paused
	SaveAfter  time.Duration // paused for this long, its checkpoint is written
	DiskAfter  time.Duration // paused for this long, its memory is given back
	Reserve    int64         // with less memory than this available, sandboxes move to disk early
}

// Node is the runtime of one host.
type Node struct {
	Options
	life    context.Context //nolint:containedctx // ends with the node
	stop    context.CancelFunc
	reports *reports[peer.Report]

	mu    sync.Mutex
	boxes map[string]*Box // guarded by mu; by UID
}

var (
	_ peer.Node = (*Node)(nil)
	_ peer.Gate = (*Node)(nil)
)

// Open returns a node that has adopted every sandbox of its directory and
// removed what no record names.
func Open(ctx context.Context, o Options) (*Node, error) {
	n := &Node{Options: o, reports: newReports[peer.Report](), boxes: map[string]*Box{}}
	n.life, n.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the node's directory: %w", err)
	}
	if err := n.adopt(ctx); err != nil {
		return nil, fmt.Errorf("adopt: %w", err)
	}
	return n, nil
}

// Run hands on reports and machine events until ctx ends. Sandboxes are left
// as they are: they run or sleep on, and the next node adopts them.
func (n *Node) Run(ctx context.Context) error {
	events, err := n.Driver.Events(ctx)
	if err != nil {
		return fmt.Errorf("listen to machines: %w", err)
	}
	var loops sync.WaitGroup
	loops.Go(func() { n.relieve(ctx) })
	loops.Go(func() {
		for e := range events {
			if b := n.box(e.ID); b != nil {
				b.tasks.Go(func() { b.event(e) })
			}
		}
	})
	reported := make(chan struct{})
	last, done := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(reported)
		n.reports.run(last, n.Report)
	}()
	<-ctx.Done()
	loops.Wait()
	n.stop()
	for _, b := range n.all() {
		b.tasks.Wait()
		b.client.CloseIdleConnections()
	}
	done()
	<-reported
	return nil
}

func (n *Node) box(uid string) *Box {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.boxes[uid]
}

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
	n.boxes[b.order.UID] = b
	return nil
}

func (n *Node) drop(b *Box) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.boxes, b.order.UID)
}

// CheckImage implements [peer.Node].
func (n *Node) CheckImage(_ context.Context, ref string) error { return n.Options.CheckImage(ref) }

// Create implements [peer.Node]: an image, an address, a machine, an agent that
// answers, in that order. If one step fails, those before it are taken back in
// reverse.
func (n *Node) Create(ctx context.Context, o peer.Order) (err error) {
	var u undo
	defer u.unwind(&err)

	image, err := n.Image(ctx, o.Image)
	if err != nil {
		return fmt.Errorf("image %s: %w", o.Image, err)
	}
	config := machine.Config{
		ID: o.UID, Dir: filepath.Join(n.Dir, o.UID, "machine"), Root: image.Path, Agent: n.Agent,
		Hostname: o.Name, Env: environment(image.Env, o), Memory: o.Memory.Bytes(), CPUs: o.Memory.CPUs(),
	}
	b := n.newBox(o, config, doze.Starting)
	if err := n.put(b); err != nil {
		return err
	}
	u.push(func() error { b.end(); n.drop(b); return nil })

	u.push(func() error { return os.RemoveAll(filepath.Join(n.Dir, o.UID)) })
	if err := n.keep(b); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	u.push(func() error { return n.Release(o.UID) })
	if b.config.Link, err = n.Lease(ctx, o.UID); err != nil {
		return fmt.Errorf("lease an address: %w", err)
	}
	b.machine, err = n.Driver.Boot(ctx, b.config)
	if err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	u.push(func() error { return b.machine.Close(context.WithoutCancel(ctx)) })
	if err := b.answers(ctx); err != nil {
		return fmt.Errorf("wait for the agent: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.move(doze.Booted, ""); err != nil {
		return err
	}
	return n.keep(b)
}

// environment is what the first process gets: the image's variables, who the
// sandbox is, and the caller's, which win.
func environment(image []string, o peer.Order) []string {
	env := slices.Concat(image, []string{
		"HOSTNAME=" + o.Name, "BL_NAME=" + o.Name, "BL_WORKSPACE=" + o.Workspace, "BL_REGION=" + o.Region,
	}, o.Env)
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

// answers waits until the agent of a machine that has just booted answers.
func (b *Box) answers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	for {
		err := b.get(ctx, http.MethodGet, "/health", nil)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-b.life.Done():
			return doze.Errorf(doze.Unavailable, "the sandbox was deleted while it started")
		case <-time.After(bootPoll):
		}
	}
}

// Delete implements [peer.Node].
func (n *Node) Delete(ctx context.Context, uid string) error {
	b := n.box(uid)
	if b == nil {
		return nil
	}
	b.mu.Lock()
	if b.phase != doze.Deleting {
		if err := b.move(doze.Delete, ""); err != nil {
			b.mu.Unlock()
			return err
		}
	}
	b.mu.Unlock()
	b.end() // what is under way ends early; who waits is told

	b.tasks.Wait()
	if err := b.lock(ctx); err != nil { // another Delete, or a Disable
		return err
	}
	defer b.unlock()
	b.client.CloseIdleConnections()
	if err := n.end(ctx, b); err != nil {
		return fmt.Errorf("end the machine: %w", err)
	}
	if err := n.Release(uid); err != nil {
		return fmt.Errorf("release the address: %w", err)
	}
	if err := os.RemoveAll(filepath.Join(n.Dir, uid)); err != nil {
		return fmt.Errorf("remove the sandbox's directory: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.machine = nil
	if b.phase == doze.Deleting {
		_ = b.move(doze.Gone, "") // Deleting has a row for Gone
	}
	n.drop(b)
	return nil
}

// end destroys the machine of a box, also one that we hold no handle of.
// Preconditions: the turn is held, or nobody else has the box yet.
func (n *Node) end(ctx context.Context, b *Box) error {
	b.mu.Lock()
	m := b.machine
	b.mu.Unlock()
	if m == nil { // it failed, or its boot was cut short
		var err error
		if m, err = n.Driver.Adopt(ctx, b.config); errors.Is(err, machine.ErrGone) {
			return nil
		} else if err != nil {
			return err
		}
	}
	return m.Close(ctx)
}

// Disable implements [peer.Node].
func (n *Node) Disable(ctx context.Context, uid string) error {
	b := n.box(uid)
	if b == nil {
		return doze.Errorf(doze.NotFound, "there is no such sandbox on this node")
	}
	b.mu.Lock()
	for b.phase != doze.Disabled && b.phase != doze.Disabling {
		if b.sinking != nil {
			b.sinking()
		} else if b.move(doze.Disable, "") == nil {
			break
		} else if b.phase != doze.Suspending && b.phase != doze.Waking && b.phase != doze.Starting {
			defer b.mu.Unlock()
			return doze.Errorf(doze.Conflict, "the sandbox is %s", b.phase)
		}
		if err := b.wait(ctx, nil); err != nil {
			b.mu.Unlock()
			return err
		}
	}
	b.mu.Unlock()

	if err := b.lock(ctx); err != nil {
		return err
	}
	defer b.unlock()
	b.client.CloseIdleConnections()
	// Paused is enough to keep everything; disk is what makes it cheap.
	if err := b.machine.Suspend(ctx, machine.OnDisk); err != nil {
		slog.Error("disable", "sandbox", uid, "tier", b.machine.Tier().String(), "err", err)
		if b.machine.Tier() == machine.Awake {
			return fmt.Errorf("pause: %w", err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == doze.Disabling {
		if err := b.move(doze.Halted, ""); err != nil {
			return err
		}
	}
	return n.keep(b)
}

// Enable implements [peer.Node].
func (n *Node) Enable(_ context.Context, uid string) error {
	b := n.box(uid)
	if b == nil {
		return doze.Errorf(doze.NotFound, "there is no such sandbox on this node")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.phase == doze.Disabled {
		if err := b.move(doze.Enable, ""); err != nil {
			return err
		}
	}
	return n.keep(b)
}

// Status implements [peer.Node].
func (n *Node) Status(uid string) (peer.Status, bool) {
	b := n.box(uid)
	if b == nil {
		return peer.Status{}, false
	}
	return b.status(), true
}

// Cost returns what a sandbox takes of the host now.
func (n *Node) Cost(ctx context.Context, uid string) (machine.Stats, error) {
	b := n.box(uid)
	if b == nil {
		return machine.Stats{}, doze.Errorf(doze.NotFound, "there is no such sandbox on this node")
	}
	b.mu.Lock()
	m := b.machine
	b.mu.Unlock()
	if m == nil {
		return machine.Stats{}, nil
	}
	return m.Stats(ctx)
}

// relieve moves sleeping sandboxes to disk while memory is short, the longest
// unused first, one at a time.
func (n *Node) relieve(ctx context.Context) {
	every := time.NewTicker(pressureEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		free, err := n.Available()
		if err != nil {
			slog.Warn("read the memory that is left", "err", err)
			continue
		}
		if free < n.Reserve {
			n.sinkOldest()
		}
	}
}

func (n *Node) sinkOldest() {
	var oldest *Box
	var since time.Time
	for _, b := range n.all() {
		b.mu.Lock()
		if b.phase == doze.Standby && b.sinking == nil && b.machine.Tier() < machine.OnDisk && (oldest == nil || b.lastUsed.Before(since)) {
			oldest, since = b, b.lastUsed
		}
		b.mu.Unlock()
	}
	if oldest == nil {
		return
	}
	oldest.mu.Lock()
	defer oldest.mu.Unlock()
	if oldest.phase == doze.Standby && oldest.sinking == nil {
		oldest.sink(machine.OnDisk)
	}
}
