package gvisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/machine/machinetest/rig"
)

// parents are the cgroups of all machines of a host.
func (h *host) parents() (memory, pids string) {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		dir := filepath.Join("/sys/fs/cgroup", h.Cgroup)
		return filepath.Join(dir, "memory.max"), filepath.Join(dir, "pids.max")
	}
	return filepath.Join("/sys/fs/cgroup/memory", h.Cgroup, "memory.limit_in_bytes"), filepath.Join("/sys/fs/cgroup/pids", h.Cgroup, "pids.max")
}

func numberIn(t *testing.T, name string) int64 {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// TestCeiling: the limit of all machines together is there from the start, goes
// on without a launcher, is set by the next one, and follows the setting.
func TestCeiling(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.memory = 512 << 20
	h.open(t)
	memory, pids := h.parents()
	if n := numberIn(t, memory); n != h.memory {
		t.Errorf("all machines may take %d bytes, want %d", n, h.memory)
	}
	if n := numberIn(t, pids); n <= 0 || n >= numberIn(t, "/proc/sys/kernel/pid_max") {
		t.Errorf("all machines may have %d tasks", n)
	}
	kill(t, h.launcher(), unix.SIGKILL)
	if n := numberIn(t, memory); n != h.memory {
		t.Errorf("without a launcher they may take %d bytes, want %d", n, h.memory)
	}
	h.memory = 768 << 20
	h.open(t)
	if n := numberIn(t, memory); n != h.memory {
		t.Errorf("after a change they may take %d bytes, want %d", n, h.memory)
	}
	first := h.launcher()
	h.memory = 640 << 20
	h.open(t)
	if n := numberIn(t, memory); n != h.memory || h.launcher() != first {
		t.Errorf("with the launcher that runs they may take %d bytes, want %d", n, h.memory)
	}
}

// TestHogDiesAlone: machines whose limits add up to far more than there is. One
// takes all that it can, and none of the others loses a process.
func TestHogDiesAlone(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.memory = 512 << 20
	d := h.open(t)
	events := listen(t, d)
	const tenants, own = 3, 24 // MB that each tenant fills
	type tenant struct {
		machine.Machine

		sum      uint32
		count    int64
		children map[int]int64
	}
	all := map[string]*tenant{}
	for i := range tenants {
		c := h.Config(t, fmt.Sprintf("tenant%d", i))
		v := &tenant{Machine: boot(t, d, c)}
		all[c.ID] = v
		var none any
		ask(t, v, "/alloc", &none, "mb", strconv.Itoa(own))
		ask(t, v, "/spawn", &none, "n", "2")
		ask(t, v, "/sum", &v.sum)
		ask(t, v, "/count", &v.count)
		rig.Wait(t, "its children count", func() bool {
			ask(t, v, "/children", &v.children)
			return len(v.children) == 2
		})
	}
	c := h.Config(t, "hog")
	c.Memory, c.CPUs = 1<<30, 2
	hog := boot(t, d, c)
	began := time.Now()
	ended, over := context.WithCancel(t.Context())
	var call sync.WaitGroup
	call.Go(func() { demand(ended, hog, "/alloc?mb=2000") })
	defer call.Wait()
	defer over()
	e := event(t, events)
	for !e.Exited { // the kernel may have killed some of its processes first
		if e.ID != "hog" {
			t.Errorf("event %+v", e)
		}
		e = event(t, events)
	}
	t.Logf("the hog ended after %v: %s", time.Since(began).Round(time.Millisecond), e.Message)
	if e.ID != "hog" || !strings.Contains(e.Message, "above its share") && !e.OutOfMemory {
		t.Errorf("event %+v, want the end of the hog", e)
	}
	// The rest of the host never lost any of its memory. The kernel charges what it may
	// not refuse above the limit: single pages of its own.
	const forced = 1 << 20
	limit, _ := h.parents()
	most := filepath.Join(filepath.Dir(limit), "memory.max_usage_in_bytes")
	if strings.HasSuffix(limit, "memory.max") {
		most = filepath.Join(filepath.Dir(limit), "memory.peak")
	}
	if _, err := os.Stat(most); err == nil { // cgroup v2 has it since Linux 5.19
		if n := numberIn(t, most); n > h.memory+forced || n < h.memory/2 {
			t.Errorf("machines took %d bytes together, and may take %d", n, h.memory)
		}
	}
	for id, v := range all {
		var sum uint32
		var count int64
		var children map[int]int64
		ask(t, v, "/sum", &sum)
		ask(t, v, "/count", &count)
		ask(t, v, "/children", &children)
		if sum != v.sum || count <= v.count {
			t.Errorf("%s: its memory has changed, or it stands still: %x was %x, %d was %d", id, sum, v.sum, count, v.count)
		}
		if !slices.Equal(slices.Sorted(maps.Keys(children)), slices.Sorted(maps.Keys(v.children))) {
			t.Errorf("%s: its processes are %v, were %v", id, children, v.children)
		}
		if err := v.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := hog.Close(t.Context()); err != nil && !errors.Is(err, machine.ErrGone) {
		t.Error(err)
	}
	h.Empty(t)
}

// demand calls the guest's program, which may end meanwhile, until ctx ends.
func demand(ctx context.Context, m machine.Machine, path string) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			for {
				conn, err := m.Dial(ctx, machinetest.Port)
				if err == nil || ctx.Err() != nil {
					return conn, err
				}
				time.Sleep(10 * time.Millisecond)
			}
		},
	}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest"+path, nil)
	if err != nil {
		return
	}
	if resp, err := client.Do(r); err == nil {
		_ = resp.Body.Close()
	}
}
