// Package machinetest is what every driver of machines must do. It has a suite that
// runs against a host with the driver on it, and the program that runs in the suite's
// machines. [Fake] is a driver without an engine, for tests of packages that use a
// driver.
package machinetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/machine"
)

const (
	// callTime bounds one request to a guest. A connection that was in use
	// before a sleep comes back with its next retransmission. A guest at its limit
	// works out of swap, which may be a slow disk that others use as well.
	callTime = time.Minute
	// redial is the pause between attempts to reach a guest whose program does
	// not listen yet.
	redial = 2 * time.Millisecond
	// poll is the pause between two looks at something that takes a moment.
	poll = 5 * time.Millisecond
	// still is for how long the suite looks at a machine that must not move.
	still = 60 * time.Millisecond
	// discards is how long a driver may take to remove a checkpoint that counts no more.
	discards = 400 * time.Millisecond
	// asleep is how long a sleep is of which a guest must notice the time.
	asleep = 150 * time.Millisecond
	// clockError is how wrong a guest's clock may be.
	clockError = 50 * time.Millisecond
)

// Harness connects the suite to a driver.
type Harness struct {
	// New returns a host of its own for one case of the suite, and lets t
	// clean it up. Cases run in parallel.
	New func(t *testing.T) Host
	// Around runs a case; it may be synctest.Test. The default runs it as it
	// is.
	Around func(t *testing.T, run func(t *testing.T))
}

// Host is where a driver runs. It fails t if it cannot do what it is asked.
type Host interface {
	// Open returns the driver as a new process of the node would: it finds what
	// an earlier one left behind.
	Open(t *testing.T) machine.Driver
	// Config returns the configuration of a new machine with the suite's guest
	// as its first process, 256 MiB and one processor.
	Config(t *testing.T, id string) machine.Config
	// Crowd makes the disk under c.Dir too small for a checkpoint until the
	// returned function is called. It is called before Boot.
	Crowd(t *testing.T, c machine.Config) (relieve func())
	// Swaps reports whether the host has swap.
	Swaps() bool
	// Forge makes the checkpoint of c one of another engine, and sound otherwise.
	Forge(t *testing.T, c machine.Config)
	// Kill ends the engine of a machine.
	Kill(t *testing.T, id string)
	// Processes returns how many processes a machine has.
	Processes(t *testing.T, id string) int
	// Reboot ends everything and empties what a reboot empties.
	Reboot(t *testing.T)
	// Empty fails t if anything of any machine is left, but for directories of
	// checkpoints.
	Empty(t *testing.T)
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			around := h.Around
			if around == nil {
				around = func(t *testing.T, run func(*testing.T)) { run(t) } //nolint:thelper // the case itself
			}
			around(t, func(t *testing.T) { //nolint:thelper // the case itself
				host := h.New(t)
				t.Cleanup(func() { host.Empty(t) })
				run(&bench{T: t, host: host, Driver: host.Open(t)})
			})
		})
	}
}

// bench is what a case works at.
type bench struct {
	*testing.T
	machine.Driver

	host Host
}

// guest is a machine with a client of its program.
type guest struct {
	machine.Machine

	b      *bench
	config machine.Config
	http   *http.Client
}

// tiers returns those of the given tiers that the host has.
func (b *bench) tiers(all ...machine.Tier) []machine.Tier {
	return slices.DeleteFunc(all, func(t machine.Tier) bool { return t == machine.Swapped && !b.host.Swaps() })
}

// boot starts a machine that ends with the case.
func (b *bench) boot(id string) *guest {
	b.Helper()
	return b.bootConfig(b.host.Config(b.T, id))
}

func (b *bench) bootConfig(c machine.Config) *guest {
	b.Helper()
	m, err := b.Boot(b.Context(), c)
	if err != nil {
		b.Fatal("boot:", err)
	}
	return b.guest(m, c)
}

// adopt finds a machine again that ends with the case.
func (b *bench) adopt(c machine.Config) *guest {
	b.Helper()
	m, err := b.Adopt(b.Context(), c)
	if err != nil {
		b.Fatal("adopt:", err)
	}
	return b.guest(m, c)
}

func (b *bench) guest(m machine.Machine, c machine.Config) *guest {
	b.Helper()
	g := &guest{Machine: m, b: b, config: c}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return g.reach(ctx) },
		// A guest of the suite answers at once or not at all.
		MaxIdleConnsPerHost: 8,
	}
	g.http = &http.Client{Transport: transport, Timeout: callTime}
	b.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := m.Close(context.WithoutCancel(b.Context())); err != nil {
			b.Error("close:", err)
		}
	})
	return g
}

// reach dials until the guest's program listens.
func (g *guest) reach(ctx context.Context) (net.Conn, error) {
	for {
		conn, err := g.Dial(ctx, Port)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		select {
		case <-time.After(redial):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// ask calls the guest's program.
func ask[Out any](g *guest, path string, query ...string) (out Out, err error) {
	values := url.Values{}
	for i := 0; i+1 < len(query); i += 2 {
		values.Set(query[i], query[i+1])
	}
	ctx := context.WithoutCancel(g.b.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest"+path+"?"+values.Encode(), nil)
	if err != nil {
		return out, err
	}
	resp, err := g.http.Do(req)
	if err != nil {
		return out, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return out, err
	}
	if resp.StatusCode != http.StatusOK {
		return out, fmt.Errorf("%s: %s", path, raw)
	}
	return out, json.Unmarshal(raw, &out)
}

// must is ask for calls that work.
func must[Out any](g *guest, path string, query ...string) Out {
	g.b.Helper()
	out, err := ask[Out](g, path, query...)
	if err != nil {
		g.b.Fatal("ask the guest:", err)
	}
	return out
}

func (g *guest) do(path string, query ...string) {
	g.b.Helper()
	must[any](g, path, query...)
}

func (g *guest) suspend(to machine.Tier) {
	g.b.Helper()
	if err := g.Suspend(g.b.Context(), to); err != nil {
		g.b.Fatal("suspend:", err)
	}
	g.in(to)
}

func (g *guest) resume() {
	g.b.Helper()
	if err := g.Resume(g.b.Context()); err != nil {
		g.b.Fatal("resume:", err)
	}
	g.in(machine.Awake)
}

func (g *guest) in(want machine.Tier) {
	g.b.Helper()
	if got := g.Tier(); got != want {
		g.b.Fatalf("the machine is %s, want %s", got, want)
	}
}

// stopped fails unless the machine's processes stand still: a request waits.
func (g *guest) stopped() {
	g.b.Helper()
	ctx, cancel := context.WithTimeout(g.b.Context(), still)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest/count", nil)
	if err != nil {
		g.b.Fatal(err)
	}
	resp, err := g.http.Do(req)
	if err == nil {
		_ = resp.Body.Close()
		g.b.Fatal("a paused machine answers")
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		g.b.Fatal("a request to a paused machine does not wait:", err)
	}
}

// eventually waits until done reports true.
func (b *bench) eventually(what string, done func() bool) {
	b.Helper()
	deadline := time.Now().Add(callTime)
	for !done() {
		if time.Now().After(deadline) {
			b.Fatal("did not happen:", what)
		}
		time.Sleep(poll)
	}
}

// event waits for the next event.
func (b *bench) event(events <-chan machine.Event) machine.Event {
	b.Helper()
	select {
	case e, ok := <-events:
		if !ok {
			b.Fatal("the events ended")
		}
		return e
	case <-time.After(callTime):
		b.Fatal("no event came")
	}
	panic("unreachable")
}

// quiet fails if an event has come.
func (b *bench) quiet(events <-chan machine.Event) {
	b.Helper()
	select {
	case e := <-events:
		b.Errorf("an event came: %+v", e)
	case <-time.After(still):
	}
}
