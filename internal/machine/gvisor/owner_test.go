package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest/rig"
)

// status returns one line of /proc/PID/status, without its name.
func status(t *testing.T, pid int, name string) []string {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.Fields(value)
		}
	}
	t.Fatalf("process %d has no %s", pid, name)
	return nil
}

// TestPrivileges looks at what the host would lose to an escape from a guest:
// the engine of each machine has a user of its own, no group, no capability and
// no file of the host. So it stays through every way to start one.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(t)
	bare, volumes := h.Config(t, "a"), h.Config(t, "b")
	volumes.Volumes = []machine.Volume{{Source: t.TempDir(), Path: "/data"}}
	machines := []machine.Machine{boot(t, d, bare), boot(t, d, volumes)}

	seen := map[string]string{} // owner to machine
	look := func(how string) {
		t.Helper()
		owners := map[string]string{}
		for _, c := range []machine.Config{bare, volumes} {
			pid := h.engine(c.ID)
			uid, gid := status(t, pid, "Uid"), status(t, pid, "Gid")
			if uid[0] == "0" || uid[0] == "65534" || gid[0] != uid[0] || len(slices.Compact(slices.Clone(uid))) != 1 || len(slices.Compact(slices.Clone(gid))) != 1 {
				t.Errorf("%s: the engine of %s has the users %v and the groups %v", how, c.ID, uid, gid)
			}
			if groups := status(t, pid, "Groups"); len(groups) != 0 {
				t.Errorf("%s: the engine of %s is in the groups %v", how, c.ID, groups)
			}
			for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
				if caps := status(t, pid, set)[0]; strings.Trim(caps, "0") != "" {
					t.Errorf("%s: %s of the engine of %s is %s", how, set, c.ID, caps)
				}
			}
			if other := owners[uid[0]]; other != "" {
				t.Errorf("%s: the engines of %s and %s are both user %s", how, other, c.ID, uid[0])
			}
			owners[uid[0]] = c.ID
			if root, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", pid)); err != nil || len(root) > 3 {
				t.Errorf("%s: the engine of %s sees the files %v, %v", how, c.ID, root, err)
			}
		}
		seen = owners
	}
	look("booted")

	// The next launcher leases no user that one of these has.
	succeed := func() {
		t.Helper()
		kill(t, h.launcher(), unix.SIGKILL)
		rig.Wait(t, "the next launcher is there", func() bool { _, err := d.current.find(t.Context(), "a"); return err == nil })
	}
	succeed()
	third := h.Config(t, "c")
	m := boot(t, d, third)
	if own := status(t, h.engine(third.ID), "Uid")[0]; seen[own] != "" {
		t.Errorf("a machine of the next launcher is user %s, as %s is", own, seen[own])
	}
	leases := func() int {
		names, err := filepath.Glob(filepath.Join(h.Run, "owners", "*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}
	if got := leases(); got != 3 {
		t.Errorf("there are %d leases of 3 machines", got)
	}
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}

	var none any
	for _, m := range machines {
		if err := m.Suspend(t.Context(), machine.OnDisk); err != nil {
			t.Fatal(err)
		}
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		ask(t, m, "/count", &none)
	}
	look("restored")
	succeed() // and removes leases that are over
	if got := leases(); got != 2 {
		t.Errorf("there are %d leases of 2 machines", got)
	}

	for what, mode := range map[string]os.FileMode{h.Run: 0o700, filepath.Join(h.Run, "owners"): 0o700} {
		if info, err := os.Stat(what); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", what, info.Mode(), err)
		}
	}
	for _, m := range machines {
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
