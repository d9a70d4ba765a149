package machinetest_test

import (
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/fence"
	"github.com/dozehq/doze/internal/machine/machinetest"
)

func TestFake(t *testing.T) {
	t.Parallel()
	machinetest.Run(t, machinetest.Harness{
		Around: synctest.Test,
		New: func(t *testing.T) machinetest.Host { //nolint:thelper // it fails nothing
			return &fakeHost{Fake: machinetest.NewFake(), dir: t.TempDir()}
		},
	})
}

// TestFenced: behind a gate that is open, a driver keeps its promises.
func TestFenced(t *testing.T) {
	t.Parallel()
	machinetest.Run(t, machinetest.Harness{
		Around: synctest.Test,
		New: func(t *testing.T) machinetest.Host { //nolint:thelper // it fails nothing
			return fencedHost{&fakeHost{Fake: machinetest.NewFake(), dir: t.TempDir()}}
		},
	})
}

// fencedHost is a host whose machines are behind an open gate.
type fencedHost struct{ *fakeHost }

func (h fencedHost) Open(*testing.T) machine.Driver { return fence.New(h.Fake, fence.NewGate()) }

// fakeHost implements [machinetest.Host].
type fakeHost struct {
	*machinetest.Fake

	dir string
}

func (h *fakeHost) Open(*testing.T) machine.Driver { return h.Fake }

func (h *fakeHost) Config(t *testing.T, id string) machine.Config {
	t.Helper()
	root := filepath.Join(h.dir, "root.erofs")
	if err := os.WriteFile(root, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return machine.Config{
		ID: id, Dir: filepath.Join(h.dir, "machines", id), Root: root, Agent: "agent.erofs",
		Hostname: "host-" + id, Env: []string{"COLOUR=blue"}, Memory: 256 << 20, CPUs: 1,
	}
}

func (h *fakeHost) Swaps() bool { return true }

func (h *fakeHost) Crowd(*testing.T, machine.Config) (relieve func()) {
	h.FailNext(machinetest.OpSave, os.ErrPermission)
	h.FailNext(machinetest.OpSnapshot, os.ErrPermission)
	return func() {}
}

func (h *fakeHost) Forge(t *testing.T, c machine.Config) {
	t.Helper()
	if err := h.Fake.Forge(c, h.Engine+"-other"); err != nil {
		t.Fatal(err)
	}
}

func (h *fakeHost) Kill(_ *testing.T, id string) { h.Fake.Kill(id) }

func (h *fakeHost) Processes(_ *testing.T, id string) int {
	if slices.Contains(h.Fake.Processes(), id) {
		return 1
	}
	return 0
}

func (h *fakeHost) Reboot(*testing.T) { h.Fake.Reboot() }

func (h *fakeHost) Empty(t *testing.T) {
	t.Helper()
	if left := h.Fake.Processes(); len(left) > 0 {
		t.Errorf("machines are left: %q", left)
	}
}

// TestFakeFaults shows what users of the fake rely on.
func TestFakeFaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &fakeHost{Fake: machinetest.NewFake(), dir: t.TempDir()}
		h.Handler = func(_ machine.Config, port uint16) http.Handler {
			if port != 80 {
				return nil
			}
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
		}
		c := h.Config(t, "a")
		broken := errors.New("broken")
		h.FailNext(machinetest.OpBoot, broken)
		if _, err := h.Boot(t.Context(), c); !errors.Is(err, broken) {
			t.Fatalf("boot: %v, want what was asked for", err)
		}
		m, err := h.Boot(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := m.Dial(t.Context(), 81); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial a port where nobody listens: %v", err)
		}
		conn, err := m.Dial(t.Context(), 80)
		if err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n") }()
		answer, err := io.ReadAll(conn)
		if err != nil || !strings.Contains(string(answer), "418") {
			t.Errorf("answer %q, %v", answer, err)
		}

		h.FailNext(machinetest.OpSave, broken)
		if err := m.Suspend(t.Context(), machine.OnDisk); !errors.Is(err, broken) || m.Tier() != machine.Paused {
			t.Errorf("suspend: %v, in %s", err, m.Tier())
		}
		h.Delay(machinetest.OpResume, time.Hour)
		began := time.Now()
		var tasks sync.WaitGroup
		tasks.Go(func() {
			if err := m.Resume(t.Context()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		if err := m.Resume(t.Context()); err == nil {
			t.Error("two calls at a time went unnoticed")
		}
		tasks.Wait()
		if took := time.Since(began); took != time.Hour {
			t.Errorf("a resume that takes an hour took %v", took)
		}
		if n := h.Count("a", machinetest.OpBoot); n != 2 {
			t.Errorf("%d boots counted, want 2", n)
		}
		if n := h.Count("", machinetest.OpResume); n != 1 {
			t.Errorf("%d resumes counted, want 1", n)
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
		h.Empty(t)
	})
}
