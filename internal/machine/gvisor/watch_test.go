package gvisor

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest/rig"
)

// churnings is how many copies TestWatched takes.
var churnings = flag.Int("churnings", 3, "how many copies TestWatched takes of a machine that changes")

// TestWatched copies a machine that changes its memory in all ways, and fails unless each
// copy has every change: no way of writing may escape the engine, which notes what was
// touched.
func TestWatched(t *testing.T) {
	const until = "/tmp/churned"
	h := newHost(t)
	d := h.open(t)
	c := h.Config(t, "m")
	c.Memory, c.GoBack, c.CPUs = 1<<30, true, 2
	c.Args = append(c.Args, "churn", until)
	m := boot(t, d, c)
	var none any
	ask(t, m, "/count", &none) // it listens
	time.Sleep(time.Second)    // most memory is in use
	for i := range *churnings {
		if err := m.Precopy(t.Context()); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), strconv.Itoa(i))
		if err := m.Snapshot(t.Context(), dir, nil); err != nil {
			t.Fatal(err)
		}
		f := h.Config(t, "fork-"+strconv.Itoa(i))
		f.Memory, f.CPUs, f.Args, f.From = c.Memory, c.CPUs, c.Args, dir
		churned(t, boot(t, d, f), until)
		if err := m.Renew(t.Context(), time.Minute, nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := m.Precopy(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := m.Suspend(t.Context(), machine.OnDisk); err != nil {
			t.Fatal(err)
		}
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	churned(t, m, until)
	logs, err := filepath.Glob(filepath.Join(h.Run, "*", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal("the launcher has no log:", err)
	}
	for _, name := range logs {
		if raw, err := os.ReadFile(name); err != nil || strings.Contains(string(raw), "touched") {
			t.Errorf("%s: %s, %v", name, raw, err)
		}
	}
}

// churned ends the changes in a machine, and fails t if it finds something wrong.
func churned(t *testing.T, m machine.Machine, until string) {
	t.Helper()
	var none any
	ask(t, m, "/write", &none, "name", until, "text", "")
	const good = "churned: good"
	var said string // or that there is no result yet
	rig.Wait(t, "it looks at its memory", func() bool {
		ask(t, m, "/read", &said, "name", until+".result")
		return strings.HasPrefix(said, "churned: ")
	})
	if said != good {
		t.Errorf("the memory is %q, want %q", said, good)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
