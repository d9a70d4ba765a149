package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/testkit"
)

// needsFleet skips a test where no fleet can start.
func needsFleet(t *testing.T) {
	t.Helper()
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("SKIPPED: real sandboxes need root and time")
	}
	if _, err := os.Stat(filepath.Join(testkit.Root(), "bin", "versitygw")); err != nil {
		t.Skip("SKIPPED: make bin/versitygw builds the server: ", err)
	}
}

// begin starts a fleet that ends with the test.
func begin(t *testing.T, args ...string) *fleet {
	t.Helper()
	needsFleet(t)
	f, err := start(t.Context(), t.TempDir(), args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// fatal returns what ends a test with an error.
func fatal(t *testing.T) (must func(error)) {
	t.Helper()
	return func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFaults: whatever fails, a sandbox runs once, tells when it went back, and answers in the
// end.
func TestFaults(t *testing.T) {
	needsFleet(t)
	const faults = 12
	c, err := try(t.Context(), t.TempDir(), options{
		seed: uint64(time.Now().UnixNano()), faults: faults, sandboxes: 4, each: true, say: func(text string) { t.Log(time.Now().Format(clockForm), text) },
	})
	t.Log(c)
	if err := c.verdict(err); err != nil {
		t.Fatal(err)
	}
	if c.writes == 0 || c.faults < faults {
		t.Error("nothing was tried")
	}
}

// TestDrain: nobody notices that a node is drained.
func TestDrain(t *testing.T) {
	needsFleet(t)
	d, err := drain(t.Context(), t.TempDir(), 4, func(text string) { t.Log(text) })
	t.Log(d)
	if err != nil {
		t.Fatal(err)
	}
	if d.moved == 0 || d.stayed > 0 || d.requests == 0 || d.failed > 0 {
		t.Error("a drain is not as it should be")
	}
}

// TestUpgrade: nobody notices that each process of a fleet is restarted, one after the other.
func TestUpgrade(t *testing.T) {
	needsFleet(t)
	u, err := upgrade(t.Context(), t.TempDir(), options{sandboxes: 2, times: 1, say: func(text string) { t.Log(time.Now().Format(clockForm), text) }})
	t.Log(u)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"visit", "wake", "exec", "write and read", "preview", "stream", "API read", "API create, delete", "create a sandbox"} {
		if len(u.took[kind]) == 0 {
			t.Errorf("nothing of the kind %q was asked", kind)
		}
	}
	if want := controls + nodes + 2*edges; u.steps != want || len(u.failed) > 0 {
		t.Errorf("%d restarts, want %d; %d requests failed", u.steps, want, len(u.failed))
	}
}

// TestVolumes: a volume goes from node to node, and is of the same moment as the memory of its
// sandbox.
func TestVolumes(t *testing.T) {
	needsFleet(t)
	if err := volumes(t.Context(), t.TempDir(), 0, func(text string) { t.Log(text) }); err != nil {
		t.Fatal(err)
	}
}

// TestSnapshots: a snapshot outlives its node.
func TestSnapshots(t *testing.T) {
	needsFleet(t)
	if err := snapshots(t.Context(), t.TempDir(), func(text string) { t.Log(text) }); err != nil {
		t.Fatal(err)
	}
}

// TestImages: an image that was built outlives its node.
func TestImages(t *testing.T) {
	needsFleet(t)
	if err := images(t.Context(), t.TempDir(), func(text string) { t.Log(text) }); err != nil {
		t.Fatal(err)
	}
}

// TestWire: what is cut in one direction passes in the other one, and all passes when it is
// healed.
func TestWire(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: networks need root")
	}
	w, err := openWire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	for name, address := range map[string]string{"left": w.subnet() + ".10", "right": w.subnet() + ".11"} {
		if err := w.plug(t.Context(), name, address); err != nil {
			t.Fatal(err)
		}
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", net.JoinHostPort(w.here(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	w.hosts["here"] = w.here()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	reaches := func(from string) bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c := w.command(from, "bash", "-c", "exec 3<>/dev/tcp/"+w.here()+"/"+port)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		select {
		case err := <-ended:
			return err == nil
		case <-ctx.Done():
			_ = c.Process.Kill()
			<-ended
			return false
		}
	}
	look := func(when string, left, right bool) {
		t.Helper()
		if got := reaches("left"); got != left {
			t.Errorf("%s, left reaches us: %t", when, got)
		}
		if got := reaches("right"); got != right {
			t.Errorf("%s, right reaches us: %t", when, got)
		}
	}
	look("at first", true, true)
	if err := w.cut(t.Context(), "left", "here"); err != nil {
		t.Fatal(err)
	}
	look("after a cut", false, true)
	if err := w.heal(t.Context()); err != nil {
		t.Fatal(err)
	}
	look("after it is healed", true, true)
}
