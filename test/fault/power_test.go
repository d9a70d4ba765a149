package fault_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/power"
)

const (
	// diskSize is of a disk whose power is cut, or that is filled.
	diskSize = 512 << 20
	// sampleOneIn is how many of the cuts there are for each that is made without
	// -all.
	sampleOneIn = 4
)

// lasting are the journeys of a sandbox that has a checkpoint to go back to, as is
// the default, by the journeys whose steps they meet.
var lasting = map[journey]journey{
	paused: back, saved: back, back: back, swapped: swapped, disk: disk, cold: cold, used: used,
	filedBack: filedBack, filedUsed: filedUsed, filedDisk: filedDisk, filedCold: filedCold,
}

// TestPower cuts the power at every step: everything ends, and what was not synced
// is lost. A sandbox that had a checkpoint goes on from the last one that was
// complete, with every byte of it, and says so if that loses anything.
func TestPower(t *testing.T) { powered(t, "power", (*world).cut) }

// TestFull fills the disk at every step and keeps it full. The sandbox answers with
// every byte. Then the power is cut: the sandbox goes on from its last checkpoint,
// which a checkpoint that found no room may not have cost it. When there is room
// again, it sleeps again.
func TestFull(t *testing.T) { powered(t, "full", (*world).crowd) }

// powered runs a case for every step on disks whose power can be cut.
func powered(t *testing.T, what string, do func(*world, *testing.T, row)) {
	t.Helper()
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("SKIPPED: real sandboxes need root and time")
	}
	t.Logf("-seed %d", *seed)
	bin := build(t)
	dice := rand.New(rand.NewPCG(*seed, uint64(len(rows)+len(what))))
	chosen, known := map[journey][]row{}, map[string]bool{}
	for _, r := range rows {
		r.on = lasting[r.on]
		name := fmt.Sprintf("%s %s %s %d %s", r.on, r.harm, r.at, r.passes, what)
		if !known[name] && strings.Contains(name, *only) && (*all || *only != "" || dice.IntN(sampleOneIn) == 0) {
			chosen[r.on] = append(chosen[r.on], r)
		}
		known[name] = true
	}
	for j, some := range chosen {
		for _, kind := range []string{power.Ext4, power.XFS} {
			if kind == power.XFS && filed[j] == 0 {
				continue // it makes no difference
			}
			t.Run(string(j)+" "+kind, func(t *testing.T) {
				t.Parallel()
				w := newPowerWorld(t, j, kind, bin)
				for _, r := range some {
					t.Run(fmt.Sprintf("%s %s %d %s", r.harm, r.at, r.passes, what), func(t *testing.T) { w.powerCase(t, r, do) })
				}
			})
		}
	}
}

// powerCase runs a case, and gives up on its sandbox if that fails.
func (w *world) powerCase(t *testing.T, r row, do func(*world, *testing.T, row)) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("what dozed printed:\n%s", w.moves())
			w.abandon()
		}
	}()
	do(w, t, r)
}

// TestPowerUnsynced shows that TestPower can fail: without the syncs, a sandbox
// loses what its checkpoint had.
func TestPowerUnsynced(t *testing.T) {
	if testing.Short() || os.Getuid() != 0 {
		t.Skip("SKIPPED: real sandboxes need root and time")
	}
	bin := build(t)
	for name, environ := range map[string][]string{"synced": nil, "unsynced": {durable.Variable + "=1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newPowerWorld(t, saved, power.Ext4, bin, environ...)
			if err := errors.Join(durable.Sync(filepath.Join(w.Data, "admin.key")), durable.Sync(w.Data)); err != nil {
				t.Fatal(err) // it is about the checkpoint
			}
			w.settle(t)()
			w.sleep(t) // there is a checkpoint
			w.lose(t)
			s, err := w.canary.Step(t.Context())
			if lost := err != nil || s.Lost > 0; lost != (environ != nil) {
				t.Errorf("lost: %t, %+v, %v", lost, s, err)
			}
			if environ != nil {
				w.abandon()
			}
		})
	}
}

// newPowerWorld is newWorld on a disk whose power can be cut. Run state is not on
// it: it is lost anyway.
func newPowerWorld(t *testing.T, j journey, kind, bin string, environ ...string) *world {
	t.Helper()
	if _, err := exec.LookPath("mkfs." + kind); err != nil {
		t.Skip("SKIPPED: there is no mkfs." + kind + " on this host")
	}
	dir, err := os.MkdirTemp("", "doze-fault-") //nolint:usetesting // sockets need short names
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	d, err := power.New(t.Context(), dir, kind, diskSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return startWorld(t, &world{on: j, ear: listen(t, dir), power: d}, testkit.Options{
		Bin: bin, Dir: dir, Data: filepath.Join(d.Dir, "data"), Args: resuming(flags[j]), Env: environ,
	})
}

// resuming returns flags with which a sandbox goes back to its last checkpoint.
func resuming(args []string) []string {
	if args[0] == "--on-crash" {
		args = args[2:]
	}
	return args
}

// cut is one case: the power is cut at a step.
func (w *world) cut(t *testing.T, r row) {
	t.Helper()
	at, finish := w.reach(t, r)
	if r.lossless() {
		w.canary.Observe(w.Platform)
	}
	if r.answered() {
		until(t, "it is on disk that the sandbox ran", func() error {
			if w.ear.reached(failpoint.Lasts, w.uid) == w.lasted {
				return errors.New("nothing says so")
			}
			return nil
		})
	}
	w.lose(t, func() {
		at.answer(failpoint.Go) // nobody is there to hear it
		finish()
	})
	w.settleCopy(t)
	if r.harm == restores && r.at == failpoint.Drop {
		if w.gone(t) { // the new machine has no checkpoint of its own until it sleeps: see docs/design/0043
			w.lost(t)
		}
		return
	}
	w.whole(t, r)
	w.settle(t)()
	w.sleep(t) // and it can sleep again
}

// reach has a sandbox that has a checkpoint stand still at a step.
func (w *world) reach(t *testing.T, r row) (at *held, finish func()) {
	t.Helper()
	w.settle(t)()
	w.sleep(t)
	release := w.settle(t)
	reached, finish := w.starts()[r.harm](t, release, r)
	select {
	case at = <-reached:
	case <-time.After(patience):
		t.Fatal("the step is not met")
	}
	return at, finish
}

// crowd is one case: the disk is full from a step on.
func (w *world) crowd(t *testing.T, r row) {
	t.Helper()
	at, finish := w.reach(t, r)
	relieve := w.fill(t)
	defer relieve()
	at.answer(failpoint.Go)
	finish()
	if r.harm == down {
		time.Sleep(attempt)
	}
	if filed[w.on] > 0 { // its files have to be copied
		relieve()
	}
	if w.dead { // dozed may not start without room
		relieve()
	}
	w.revive(t)
	w.settleCopy(t)
	w.answers(t, func(s testkit.Stepped) {
		if s.Lost > 0 {
			t.Errorf("it lost %d steps", s.Lost)
		}
	})
	if r.harm == restores { // it has no checkpoint yet, and dozed may wait a minute before it tries again
		w.kill(t)
		w.revive(t)
		w.settle(t)()
		w.sleep(t)
	}
	// A cut in the moment after a wake may take back an answer without a word.
	if err := durable.Sync(filepath.Join(w.Data, "sandboxes", w.uid, "machine")); err != nil {
		t.Fatal(err)
	}
	w.lose(t, relieve)
	w.whole(t, row{})
	w.settle(t)()
	w.sleep(t)
}

// attempt is about as long as a checkpoint takes to fail, and to be tried again.
const attempt = 400 * time.Millisecond

// lossless reports whether a checkpoint with all that a sandbox has is on disk when
// it reaches a step, and was before it woke.
func (r row) lossless() bool {
	return r.harm == down && (r.at >= failpoint.Vouch && r.at <= failpoint.Link || r.at == failpoint.Sink && r.passes > 0)
}

// answered reports whether the request that wakes a sandbox may have its answer at a step.
// In the moment before it is on disk that the sandbox ran, a cut takes back the answer
// without a word: see docs/design/0043. How long that moment is depends on the disk.
func (r row) answered() bool {
	return r.harm == up && (r.at == failpoint.Woke || r.at == failpoint.Loaded || r.at == failpoint.Unlimit || r.at == failpoint.Discard)
}

// lose cuts the power, and ends everything as that does. Before dozed starts again,
// it calls some functions.
func (w *world) lose(t *testing.T, before ...func()) {
	t.Helper()
	if err := w.power.Cut(); err != nil {
		t.Fatal(err)
	}
	w.dead = true
	if err := errors.Join(w.Reboot(), w.power.On(t.Context())); err != nil {
		t.Fatal(err)
	}
	for _, f := range before {
		f()
	}
	w.dark.Store(true) // a request that the cut met has ended: one of before has its answer, and none asked since
	w.revive(t)
}

// whole fails unless the sandbox answers after a cut, with every byte of its last
// checkpoint, and says so if it lost anything.
func (w *world) whole(t *testing.T, r row) {
	t.Helper()
	w.answers(t, func(s testkit.Stepped) {
		switch {
		case s.Lost == 0:
		case r.lossless():
			t.Errorf("it lost %d steps, which its checkpoint has", s.Lost)
		case !s.Told:
			t.Errorf("it lost %d steps, and its answer does not say so", s.Lost)
		}
	})
	if n := len(w.Engines(w.uid)); n > 1 {
		t.Errorf("it runs %d times", n)
	}
}

// answers waits for an answer, which must be right, and looks at it.
func (w *world) answers(t *testing.T, look func(testkit.Stepped)) {
	t.Helper()
	until(t, "the sandbox answers", func() error {
		s, err := w.canary.Step(t.Context())
		if err != nil {
			return err
		}
		if len(s.Wrong) > 0 {
			t.Fatal(strings.Join(s.Wrong, "; "))
		}
		look(s)
		return nil
	})
}
