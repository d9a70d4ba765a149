// Package descent decides when a sandbox that nobody uses moves to a lower tier,
// and why it cannot.
//
// It only decides: it has no lock, no clock and no timer. The owner of a [Tried]
// guards it.
package descent

import (
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/renewal"
)

const (
	// Retry is the pause after a move to a lower tier that did not work, such as
	// one to a full disk.
	Retry = time.Minute

	// yield is how long a move down that a request has ended is not tried again:
	// the request is about to wake the sandbox, unless its caller has left.
	yield = 100 * time.Millisecond
)

// A Reason is why a sandbox cannot move to a lower tier now.
type Reason uint8

// The reasons.
const (
	None    Reason = iota // it can
	Absent                // there is no machine that could move
	Moving                // a move is under way
	Busy                  // its phase is not one in which it sleeps
	Deepest               // it is in the lowest tier
	Blocked               // a checkpoint would leave something out
	Stuck                 // the last move did not work; it has its own next try

	reasonCount
)

var reasons = [reasonCount]string{
	None:    "it can move",
	Absent:  "it has no machine",
	Moving:  "a move is under way",
	Busy:    "it does not sleep",
	Deepest: "it is on disk",
	Blocked: "a checkpoint would leave something out",
	Stuck:   "the last move did not work",
}

// String is the text of the log.
func (r Reason) String() string { return reasons[r] }

// Schedule says when the sandboxes of a node move down: when each tier is due. The pause
// counts from the last use, the others from the pause.
type Schedule struct {
	Pause, Save, Swap, Disk time.Duration

	Swaps bool // the driver can move memory to swap
}

// steps are the tiers on the way down. Which of them a sandbox skips, see [Schedule.Next].
var steps = [...]struct {
	to    machine.Tier
	after func(*Schedule) time.Duration
}{
	{machine.Paused, func(w *Schedule) time.Duration { return w.Pause }},
	{machine.Saved, func(w *Schedule) time.Duration { return w.Save }},
	{machine.Swapped, func(w *Schedule) time.Duration { return w.Swap }},
	{machine.OnDisk, func(w *Schedule) time.Duration { return w.Disk }},
}

// swaps reports whether sandboxes are moved to swap at all.
func (w *Schedule) swaps() bool { return w.Swaps && w.Swap > 0 && w.Swap < w.Disk }

// due returns after how long in a pause a tier is reached.
func (w *Schedule) due(t machine.Tier) time.Duration {
	for _, s := range steps[1:] {
		if s.to == t {
			return s.after(w)
		}
	}
	return 0
}

// A Sandbox is one at the moment of a decision.
type Sandbox struct {
	Phase   doze.Phase
	Absent  bool // it has no machine, and no tier
	Tier    machine.Tier
	Moving  bool // a move to a lower tier is under way
	Blocked bool // a checkpoint would leave something out
	Awaited bool // a caller asked for its wake
	Renewal renewal.Due
	Tried   Tried

	// Prepared says that it is on disk, and that a process waits for its wake. Only
	// those who make room ask.
	Prepared bool
}

// Asleep reports whether a machine sleeps in a phase.
func Asleep(p doze.Phase) bool { return p == doze.Standby || p == doze.Disabled }

// Next returns the tier after that of a sandbox that is not on disk.
func (w *Schedule) Next(s *Sandbox) machine.Tier {
	if s.Phase == doze.Disabled {
		return machine.OnDisk // it will not be woken soon
	}
	for _, step := range steps {
		if step.to > s.Tier && (step.to != machine.Swapped || w.swapsOf(s)) {
			return step.to
		}
	}
	return machine.OnDisk
}

// swapsOf reports whether the memory of a sandbox is moved to swap.
func (w *Schedule) swapsOf(s *Sandbox) bool { return w.swaps() && !s.Tried.unswappable }

// Rest returns for how long a sandbox stays as it is if nobody uses it, or why that
// is for ever, or until something changes.
func (w *Schedule) Rest(s *Sandbox) (time.Duration, Reason) {
	switch {
	case s.Absent:
		return 0, Absent
	case s.Moving:
		return 0, Moving
	case s.Phase == doze.Running && s.Tried.restless:
		return max(w.Pause, Retry), None
	case s.Phase == doze.Running:
		return s.Renewal.Sooner(w.Pause, renewal.Idle), None
	case !Asleep(s.Phase):
		return 0, Busy
	case s.Tier == machine.OnDisk:
		return 0, Deepest
	case s.Blocked:
		return 0, Blocked // until it was awake again
	case s.Tried.stuck:
		return Retry, None
	case s.Phase == doze.Disabled:
		return 0, None
	default:
		return w.asleep(s), None
	}
}

// asleep is Rest for a sandbox that sleeps and can move.
func (w *Schedule) asleep(s *Sandbox) time.Duration {
	since := s.Tier
	if s.Tier == machine.Saved && s.Tried.unswappable {
		since = machine.Swapped // it was tried then
	}
	rest := max(0, w.due(w.Next(s))-w.due(since))
	if s.Tier == machine.Paused {
		rest = s.Renewal.Sooner(rest, 0)
	}
	if s.Awaited {
		rest = max(rest, yield)
	}
	return rest
}

// Movable returns why a sandbox cannot be moved before it is due, to make room. One
// that could not be moved waits for its own next try, so that others have theirs.
func (*Schedule) Movable(s *Sandbox) Reason {
	switch {
	case !Asleep(s.Phase):
		return Busy
	case s.Absent:
		return Absent
	case s.Moving:
		return Moving
	case s.Tried.stuck:
		return Stuck
	case s.Blocked:
		return Blocked
	default:
		return None
	}
}

// InMemory reports whether a sandbox has its memory.
func (*Schedule) InMemory(s *Sandbox) bool { return s.Tier < machine.OnDisk }

// InRAM reports whether a sandbox has its memory in RAM.
func (*Schedule) InRAM(s *Sandbox) bool { return s.Tier < machine.Swapped }

// Swappable reports whether a sandbox has its memory in RAM, and would not have it
// in swap.
func (w *Schedule) Swappable(s *Sandbox) bool { return w.InRAM(s) && w.swapsOf(s) }

// BeyondSwap reports whether a sandbox has its memory, and swap cannot take it from
// RAM. A sandbox that falls asleep between two looks at the budget goes to swap at
// the next look.
func (w *Schedule) BeyondSwap(s *Sandbox) bool { return w.InMemory(s) && !w.Swappable(s) }

// Prepared reports whether a process waits for the wake of a sandbox on disk.
func (*Schedule) Prepared(s *Sandbox) bool { return s.Prepared }

// Tried is what did not work the last time that one sandbox was moved down.
type Tried struct {
	stuck       bool // a move below the pause
	unswappable bool // in this sleep: a move to swap
	restless    bool // the pause
}

// Pause takes note of a pause that worked, or did not.
func (t *Tried) Pause(worked bool) { t.restless = !worked }

// Halt takes note of how far a sandbox came that is disabled.
func (t *Tried) Halt(reached, wanted machine.Tier) { t.stuck = reached < wanted }

// Wake takes note of a wake: the next sleep tries swap again.
func (t *Tried) Wake() { t.unswappable = false }

// An Outcome is what became of a move to a lower tier.
type Outcome uint8

// The outcomes.
const (
	Sank        Outcome = iota // it is there
	Cut                        // a request, or the end of the sandbox, ended the move
	Unswappable                // it stays in memory until it is due on disk
	Failed                     // it stays as it is, and is tried again
	FailedAgain                // likewise, and so it was before
)

// A Move is one to a lower tier that has ended.
type Move struct {
	To     machine.Tier
	Failed bool
	Cut    bool // its context ended
}

// Sink takes note of a move that has ended. The sandbox is as it is after that.
func (t *Tried) Sink(m Move, s *Sandbox) Outcome {
	switch {
	case !m.Failed:
		t.stuck = false
		return Sank
	case m.Cut || !Asleep(s.Phase):
		return Cut
	case m.To == machine.Swapped && !s.Absent && s.Tier == machine.Saved:
		t.unswappable = true // until it was awake again
		return Unswappable
	case t.stuck:
		return FailedAgain
	default:
		t.stuck = true
		return Failed
	}
}
