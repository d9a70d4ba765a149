// Package idle knows who uses a sandbox, and why the sandbox may not fall asleep.
//
// It only decides: it has no lock, no clock and no timer. The owner of a [Use]
// guards it, and passes the time.
package idle

import (
	"time"

	"github.com/dozehq/doze"
)

// silentMax is how often in a row an agent may be too busy to say whether its
// sandbox must stay awake: it must, then. An agent that is dead must not keep
// it awake for ever.
const silentMax = 10

// A Reason is why a sandbox may not fall asleep.
type Reason uint8

// The reasons.
const (
	None      Reason = iota // it may fall asleep
	Moved                   // it does not run any more: what its agent said is of before
	Request                 // a request is in flight
	Copying                 // its memory is being copied while it runs
	Parting                 // its processes have time to end
	Recent                  // it was used after its agent was asked
	Process                 // a process inside asked to stay awake
	Silent                  // its agent does not say whether a process asked
	Computing               // its processes compute

	reasonCount
)

var reasons = [reasonCount]string{
	None:    "nobody uses it",
	Moved:   "it does not run any more",
	Request: "a request is in flight",
	Copying: "its memory is being copied",
	Parting: "its processes have time to end",
	Recent:  "it was used a moment ago",
	Process: "a process inside asked to stay awake",
	Silent:  "its agent does not say whether a process asked to stay awake",

	Computing: "its processes compute",
}

// String is the text of the log.
func (r Reason) String() string { return reasons[r] }

// Use is who uses one sandbox: requests, processes that asked to stay awake, and
// processes that have time to end.
type Use struct {
	last    time.Time
	holds   int
	mark    Mark
	marked  map[Mark]int // of the holds, how many began after a mark and before the next one
	asked   bool         // a process inside asked to stay awake
	silent  int          // how often in a row the agent did not answer
	grace   time.Duration
	parting bool
	copying bool
}

// New is the use of a sandbox that was used just now. Its processes get so much
// time to end by themselves.
func New(now time.Time, grace time.Duration) Use { return Use{last: now, grace: grace} }

// Arriving reports whether a sandbox is on its way to run for somebody.
func Arriving(p doze.Phase) bool {
	return p == doze.Starting || p == doze.Waking || p == doze.Unarchiving
}

// Touch takes note of a request that came, and may have to wait.
func (u *Use) Touch(now time.Time) { u.last = now }

// A Mark is a moment, for the question which requests in flight began before it.
type Mark uint64

// Hold takes note of a request that was let in, and returns what Release wants.
func (u *Use) Hold(now time.Time) Mark {
	if u.marked == nil {
		u.marked = map[Mark]int{}
	}
	u.holds++
	u.marked[u.mark]++
	u.last = now
	return u.mark
}

// Release takes note of the end of a request that was let in.
func (u *Use) Release(now time.Time, since Mark) {
	u.holds--
	if u.marked[since]--; u.marked[since] == 0 {
		delete(u.marked, since)
	}
	u.last = now
}

// Mark marks this moment.
func (u *Use) Mark() Mark {
	u.mark++
	return u.mark
}

// Before is how many requests in flight began before a mark.
func (u *Use) Before(m Mark) (n int) {
	for since, holds := range u.marked {
		if since < m {
			n += holds
		}
	}
	return n
}

// Holds is how many requests are in flight.
func (u *Use) Holds() int { return u.holds }

// InUse reports whether somebody uses the sandbox in its phase.
func (u *Use) InUse(p doze.Phase) bool { return u.holds > 0 || u.asked || Arriving(p) }

// At is when the sandbox was last used: now, if it is in use.
func (u *Use) At(p doze.Phase, now time.Time) time.Time {
	if u.InUse(p) {
		return now
	}
	return u.last
}

// Last is when the last use began or ended.
func (u *Use) Last() time.Time { return u.last }

// UnusedSince reports whether nobody used the sandbox after a time.
func (u *Use) UnusedSince(p doze.Phase, t time.Time) bool {
	return !u.InUse(p) && !u.last.After(t)
}

// Move takes note of a transition.
func (u *Use) Move(from, to doze.Phase, now time.Time) {
	if Arriving(from) {
		u.last = now
	}
	u.asked = u.asked && to == doze.Running
}

// Busy is why no timer needs to run for a sandbox. The agent is not asked then.
func (u *Use) Busy(p doze.Phase) Reason {
	switch {
	case u.parting:
		return Parting
	case u.copying:
		return Copying
	case p == doze.Running && u.holds > 0:
		return Request
	default:
		return None
	}
}

// An Answer is what an agent said when it was asked whether its sandbox must stay
// awake.
type Answer struct {
	Asked     time.Time
	Silent    bool           // it said nothing
	Cut       bool           // nobody waited for what it would say
	KeepAlive bool           // a process asked to stay awake
	KeptAgo   *time.Duration // how long before the question the last such process ended
	Computing bool           // its processes compute too much for a sandbox that sleeps, see [Load]
}

// Unheard takes note of a question of the timer that the agent did not answer. Of
// all who ask, the timer alone leaves the agent time to come back.
func (u *Use) Unheard() { u.silent++ }

// Unanswered is how often in a row the agent did not answer.
func (u *Use) Unanswered() int { return u.silent }

// Heed takes note of an answer, and returns why the sandbox must stay awake.
func (u *Use) Heed(p doze.Phase, a Answer, now time.Time) Reason {
	if p != doze.Running {
		return Moved
	}
	wish := u.hear(a)
	switch {
	case u.holds > 0:
		return Request
	case u.parting:
		return Parting
	case u.copying:
		return Copying
	case !u.last.Before(a.Asked):
		return Recent
	}
	if a.KeptAgo != nil { // it was used until a process ended, and not until we looked
		if ended := a.Asked.Add(-*a.KeptAgo); ended.After(u.last) {
			u.last = ended
		}
	}
	if u.asked = wish != None; u.asked {
		u.last = now
		return wish
	}
	if a.Computing { // which is no use: nobody asked for it
		return Computing
	}
	return None
}

// hear counts silence, and returns what the answer is a reason for by itself.
func (u *Use) hear(a Answer) Reason {
	switch {
	case a.Cut:
		return None
	case a.Silent:
		if u.silent < silentMax {
			return Silent
		}
		return None
	}
	u.silent = 0
	if a.KeepAlive {
		return Process
	}
	return None
}

// SetGrace says how long processes get to end by themselves.
func (u *Use) SetGrace(grace time.Duration) { u.grace = grace }

// Grace is how long processes get to end by themselves.
func (u *Use) Grace() time.Duration { return u.grace }

// Part begins the time that processes have to end. It reports false if they get
// none: nothing in a sandbox runs that does not.
func (u *Use) Part(p doze.Phase) bool {
	if u.grace <= 0 || p != doze.Running {
		return false
	}
	u.parting = true
	return true
}

// Copy says whether the memory of the sandbox is being copied while it runs. That is no
// use, and a sandbox does not fall asleep meanwhile.
func (u *Use) Copy(now bool) { u.copying = now }

// Parted ends that time.
func (u *Use) Parted() { u.parting = false }
