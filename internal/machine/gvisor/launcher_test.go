package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
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
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/machine/machinetest/rig"
)

// These tests run real machines through a real launcher, and look at what the
// host sees of both.

func boot(t *testing.T, d *Driver, c machine.Config) machine.Machine {
	t.Helper()
	m, err := d.Boot(t.Context(), c)
	if err != nil {
		t.Fatal("boot:", err)
	}
	return m
}

// ask calls the guest's program over a connection of its own.
func ask(t *testing.T, m machine.Machine, path string, out any, query ...string) {
	t.Helper()
	asks(t, m, path, out, query...)
}

// asks is ask that returns the status.
func asks(t *testing.T, m machine.Machine, path string, out any, query ...string) int {
	t.Helper()
	values := url.Values{}
	for i := 0; i+1 < len(query); i += 2 {
		values.Set(query[i], query[i+1])
	}
	client := &http.Client{Timeout: rig.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
			rig.Wait(t, "the guest listens", func() bool {
				conn, err = m.Dial(ctx, machinetest.Port)
				return err == nil || ctx.Err() != nil
			})
			return conn, err
		},
	}}
	resp, err := client.Get("http://guest" + path + "?" + values.Encode())
	if err != nil {
		t.Fatal("ask the guest:", err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		t.Fatalf("%s: %s: %v", path, resp.Status, err)
	}
	return resp.StatusCode
}

func event(t *testing.T, events <-chan machine.Event) machine.Event {
	t.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(rig.Patience):
		t.Fatal("no event came")
	}
	return machine.Event{}
}

func listen(t *testing.T, d *Driver) <-chan machine.Event {
	t.Helper()
	events, err := d.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return events
}

func kill(t *testing.T, pid int, s unix.Signal) {
	t.Helper()
	if pid == 0 {
		t.Fatal("there is no such process")
	}
	if err := unix.Kill(pid, s); err != nil {
		t.Fatal(err)
	}
	if s == unix.SIGSTOP { // each of its tasks stops when it runs the next time
		rig.Wait(t, "the process stands still", func() bool { return stopped(pid) })
	}
}

// sockets returns how many a process has.
func sockets(t *testing.T, pid int) (n int) {
	t.Helper()
	for _, to := range descriptors(t, pid) {
		if strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// stopped reports whether every task of a process stands still.
func stopped(pid int) bool {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(names) == 0 {
		return false
	}
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if _, state, ok := strings.Cut(string(raw), ") "); err != nil || !ok || state[0] != 'T' {
			return false
		}
	}
	return true
}

func TestLauncherDies(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(t)
	events := listen(t, d)
	awake, paused, hung, dead := h.Config(t, "awake"), h.Config(t, "paused"), h.Config(t, "hung"), h.Config(t, "dead")
	machines := map[string]machine.Machine{}
	for _, c := range []machine.Config{awake, paused, hung, dead} {
		machines[c.ID] = boot(t, d, c)
	}
	if err := machines["paused"].Suspend(t.Context(), machine.Paused); err != nil {
		t.Fatal(err)
	}

	// A call in flight gets an error.
	first := h.launcher()
	idle := sockets(t, first)
	kill(t, h.engine("hung"), unix.SIGSTOP)
	inFlight := make(chan error, 1)
	go func() { inFlight <- machines["hung"].Suspend(t.Context(), machine.Paused) }()
	rig.Wait(t, "the launcher asks the engine", func() bool { return sockets(t, first) > idle })
	kill(t, first, unix.SIGKILL)
	if err := <-inFlight; err == nil {
		t.Error("a call to a launcher that died has worked")
	}
	kill(t, h.engine("hung"), unix.SIGKILL)
	kill(t, h.engine("dead"), unix.SIGKILL)

	// The successor is there without anybody's call, and tells who ended.
	ended := map[string]bool{}
	for range 2 {
		e := event(t, events)
		if !e.Exited || e.OutOfMemory {
			t.Errorf("event %+v, want an end", e)
		}
		ended[e.ID] = true
	}
	if !ended["hung"] || !ended["dead"] {
		t.Errorf("events tell the end of %v, want of hung and dead", ended)
	}
	if second := h.launcher(); second == first || second == 0 {
		t.Errorf("the successor of launcher %d is %d", first, second)
	}

	var n int64
	ask(t, machines["awake"], "/count", &n)
	if err := machines["paused"].Resume(t.Context()); err != nil {
		t.Error("resume what the successor adopted:", err)
	}
	ask(t, machines["paused"], "/count", &n)
	for _, m := range machines {
		if err := m.Suspend(t.Context(), machine.OnDisk); err == nil {
			if err := m.Resume(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	h.Empty(t)
}

// A launcher that dies around a pause or a resume leaves marks that say nothing
// for sure. Its successor finds out.
func TestDoubtfulPause(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for name, tier := range map[string]machine.Tier{"awake": machine.Awake, "paused": machine.Paused} {
		for _, marked := range []bool{true, false} {
			d := h.open(t)
			c := h.Config(t, name+strconv.FormatBool(marked))
			m := boot(t, d, c)
			if err := m.Suspend(t.Context(), tier); err != nil {
				t.Fatal(err)
			}
			kill(t, h.launcher(), unix.SIGKILL)
			bundle := filepath.Join(d.run, "bundles", c.ID)
			if err := os.WriteFile(filepath.Join(bundle, "flipping"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if paused := filepath.Join(bundle, "paused"); marked {
				if err := os.WriteFile(paused, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			} else if err := os.RemoveAll(paused); err != nil {
				t.Fatal(err)
			}
			m, err := h.open(t).Adopt(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			if m.Tier() != tier {
				t.Errorf("%s: adopted as %s", c.ID, m.Tier())
			}
			if err := m.Resume(t.Context()); err != nil {
				t.Errorf("%s: %v", c.ID, err)
			}
			var n int64
			ask(t, m, "/count", &n)
			if err := m.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

// A checkpoint that is damaged although somebody vouches for it ends the machine
// instead of feeding it, and is read whole the next time.
func TestDamageWhileLoading(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(t)
	events := listen(t, d)
	c := h.Config(t, "a")
	m := boot(t, d, c)
	if err := m.Suspend(t.Context(), machine.OnDisk); err != nil {
		t.Fatal(err)
	}
	corrupt := func() {
		f, err := os.OpenFile(filepath.Join(checkpoint.Dir(c), checkpoint.FilePages), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		info, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		last := make([]byte, 1)
		if _, err := f.ReadAt(last, info.Size()-1); err != nil {
			t.Fatal(err)
		}
		last[0] ^= 1
		if _, err := f.WriteAt(last, info.Size()-1); err != nil {
			t.Fatal(err)
		}
	}
	corrupt()
	if err := d.vouchers.Vouch(checkpoint.Dir(c)); err != nil {
		t.Fatal(err)
	}
	if err := m.Resume(t.Context()); err == nil { // the damage is met when the guest runs
		if e := event(t, events); !e.Exited || !strings.Contains(e.Message, "altered near byte") {
			t.Errorf("event %+v, want that the memory could not be loaded", e)
		}
		if m, err = d.Adopt(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if m.Tier() != machine.OnDisk {
		t.Errorf("it is %s", m.Tier())
	}
	if err := m.Resume(t.Context()); !errors.Is(err, machine.ErrDamaged) {
		t.Errorf("%v, want ErrDamaged", err)
	}
	corrupt()
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	var n int64
	ask(t, m, "/count", &n)
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestEndsWhileLoading ends a machine that woke while its memory was still coming. It
// goes on from the checkpoint that it woke from, for there is no other yet: also if
// nobody heard of its end when it is to go on, if another driver adopted it, and if
// it ends because its launcher did, which loaded the memory of a guest that stands still.
func TestEndsWhileLoading(t *testing.T) {
	t.Parallel()
	const megabytes = 400
	h := newHost(t)
	for _, name := range []string{"heard of late", "adopted", "without its launcher"} {
		d := h.open(t)
		c := h.Config(t, strings.ReplaceAll(name, " ", "-"))
		c.Memory, c.GoBack = 1<<30, true
		m := boot(t, d, c)
		ask(t, m, "/alloc", new(any), "mb", strconv.Itoa(megabytes))
		var want, sum uint32
		ask(t, m, "/sum", &want)
		if err := m.Suspend(t.Context(), machine.OnDisk); err != nil {
			t.Fatal(err)
		}
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if name == "adopted" {
			var err error
			if m, err = h.open(t).Adopt(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.Suspend(t.Context(), machine.Paused); err != nil {
			t.Fatal(err)
		}
		if _, saved := checkpoint.Has(c); !saved {
			t.Errorf("%s: its memory was there before it ended", name)
		}
		if name == "without its launcher" {
			kill(t, h.launcher(), unix.SIGKILL)
			if err := m.Suspend(t.Context(), machine.Saved); err == nil {
				t.Errorf("%s: there is a checkpoint of memory that was not loaded", name)
			}
		} else {
			h.Kill(t, c.ID)
		}
		if err := m.Resume(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if ask(t, m, "/sum", &sum); sum != want {
			t.Errorf("%s: the sum of its memory is %d and was %d", name, sum, want)
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// A launcher that died before a machine had processes left a bundle that no
// successor may take for one.
func TestBundleLeft(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(t)
	kill(t, h.launcher(), unix.SIGKILL)
	bundle := filepath.Join(d.run, dirBundles, "half")
	if err := os.MkdirAll(filepath.Join(bundle, "root"), 0o700); err != nil {
		t.Fatal(err)
	}
	h.open(t)
	if _, err := os.Lstat(bundle); !errors.Is(err, fs.ErrNotExist) {
		t.Error("the bundle is left:", err)
	}
	h.Empty(t)
}

// TestLauncherDiesCreating kills the launcher at any moment of the creation of a
// machine, of which nothing may be left but what its successor knows about.
func TestLauncherDiesCreating(t *testing.T) {
	t.Parallel()
	const most, apart = 24, 2 * time.Millisecond // over the 40 ms that it takes
	h := newHost(t)
	d := h.open(t)
	for i := range most {
		id := "m" + strconv.Itoa(i)
		c := h.Config(t, id)
		asked := make(chan error, 1)
		go func() { asked <- d.current.client.post(t.Context(), PathPrepare, Boot{Config: c}, nil) }()
		time.Sleep(time.Duration(i) * apart)
		kill(t, h.launcher(), unix.SIGKILL)
		<-asked
		d = h.open(t)
		states, err := d.current.list(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if pid := h.engine(id); (pid != 0) != (states[id] != "") {
			t.Errorf("killed after %s, process %d is left, and the next launcher knows %v", time.Duration(i)*apart, pid, states)
		}
		if err := d.current.call(t.Context(), PathKill, Target{ID: id}, nil); err != nil {
			t.Error(err)
		}
	}
	h.Empty(t)
}

// TestNamespace: a machine in which a network namespace is in use cannot be
// saved or copied, and nothing happens to it, for it could not be restored. When
// that is gone, it can.
func TestNamespace(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	c := h.Config(t, "a")
	c.Args = append(c.Args, "isolate", "/tmp/done")
	m := boot(t, h.open(t), c)
	ask(t, m, "/count", new(int64)) // which is answered when there is one
	for range 2 {
		if err := m.Suspend(t.Context(), machine.OnDisk); err == nil || m.Tier() != machine.Paused {
			t.Fatalf("it is %s: %v", m.Tier(), err)
		}
		if err := m.Snapshot(t.Context(), filepath.Join(t.TempDir(), "copy"), nil); err == nil {
			t.Fatal("there is a copy of it")
		}
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		ask(t, m, "/count", new(int64))
	}
	ask(t, m, "/write", new(any), "name", "/tmp/done", "text", "now")
	rig.Wait(t, "it can be saved", func() bool {
		ask(t, m, "/spawn", new(any), "n", "1") // the engine looks again when something starts
		if err := m.Suspend(t.Context(), machine.OnDisk); err == nil {
			return true
		}
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		return false
	})
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	ask(t, m, "/count", new(int64))
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOneLauncher(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(t)
	out, err := rig.Run(t.Context(), sentryIn(shared.Dir()), "-run", d.run, "-cgroup", h.Cgroup, "-socket", d.current.client.socket)
	if err == nil || !strings.Contains(err.Error(), "another launcher") {
		t.Errorf("a second launcher of the same directory: %q, %v", out, err)
	}
	if err := d.current.client.ping(t.Context()); err != nil {
		t.Error("the first one:", err)
	}
}

func TestEngineHangs(t *testing.T) {
	t.Parallel()
	const limit = 300 * time.Millisecond
	h := newHost(t)
	h.pauseLimit = limit
	d := h.open(t)
	listen(t, d)
	// A pause that does not work leaves the machine running.
	m := boot(t, d, h.Config(t, "pause"))
	engine := h.engine("pause")
	kill(t, engine, unix.SIGSTOP)
	began := time.Now()
	err := m.Suspend(t.Context(), machine.Paused)
	if took := time.Since(began); err == nil || took < limit || took > 20*limit {
		t.Errorf("pause of an engine that hangs: %v after %v, want an error after %v", err, took, limit)
	}
	kill(t, engine, unix.SIGCONT)
	if h.engine("pause") != engine || m.Tier() != machine.Awake {
		t.Errorf("it is %s, its engine %d, want %d", m.Tier(), h.engine("pause"), engine)
	}
	var n int64
	ask(t, m, "/count", &n)
	if err := m.Suspend(t.Context(), machine.OnDisk); err != nil {
		t.Error("when it hangs no longer:", err)
	}
	if err := errors.Join(m.Resume(t.Context()), m.Close(t.Context())); err != nil {
		t.Error(err)
	}

	m = boot(t, d, h.Config(t, "resume"))
	if err := m.Suspend(t.Context(), machine.Paused); err != nil {
		t.Fatal(err)
	}
	kill(t, h.engine("resume"), unix.SIGSTOP)
	began = time.Now()
	err = m.Resume(t.Context())
	if took := time.Since(began); err == nil || took < limit || took > 20*limit {
		t.Errorf("resume of an engine that hangs: %v after %v, want an error after %v", err, took, limit)
	}
	if m.Tier() != machine.Paused {
		t.Errorf("it is %s", m.Tier())
	}
	kill(t, h.engine("resume"), unix.SIGCONT)
	if err := m.Resume(t.Context()); err != nil {
		t.Error("when it hangs no longer:", err)
	}
	ask(t, m, "/count", &n)
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}

	h.Empty(t)
}

// TestSavedGoesOn: whatever keeps the processes of a saved machine from going on,
// who resumes it has it, as it was.
func TestSavedGoesOn(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.pauseLimit = 300 * time.Millisecond
	d := h.open(t)
	events := listen(t, d)
	for name, harm := range map[string]func(id string){
		"hangs": func(id string) { kill(t, h.engine(id), unix.SIGSTOP) },
		"ends":  func(id string) { unix.Kill(h.engine(id), unix.SIGKILL) }, // nobody waits until that is seen
		"unmarked": func(id string) { // its launcher cannot write down that it is about to resume it
			if err := os.Mkdir(filepath.Join(d.run, "bundles", id, "flipping"), 0o700); err != nil {
				t.Fatal(err)
			}
		},
	} {
		for _, tier := range []machine.Tier{machine.Saved, machine.Swapped} {
			id := name + "-" + tier.String()
			m := boot(t, d, h.Config(t, id))
			var before, after int64
			ask(t, m, "/count", &before)
			if err := m.Suspend(t.Context(), machine.Saved); err != nil {
				t.Fatal(err)
			}
			if tier == machine.Swapped && m.Suspend(t.Context(), tier) != nil {
				t.Logf("SKIPPED: %s: this host has no swap that is free", id)
			}
			engine := h.engine(id)
			harm(id)
			if err := m.Resume(t.Context()); err != nil {
				t.Errorf("%s: %v", id, err)
				continue
			}
			if m.Tier() != machine.Awake || h.engine(id) == engine {
				t.Errorf("%s: it is %s, its engine %d as before", id, m.Tier(), engine)
			}
			if ask(t, m, "/count", &after); after < before {
				t.Errorf("%s: the count went from %d back to %d", id, before, after)
			}
			if err := m.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	select {
	case e := <-events:
		t.Errorf("%+v was told, and nothing is lost", e)
	default:
	}
	h.Empty(t)
}

// TestPreparedByAnother wakes a machine whose next process was made by a driver
// that ended meanwhile.
func TestPreparedByAnother(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(t)
	m := boot(t, d, h.Config(t, "a"))
	if err := m.Suspend(t.Context(), machine.OnDisk); err != nil {
		t.Fatal(err)
	}
	s := m.(*sandbox)
	if err := s.call(t.Context(), PathPrepare, Boot{Config: s.config}, nil); err != nil {
		t.Fatal(err)
	}
	left := h.engine("a")
	if err := m.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if now := h.engine("a"); now == left {
		t.Errorf("it runs in process %d, of which nobody knows what it was made for", now)
	}
	var count int64
	ask(t, m, "/count", &count)
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestHostView checks that nothing leaks from the launcher into machines, and
// from machines into the launcher.
func TestHostView(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(t)
	launcher := h.launcher()
	before := identity(t, launcher)

	const many = 20
	var configs []machine.Config
	for i := range many {
		configs = append(configs, h.Config(t, "m"+strconv.Itoa(i)))
	}
	machines := make([]machine.Machine, many)
	var tasks sync.WaitGroup
	for i, c := range configs {
		tasks.Go(func() {
			m, err := d.Boot(t.Context(), c)
			if err != nil {
				t.Error(err)
				return
			}
			machines[i] = m
		})
	}
	tasks.Wait()
	if t.Failed() {
		return
	}
	if after := identity(t, launcher); after != before {
		t.Errorf("%d creates changed the launcher:\n%s\nwas\n%s", many, after, before)
	}

	id := configs[0].ID
	engine := h.engine(id)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", engine))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(status), "Seccomp:\t2\n") || !strings.Contains(string(status), "Seccomp_filters:\t1\n") {
		t.Errorf("the engine has no seccomp filter:\n%s", status)
	}
	for _, dir := range h.Groups(id) {
		raw, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil || !strings.Contains("\n"+string(raw), fmt.Sprintf("\n%d\n", engine)) {
			t.Errorf("the engine %d is not in %s: %q, %v", engine, dir, raw, err)
		}
	}
	adj, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", engine))
	if err != nil || strings.TrimSpace(string(adj)) != "0" {
		t.Errorf("oom_score_adj of the engine is %q, %v", adj, err)
	}

	// The guest's streams lead nowhere.
	const mark = "written by the guest"
	var none any
	ask(t, machines[0], "/print", &none, "text", mark)
	log, err := os.ReadFile(filepath.Join(d.run, "launcher.log"))
	if err != nil || strings.Contains(string(log), mark) {
		t.Errorf("the guest wrote to the launcher's log: %v", err)
	}
	for fd, to := range descriptors(t, engine) {
		if strings.HasSuffix(to, "launcher.log") || strings.HasSuffix(to, "launcher.lock") || strings.Contains(to, "pts") {
			t.Errorf("the engine has descriptor %s of the launcher: %s", fd, to)
		}
	}
	for _, m := range machines {
		tasks.Go(func() {
			if err := m.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	tasks.Wait()
	h.Empty(t)
	d.current.client.hangUp() // as many as there were calls at once
	const own = 30            // of a launcher without machines, and a few more
	rig.Wait(t, "the launcher closes what it opened", func() bool { return len(descriptors(t, launcher)) <= own }, func() string {
		return fmt.Sprint(descriptors(t, launcher))
	})
}

// identity is what a process must not lose: its cgroups, and the namespaces of
// its main thread.
func identity(t *testing.T, pid int) string {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatal(err)
	}
	out := string(raw)
	for _, ns := range []string{"net", "mnt", "pid", "ipc", "uts", "user"} {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/task/%d/ns/%s", pid, pid, ns))
		if err != nil {
			t.Fatal(err)
		}
		out += to + "\n"
	}
	return out
}

func descriptors(t *testing.T, pid int) map[string]string {
	t.Helper()
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, name := range names {
		if to, err := os.Readlink(name); err == nil {
			all[filepath.Base(name)] = to
		}
	}
	return all
}

func TestSizes(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(t)
	for name, tc := range map[string]struct {
		memory int64
		cpus   float64
		want   int // processors that the guest sees
	}{
		"small": {128 << 20, 0.3, 2},
		"large": {512 << 20, 2.5, 3},
	} {
		c := h.Config(t, name)
		c.Memory, c.CPUs = tc.memory, tc.cpus
		m := boot(t, d, c)
		check := func() {
			t.Helper()
			var meminfo, cpuinfo string
			ask(t, m, "/read", &meminfo, "name", "/proc/meminfo")
			ask(t, m, "/read", &cpuinfo, "name", "/proc/cpuinfo")
			if total := fmt.Sprintf("MemTotal: %14d kB", tc.memory>>10); !strings.Contains(meminfo, total) {
				t.Errorf("%s: /proc/meminfo begins %q, want %q", name, strings.SplitN(meminfo, "\n", 2)[0], total)
			}
			if n := strings.Count(cpuinfo, "processor\t"); n != tc.want {
				t.Errorf("%s: the guest sees %d processors, want %d", name, n, tc.want)
			}
		}
		check()
		if err := m.Suspend(t.Context(), machine.OnDisk); err != nil {
			t.Fatal(err)
		}
		if err := m.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		check()

		if name == "small" {
			share(t, m, tc.cpus, h.Groups(name))
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	h.Empty(t)
}

// share checks that a busy guest gets its share of the processor, after a sleep
// too, and never more. On a busy host it may get less for a while.
func share(t *testing.T, m machine.Machine, want float64, groups []string) {
	t.Helper()
	const busy, attempts = 600 * time.Millisecond, 10
	var got float64
	for range attempts {
		before, start := cpuTime(t, groups), time.Now()
		var none any
		ask(t, m, "/spin", &none, "n", "2", "ms", strconv.FormatInt(busy.Milliseconds(), 10))
		got = float64(cpuTime(t, groups)-before) / float64(time.Since(start))
		if got > want*1.7 {
			t.Errorf("a busy guest got %.2f processors, want %.2f", got, want)
		}
		if got > want/2 {
			return
		}
	}
	t.Errorf("a busy guest got %.2f processors in %d attempts, want %.2f", got, attempts, want)
}

// cpuTime adds up what the processes of cgroups have used.
func cpuTime(t *testing.T, dirs []string) (total time.Duration) {
	t.Helper()
	if len(dirs) == 0 {
		t.Fatal("the machine has no cgroup")
	}
	raw, err := os.ReadFile(filepath.Join(dirs[0], "cgroup.procs"))
	if err != nil {
		t.Fatal(err)
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 everywhere
	for pid := range strings.FieldsSeq(string(raw)) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ") // the name may have spaces
		fields := strings.Fields(rest)
		user, _ := strconv.ParseInt(fields[11], 10, 64)
		system, _ := strconv.ParseInt(fields[12], 10, 64)
		total += time.Duration(user+system) * tick
	}
	return total
}

// TestLatency logs what each step takes, from the driver's call to the guest's
// answer where it wakes.
func TestLatency(t *testing.T) {
	onlyMeasures(t)
	h := newHost(t)
	h.ready = 1
	d := h.open(t)
	for _, filled := range []int{0, 64} {
		began := time.Now()
		m := boot(t, d, h.Config(t, "m"+strconv.Itoa(filled)))
		var none any
		ask(t, m, "/count", &none)
		booted := time.Since(began)
		ask(t, m, "/alloc", &none, "mb", strconv.Itoa(filled))
		steps := map[string][]time.Duration{}
		measure := func(name string, do func() error) {
			began := time.Now()
			if err := do(); err != nil {
				t.Fatal(name, err)
			}
			steps[name] = append(steps[name], time.Since(began))
		}
		down := func(to machine.Tier) func() error {
			return func() error { return m.Suspend(t.Context(), to) }
		}
		up := func() error {
			err := m.Resume(t.Context())
			ask(t, m, "/count", &none)
			return err
		}
		for range 3 {
			measure("pause", down(machine.Paused))
			measure("resume", up)
			measure("pause", down(machine.Paused))
			measure("save", down(machine.Saved))
			measure("resume saved", up)
			measure("pause", down(machine.Paused))
			measure("save", down(machine.Saved))
			measure("drop", down(machine.OnDisk))
			measure("restore", up)
		}
		t.Logf("%d MB: boot %v", filled, booted)
		for name, took := range steps {
			slices.Sort(took)
			t.Logf("%d MB: %s %v (%v..%v)", filled, name, took[len(took)/2], took[0], took[len(took)-1])
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
