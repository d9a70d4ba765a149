package node_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest"
)

// from is the order of a fork.
func (p *process) fork(uid, snapshot string) error {
	o := order(uid)
	o.From, o.Image, o.Memory, o.Env = snapshot, "nonsense", 64, []string{"A=fork"}
	return p.Create(p.h.t.Context(), o)
}

func (p *process) snap(uid, id string) {
	p.h.t.Helper()
	if bytes, err := p.Snapshot(p.h.t.Context(), uid, id); err != nil || bytes <= 0 {
		p.h.t.Fatalf("snapshot: %d, %v", bytes, err)
	}
}

// complete returns the ids of the complete snapshots.
func (p *process) complete() (ids []string) {
	all, err := p.Snapshots(p.h.t.Context())
	if err != nil {
		p.h.t.Fatal(err)
	}
	for id := range all {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// errMissing is what a driver says of a version that is not there.
var errMissing = fmt.Errorf("adopt: %w: the engine \"v0\" is not installed: put it into engines/v0/", machine.ErrNoEngine)

func TestSnapshots(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		configs := map[string]machine.Config{}
		next := h.Handler
		h.Handler = func(c machine.Config, port uint16) http.Handler { configs[c.ID] = c; return next(c, port) }
		p := h.has("a")
		p.hello("a")
		p.snap("a", "n1")
		p.in("a", doze.Running, "awake")
		p.sleep("paused")
		p.snap("a", "n2")
		p.in("a", doze.Standby, "paused")
		p.sleep("disk")
		p.snap("a", "n3")
		p.in("a", doze.Standby, "disk")
		if bytes, err := p.Snapshot(t.Context(), "nobody", "n3"); err != nil || bytes <= 0 { // it is done
			t.Errorf("again: %d, %v", bytes, err)
		}
		if err := p.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if got := p.complete(); !slices.Equal(got, []string{"n1", "n2", "n3"}) {
			t.Errorf("snapshots %q", got)
		}
		h.set(func() { h.failing["image"] = errBroken }) // no fork asks for it
		for id, snapshot := range map[string]string{"f1": "n1", "f2": "n2", "f3": "n3", "f4": "n1"} {
			if err := p.fork(id, snapshot); err != nil {
				t.Fatal("fork:", err)
			}
			p.in(id, doze.Running, "awake")
			p.hello(id)
			if c := configs[id]; c.Memory != 512<<20 || c.Hostname != "name-"+id || c.Link.Name != id || c.From != "" && !strings.Contains(c.From, snapshot) {
				t.Errorf("%+v", c)
			}
			if env := h.identity(id); !slices.Contains(env, "A=fork") || !slices.Contains(env, "B=image") || !slices.Contains(env, "BL_NAME=name-"+id) {
				t.Errorf("%s is told %q", id, env)
			}
		}
		if files, all := p.Agents(); !all || !slices.Equal(files, []string{"agent"}) {
			t.Errorf("agents %q, %t", files, all)
		}
		p.stop()
		p = h.start()
		if err := p.DropSnapshot(t.Context(), "n1"); err != nil {
			t.Error(err)
		}
		if err := p.DropSnapshot(t.Context(), "n1"); err != nil {
			t.Error("again:", err)
		}
		h.kind(p.fork("f5", "n1"), doze.NotFound, "no such snapshot")
		p.empty("f5")
		p.hello("f1") // which was made of it

		h.FailNext(machinetest.OpSnapshot, errMissing)
		_, err := p.Snapshot(t.Context(), "f1", "n9")
		h.kind(err, doze.Unavailable, `the sandbox cannot be copied: its engine is missing: the engine "v0" is not installed`)
		h.FailNext(machinetest.OpBoot, errMissing)
		h.kind(p.fork("f5", "n2"), doze.Unavailable, `its engine is missing: the engine "v0" is not installed`)
		p.empty("f5")

		damaged, err := filepath.Glob(filepath.Join(h.dir, "snapshots", "n2", "copy", "*"))
		if err != nil || len(damaged) == 0 {
			t.Fatal(damaged, err)
		}
		for _, name := range damaged {
			if err := os.WriteFile(name, []byte("damaged"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		h.kind(p.fork("f5", "n2"), doze.Conflict, "damaged")
		p.empty("f5")
		for _, id := range []string{"..", "", "a/b", "A"} {
			_, err := p.Snapshot(t.Context(), "f1", id)
			h.kind(err, doze.Invalid, "no id")
			if err := p.DropSnapshot(t.Context(), id); err != nil {
				t.Errorf("drop %q: %v", id, err)
			}
		}
	})
}

// TestRequestsWaitForSnapshots: what stands still is not asked, and goes on.
func TestRequestsWaitForSnapshots(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		h.Delay(machinetest.OpSnapshot, time.Minute)
		taken := make(chan error, 1)
		go func() { _, err := p.Snapshot(t.Context(), "a", "n"); taken <- err }()
		time.Sleep(time.Second)
		began := time.Now()
		p.hello("a")
		if waited := time.Since(began); waited < 50*time.Second {
			t.Errorf("a request was answered after %v", waited)
		}
		if err := <-taken; err != nil {
			t.Error(err)
		}
		p.in("a", doze.Running, "awake")

		// The end of the sandbox is the end of a snapshot that is being taken.
		go func() { _, err := p.Snapshot(t.Context(), "a", "late"); taken <- err }()
		time.Sleep(time.Second)
		if err := p.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if err := <-taken; err == nil && !slices.Contains(p.complete(), "late") {
			t.Error("a snapshot that is complete is not there")
		}
	})
}

func TestSnapshotsThatFail(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a", "b")
		nothing := func() {
			t.Helper()
			if left, err := os.ReadDir(filepath.Join(h.dir, "snapshots")); err != nil || len(left) != 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		}
		h.FailNext(machinetest.OpSnapshot, errBroken)
		if _, err := p.Snapshot(t.Context(), "a", "n"); !errors.Is(err, errBroken) {
			t.Error(err)
		}
		p.in("a", doze.Running, "awake")
		p.hello("a")
		nothing()
		_, err := p.Snapshot(t.Context(), "nobody", "n")
		h.kind(err, doze.NotFound, "no such sandbox")
		cut, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.Snapshot(cut, "a", "n"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		h.Kill("b")
		synctest.Wait()
		_, err = p.Snapshot(t.Context(), "b", "n")
		h.kind(err, doze.Conflict, "failed")
		nothing()

		// One that was cut off by a crash is removed, a foreign directory is not.
		for _, dir := range []string{"half/copy", "Not Ours"} {
			if err := os.MkdirAll(filepath.Join(h.dir, "snapshots", dir), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		p.stop()
		p = h.start()
		if _, err := os.Stat(filepath.Join(h.dir, "snapshots", "half")); !errors.Is(err, os.ErrNotExist) {
			t.Error("half a snapshot is left:", err)
		}
		if _, err := os.Stat(filepath.Join(h.dir, "snapshots", "Not Ours")); err != nil {
			t.Error(err)
		}
		if err := os.MkdirAll(filepath.Join(h.dir, "snapshots", "odd"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(h.dir, "snapshots", "odd", "record.json"), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, all := p.Agents(); all {
			t.Error("nobody knows which agent a damaged snapshot needs")
		}
	})
}

// asks are what the agent of a was asked about archives, since the last time.
func (h *host) asks() (all []string) {
	h.set(func() { all = h.asked["a"]; h.asked["a"] = nil })
	return all
}

const (
	askQuiesce = `/doze/quiesce{"stopTimeoutSeconds":10}`
	askStart   = `/process{"command":"run","name":"app"}`
)

func TestArchive(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		p.sleep("disk")
		bytes, err := p.Archive(t.Context(), "a")
		if err != nil || bytes <= 0 {
			t.Fatalf("archive: %d, %v", bytes, err)
		}
		if diff := cmp.Diff([]string{askQuiesce}, h.asks()); diff != "" {
			t.Error(diff)
		}
		archived := func() {
			t.Helper()
			p.in("a", doze.Archived, "")
			_, err := p.call(t.Context(), "a", appPort)
			h.kind(err, doze.Conflict, "unarchive")
			if doze.Public(err).Name != doze.NameArchived {
				t.Errorf("%+v", doze.Public(err))
			}
			if slices.Contains(h.Processes(), "a") || h.ask(func() bool { return h.leases["a"] }) {
				t.Error("it costs more than disk")
			}
			if names, err := filepath.Glob(filepath.Join(h.dir, "sandboxes", "a", "*")); err != nil || len(names) != 3 {
				t.Errorf("on disk it is %q, %v", names, err)
			}
		}
		archived()
		if again, err := p.Archive(t.Context(), "a"); err != nil || again != bytes {
			t.Errorf("again: %d, %v", again, err)
		}
		p.stop()
		h.Reboot()
		p = h.start()
		archived()

		for step, err := range map[string]error{"lease": errBroken, "files": errBroken} {
			h.set(func() { h.failing[step] = err })
			if err := p.Unarchive(t.Context(), order("a")); err == nil {
				t.Error("it works without", step)
			}
			archived()
		}
		h.FailNext(machinetest.OpBoot, errBroken)
		if err := p.Unarchive(t.Context(), order("a")); !errors.Is(err, errBroken) {
			t.Error(err)
		}
		archived()
		h.asks()

		o := order("a")
		o.Env = []string{"A=new"}
		if err := p.Unarchive(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"/doze/files", askStart}, h.asks()); diff != "" {
			t.Error(diff)
		}
		if !slices.Contains(h.identity("a"), "A=new") {
			t.Errorf("it is told %q", h.identity("a"))
		}
		p.in("a", doze.Running, "awake")
		p.hello("a")
		if err := p.Unarchive(t.Context(), o); err != nil || len(h.asks()) != 0 {
			t.Error("again:", err)
		}
		if names, err := filepath.Glob(filepath.Join(h.dir, "sandboxes", "a", "*")); err != nil || len(names) != 2 {
			t.Errorf("then it is %q, %v", names, err)
		}
		p.sleep("disk")
		p.hello("a")
		if _, err := p.Archive(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if err := p.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		p.empty("a")
	})
}

func TestArchivesThatFail(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a", "b")
		h.FailNext(machinetest.OpArchive, errBroken)
		_, err := p.Archive(t.Context(), "a")
		if h.kind(err, doze.Unavailable, "the engine reported an error"); !errors.Is(err, errBroken) {
			t.Error(err)
		}
		p.in("a", doze.Running, "awake")
		if diff := cmp.Diff([]string{askQuiesce, "/archive/resume", askStart}, h.asks()); diff != "" {
			t.Error(diff)
		}
		if names, err := filepath.Glob(filepath.Join(h.dir, "sandboxes", "a", "*")); err != nil || len(names) != 2 {
			t.Errorf("on disk it is %q, %v", names, err)
		}
		p.hello("a")
		p.sleep("disk")
		h.FailNext(machinetest.OpRestore, errMissing)
		_, err = p.Archive(t.Context(), "a")
		h.kind(err, doze.Unavailable, `its engine is missing: the engine "v0" is not installed`)
		p.in("a", doze.Standby, "disk")
		p.hello("a")
		// What cannot be ended at once is archived all the same.
		h.FailNext(machinetest.OpClose, errBroken)
		if _, err := p.Archive(t.Context(), "a"); err != nil {
			t.Error(err)
		}
		if !slices.Contains(h.Processes(), "a") {
			t.Error("it was ended, and the test tests nothing")
		}
		p.stop()
		p = h.start()
		p.in("a", doze.Archived, "")
		if slices.Contains(h.Processes(), "a") {
			t.Error("nobody ends its machine")
		}
		// Its archive is lost.
		if err := os.Remove(filepath.Join(h.dir, "sandboxes", "a", "files.tar")); err != nil {
			t.Fatal(err)
		}
		p.stop()
		p = h.start()
		p.in("a", doze.Failed, "")
		if _, err := p.Archive(t.Context(), "nobody"); doze.Public(err).Kind != doze.NotFound {
			t.Error(err)
		}
		if err := p.Disable(t.Context(), "b"); err != nil {
			t.Fatal(err)
		}
		_, err = p.Archive(t.Context(), "b")
		h.kind(err, doze.Conflict, "disabled")
	})
}

// TestCrashOverCopies lets a node die at every step of a life with snapshots,
// forks and archives.
func TestCrashOverCopies(t *testing.T) {
	for steps := 0; ; steps++ {
		complete := false
		synctest.Test(t, func(t *testing.T) {
			h := newHost(t)
			m := h.mortal(steps)
			p := h.startWith(m.options())
			t.Cleanup(func() { close(m.end); synctest.Wait() })
			lived := make(chan struct{})
			var done int // how many of the acts were completed
			go func() {
				defer close(lived)
				ctx := t.Context()
				for i, act := range []func() error{
					func() error { return p.Create(ctx, order("a")) },
					func() error { _, err := p.Snapshot(ctx, "a", "n"); return err },
					func() error { return p.fork("b", "n") },
					func() error { _, err := p.Archive(ctx, "a"); return err },
					func() error { return p.Unarchive(ctx, order("a")) },
					func() error { return p.DropSnapshot(ctx, "n") },
				} {
					err := act()
					select {
					case <-m.died:
						runtime.Goexit()
					default:
					}
					if err != nil {
						t.Errorf("step %d, act %d: %v", steps, i, err)
					}
					done++
				}
				complete = true
			}()
			select {
			case <-lived:
			case <-m.died:
			}
			synctest.Wait()
			next := h.start()
			synctest.Wait()
			afterCopies(t, h, next, steps, done)
		})
		if complete || t.Failed() {
			t.Logf("%d steps", steps)
			return
		}
	}
}

// afterCopies fails unless what a dead process left can be used, and removed.
func afterCopies(t *testing.T, h *host, p *process, steps, done int) {
	t.Helper()
	_, known := p.Status("a")
	if known != (done > 0) && done > 0 {
		t.Errorf("step %d: the sandbox is gone after %d acts", steps, done)
	}
	if ids := p.complete(); done >= 2 && done < 5 && len(ids) != 1 || done > 5 && len(ids) != 0 {
		t.Errorf("step %d: snapshots %q after %d acts", steps, ids, done)
	}
	if known {
		// Control repeats what it was told nothing of.
		if _, err := p.Archive(t.Context(), "a"); err != nil {
			t.Errorf("step %d: archive: %v", steps, err)
		}
		if err := p.Unarchive(t.Context(), order("a")); err != nil {
			t.Errorf("step %d: unarchive: %v", steps, err)
		}
		if asked := h.asks(); len(asked) == 0 || asked[len(asked)-1] != askStart {
			t.Errorf("step %d: its processes are not started: %q", steps, asked)
		}
		p.hello("a")
	}
	for _, id := range p.complete() {
		if err := p.fork("f", id); err != nil {
			t.Errorf("step %d: fork: %v", steps, err)
		}
		p.hello("f")
		if err := p.DropSnapshot(t.Context(), id); err != nil {
			t.Errorf("step %d: drop: %v", steps, err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(h.dir, "snapshots")); err != nil || len(left) != 0 {
		t.Errorf("step %d: of snapshots is left %v, %v", steps, left, err)
	}
	for _, id := range []string{"a", "b", "f"} {
		if err := p.Delete(t.Context(), id); err != nil {
			t.Errorf("step %d: delete: %v", steps, err)
		}
		p.empty(id)
	}
}
