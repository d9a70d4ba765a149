// Package renewal knows how old the checkpoint of a sandbox is, and when a sandbox
// in use is due to get a new one.
//
// It only decides: it has no lock and no clock. The owner of an [Age] guards it, and
// passes the time.
package renewal

import "time"

// Idle is how long nobody uses a sandbox before it falls asleep for a new
// checkpoint. Calls that follow each other closely come sooner, and would each end
// an attempt.
const Idle = time.Second

// overdueAfter is how late a checkpoint is at most when it counts as postponed: those that
// are due are written within seconds.
const overdueAfter = 10 * time.Second

// Age is how old the checkpoint of one sandbox is.
type Age struct {
	saved  time.Time // of the last checkpoint, or the boot; zero if an earlier process left it awake
	putOff time.Time // when it was last not renewed although it was due
	tried  time.Time // when a renewal in use was begun last
}

// Since is the age of a checkpoint that was made at a time, or of a sandbox that
// booted then. The zero time is that of a checkpoint of an earlier process.
func Since(saved time.Time) Age { return Age{saved: saved} }

// Save takes note of a new checkpoint.
func (a *Age) Save(at time.Time) { a.saved = at }

// PutOff takes note of a checkpoint that could not be renewed: somebody used the
// sandbox.
func (a *Age) PutOff(now time.Time) { a.putOff = now }

// Try takes note of a renewal in use that begins, however it ends.
func (a *Age) Try(now time.Time) { a.tried = now }

// Overdue reports whether the checkpoint is to be renewed while the sandbox is in use,
// because there was no moment without a request: it should be written every so often.
// An attempt that fails is repeated as often, and no more. The times are those of At.
func (a *Age) Overdue(every time.Duration, now, began time.Time) bool {
	return Overdue(a.At(now, began), every) && now.Sub(a.tried) >= every
}

// At is the age at a time. A checkpoint of an earlier process is at least as old as
// this one, which began at a time.
func (a *Age) At(now, began time.Time) time.Duration {
	if a.saved.IsZero() {
		return now.Sub(began)
	}
	return now.Sub(a.saved)
}

// Due is when the checkpoint is to be renewed, if one is to be written every so
// often. One request in the time of the pause waits for the end of an attempt, and
// not each.
func (a *Age) Due(every, pause time.Duration, now time.Time) Due {
	if every <= 0 {
		return Due{}
	}
	due := a.saved.Add(every)
	if again := a.putOff.Add(min(pause, every)); again.After(due) {
		due = again
	}
	return Due{in: due.Sub(now), ever: true}
}

// Due is when a checkpoint is to be renewed. The zero Due is never.
type Due struct {
	in   time.Duration // 0 or less is now
	ever bool
}

// Sooner is how long a sandbox rests that would rest for so long, if its checkpoint
// is renewed before that: at least for a time.
func (d Due) Sooner(rest, least time.Duration) time.Duration {
	if !d.ever {
		return rest
	}
	return min(rest, max(least, d.in))
}

// Overdue reports whether an age is more than it may be, where a checkpoint is
// written every so often.
func Overdue(age, every time.Duration) bool {
	return every > 0 && age > every+min(overdueAfter, every)
}
