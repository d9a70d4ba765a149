// Package fault_test does harm at every step by which a sandbox falls asleep,
// wakes and is adopted, to the built binaries on a real host: the disk is full,
// a call does not work, dozed is killed, or the launcher, or the sandbox's own
// process. Whatever happens, the sandbox is awake or asleep afterwards, once,
// with every byte of its memory and of its files; or, where its memory had no
// copy, it has failed and says so.
package fault_test

import (
	"context"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/swap"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/power"
)

const (
	// patience is for one move of a sandbox, on a busy machine.
	patience = 20 * time.Second
	// poll is the first pause between two looks, and pollMost what it grows to: looks take the
	// processors from what they wait for.
	poll     = 5 * time.Millisecond
	pollMost = 50 * time.Millisecond
	// swapSize is for one sandbox.
	swapSize = 256 << 20
	// megabytes that a sandbox keeps and checks.
	megabytes = 1
)

// TestTable looks for steps that are missing from the table.
func TestTable(t *testing.T) {
	t.Parallel()
	for _, s := range failpoint.All() {
		if !slices.ContainsFunc(rows, func(r row) bool { return r.at == s }) {
			t.Errorf("nothing is done at the step %q", s)
		}
	}
}

// TestRelease looks at the binaries that people run: they have no such steps.
func TestRelease(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"dozed", "doze-sentry"} {
		info, err := buildinfo.ReadFile(filepath.Join(testkit.Root(), "bin", name))
		if errors.Is(err, os.ErrNotExist) {
			t.Skip("SKIPPED: nothing is built")
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range info.Settings {
			if s.Key == "-tags" && strings.Contains(s.Value, "faults") {
				t.Errorf("%s was built with %s", name, s.Value)
			}
		}
	}
}

var (
	all  = flag.Bool("all", false, "every fault at every step, and not one at two of three")
	only = flag.String("only", "", "those of all cases that contain this `text`")
	seed = flag.Uint64("seed", uint64(time.Now().UnixNano()), "`number` that decides which fault is done at which step")
)

// chosen returns the faults of a row that are done in this run.
func (r row) chosen(i int) []fault {
	if *all || *only != "" {
		return r.faults
	}
	random := rand.New(rand.NewPCG(*seed, uint64(i)))
	if random.IntN(3) == 0 {
		return nil
	}
	n := random.IntN(len(r.faults))
	return r.faults[n : n+1]
}

// TestFaults runs the table: a platform for each journey.
func TestFaults(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("SKIPPED: real sandboxes need root and time")
	}
	t.Logf("-seed %d", *seed)
	bin := build(t)
	for j := range flags {
		t.Run(string(j), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, j, bin)
			for i, r := range rows {
				for _, f := range r.chosen(i) {
					name := fmt.Sprintf("%s %s %d %s", r.harm, r.at, r.passes, faultNames[f])
					if r.on == j && strings.Contains(string(j)+" "+name, *only) {
						t.Run(name, func(t *testing.T) { w.run(t, r, f) })
					}
				}
			}
		})
	}
}

// build makes the binaries whose steps can be heard, once for all tests.
func build(t *testing.T) (dir string) {
	t.Helper()
	building.Do(func() {
		var err error
		if built, err = os.MkdirTemp("", "doze-fault-bin-"); err != nil { //nolint:usetesting // it is for all tests
			t.Fatal(err)
		}
		makefile := exec.Command("make", "-C", testkit.Root(), "--no-print-directory", "programs", "TAGS=faults", "BIN="+built)
		if out, err := makefile.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	})
	return built
}

var (
	building sync.Once
	built    string
)

func TestMain(m *testing.M) {
	flag.Parse()
	m.Run()
	if built != "" {
		_ = os.RemoveAll(built) // it is in the directory of temporary files
	}
}

// world is one platform with one sandbox.
type world struct {
	*testkit.Platform

	on     journey
	power  *power.Disk // nil if the data is on a disk that cannot lose its power
	dark   atomic.Bool // it lost its power, and nobody asked
	ear    *ear
	client *client.Client
	canary *testkit.Canary // nil until there is one, and after it failed
	uid    string
	lasted int // how often it was on disk that the sandbox ran, before the last request woke it
	made   int
	dead   bool             // dozed does not run
	before int              // machines that there were before a copy of the sandbox was made
	copied func(*testing.T) // looks at what a copy of the sandbox came to, and removes it; nil without
}

func newWorld(t *testing.T, j journey, bin string) *world {
	t.Helper()
	// Not t.TempDir: unix sockets in it would have too long a name.
	dir, err := os.MkdirTemp("", "doze-fault-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	// Small enough to be filled in no time.
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=384m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Processes that other tests start have it for a moment too.
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	home := filepath.Join(dir, "p")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	return startWorld(t, &world{on: j, ear: listen(t, dir)}, testkit.Options{Bin: bin, Dir: home, Args: flags[j]})
}

// startWorld starts the platform of a world.
func startWorld(t *testing.T, w *world, o testkit.Options) *world {
	t.Helper()
	if w.on == swapped {
		provideSwap(t)
	}
	o.Args = append([]string{"--pause-after", "50ms", "--disk-reserve-mb", "0"}, o.Args...)
	o.Env = append(o.Env, failpoint.Variable+"="+w.ear.socket)
	var err error
	w.Platform, err = testkit.Start(t.Context(), o)
	t.Cleanup(func() { w.end(t) })
	if err != nil {
		t.Fatal(err)
	}
	if w.client, err = w.Client(); err != nil {
		t.Fatal(err)
	}
	return w
}

// provideSwap gives the host some swap: none can be in memory, as the platform's
// data is here.
func provideSwap(t *testing.T) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "swap")
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		if err := swap.Remove(ctx, name); err != nil {
			t.Error(err)
		}
	})
	if err := swap.Make(ctx, name, swapSize, true); err != nil {
		t.Fatal(err)
	}
}

// end deletes the sandbox, after which nothing may be left.
func (w *world) end(t *testing.T) {
	t.Helper()
	if w.Platform == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience) // it has ended in a clean-up
	defer cancel()
	if w.dead {
		if err := w.Restart(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for sb, err := range w.client.Sandboxes(ctx, client.Filter{}) {
		if err == nil && sb.Status != "TERMINATED" {
			_, err = w.client.Delete(ctx, sb.Metadata.Name)
		}
		if err != nil && doze.Public(err).Kind != doze.NotFound { // it was on its way
			t.Error(err)
		}
	}
	until(t, "nothing is left", func() error {
		if leaks := w.Leaks(); len(leaks) > 0 {
			return errors.New(strings.Join(leaks, "\n"))
		}
		return nil
	})
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// moves is the end of what dozed printed, without the requests.
func (w *world) moves() string {
	const most = 20
	var lines []string
	for line := range strings.Lines(w.Printed()) {
		if !strings.Contains(line, `"msg":"request"`) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-most):], "")
}

// abandon gives up on a sandbox after a case that failed, so that the next one
// says something of its own.
func (w *world) abandon() {
	_ = w.Kill() // whatever it does
	w.dead = true
	w.ear.ignore()
	if w.canary != nil {
		w.canary.Close()
	}
	w.canary, w.copied = nil, nil
}

// drop deletes the sandbox.
func (w *world) drop(ctx context.Context, t *testing.T) {
	t.Helper()
	w.canary.Close()
	if _, err := w.client.Delete(ctx, w.canary.Name); err != nil {
		t.Error(err)
	}
	w.canary = nil
}

// until repeats a check until it finds nothing to complain about.
func until(t *testing.T, what string, check func() error) {
	t.Helper()
	var err error
	pause := poll
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(pause) {
		if err = check(); err == nil {
			return
		}
		pause = min(pause*5/4, pollMost)
	}
	t.Fatalf("it does not happen that %s: %v", what, err)
}

// run is one case.
func (w *world) run(t *testing.T, r row, f fault) {
	t.Helper()
	release := w.settle(t)
	defer func() {
		if t.Failed() {
			t.Logf("what dozed printed:\n%s", w.moves())
			w.abandon()
		}
	}()
	rewind := w.canary.Rewind()
	// A full disk takes the last checkpoint for the next, and a crash goes back to it.
	if w.renews() || w.goesBack() && (r.harm == down || r.harm != up && r.harm != again) {
		release()
		w.sleep(t)
		release = w.settle(t)
	}
	reached, finish := w.starts()[r.harm](t, release, r)
	var at *held
	select {
	case at = <-reached:
	case <-time.After(patience):
		t.Fatal("the step is not met")
	}
	relieve := w.harm(t, f, at)
	finish()
	if filed[w.on] > 0 && f == fail {
		w.tidy(t)
	}
	relieve()
	w.revive(t)
	w.settleCopy(t)
	if rewound := f == engine || f == launcher; r.rewinds && rewound {
		rewind()
	}
	if r.loses && f == engine && (!r.rewinds || w.gone(t)) {
		w.lost(t)
		return
	}
	w.intact(t)
	w.kill(t)
	w.revive(t)
	w.intact(t)
}

// tidy fails if the sandbox has a disk that no process has.
func (w *world) tidy(t *testing.T) {
	t.Helper()
	until(t, "it has no disk without a process", func() error {
		_, err := os.Stat(filepath.Join(w.Data, "sandboxes", w.uid, "machine", live))
		if err == nil && len(w.Engines(w.uid)) == 0 {
			return errors.New("there is one")
		}
		return nil
	})
}

// kill ends dozed.
func (w *world) kill(t *testing.T) {
	t.Helper()
	if err := w.Kill(); err != nil {
		t.Fatal(err)
	}
	w.dead = true
}

// revive starts dozed, if it does not run.
func (w *world) revive(t *testing.T) {
	t.Helper()
	if !w.dead {
		return
	}
	if err := w.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.dead = false
}

// harm does what a case is about, and lets the step go on. The returned
// function takes back what can be taken back.
func (w *world) harm(t *testing.T, f fault, at *held) (relieve func()) {
	t.Helper()
	say, relieve := failpoint.Go, func() {}
	switch f {
	case fail:
		say = failpoint.Fail
	case full:
		relieve = w.fill(t)
	case daemon:
		w.kill(t)
	case launcher:
		shoot(t)(w.Launcher())
	case engine:
		shoot(t)(w.Engine(w.canary.Name))
		until(t, "the launcher notices", func() error {
			machines, err := w.Machines(t.Context())
			if errors.Is(err, syscall.ECONNREFUSED) {
				return nil // it has only just started, and will
			}
			if err == nil && machines[w.uid] != "" {
				err = errors.New("it is " + machines[w.uid])
			}
			return err
		})
	}
	at.answer(say)
	return relieve
}

func shoot(t *testing.T) func(pid int, err error) {
	t.Helper()
	return func(pid int, err error) {
		t.Helper()
		if err == nil {
			err = testkit.Shoot(t.Context(), pid)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// fill leaves no room for a byte.
func (w *world) fill(t *testing.T) (empty func()) {
	t.Helper()
	dir := filepath.Dir(w.ear.socket)
	if w.power != nil {
		dir = w.power.Dir
	}
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for err == nil {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	return func() {
		// Nobody synced it, or its end: a cut of the power takes either.
		if err := os.Remove(name); err != nil && (w.power == nil || !errors.Is(err, os.ErrNotExist)) {
			t.Error(err)
		}
	}
}

// settle makes sure that there is a sandbox, awake, with nothing left to be
// done about its last wake. It stays so until release is called.
func (w *world) settle(t *testing.T) (release func()) {
	t.Helper()
	if w.canary == nil {
		w.revive(t)
		w.made++
		name := fmt.Sprintf("canary-%d", w.made)
		k, err := w.Canary(t.Context(), name, name, megabytes, filed[w.on])
		if err != nil {
			t.Fatal(err)
		}
		w.canary = k
		k.Crashed = func() bool { return w.dark.Swap(false) }
		if w.uid, err = w.UID(name); err != nil {
			t.Fatal(err)
		}
		if w.goesBack() { // there is none before it slept
			w.sleep(t)
		}
	}
	release, err := w.canary.Hold(context.WithoutCancel(t.Context())) // release ends it
	if err != nil {
		t.Fatal(err)
	}
	w.step(t)
	until(t, "it is awake and has no image", func() error {
		left, err := w.checkpoints()
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("there is %v", left)
		}
		return err
	})
	return release
}

// begun is what a checkpoint copied before a request ended it. It stays until the
// next one.
const begun = "image.begun"

// live is the disk of a sandbox whose files are on disk.
const live = "disk.live"

// last is the checkpoint that it woke from, and may go back to.
const last = "image.last"

// goesBack reports whether a crash leads back to a checkpoint.
func (w *world) goesBack() bool { return w.on == back || w.on == used || filed[w.on] > 0 }

// renews reports whether a checkpoint is renewed while the sandbox is in use.
func (w *world) renews() bool { return w.on == used || w.on == filedUsed }

// checkpoints returns what is on disk of checkpoints, but for what was begun.
func (w *world) checkpoints() (names []string, err error) {
	entries, err := os.ReadDir(filepath.Join(w.Data, "sandboxes", w.uid, "machine"))
	for _, e := range entries {
		if e.Name() != begun && e.Name() != live && (e.Name() != last || !w.goesBack() && w.power == nil) {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// step makes a step that must work.
func (w *world) step(t *testing.T) {
	t.Helper()
	s, err := w.canary.Step(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Wrong) > 0 {
		t.Fatal(strings.Join(s.Wrong, "; "))
	}
}

// intact fails unless the sandbox is there, once, with everything it had.
func (w *world) intact(t *testing.T) {
	t.Helper()
	until(t, "the sandbox answers", func() error {
		s, err := w.canary.Step(t.Context())
		if len(s.Wrong) > 0 {
			t.Fatal(strings.Join(s.Wrong, "; "))
		}
		return err
	})
	w.settle(t)()
	if n := len(w.Engines(w.uid)); n > 1 {
		t.Errorf("it runs %d times", n)
	}
}

// gone waits until the sandbox fails or answers, and reports whether it failed.
func (w *world) gone(t *testing.T) (failed bool) {
	t.Helper()
	until(t, "the sandbox fails or answers", func() error {
		sb, err := w.client.Sandbox(t.Context(), w.canary.Name)
		if failed = err == nil && sb.Status == "FAILED"; err != nil || failed {
			return err
		}
		release, err := w.canary.Hold(context.WithoutCancel(t.Context())) // release ends it
		if err == nil {
			release()
		}
		return err
	})
	return failed
}

// lost fails unless the sandbox failed, and says why.
func (w *world) lost(t *testing.T) {
	t.Helper()
	until(t, "the sandbox failed", func() error {
		sb, err := w.client.Sandbox(t.Context(), w.canary.Name)
		if err == nil && sb.Status != "FAILED" {
			err = errors.New("it is " + sb.Status)
		}
		if err == nil && (len(sb.Events) == 0 || sb.Events[len(sb.Events)-1].Message == "") {
			err = errors.New("it does not say why")
		}
		return err
	})
	if engines := w.Engines(w.uid); len(engines) > 0 {
		t.Errorf("it failed, and yet runs: %v", engines)
	}
	w.drop(t.Context(), t)
}

// sleep waits until the sandbox is as far down as its journey leads.
func (w *world) sleep(t *testing.T) {
	t.Helper()
	tier := "paused"
	switch w.on {
	case disk, cold, filedDisk, filedCold:
		tier = "disk"
	case swapped:
		tier = "swapped"
	case paused, saved, back, used, filedBack, filedUsed:
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := w.AwaitTier(ctx, w.canary.Name, tier)
	if err == nil && (w.on == disk || w.on == filedDisk) {
		err = w.AwaitReady(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the node says that it sleeps", func() error {
		sb, err := w.client.Sandbox(t.Context(), w.canary.Name)
		if err == nil && sb.State != "STANDBY" {
			err = errors.New("it is " + sb.State)
		}
		return err
	})
	if w.on == paused {
		return
	}
	until(t, "it has a checkpoint", func() error {
		_, err := os.Stat(filepath.Join(w.Data, "sandboxes", w.uid, "machine", "image", "manifest.json"))
		return err
	})
	if w.power != nil {
		until(t, "the checkpoint is on disk", func() error {
			if !w.canary.Observe(w.Platform) {
				return errors.New("it may not be")
			}
			return nil
		})
	}
}

// wait makes a row's step a stop.
func (w *world) wait(r row) <-chan *held {
	id := w.uid
	switch {
	case r.at == failpoint.Forget: // it is about no machine
		id = ""
	case r.harm == forks, r.harm == restores: // it is about one that has no id yet
		id = anyone
	}
	return w.ear.wait(r.at, id, r.passes)
}

// starts is a table: how a sandbox comes to its step. It is awake until release is called.
// What is returned last waits until it is over.
func (w *world) starts() map[harm]func(t *testing.T, release func(), r row) (<-chan *held, func()) {
	return map[harm]func(*testing.T, func(), row) (<-chan *held, func()){
		down: w.down, inUse: w.inUse, up: w.up, again: w.again, awake: w.awake, succeeds: w.succeeds, forks: w.forks, restores: w.restores,
	}
}

// down lets the sandbox fall asleep.
func (w *world) down(_ *testing.T, release func(), r row) (<-chan *held, func()) {
	reached := w.wait(r)
	release()
	return reached, func() {}
}

// inUse holds the sandbox awake until its checkpoint was renewed, or not.
func (w *world) inUse(_ *testing.T, release func(), r row) (<-chan *held, func()) {
	return w.wait(r), release
}

// up sends a request to the sandbox, which sleeps.
func (w *world) up(t *testing.T, release func(), r row) (<-chan *held, func()) {
	t.Helper()
	release()
	w.sleep(t)
	if w.on == cold { // whoever touches it makes it doubtful
		manifest := filepath.Join(w.Data, "sandboxes", w.uid, "machine", "image", "manifest.json")
		if err := os.Chtimes(manifest, time.Time{}, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	w.lasted = w.ear.reached(failpoint.Lasts, w.uid)
	reached := w.wait(r)
	done := make(chan testkit.Stepped, 1)
	go func() {
		s, _ := w.canary.Step(context.WithoutCancel(t.Context())) // whether it works depends on the fault
		done <- s
	}()
	return reached, func() {
		if s := <-done; len(s.Wrong) > 0 {
			t.Error(strings.Join(s.Wrong, "; "))
		}
	}
}

// again kills dozed while the sandbox sleeps, and starts it.
func (w *world) again(t *testing.T, release func(), r row) (<-chan *held, func()) {
	t.Helper()
	release()
	w.sleep(t)
	return w.restart(t, r)
}

// awake kills dozed while the sandbox is awake, and starts it.
func (w *world) awake(t *testing.T, release func(), r row) (<-chan *held, func()) {
	t.Helper()
	defer release()
	return w.restart(t, r)
}

func (w *world) restart(t *testing.T, r row) (<-chan *held, func()) {
	t.Helper()
	w.kill(t)
	w.dead = false // unless it ends
	reached := w.wait(r)
	done := make(chan error, 1)
	go func() { done <- w.Restart(context.WithoutCancel(t.Context())) }()
	return reached, func() {
		if err := <-done; err != nil { // it may end with the fault: the next start does not
			if !strings.Contains(err.Error(), "dozed ended") {
				t.Error(err)
			}
			w.dead = true
		}
	}
}

// succeeds kills the launcher while the sandbox is awake.
func (w *world) succeeds(t *testing.T, release func(), r row) (<-chan *held, func()) {
	t.Helper()
	defer release()
	reached := w.wait(r)
	shoot(t)(w.Launcher())
	return reached, func() {}
}

// snapshot takes a snapshot of the sandbox, which is awake, and has it go on.
func (w *world) snapshot(t *testing.T) doze.Snapshot {
	t.Helper()
	w.made++
	all, err := w.machines()
	if w.before = len(all); err != nil {
		t.Fatal(err)
	}
	n, err := w.client.CreateSnapshot(t.Context(), w.canary.Name, fmt.Sprintf("s%d", w.made))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// machines returns the records of all machines.
func (w *world) machines() ([]string, error) {
	return filepath.Glob(filepath.Join(w.Data, "sandboxes", "*", "record.json"))
}

// forks makes another sandbox of a snapshot. It has what the first one had then, or it
// was never made.
func (w *world) forks(t *testing.T, release func(), r row) (<-chan *held, func()) {
	t.Helper()
	n := w.snapshot(t)
	name := fmt.Sprintf("fork-%d", w.made)
	then := w.canary.Copy(name, "")
	then.Crashed = nil // it is the first one that may have gone back
	w.step(t)
	reached, done := w.wait(r), make(chan error, 1)
	go func() {
		_, err := w.client.ForkSnapshot(context.WithoutCancel(t.Context()), n.ID, doze.ForkRequest{TargetName: name, TargetType: doze.KindSandbox})
		done <- err // whether it works depends on the fault
	}()
	var made error
	w.copied = func(t *testing.T) {
		t.Helper()
		defer release()
		until(t, "the fork answers, or was never made", func() error {
			sb, err := w.client.Sandbox(t.Context(), name)
			if gone := err != nil && doze.Public(err).Kind == doze.NotFound; gone || err == nil && (sb.Status == "FAILED" || sb.Status == "TERMINATED") {
				if made == nil {
					t.Fatalf("a fork that was made is gone: %s, %v", sb.Status, err)
				}
				return nil
			}
			if err != nil {
				return err
			}
			k := then.Copy(name, sb.Metadata.URL)
			defer k.Close()
			s, err := k.Step(t.Context())
			if len(s.Wrong) > 0 {
				t.Fatal(strings.Join(s.Wrong, "; "))
			}
			return err
		})
		if _, err := w.client.Delete(t.Context(), name); err != nil && doze.Public(err).Kind != doze.NotFound {
			t.Error(err)
		}
		if err := w.client.DeleteSnapshot(t.Context(), n.ID); err != nil {
			t.Error(err)
		}
	}
	return reached, func() { made = <-done }
}

// restores puts the sandbox back to a snapshot. It has what it had then, or what it has.
func (w *world) restores(t *testing.T, release func(), r row) (<-chan *held, func()) {
	t.Helper()
	n, maybe := w.snapshot(t), w.canary.Rewind()
	w.step(t)
	reached, done := w.wait(r), make(chan error, 1)
	go func() {
		_, err := w.client.Restore(context.WithoutCancel(t.Context()), w.canary.Name, n.ID)
		done <- err // likewise
	}()
	w.copied = func(t *testing.T) {
		t.Helper()
		release()
		maybe()
		if err := w.client.DeleteSnapshot(t.Context(), n.ID); err != nil {
			t.Error(err)
		}
	}
	return reached, func() { <-done }
}

// settleCopy ends what a copy of the sandbox is about, if there is one.
func (w *world) settleCopy(t *testing.T) {
	t.Helper()
	end := w.copied
	if w.copied = nil; end == nil {
		return
	}
	end(t)
	until(t, "there are as many machines as before", func() error { // one may be another one now
		all, err := w.machines()
		if err == nil && len(all) != w.before {
			err = fmt.Errorf("there are %v and not %d", all, w.before)
		}
		if err == nil {
			w.uid, err = w.UID(w.canary.Name)
		}
		return err
	})
}
