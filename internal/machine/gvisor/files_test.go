package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/machine/machinetest/rig"
)

var manyFiles = flag.Int("files", 2_000, "how many files TestManyFiles writes; an npm install has 20,000")

// TestManyFiles wakes a machine with many files at random moments of its checkpoint, of
// which the engine's own part is the most. It prints how long a request waits. With
// -measure, it prints that of an engine with gVisor as it is, too.
func TestManyFiles(t *testing.T) {
	h := newHost(t)
	whole, worst := wakesWithFiles(t, h)
	t.Logf("%d files: a checkpoint takes %v, and a request waits up to %v", *manyFiles, whole, worst)
	if !*measure { // the other engine is no part of a release
		return
	}
	h = newHost(t)
	h.sentry, h.engines = plainSentry(t), t.TempDir()
	whole, worst = wakesWithFiles(t, h)
	t.Logf("with gVisor as it is: a checkpoint takes %v, and a request waits up to %v", whole, worst)
}

// plainSentry builds the engine with gVisor as it is.
func plainSentry(t *testing.T) string {
	t.Helper()
	to := t.TempDir() + "/" + Program
	if _, err := rig.Run(t.Context(), "go", "build", "-ldflags", "-s -w -X gvisor.dev/gvisor/runsc/version.version=plain", "-o", to, sentryPackage); err != nil {
		t.Fatal(err)
	}
	return to
}

// wakesWithFiles returns how long a checkpoint takes, and the longest wait of a request
// that comes during one. It fails t unless the machine is as it was after all of them.
func wakesWithFiles(t *testing.T, h *host) (whole, worst time.Duration) {
	t.Helper()
	const asked = 10
	d := h.open(t)
	c := h.Config(t, "m")
	c.Memory, c.GoBack, c.CPUs = 1<<30, true, 2
	m := boot(t, d, c)
	var none any
	ask(t, m, "/count", &none) // it listens
	name := func(i int) string { return fmt.Sprintf("/tmp/file-%d", i) }
	var conns http.Transport
	conns.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return m.Dial(ctx, machinetest.Port) }
	client := &http.Client{Transport: &conns, Timeout: rig.Patience}
	// each asks for one thing of each file, over a few connections.
	each := func(path func(i int) string, check func(i int, said any) error) {
		t.Helper()
		defer conns.CloseIdleConnections() // they end with a sleep
		var all errgroup.Group
		all.SetLimit(2)
		for i := range *manyFiles {
			all.Go(func() error {
				resp, err := client.Get("http://guest" + path(i))
				if err != nil {
					return err
				}
				defer func() { _, _ = io.Copy(io.Discard, resp.Body); _ = resp.Body.Close() }()
				var said any
				if err := json.NewDecoder(resp.Body).Decode(&said); err != nil {
					return err
				}
				return check(i, said)
			})
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	each(func(i int) string { return fmt.Sprintf("/write?name=%s&text=%d", name(i), i) }, func(i int, said any) error {
		if said != nil {
			return fmt.Errorf("write file %d: %v", i, said)
		}
		return nil
	})
	intact := func() {
		t.Helper()
		each(func(i int) string { return "/read?name=" + name(i) }, func(i int, said any) error {
			if said != fmt.Sprint(i) {
				return fmt.Errorf("file %d has %v", i, said)
			}
			return nil
		})
	}
	suspend := func(ctx context.Context, to machine.Tier) error {
		if err := m.Suspend(t.Context(), machine.Paused); err != nil {
			t.Fatal(err)
		}
		return m.Suspend(ctx, to)
	}
	var fired, set int
	resume := func() {
		t.Helper()
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		var before, after int64
		ask(t, m, "/count", &before)
		rig.Wait(t, "the guest's time goes on", func() bool { ask(t, m, "/count", &after); return after > before })
	}

	began := time.Now()
	if err := suspend(t.Context(), machine.Saved); err != nil {
		t.Fatal(err)
	}
	whole = time.Since(began)
	resume()
	stopped, ended := 0, time.Duration(0)
	for range asked {
		ask(t, m, "/timer", &none, "ms", "1")
		set++
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), rand.N(whole))
		err := suspend(ctx, machine.Saved)
		deadline, _ := ctx.Deadline()
		from := time.Now()
		if err != nil {
			stopped++
			if deadline.Before(from) {
				ended = max(ended, from.Sub(deadline))
				from = deadline
			}
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Errorf("nobody asked, and the checkpoint fails: %v", err)
			}
			if _, err := os.Stat(checkpoint.Dir(c)); err == nil {
				t.Error("a checkpoint that was stopped is there")
			}
		} else {
			whole = min(whole, from.Sub(began)) // the first one reads what nobody read before
		}
		cancel()
		resume()
		worst = max(worst, time.Since(from))
	}
	if stopped == 0 {
		t.Error("no checkpoint was stopped")
	}
	t.Logf("%d of %d checkpoints were stopped, the slowest %v after the request", stopped, asked, ended.Round(time.Millisecond))
	rig.Wait(t, "the guest's timers have fired", func() bool { ask(t, m, "/fired", &fired); return fired == set })
	// Each checkpoint after that is good: a copy, and a sleep on disk.
	copied := h.Dir + "/copy"
	if err := m.Snapshot(t.Context(), copied, nil); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := suspend(t.Context(), machine.OnDisk); err != nil {
			t.Fatal(err)
		}
		resume()
	}
	intact()
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
	return whole.Round(time.Millisecond), worst.Round(time.Millisecond)
}

// TestLateStop sends the engine the signal that ends its part of a checkpoint, although
// nobody asked for that. One that comes before the checkpoint ends none. Those that come
// all the time end each that is tried, and the machine goes on.
func TestLateStop(t *testing.T) {
	t.Parallel()
	const saveStop = unix.Signal(43) // as in package tune
	h := newHost(t)
	d := h.open(t)
	c := h.Config(t, "m")
	c.GoBack = true
	m := boot(t, d, c)
	var none any
	ask(t, m, "/write", &none, "name", "/tmp/file", "text", "some")
	engine := h.engine(c.ID)
	if err := unix.Kill(engine, saveStop); err != nil {
		t.Fatal(err)
	}
	copies := 0
	snapshot := func() error {
		copies++
		return m.Snapshot(t.Context(), fmt.Sprintf("%s/copy-%d", h.Dir, copies), nil)
	}
	if err := snapshot(); err != nil {
		t.Errorf("a signal before the checkpoint: %v", err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Microsecond):
				_ = unix.Kill(engine, saveStop) // or it has ended, which the test notices
			}
		}
	}()
	err := snapshot()
	close(stop)
	<-stopped
	if !errors.Is(err, errLate) {
		t.Errorf("with signals all the time: %v", err)
	}
	var text string
	ask(t, m, "/read", &text, "name", "/tmp/file")
	if err := snapshot(); err != nil || text != "some" {
		t.Errorf("after that: %v, and the file has %q", err, text)
	}
	for range 2 {
		if err := m.Suspend(t.Context(), machine.OnDisk); err != nil {
			t.Fatal(err)
		}
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if ask(t, m, "/read", &text, "name", "/tmp/file"); text != "some" {
			t.Errorf("after a sleep the file has %q", text)
		}
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
