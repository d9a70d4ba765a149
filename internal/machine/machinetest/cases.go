package machinetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/sparse"
)

// cases is the suite.
var cases = map[string]func(*bench){
	"boot answers":                         bootAnswers,
	"boot leaves nothing when it fails":    bootFails,
	"boot of a name that is taken":         bootTwice,
	"pause stops and resume goes on":       pauseStops,
	"every tier keeps everything":          tiersLoseNothing,
	"the clock is right after a sleep":     clockRight,
	"copies draw different random bytes":   randomDiffers,
	"a cancelled suspend changes nothing":  suspendCancelled,
	"a full disk leaves it paused":         diskFull,
	"damaged checkpoints are refused":      damagedCheckpoints,
	"adopt finds every tier":               adoptTiers,
	"adopt after a reboot":                 adoptReboot,
	"adopt removes unfinished checkpoints": adoptSweeps,
	"a crash leads back to a checkpoint":   crashGoesBack,
	"a crash may not lead back":            crashMayNot,
	"a machine that runs on is saved":      renewGoesBack,
	"no renewal takes too long":            renewTooLong,
	"memory is copied while it changes":    precopyChanges,
	"sweep ends what nobody knows":         sweepEnds,
	"close in every tier, twice":           closeTwice,
	"the end of a machine is an event":     exitEvent,
	"a killed engine is an event":          killEvent,
	"a saved machine survives its engine":  killSaved,
	"memory in swap is limited as well":    swapLimited,
	"a wake ends a move to swap":           swapCut,
	"a hog dies alone":                     hogDies,
	"stats are plausible":                  statsPlausible,
	"machines wake in parallel":            wakeParallel,
	"cycles under traffic":                 cyclesTraffic,
	"copies go on by themselves":           copiesGoOn,
	"a copy comes back":                    copyComesBack,
	"a copy that cannot be made":           copyFails,
	"damaged copies are refused":           copyDamaged,
	"an archive has the files":             archiveFiles,
	"a new name stays":                     renameStays,
	"volumes are the host's":               volumesStay,
	"a disk stays with its machine":        diskStays,
}

func bootAnswers(b *bench) {
	g := b.boot("a")
	g.in(machine.Awake)
	first := must[int64](g, "/count")
	b.eventually("the count grows", func() bool { return must[int64](g, "/count") > first })
	if got := must[string](g, "/hostname"); got != g.config.Hostname {
		b.Errorf("host name %q, want %q", got, g.config.Hostname)
	}
	if env := must[[]string](g, "/env"); !slices.Contains(env, "COLOUR=blue") {
		b.Errorf("environment %q lacks what the configuration says", env)
	}
	g.resume() // already awake
}

func bootFails(b *bench) {
	c := b.host.Config(b.T, "a")
	c.Root += ".missing"
	if m, err := b.Boot(b.Context(), c); err == nil {
		b.Fatal("it booted without a root file system:", m.Tier())
	}
	if n := b.host.Processes(b.T, c.ID); n != 0 {
		b.Errorf("%d processes are left", n)
	}
	if _, err := os.Stat(c.Dir); !errors.Is(err, fs.ErrNotExist) {
		b.Errorf("its directory is left: %v", err)
	}
	b.host.Empty(b.T)
	if _, err := b.Adopt(b.Context(), c); !errors.Is(err, machine.ErrGone) {
		b.Errorf("adopt: %v, want ErrGone", err)
	}
}

func bootTwice(b *bench) {
	g := b.boot("a")
	if _, err := b.Boot(b.Context(), g.config); err == nil {
		b.Fatal("two machines of one name run")
	}
	g.in(machine.Awake)
	must[int64](g, "/count")
}

func pauseStops(b *bench) {
	g := b.boot("a")
	for _, tier := range b.tiers(machine.Paused, machine.Saved, machine.Swapped) {
		before := must[int64](g, "/count")
		g.suspend(tier)
		g.stopped()
		g.suspend(tier) // already there
		g.resume()
		if got := must[int64](g, "/count"); got < before {
			b.Errorf("%s: the count went from %d back to %d", tier, before, got)
		}
	}
	// What ran while it was paused would show in the count.
	before := must[int64](g, "/count")
	g.suspend(machine.Paused)
	time.Sleep(10 * still)
	g.resume()
	after := must[int64](g, "/count")
	if ran := after - before; ran > (5 * still).Milliseconds() {
		b.Errorf("it counted %d in a pause of %v", ran, 10*still)
	}
	b.eventually("the count grows again", func() bool { return must[int64](g, "/count") > after })
}

func tiersLoseNothing(b *bench) {
	g := b.boot("a")
	g.do("/alloc", "mb", "24")
	g.do("/write", "name", "/kept", "text", "writable layer")
	g.do("/hold", "text", "open and unlinked")
	g.do("/spawn", "n", "2")
	b.eventually("children count", func() bool {
		counts := must[map[int]int64](g, "/children")
		for _, n := range counts {
			if n < 2 {
				return false
			}
		}
		return len(counts) == 2
	})
	type state struct {
		Sum                  uint32
		File, Held, Hostname string
		Env                  []string
		Children             int
	}
	now := func() state {
		return state{
			Sum: must[uint32](g, "/sum"), File: must[string](g, "/read", "name", "/kept"),
			Held: must[string](g, "/held"), Hostname: must[string](g, "/hostname"),
			Env: must[[]string](g, "/env"), Children: len(must[map[int]int64](g, "/children")),
		}
	}
	want := now()
	fired := 0
	for _, tier := range b.tiers(machine.Paused, machine.Saved, machine.Swapped, machine.OnDisk, machine.OnDisk) {
		children, count := must[map[int]int64](g, "/children"), must[int64](g, "/count")
		g.do("/timer", "ms", strconv.FormatInt((asleep/2).Milliseconds(), 10))
		fired++
		g.suspend(tier)
		time.Sleep(asleep) // the timer is due meanwhile
		g.resume()
		if diff := cmp.Diff(want, now()); diff != "" {
			b.Fatalf("after %s (-before +after):\n%s", tier, diff)
		}
		if got := must[int64](g, "/count"); got < count {
			b.Errorf("after %s: the count went from %d back to %d", tier, count, got)
		}
		b.eventually(fmt.Sprintf("after %s: the children go on", tier), func() bool {
			for pid, n := range must[map[int]int64](g, "/children") {
				if old, known := children[pid]; !known || n <= old {
					return false
				}
			}
			return true
		})
		b.eventually(fmt.Sprintf("after %s: the timer fires", tier), func() bool { return must[int](g, "/fired") == fired })
	}
}

func clockRight(b *bench) {
	g := b.boot("a")
	for _, tier := range []machine.Tier{machine.Paused, machine.OnDisk} {
		before := must[Clock](g, "/time")
		g.suspend(tier)
		time.Sleep(asleep)
		g.resume()
		asked := time.Now()
		after := must[Clock](g, "/time")
		answered := time.Now()
		if after.Wall.Before(asked.Add(-clockError)) || after.Wall.After(answered.Add(clockError)) {
			b.Errorf("after %s: the clock says %v between %v and %v", tier, after.Wall, asked, answered)
		}
		if after.Uptime < before.Uptime {
			b.Errorf("after %s: monotonic time went back by %v", tier, before.Uptime-after.Uptime)
		}
	}
}

func randomDiffers(b *bench) {
	g := b.boot("a")
	must[string](g, "/random")
	g.suspend(machine.OnDisk)
	copied := filepath.Join(b.TempDir(), "copy")
	checkpoint := checkpointOf(b, g.config)
	copyTree(b, checkpoint, copied)
	seen := map[string]bool{}
	for range 2 {
		g.http.CloseIdleConnections() // a copy does not know how they went on
		g.resume()
		seen[must[string](g, "/random")] = true
		g.suspend(machine.OnDisk)
		if err := os.RemoveAll(checkpoint); err != nil {
			b.Fatal(err)
		}
		copyTree(b, copied, checkpoint)
	}
	if len(seen) != 2 {
		b.Errorf("two machines out of the same checkpoint drew %v", seen)
	}
}

func suspendCancelled(b *bench) {
	g := b.boot("a")
	cancelled, cancel := context.WithCancel(b.Context())
	cancel()
	for _, tier := range b.tiers(machine.Awake, machine.Paused, machine.Saved, machine.Swapped) {
		g.suspend(tier)
		if err := g.Suspend(cancelled, machine.OnDisk); !errors.Is(err, context.Canceled) {
			b.Errorf("in %s: %v, want that it was cancelled", tier, err)
		}
		g.in(tier)
	}
	g.resume()
	must[int64](g, "/count")
}

func diskFull(b *bench) {
	c := b.host.Config(b.T, "a")
	relieve := b.host.Crowd(b.T, c)
	g := b.bootConfig(c)
	g.do("/alloc", "mb", "16")
	sum := must[uint32](g, "/sum")
	if err := g.Suspend(b.Context(), machine.OnDisk); err == nil {
		b.Fatal("a checkpoint fits on a full disk")
	}
	g.in(machine.Paused)
	if names := entries(b, c.Dir); len(names) != 0 {
		b.Errorf("after a failed save %q is left", names)
	}
	g.stopped()
	g.resume()
	if got := must[uint32](g, "/sum"); got != sum {
		b.Errorf("after a failed save the memory has the sum %d, want %d", got, sum)
	}
	relieve()
	g.suspend(machine.OnDisk)
	g.resume()
	if got := must[uint32](g, "/sum"); got != sum {
		b.Errorf("after the second save the memory has the sum %d, want %d", got, sum)
	}
}

func damagedCheckpoints(b *bench) {
	other := b.boot("b")
	other.suspend(machine.OnDisk)
	g := b.boot("a")
	g.do("/alloc", "mb", "12")
	sum := must[uint32](g, "/sum")
	g.suspend(machine.OnDisk)
	events, err := b.Events(b.Context())
	if err != nil {
		b.Fatal(err)
	}

	checkpoint, sound := checkpointOf(b, g.config), filepath.Join(b.TempDir(), "sound")
	copyTree(b, checkpoint, sound)
	for _, name := range entries(b, checkpoint) {
		for what, harm := range damages {
			harm(b, filepath.Join(checkpoint, name))
			g.refused(name+" "+what, machine.ErrDamaged)
			copyFile(b, filepath.Join(sound, name), filepath.Join(checkpoint, name))
		}
	}
	for what, foreign := range map[string]struct {
		put  func()
		want error
	}{
		"of another machine": {func() { copyTree(b, checkpointOf(b, other.config), checkpoint) }, machine.ErrDamaged},
		"of another engine":  {func() { copyTree(b, sound, checkpoint); b.host.Forge(b.T, g.config) }, machine.ErrNoEngine},
	} {
		if err := os.RemoveAll(checkpoint); err != nil {
			b.Fatal(err)
		}
		foreign.put()
		g.refused(what, foreign.want)
	}
	b.quiet(events)

	if err := os.RemoveAll(checkpoint); err != nil {
		b.Fatal(err)
	}
	copyTree(b, sound, checkpoint)
	g.resume()
	if got := must[uint32](g, "/sum"); got != sum {
		b.Errorf("the sound checkpoint has the sum %d, want %d", got, sum)
	}
}

// damages is what can happen to a file of a checkpoint.
var damages = map[string]func(b *bench, name string){
	"missing": func(b *bench, name string) { b.do(os.Remove(name)) },
	"empty":   func(b *bench, name string) { b.do(os.Truncate(name, 0)) },
	"cut":     func(b *bench, name string) { b.do(os.Truncate(name, sizeOf(b, name)/2)) },
	"longer":  func(b *bench, name string) { b.do(os.Truncate(name, sizeOf(b, name)+1)) },

	"changed at the start":    func(b *bench, name string) { corrupt(b, name, 0) },
	"changed after the start": func(b *bench, name string) { corrupt(b, name, 1) },
	"changed after a third":   func(b *bench, name string) { corrupt(b, name, sizeOf(b, name)/3) },
	"changed in the middle":   func(b *bench, name string) { corrupt(b, name, sizeOf(b, name)/2) },
	"changed at the end":      func(b *bench, name string) { corrupt(b, name, sizeOf(b, name)-1) },
}

// refused fails unless the machine's checkpoint is not run, for a reason, and left
// alone.
func (g *guest) refused(what string, want error) {
	g.b.Helper()
	checkpoint := checkpointOf(g.b, g.config)
	before := digest(g.b, checkpoint)
	if err := g.Resume(g.b.Context()); !errors.Is(err, want) {
		g.b.Errorf("%s: %v, want %v", what, err, want)
	}
	g.in(machine.OnDisk)
	if diff := cmp.Diff(before, digest(g.b, checkpoint)); diff != "" {
		g.b.Errorf("%s: the checkpoint was changed:\n%s", what, diff)
	}
	if n := g.b.host.Processes(g.b.T, g.config.ID); n != 0 {
		g.b.Errorf("%s: %d processes are left", what, n)
	}
}

func adoptTiers(b *bench) {
	for _, tier := range b.tiers(machine.Awake, machine.Paused, machine.Saved, machine.Swapped, machine.OnDisk) {
		g := b.boot(tier.String())
		g.do("/write", "name", "/kept", "text", tier.String())
		g.suspend(tier)
		b.Driver = b.host.Open(b.T)
		again := b.adopt(g.config)
		again.in(tier)
		if tier == machine.Paused || tier.Checkpointed() {
			again.stopped()
		}
		again.resume()
		if got := must[string](again, "/read", "name", "/kept"); got != tier.String() {
			b.Errorf("adopted in %s, the file says %q", tier, got)
		}
		again.suspend(machine.OnDisk)
		again.resume()
		must[int64](again, "/count")
	}
}

func adoptReboot(b *bench) {
	held, lost := b.boot("kept"), b.boot("lost")
	held.do("/write", "name", "/kept", "text", "on disk")
	held.suspend(machine.Saved)
	lost.suspend(machine.Paused)
	b.host.Reboot(b.T)
	b.Driver = b.host.Open(b.T)
	if _, err := b.Adopt(b.Context(), lost.config); !errors.Is(err, machine.ErrGone) {
		b.Errorf("adopt: %v, want ErrGone", err)
	}
	again := b.adopt(held.config)
	again.in(machine.OnDisk)
	again.resume()
	if got := must[string](again, "/read", "name", "/kept"); got != "on disk" {
		b.Errorf("after a reboot the file says %q", got)
	}
}

func adoptSweeps(b *bench) {
	g := b.boot("a")
	g.suspend(machine.OnDisk)
	checkpoint := checkpointOf(b, g.config)
	for _, suffix := range []string{".making", ".stale"} {
		copyTree(b, checkpoint, checkpoint+suffix)
	}
	b.Driver = b.host.Open(b.T)
	again := b.adopt(g.config)
	again.in(machine.OnDisk)
	if diff := cmp.Diff([]string{filepath.Base(checkpoint)}, entries(b, g.config.Dir)); diff != "" {
		b.Errorf("what is left (-want +got):\n%s", diff)
	}
	again.resume()
	must[int64](again, "/count")
	again.suspend(machine.OnDisk)
	// Of a checkpoint that was never finished, or is finished with, nothing counts.
	if err := os.Rename(checkpoint, checkpoint+".making"); err != nil {
		b.Fatal(err)
	}
	copyTree(b, checkpoint+".making", checkpoint+".stale")
	if _, err := b.Adopt(b.Context(), g.config); !errors.Is(err, machine.ErrGone) {
		b.Errorf("adopt: %v, want ErrGone", err)
	}
}

// crashGoesBack ends the processes of a machine that has slept, wherever it is: it
// goes on from its last checkpoint, and says of when that is.
func crashGoesBack(b *bench) {
	events, err := b.Events(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	c := b.host.Config(b.T, "a")
	c.GoBack = true
	g := b.bootConfig(c)
	var was time.Time
	for _, tier := range []machine.Tier{machine.Saved, machine.OnDisk} {
		for _, at := range []machine.Tier{machine.Awake, machine.Paused} {
			text := tier.String() + " " + at.String()
			g.do("/write", "name", "/kept", "text", text)
			before := time.Now()
			g.suspend(tier)
			after := time.Now()
			g.resume()
			g.do("/write", "name", "/kept", "text", "lost")
			g.settle()
			g.suspend(at)
			if !g.WentBack().Equal(was) {
				b.Errorf("%s: it went back to %v before the crash", text, g.WentBack())
			}
			b.host.Kill(b.T, c.ID)
			if e := b.event(events); !e.Exited || e.ID != c.ID {
				b.Errorf("%s: event %+v, want that it exited", text, e)
			}
			g = b.adopt(c)
			was = g.WentBack()
			g.in(machine.OnDisk)
			if made := g.WentBack(); made.Before(before.Add(-clockError)) || made.After(after.Add(clockError)) {
				b.Errorf("%s: it went back to %v, and slept from %v to %v", text, made, before, after)
			}
			g.resume()
			if got := must[string](g, "/read", "name", "/kept"); got != text {
				b.Errorf("after a crash the file says %q, want %q", got, text)
			}
		}
	}
	// A newer checkpoint takes the place of the last one.
	g.suspend(machine.OnDisk)
	g.settle()
	if diff := cmp.Diff([]string{filepath.Base(checkpointOf(b, c))}, entries(b, c.Dir)); diff != "" {
		b.Errorf("what is left (-want +got):\n%s", diff)
	}
	g.resume()
	g.do("/write", "name", "/kept", "text", "lost")
	g.settle()
	b.host.Reboot(b.T)
	b.Driver = b.host.Open(b.T)
	g = b.adopt(c)
	g.in(machine.OnDisk)
	if g.WentBack().IsZero() {
		b.Error("after a reboot it does not say that it went back")
	}
	g.resume()
	if got := must[string](g, "/read", "name", "/kept"); got == "lost" {
		b.Error("after a reboot it has what no checkpoint had")
	}
}

// crashMayNot ends machines that have no checkpoint of their own to go back to.
func crashMayNot(b *bench) {
	never := b.host.Config(b.T, "never")
	never.GoBack = true
	b.bootConfig(never)
	b.host.Kill(b.T, never.ID)

	from := b.boot("from")
	dir := filepath.Join(b.TempDir(), "copy")
	if err := from.Snapshot(b.Context(), dir, nil); err != nil {
		b.Fatal(err)
	}
	other := b.host.Config(b.T, "other") // it began as somebody else
	other.GoBack, other.From = true, dir
	g := b.bootConfig(other)
	other.From = ""
	g.settle()
	if err := b.Discard(dir); err != nil {
		b.Error(err)
	}
	b.host.Kill(b.T, other.ID)

	not := b.host.Config(b.T, "not")
	g = b.bootConfig(not)
	g.suspend(machine.OnDisk)
	g.resume()
	g.settle()
	b.host.Kill(b.T, not.ID)
	for _, c := range []machine.Config{never, other, not} {
		if _, err := b.Adopt(b.Context(), c); !errors.Is(err, machine.ErrGone) {
			b.Errorf("adopt %s: %v, want ErrGone", c.ID, err)
		}
	}
}

// settle waits until the machine has left its checkpoint behind: a crash before would
// go on from that as if it had not woken.
func (g *guest) settle() {
	g.b.Helper()
	deadline := time.Now().Add(callTime)
	for g.Tier() != machine.OnDisk && slices.Contains(entries(g.b, g.config.Dir), dirCheckpoint) && time.Now().Before(deadline) {
		time.Sleep(poll)
	}
	time.Sleep(discards)
}

func sweepEnds(b *bench) {
	known, unknown := b.boot("known"), b.boot("unknown")
	unknown.suspend(machine.Paused)
	b.Driver = b.host.Open(b.T)
	if err := b.Sweep(b.Context(), func(id string) bool { return id == known.config.ID }); err != nil {
		b.Fatal(err)
	}
	if n := b.host.Processes(b.T, unknown.config.ID); n != 0 {
		b.Errorf("%d processes are left", n)
	}
	again := b.adopt(known.config)
	again.in(machine.Awake)
	must[int64](again, "/count")
}

func closeTwice(b *bench) {
	for _, tier := range b.tiers(machine.Awake, machine.Paused, machine.Saved, machine.Swapped, machine.OnDisk) {
		g := b.boot(tier.String())
		g.suspend(tier)
		for range 2 {
			if err := g.Close(b.Context()); err != nil {
				b.Errorf("close in %s: %v", tier, err)
			}
		}
		if n := b.host.Processes(b.T, g.config.ID); n != 0 {
			b.Errorf("closed in %s, %d processes are left", tier, n)
		}
		if _, err := os.Stat(g.config.Dir); !errors.Is(err, fs.ErrNotExist) {
			b.Errorf("closed in %s, the checkpoints are left", tier)
		}
		if _, err := b.Adopt(b.Context(), g.config); !errors.Is(err, machine.ErrGone) {
			b.Errorf("closed in %s, adopt: %v, want ErrGone", tier, err)
		}
	}
	b.host.Empty(b.T)
}

func exitEvent(b *bench) {
	events, err := b.Events(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	g := b.boot("a")
	_, _ = ask[any](g, "/exit") // nobody is left to answer
	e := b.event(events)
	if diff := cmp.Diff(machine.Event{ID: g.config.ID, Exited: true, Message: e.Message}, e); diff != "" {
		b.Errorf("event (-want +got):\n%s", diff)
	}
	if _, err := b.Adopt(b.Context(), g.config); !errors.Is(err, machine.ErrGone) {
		b.Errorf("adopt: %v, want ErrGone", err)
	}
	b.host.Empty(b.T)
	again := b.bootConfig(g.config) // the name is free
	must[int64](again, "/count")
	if err := again.Close(b.Context()); err != nil {
		b.Error(err)
	}
	b.quiet(events) // an end that was wanted is no event
}

func killEvent(b *bench) {
	events, err := b.Events(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	g := b.boot("a")
	g.suspend(machine.OnDisk)
	b.quiet(events)
	g.resume()
	g.settle() // a machine whose memory still comes has its checkpoint left
	g.suspend(machine.Paused)
	b.host.Kill(b.T, g.config.ID)
	if e := b.event(events); !e.Exited || e.OutOfMemory || e.ID != g.config.ID {
		b.Errorf("event %+v, want that %s exited", e, g.config.ID)
	}
	if err := g.Resume(b.Context()); err == nil {
		b.Error("a machine without processes or checkpoint resumed")
	}
}

func killSaved(b *bench) {
	events, err := b.Events(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	g := b.boot("a")
	g.do("/write", "name", "/kept", "text", "saved")
	for _, tier := range b.tiers(machine.Saved, machine.Swapped) {
		g.suspend(tier)
		b.host.Kill(b.T, g.config.ID)
		b.quiet(events) // nothing is lost
		g.resume()
		if got := must[string](g, "/read", "name", "/kept"); got != "saved" {
			b.Errorf("the file says %q", got)
		}
	}
	g.suspend(machine.Saved)
	b.host.Kill(b.T, g.config.ID)
	g.suspend(machine.OnDisk)
	g.resume()
	must[int64](g, "/count")
}

func hogDies(b *bench) {
	events, err := b.Events(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	g := b.boot("a")
	first := must[int64](g, "/count")
	how := must[string](g, "/eat", "mb", strconv.FormatInt(2*g.config.Memory>>20, 10))
	b.Log("the hog:", how)
	if e := b.event(events); e.Exited || !e.OutOfMemory || e.ID != g.config.ID {
		b.Fatalf("event %+v, want that %s ran out of memory and goes on", e, g.config.ID)
	}
	g.in(machine.Awake)
	if must[int64](g, "/count") < first {
		b.Error("the machine began anew")
	}
	g.suspend(machine.OnDisk)
	g.resume()
	// After a sleep the hog is still the one who dies.
	must[string](g, "/eat", "mb", strconv.FormatInt(2*g.config.Memory>>20, 10))
	b.eventually("an event of the second hog", func() bool {
		e := b.event(events)
		if e.Exited {
			b.Fatalf("the machine died of a hog after a sleep: %+v", e)
		}
		return e.OutOfMemory
	})
	must[int64](g, "/count")
}

// swapLimited: what a machine has in swap is no memory on top.
func swapLimited(b *bench) {
	for _, tier := range b.tiers(machine.Swapped) {
		events, err := b.Events(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		g := b.boot("a")
		half := strconv.FormatInt(g.config.Memory>>21, 10)
		g.do("/alloc", "mb", half)
		sum := must[uint32](g, "/sum")
		for range 2 {
			g.suspend(tier)
			g.resume()
		}
		// As much again and more, with the first half still in swap.
		how := must[string](g, "/eat", "mb", strconv.FormatInt(g.config.Memory>>20, 10))
		b.Log("the hog:", how)
		if e := b.event(events); e.Exited || !e.OutOfMemory {
			b.Errorf("event %+v, want that a hog was killed", e)
		}
		if got := must[uint32](g, "/sum"); got != sum {
			b.Errorf("the memory has the sum %d, want %d", got, sum)
		}
		// What a machine is given back, it may use.
		g.do("/spawn", "n", "2")
		b.eventually("the children count", func() bool { return len(must[map[int]int64](g, "/children")) == 2 })
	}
}

// swapCut: a move to swap that is cut short leaves a machine that is whole.
func swapCut(b *bench) {
	g := b.boot("a")
	g.do("/alloc", "mb", "64")
	sum := must[uint32](g, "/sum")
	for i := range 5 {
		for _, tier := range b.tiers(machine.Swapped) {
			g.suspend(machine.Saved)
			ctx, cancel := context.WithTimeout(b.Context(), time.Duration(i)*10*time.Millisecond)
			if err := g.Suspend(ctx, tier); err != nil && !errors.Is(err, context.DeadlineExceeded) {
				b.Error(err)
			}
			cancel()
			if t := g.Tier(); !t.Checkpointed() {
				b.Errorf("it is %s", t)
			}
		}
		g.resume()
		if got := must[uint32](g, "/sum"); got != sum {
			b.Fatalf("the memory has the sum %d, want %d", got, sum)
		}
	}
}

func statsPlausible(b *bench) {
	g := b.boot("a")
	stats := func() machine.Stats {
		s, err := g.Stats(b.Context())
		if err != nil {
			b.Fatal("stats:", err)
		}
		return s
	}
	const filled = 32 << 20
	small := stats()
	if small.CPUTime <= 0 {
		b.Errorf("it booted without a processor: %+v", small)
	}
	g.do("/alloc", "mb", "32")
	if large := stats(); large.MemoryBytes < small.MemoryBytes+filled/2 || large.MemoryBytes > 4*g.config.Memory || large.DiskBytes != 0 {
		b.Errorf("awake with 32 MB more than %+v: %+v", small, large)
	}
	g.suspend(machine.Saved)
	if s := stats(); s.MemoryBytes == 0 || s.DiskBytes == 0 {
		b.Errorf("saved: %+v", s)
	}
	for _, tier := range b.tiers(machine.Swapped) {
		saved := stats()
		g.suspend(tier)
		if s := stats(); s.MemoryBytes > saved.MemoryBytes/2 || s.SwapBytes < filled || s.DiskBytes != saved.DiskBytes {
			b.Errorf("swapped: %+v after %+v", s, saved)
		}
	}
	g.suspend(machine.OnDisk)
	disk := stats()
	if disk.MemoryBytes != 0 && !g.Ready() || disk.DiskBytes == 0 {
		b.Errorf("on disk: %+v", disk)
	}
	g.suspend(machine.OnDisk) // without a process that waits
	want := machine.Stats{DiskBytes: disk.DiskBytes}
	b.Driver = b.host.Open(b.T)
	again := b.adopt(g.config)
	if s, err := again.Stats(b.Context()); err != nil || s != want {
		b.Errorf("adopted: %+v, %v, want %+v", s, err, want)
	}
	again.resume()
	b.eventually("the checkpoint is given back", func() bool {
		s, err := again.Stats(b.Context())
		// What was loaded is the machine's, and is limited with it.
		return err == nil && s.MemoryBytes > filled && s.DiskBytes == 0
	})
}

func wakeParallel(b *bench) {
	var guests []*guest
	for i := range 4 {
		g := b.boot("m" + strconv.Itoa(i))
		g.do("/write", "name", "/me", "text", g.config.ID)
		guests = append(guests, g)
	}
	for _, tier := range []machine.Tier{machine.OnDisk, machine.Paused} {
		each(guests, func(g *guest) error { return g.Suspend(b.Context(), tier) }, b)
		each(guests, func(g *guest) error { return g.Resume(b.Context()) }, b)
		for _, g := range guests {
			if got := must[string](g, "/read", "name", "/me"); got != g.config.ID {
				b.Errorf("%s believes to be %s", g.config.ID, got)
			}
		}
	}
	each(guests, func(g *guest) error { return g.Close(b.Context()) }, b)
}

// each does the same to all guests at once.
func each(guests []*guest, do func(*guest) error, b *bench) {
	b.Helper()
	var tasks sync.WaitGroup
	for _, g := range guests {
		tasks.Go(func() {
			if err := do(g); err != nil {
				b.Errorf("%s: %v", g.config.ID, err)
			}
		})
	}
	tasks.Wait()
}

func cyclesTraffic(b *bench) {
	const cycles = 20
	g := b.boot("a")
	g.do("/alloc", "mb", "4")
	sum := must[uint32](g, "/sum")
	var done atomic.Bool
	var answers atomic.Int64
	var tasks sync.WaitGroup
	// Connections sleep, requests do not: see machine.Machine.
	var awake sync.RWMutex
	for range 2 {
		tasks.Go(func() {
			request := func(last int64) int64 {
				awake.RLock()
				defer awake.RUnlock()
				n, err := ask[int64](g, "/count")
				if err != nil || n < last {
					b.Errorf("count %d after %d: %v", n, last, err)
					return n
				}
				// More than a window, over a connection that slept.
				if blob, err := ask[string](g, "/blob", "kb", "128"); err != nil || len(blob) != 128<<10 {
					b.Errorf("%d bytes: %v", len(blob), err)
					return n
				}
				answers.Add(1)
				return n
			}
			for last := int64(0); !done.Load() && !b.Failed(); {
				last = request(last)
				time.Sleep(time.Millisecond)
			}
		})
	}
	lower := b.tiers(machine.Paused, machine.Saved, machine.Swapped, machine.OnDisk)
	for i := range cycles {
		before := answers.Load()
		tier := lower[i%len(lower)]
		awake.Lock()
		err := g.Suspend(b.Context(), tier)
		if err == nil {
			err = g.Resume(b.Context())
		}
		awake.Unlock()
		if err != nil {
			b.Errorf("cycle %d: %v", i, err)
			break
		}
		b.eventually("an answer", func() bool { return b.Failed() || answers.Load() > before })
	}
	done.Store(true)
	tasks.Wait()
	if got := must[uint32](g, "/sum"); got != sum {
		b.Errorf("after %d cycles the memory has the sum %d, want %d", cycles, got, sum)
	}
}

// checkpointOf returns the only thing in a sleeping machine's directory.
func checkpointOf(b *bench, c machine.Config) string {
	b.Helper()
	names := entries(b, c.Dir)
	if len(names) != 1 {
		b.Fatalf("the directory of %s holds %q, want one checkpoint", c.ID, names)
	}
	return filepath.Join(c.Dir, names[0])
}

func entries(b *bench, dir string) (names []string) {
	b.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// digest returns the checksum of each file in dir. Holes count by where they are.
func digest(b *bench, dir string) map[string][32]byte {
	b.Helper()
	sums := map[string][32]byte{}
	for _, name := range entries(b, dir) {
		f, err := os.Open(filepath.Join(dir, name))
		b.do(err)
		size, sum := sizeOf(b, f.Name()), sha256.New()
		_, _ = fmt.Fprintln(sum, size)
		for e, err := range sparse.Extents(f, size) {
			b.do(err)
			_, _ = fmt.Fprintln(sum, e.Offset)
			_, err = io.Copy(sum, io.NewSectionReader(f, e.Offset, e.Length))
			b.do(err)
		}
		b.do(f.Close())
		sums[name] = [32]byte(sum.Sum(nil))
	}
	return sums
}

func copyTree(b *bench, from, to string) {
	b.Helper()
	b.do(os.MkdirAll(to, 0o700))
	for _, name := range entries(b, from) {
		copyFile(b, filepath.Join(from, name), filepath.Join(to, name))
	}
}

// copyFile makes a file with the content and the holes of another one.
func copyFile(b *bench, from, to string) {
	b.Helper()
	source, err := os.Open(from)
	b.do(err)
	target, err := os.Create(to)
	b.do(err)
	size := sizeOf(b, from)
	b.do(sparse.Copy(b.Context(), target, source, size))
	b.do(errors.Join(target.Truncate(size), source.Close(), target.Close()))
}

func sizeOf(b *bench, name string) int64 {
	b.Helper()
	info, err := os.Stat(name)
	b.do(err)
	return info.Size()
}

// corrupt changes one bit of a file.
func corrupt(b *bench, name string, at int64) {
	b.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	b.do(err)
	bit := make([]byte, 1)
	_, err = f.ReadAt(bit, at)
	b.do(err)
	bit[0] ^= 0x10
	_, err = f.WriteAt(bit, at)
	b.do(errors.Join(err, f.Close()))
}

// do ends the case at an error.
func (b *bench) do(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func renewGoesBack(b *bench) {
	events, err := b.Events(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	c := b.host.Config(b.T, "a")
	c.GoBack = true
	g := b.bootConfig(c)
	g.do("/alloc", "mb", "16")
	for _, text := range []string{"first", "second", "third"} {
		g.do("/write", "name", "/kept", "text", text)
		sum := must[uint32](g, "/sum")
		if text != "first" {
			if err := g.Precopy(b.Context()); err != nil {
				b.Fatal(err)
			}
			g.do("/change", "from", "2", "mb", "2")
			sum = must[uint32](g, "/sum")
		}
		before := time.Now()
		for range 2 { // the second has the first to share with
			if err := g.Renew(b.Context(), time.Minute, nil); err != nil {
				b.Fatal("renew:", err)
			}
		}
		after := time.Now()
		g.in(machine.Awake)
		g.do("/write", "name", "/kept", "text", "lost")
		g.do("/change", "from", "1", "mb", "1")
		b.host.Kill(b.T, c.ID)
		if e := b.event(events); !e.Exited || e.ID != c.ID {
			b.Errorf("%s: event %+v, want that it exited", text, e)
		}
		g = b.adopt(c)
		g.in(machine.OnDisk)
		if made := g.WentBack(); made.Before(before.Add(-clockError)) || made.After(after.Add(clockError)) {
			b.Errorf("%s: it went back to %v, and was saved from %v to %v", text, made, before, after)
		}
		if diff := cmp.Diff([]string{filepath.Base(checkpointOf(b, c))}, entries(b, c.Dir)); diff != "" {
			b.Errorf("%s: what is left (-want +got):\n%s", text, diff)
		}
		g.resume()
		if got := must[string](g, "/read", "name", "/kept"); got != text {
			b.Errorf("after a crash the file says %q, want %q", got, text)
		}
		if got := must[uint32](g, "/sum"); got != sum {
			b.Errorf("%s: the memory's checksum is %d, want %d", text, got, sum)
		}
		g.settle()
	}
	g.suspend(machine.Paused)
	if err := g.Renew(b.Context(), time.Minute, nil); err == nil {
		b.Error("the checkpoint of a machine that stands still was renewed")
	}
	g.resume()
	never := b.boot("b")
	if err := never.Renew(b.Context(), time.Minute, nil); err == nil {
		b.Error("a machine that may not go back has a last checkpoint")
	}
	must[int64](never, "/count")
}

func renewTooLong(b *bench) {
	c := b.host.Config(b.T, "a")
	c.GoBack = true
	g := b.bootConfig(c)
	g.do("/alloc", "mb", "16")
	g.do("/write", "name", "/kept", "text", "renewed")
	if err := g.Renew(b.Context(), time.Minute, nil); err != nil {
		b.Fatal("renew:", err)
	}
	left := entries(b, c.Dir)
	g.do("/write", "name", "/kept", "text", "lost")
	if err := g.Renew(b.Context(), -1, nil); !errors.Is(err, machine.ErrTooLong) {
		b.Errorf("a renewal without time: %v, want ErrTooLong", err)
	}
	g.in(machine.Awake)
	must[int64](g, "/count")
	if diff := cmp.Diff(left, entries(b, c.Dir)); diff != "" {
		b.Errorf("a renewal that took too long leaves (-want +got):\n%s", diff)
	}
	b.host.Kill(b.T, c.ID)
	g = b.adopt(c)
	g.resume()
	if got := must[string](g, "/read", "name", "/kept"); got != "renewed" {
		b.Errorf("after a crash the file says %q, want that of the last renewal", got)
	}
}
