package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest/rig"
)

// next is a second version of the engine.
var next struct {
	once   sync.Once
	err    error
	sentry string
}

const nextVersion = "v9.9.9-next"

// upgraded returns the path of that version.
func upgraded(t *testing.T) string {
	t.Helper()
	shared.Build(t)
	next.once.Do(func() {
		next.sentry = filepath.Join(shared.Dir(), "next", "doze-sentry")
		next.err = buildSentry(t.Context(), nextVersion, next.sentry)
	})
	if next.err != nil {
		t.Fatal(next.err)
	}
	return next.sentry
}

// runs returns the version of the engine that a machine runs in, by the file
// that its process was started from.
func (h *host) runs(t *testing.T, id string) string {
	t.Helper()
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", h.engine(id)))
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Base(filepath.Dir(exe))
}

func adopt(t *testing.T, d *Driver, c machine.Config) machine.Machine {
	t.Helper()
	m, err := d.Adopt(t.Context(), c)
	if err != nil {
		t.Fatalf("adopt %s: %v", c.ID, err)
	}
	return m
}

func move(t *testing.T, m machine.Machine, tier machine.Tier) {
	t.Helper()
	var err error
	if tier == machine.Awake {
		err = m.Resume(t.Context())
	} else {
		err = m.Suspend(t.Context(), tier)
	}
	if err != nil || m.Tier() != tier {
		t.Fatalf("to %s: it is %s, %v", tier, m.Tier(), err)
	}
}

// note writes a text into a machine, which read returns.
func note(t *testing.T, m machine.Machine, text string) {
	t.Helper()
	var none any
	ask(t, m, "/write", &none, "name", "/kept", "text", text)
}

func read(t *testing.T, m machine.Machine) (text string) {
	t.Helper()
	ask(t, m, "/read", &text, "name", "/kept")
	return text
}

// TestUpgrade replaces the engine under machines in every tier. They stay in the
// old one until they are closed; new ones get the new one.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.engines = filepath.Join(h.Dir, "engines")
	d := h.open(t)
	old := d.current.version
	tiers := []machine.Tier{machine.Awake, machine.Paused, machine.Saved, machine.OnDisk}
	configs, copies := map[machine.Tier]machine.Config{}, filepath.Join(h.Dir, "kept")
	for _, tier := range tiers {
		c := h.Config(t, tier.String())
		m := boot(t, d, c)
		note(t, m, tier.String())
		if tier != machine.Awake {
			move(t, m, tier)
		}
		if tier == machine.Saved {
			if err := m.Snapshot(t.Context(), copies, nil); err != nil {
				t.Fatal(err)
			}
		}
		configs[tier] = c
	}

	h.sentry = upgraded(t)
	d = h.open(t)
	if d.current.version != nextVersion {
		t.Fatalf("new machines get %s", d.current.version)
	}
	if err := d.Sweep(t.Context(), func(string) bool { return true }); err != nil {
		t.Fatal(err)
	}
	events := listen(t, d)
	fresh := boot(t, d, h.Config(t, "fresh"))
	if got := h.runs(t, "fresh"); got != nextVersion {
		t.Errorf("a new machine runs in %s", got)
	}
	machines := map[machine.Tier]machine.Machine{}
	for _, tier := range tiers {
		m := adopt(t, d, configs[tier])
		if m.Tier() != tier {
			t.Errorf("%s: adopted as %s", tier, m.Tier())
		}
		for range 2 { // it stays in the old one
			move(t, m, machine.Awake)
			if got := read(t, m); got != tier.String() {
				t.Errorf("%s: the file says %q", tier, got)
			}
			if got := h.runs(t, configs[tier].ID); got != old {
				t.Errorf("%s: it runs in %s", tier, got)
			}
			move(t, m, machine.OnDisk)
		}
		machines[tier] = m
	}

	c := h.Config(t, "fork") // of a copy that was made in the old one
	c.From = copies
	fork := boot(t, d, c)
	if got := h.runs(t, c.ID); got != old || read(t, fork) != machine.Saved.String() {
		t.Errorf("a fork runs in %s, and its file says %q", got, read(t, fork))
	}
	if err := fork.Close(t.Context()); err != nil {
		t.Error(err)
	}

	// The old engine is heard, too, and is not removed while a checkpoint needs it.
	dirs := []string{h.Dir}
	move(t, machines[machine.Awake], machine.Awake)
	kill(t, h.engine("awake"), unix.SIGKILL)
	if e := event(t, events); e.ID != "awake" || !e.Exited {
		t.Errorf("event %+v, want the end of awake", e)
	}
	for _, tier := range tiers {
		if gone, err := d.Retire(t.Context(), dirs...); len(gone) > 0 || err != nil {
			t.Errorf("retired %v, %v", gone, err)
		}
		if err := machines[tier].Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if gone, err := d.Retire(t.Context(), dirs...); len(gone) > 0 || err != nil {
		t.Errorf("a copy needs it, and retired are %v, %v", gone, err)
	}
	if err := d.Discard(copies); err != nil {
		t.Error(err)
	}
	gone, err := d.Retire(t.Context(), dirs...)
	if diff := cmp.Diff([]string{old}, gone); diff != "" || err != nil {
		t.Errorf("retired (-want +got): %s %v", diff, err)
	}
	left, err := filepath.Glob(filepath.Join(h.engines, "*", "*"))
	if diff := cmp.Diff([]string{filepath.Join(h.engines, nextVersion, "doze-sentry")}, left); diff != "" || err != nil {
		t.Errorf("installed (-want +got): %s %v", diff, err)
	}
	rig.Wait(t, "one launcher is left", func() bool { return len(h.launchers()) == 1 })
	move(t, fresh, machine.OnDisk)
	move(t, fresh, machine.Awake)
	if err := fresh.Close(t.Context()); err != nil {
		t.Error(err)
	}
	h.Empty(t)
}

// TestCutCall kills a launcher over a pause. Its successor is asked again, which
// is one of the same version, whether or not that is the one of new machines.
func TestCutCall(t *testing.T) {
	t.Parallel()
	for _, replaced := range []bool{false, true} {
		t.Run(fmt.Sprintf("replaced=%t", replaced), func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.engines = filepath.Join(h.Dir, "engines")
			d := h.open(t)
			c := h.Config(t, "a")
			m := boot(t, d, c)
			if replaced {
				h.sentry = upgraded(t)
				d = h.open(t)
				m = adopt(t, d, c)
			}
			e := d.home(c.ID)
			if (e == d.current) == replaced {
				t.Fatalf("it runs in %s, and new machines in %s", e.version, d.current.version)
			}
			pid := func() int {
				t.Helper()
				var v Version
				if err := e.client.get(t.Context(), PathVersion, &v); err != nil || v.Engine != e.version {
					t.Fatalf("the launcher of %s says %+v, %v", e.version, v, err)
				}
				return v.PID
			}

			first, engine := pid(), h.engine(c.ID)
			idle := sockets(t, first)
			kill(t, engine, unix.SIGSTOP)
			done := make(chan error, 1)
			go func() { done <- m.Suspend(t.Context(), machine.Paused) }()
			rig.Wait(t, "the launcher asks the engine", func() bool { return sockets(t, first) > idle })
			kill(t, first, unix.SIGKILL)
			kill(t, engine, unix.SIGCONT)
			if err := <-done; err != nil || m.Tier() != machine.Paused {
				t.Errorf("it is %s, %v", m.Tier(), err)
			}
			if second := pid(); second == first {
				t.Errorf("there is no successor of %d", first)
			}
			move(t, m, machine.Awake)
			var n int64
			ask(t, m, "/count", &n)
			if err := m.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if gone, err := d.Retire(t.Context(), h.Dir); (len(gone) > 0) != replaced || err != nil {
				t.Errorf("retired %v, %v", gone, err)
			}
			h.Empty(t)
		})
	}
}

// TestMissingEngine takes away the version that machines need. Nothing is lost,
// and it is said which.
func TestMissingEngine(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.engines = filepath.Join(h.Dir, "engines")
	d := h.open(t)
	old, launcher := d.current.version, h.launcher()
	asleep, awake := h.Config(t, "asleep"), h.Config(t, "awake")
	m := boot(t, d, asleep)
	note(t, m, "asleep")
	move(t, m, machine.OnDisk)
	note(t, boot(t, d, awake), "awake")

	away := filepath.Join(h.Dir, "away")
	if err := os.Rename(filepath.Join(h.engines, old), away); err != nil {
		t.Fatal(err)
	}
	kill(t, launcher, unix.SIGKILL)
	h.sentry = upgraded(t)
	d = h.open(t)
	if err := d.Sweep(t.Context(), func(string) bool { return true }); err != nil {
		t.Errorf("sweep: %v", err)
	}
	if _, err := d.Adopt(t.Context(), awake); !errors.Is(err, machine.ErrNoEngine) || !strings.Contains(err.Error(), old) {
		t.Errorf("adopt: %v, want ErrNoEngine of %s", err, old)
	}
	if h.engine("awake") == 0 {
		t.Error("the machine is gone")
	}
	m = adopt(t, d, asleep)
	if err := m.Resume(t.Context()); !errors.Is(err, machine.ErrNoEngine) || !strings.Contains(err.Error(), old) {
		t.Errorf("resume: %v, want ErrNoEngine of %s", err, old)
	}
	if gone, err := d.Retire(t.Context(), h.Dir); len(gone) > 0 || err != nil {
		t.Errorf("retired %v, %v", gone, err)
	}

	// One that is no program is in nobody's way either.
	place := filepath.Join(h.engines, old)
	if err := errors.Join(os.Mkdir(place, 0o700), os.WriteFile(filepath.Join(place, Program), []byte("?"), 0o700)); err != nil {
		t.Fatal(err)
	}
	d = h.open(t)
	if err := d.Sweep(t.Context(), func(string) bool { return true }); err != nil {
		t.Errorf("sweep: %v", err)
	}
	if _, err := d.Adopt(t.Context(), awake); !errors.Is(err, unix.ENOEXEC) || errors.Is(err, machine.ErrGone) {
		t.Errorf("adopt: %v, want that the engine cannot be started", err)
	}

	if err := errors.Join(os.RemoveAll(place), os.Rename(away, place)); err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(h.engines, "v0") // of a crash while it was copied
	if err := errors.Join(os.Mkdir(half, 0o700), os.WriteFile(filepath.Join(half, Program+unmade), nil, 0o700)); err != nil {
		t.Fatal(err)
	}
	d = h.open(t)
	for _, c := range []machine.Config{asleep, awake} {
		m := adopt(t, d, c)
		move(t, m, machine.Awake)
		if got := read(t, m); got != c.ID {
			t.Errorf("the file says %q, want %q", got, c.ID)
		}
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	gone, err := d.Retire(t.Context(), h.Dir)
	if diff := cmp.Diff([]string{old, "v0"}, gone, cmpopts.SortSlices(strings.Compare)); diff != "" || err != nil {
		t.Errorf("retired (-want +got): %s %v", diff, err)
	}
	if left, err := os.ReadDir(h.engines); err != nil || len(left) != 1 {
		t.Errorf("installed: %v, %v", left, err)
	}
	h.Empty(t)
}

// TestEngineIsBusy: a copy that somebody has open for writing is started as soon
// as nobody has.
func TestEngineIsBusy(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.engines = filepath.Join(h.Dir, "engines")
	d := h.open(t)
	h.Reboot(t)
	var writes *os.File
	rig.Wait(t, "nobody runs the copy any more", func() (ok bool) { // who was killed gives it up a moment later
		var err error
		writes, err = os.OpenFile(filepath.Join(h.engines, d.current.version, "doze-sentry"), os.O_WRONLY, 0)
		return err == nil
	})
	time.AfterFunc(time.Second, func() { _ = writes.Close() })
	m := boot(t, h.open(t), h.Config(t, "a"))
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestEnginePutBack has a driver find an engine that was not there when it was
// opened, and hear its events.
func TestEnginePutBack(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.engines = filepath.Join(h.Dir, "engines")
	d := h.open(t)
	c := h.Config(t, "asleep")
	m := boot(t, d, c)
	note(t, m, "asleep")
	move(t, m, machine.OnDisk)
	h.Reboot(t) // else its run state tells of it
	place, away := filepath.Join(h.engines, d.current.version), filepath.Join(h.Dir, "away")
	if err := os.Rename(place, away); err != nil {
		t.Fatal(err)
	}
	h.sentry = upgraded(t)
	d = h.open(t)
	events, err := d.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m = adopt(t, d, c)
	copied := filepath.Join(h.Dir, "copy")
	for name, call := range map[string]func() error{
		"resume":   func() error { return m.Resume(t.Context()) },
		"snapshot": func() error { return m.Snapshot(t.Context(), copied, nil) },
	} {
		if err := call(); !errors.Is(err, machine.ErrNoEngine) || !strings.Contains(err.Error(), filepath.Base(place)) {
			t.Errorf("%s: %v, want ErrNoEngine of %s", name, err, filepath.Base(place))
		}
	}
	if err := os.Rename(away, place); err != nil {
		t.Fatal(err)
	}
	move(t, m, machine.Awake)
	if got := read(t, m); got != "asleep" {
		t.Errorf("the file says %q", got)
	}
	h.Kill(t, "asleep")
	select {
	case e := <-events:
		if e.ID != "asleep" || !e.Exited {
			t.Errorf("event %+v", e)
		}
	case <-time.After(time.Minute):
		t.Error("nobody hears its end")
	}
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if gone, err := d.Retire(t.Context(), h.Dir); len(gone) != 1 || err != nil {
		t.Errorf("retired %v, %v", gone, err)
	}
	h.Empty(t)
}

func TestInstall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "v1", "to")
	write := func(text string, at time.Time) {
		t.Helper()
		if err := errors.Join(os.WriteFile(from, []byte(text), 0o600), os.Chtimes(from, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	leave := func() { // as a crash does
		t.Helper()
		if err := os.WriteFile(to+unmade, []byte("half of it"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inode := func() uint64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(to, &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	now := time.Now()
	write("one", now)
	if err := install(from, to); err != nil {
		t.Fatal(err)
	}
	first := inode()
	if err := install(from, to); err != nil || inode() != first {
		t.Errorf("the same is installed again, %v", err)
	}
	leave()
	write("two", now.Add(time.Second)) // over the same file, as builds do
	if raw, err := os.ReadFile(to); err != nil || string(raw) != "one" {
		t.Errorf("what is installed has changed to %q, %v", raw, err)
	}
	if err := install(from, to); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(to)
	if err != nil || string(raw) != "two" || inode() == first {
		t.Errorf("installed is %q, %v", raw, err)
	}
	if left, err := os.ReadDir(filepath.Dir(to)); err != nil || len(left) != 1 {
		t.Errorf("left over: %v, %v", left, err)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != sentryMode {
		t.Errorf("it cannot be run: %v, %v", info, err)
	}
	if err := install(filepath.Join(dir, "nothing"), to); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing is installed: %v", err)
	}
}

// What is installed stays when there is no room for its successor.
func TestInstallDiskFull(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: a small disk needs root")
	}
	dir, small := t.TempDir(), t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(small, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	from, to := filepath.Join(dir, "from"), filepath.Join(small, "v1", "to")
	for _, size := range []int{1 << 10, 3 << 20} {
		if err := os.WriteFile(from, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		err := install(from, to)
		if fits := size < 1<<20; fits != (err == nil) || !fits && (!errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "copy 3 MB")) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	left, err := os.ReadDir(filepath.Dir(to))
	if err != nil || len(left) != 1 {
		t.Fatalf("left over: %v, %v", left, err)
	}
	if info, err := left[0].Info(); err != nil || info.Name() != "to" || info.Size() != 1<<10 {
		t.Errorf("what was installed is %+v, %v", info, err)
	}
}
