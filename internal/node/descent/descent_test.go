package descent_test

import (
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/descent"
	"github.com/dozehq/doze/internal/node/renewal"
)

var schedule = descent.Schedule{Pause: 15 * time.Second, Save: 5 * time.Second, Swap: time.Minute, Disk: time.Hour, Swaps: true}

// tried returns what is known after some steps.
func tried(steps ...func(*descent.Tried)) (t descent.Tried) {
	for _, step := range steps {
		step(&t)
	}
	return t
}

func restless(t *descent.Tried) { t.Pause(false) }

func stuck(t *descent.Tried) {
	t.Sink(descent.Move{To: machine.Saved, Failed: true}, &descent.Sandbox{Phase: doze.Standby, Tier: machine.Paused})
}

func unswappable(t *descent.Tried) {
	t.Sink(descent.Move{To: machine.Swapped, Failed: true}, &descent.Sandbox{Phase: doze.Standby, Tier: machine.Saved})
}

// TestReasons: each reason has a text of its own.
func TestReasons(t *testing.T) {
	seen := map[string]descent.Reason{}
	for _, r := range descent.Reasons {
		text := r.String()
		if other, twice := seen[text]; text == "" || twice {
			t.Errorf("reason %d has the text %q, as %d has", r, text, other)
		}
		seen[text] = r
	}
}

// TestRest: when a sandbox moves down next, to which tier, and why it does not.
func TestRest(t *testing.T) {
	age := renewal.Since(time.Unix(0, 0))
	overdue := age.Due(time.Minute, schedule.Pause, time.Unix(3600, 0))
	for name, tt := range map[string]struct {
		s    descent.Sandbox
		rest time.Duration
		why  descent.Reason
		next machine.Tier // of those that move
	}{
		"awake":                        {s: descent.Sandbox{Phase: doze.Running}, rest: schedule.Pause, next: machine.Paused},
		"awake, not paused last time":  {s: descent.Sandbox{Phase: doze.Running, Tried: tried(restless)}, rest: descent.Retry, next: machine.Paused},
		"awake, its checkpoint is due": {s: descent.Sandbox{Phase: doze.Running, Renewal: overdue}, rest: renewal.Idle, next: machine.Paused},
		"without a machine":            {s: descent.Sandbox{Phase: doze.Running, Absent: true}, why: descent.Absent},
		"on its way":                   {s: descent.Sandbox{Phase: doze.Standby, Tier: machine.Saved, Moving: true}, why: descent.Moving},
		"wakes":                        {s: descent.Sandbox{Phase: doze.Waking, Tier: machine.Paused}, why: descent.Busy},
		"on disk":                      {s: descent.Sandbox{Phase: doze.Standby, Tier: machine.OnDisk}, why: descent.Deepest},
		"blocked":                      {s: descent.Sandbox{Phase: doze.Standby, Tier: machine.Paused, Blocked: true}, why: descent.Blocked},
		"stuck":                        {s: descent.Sandbox{Phase: doze.Standby, Tier: machine.Paused, Tried: tried(stuck)}, rest: descent.Retry, next: machine.Saved},
		"disabled":                     {s: descent.Sandbox{Phase: doze.Disabled, Tier: machine.Paused}, next: machine.OnDisk},
		"paused":                       {s: descent.Sandbox{Phase: doze.Standby, Tier: machine.Paused}, rest: schedule.Save, next: machine.Saved},
		"paused, its checkpoint is due": {
			s: descent.Sandbox{Phase: doze.Standby, Tier: machine.Paused, Renewal: overdue}, next: machine.Saved,
		},
		"paused, somebody waits": {
			s:    descent.Sandbox{Phase: doze.Standby, Tier: machine.Paused, Renewal: overdue, Awaited: true},
			rest: 100 * time.Millisecond, next: machine.Saved,
		},
		"saved":   {s: descent.Sandbox{Phase: doze.Standby, Tier: machine.Saved}, rest: schedule.Swap - schedule.Save, next: machine.Swapped},
		"swapped": {s: descent.Sandbox{Phase: doze.Standby, Tier: machine.Swapped}, rest: schedule.Disk - schedule.Swap, next: machine.OnDisk},
		"saved, swap does not take it": {
			s: descent.Sandbox{Phase: doze.Standby, Tier: machine.Saved, Tried: tried(unswappable)}, rest: schedule.Disk - schedule.Swap, next: machine.OnDisk,
		},
	} {
		t.Run(name, func(t *testing.T) {
			rest, why := schedule.Rest(&tt.s)
			if rest != tt.rest || why != tt.why {
				t.Errorf("it rests for %v: %v; want %v: %v", rest, why, tt.rest, tt.why)
			}
			if why == descent.None {
				if next := schedule.Next(&tt.s); next != tt.next {
					t.Errorf("its next tier is %v, want %v", next, tt.next)
				}
			}
		})
	}
}

// TestNoSwap: without swap, or with one that comes too late, nobody goes there.
func TestNoSwap(t *testing.T) {
	s := &descent.Sandbox{Phase: doze.Standby, Tier: machine.Saved}
	for name, change := range map[string]func(*descent.Schedule){
		"the driver has none":  func(w *descent.Schedule) { w.Swaps = false },
		"it is off":            func(w *descent.Schedule) { w.Swap = 0 },
		"it comes after disk":  func(w *descent.Schedule) { w.Swap = w.Disk + 1 },
		"it comes with a disk": func(w *descent.Schedule) { w.Swap = w.Disk },
	} {
		w := schedule
		change(&w)
		if got := w.Next(s); got != machine.OnDisk {
			t.Errorf("%s: the next tier is %v", name, got)
		}
		if w.Swappable(s) || !w.BeyondSwap(s) {
			t.Errorf("%s: it helps to move a sandbox to swap", name)
		}
	}
}

// TestMovable: who is moved to make room, and for whom that helps.
func TestMovable(t *testing.T) {
	for name, tt := range map[string]struct {
		s    descent.Sandbox
		want descent.Reason
	}{
		"sleeps":       {descent.Sandbox{Phase: doze.Standby, Tier: machine.OnDisk}, descent.None},
		"disabled":     {descent.Sandbox{Phase: doze.Disabled, Tier: machine.Paused}, descent.None},
		"runs":         {descent.Sandbox{Phase: doze.Running}, descent.Busy},
		"has nothing":  {descent.Sandbox{Phase: doze.Standby, Absent: true}, descent.Absent},
		"is on a way":  {descent.Sandbox{Phase: doze.Standby, Moving: true}, descent.Moving},
		"did not move": {descent.Sandbox{Phase: doze.Standby, Tried: tried(stuck)}, descent.Stuck},
		"is blocked":   {descent.Sandbox{Phase: doze.Standby, Blocked: true}, descent.Blocked},
	} {
		if got := schedule.Movable(&tt.s); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
	for tier, want := range map[machine.Tier][4]bool{ // in memory, in RAM, swappable, beyond swap
		machine.Paused: {true, true, true, false}, machine.Saved: {true, true, true, false},
		machine.Swapped: {true, false, false, true}, machine.OnDisk: {},
	} {
		s := &descent.Sandbox{Phase: doze.Standby, Tier: tier}
		if got := [4]bool{schedule.InMemory(s), schedule.InRAM(s), schedule.Swappable(s), schedule.BeyondSwap(s)}; got != want {
			t.Errorf("%v: %v, want %v", tier, got, want)
		}
	}
	if !schedule.Prepared(&descent.Sandbox{Prepared: true}) || schedule.Prepared(&descent.Sandbox{}) {
		t.Error("a process that waits for a wake is not seen")
	}
}

// TestSink: what is remembered of moves that did not work, and until when.
func TestSink(t *testing.T) {
	asleep := &descent.Sandbox{Phase: doze.Standby, Tier: machine.Paused}
	for name, tt := range map[string]struct {
		tried descent.Tried
		move  descent.Move
		s     *descent.Sandbox
		want  descent.Outcome
		after descent.Tried
	}{
		"it worked":           {tried(stuck), descent.Move{To: machine.Saved}, asleep, descent.Sank, descent.Tried{}},
		"a request came":      {tried(), descent.Move{To: machine.Saved, Failed: true, Cut: true}, asleep, descent.Cut, descent.Tried{}},
		"it is being deleted": {tried(), descent.Move{To: machine.Saved, Failed: true}, &descent.Sandbox{Phase: doze.Deleting}, descent.Cut, descent.Tried{}},
		"the disk is full":    {tried(), descent.Move{To: machine.Saved, Failed: true}, asleep, descent.Failed, tried(stuck)},
		"it is full still":    {tried(stuck), descent.Move{To: machine.OnDisk, Failed: true}, asleep, descent.FailedAgain, tried(stuck)},
		"swap is full": {
			tried(), descent.Move{To: machine.Swapped, Failed: true}, &descent.Sandbox{Phase: doze.Standby, Tier: machine.Saved}, descent.Unswappable, tried(unswappable),
		},
		"it was not saved on the way to swap": {tried(), descent.Move{To: machine.Swapped, Failed: true}, asleep, descent.Failed, tried(stuck)},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.tried.Sink(tt.move, tt.s); got != tt.want || tt.tried != tt.after {
				t.Errorf("outcome %d and %+v, want %d and %+v", got, tt.tried, tt.want, tt.after)
			}
		})
	}
	for name, got := range map[string]descent.Tried{
		"a wake forgets swap":           tried(unswappable, (*descent.Tried).Wake),
		"a pause that works":            tried(restless, func(t *descent.Tried) { t.Pause(true) }),
		"a disabled sandbox on disk":    tried(stuck, func(t *descent.Tried) { t.Halt(machine.OnDisk, machine.OnDisk) }),
		"a disabled one that is paused": tried(func(t *descent.Tried) { t.Halt(machine.Paused, machine.Paused) }),
	} {
		if got != (descent.Tried{}) {
			t.Errorf("%s: %+v is left", name, got)
		}
	}
	if got := tried(func(t *descent.Tried) { t.Halt(machine.Paused, machine.OnDisk) }); got != tried(stuck) {
		t.Errorf("a disabled sandbox that came to the pause only: %+v", got)
	}
}
