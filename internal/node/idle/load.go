package idle

import "time"

// Load says when the processes of a sandbox compute so much that it stays awake
// although nobody sends it a request. The zero value says never.
type Load struct {
	// Share is the part of one processor that they use on average, from which on the
	// sandbox stays awake; 0: none is enough.
	Share float64
	// Max bounds the time since the last use for which it stays awake so: a loop that
	// ran away sleeps in the end.
	Max time.Duration
}

// A Sample is how much time of processors the processes of a sandbox had used at some
// moment. The zero value is none.
type Sample struct {
	At  time.Time
	CPU time.Duration
}

// After reports whether a sample is of after a moment, so that the use until then does
// not count.
func (s Sample) After(t time.Time) bool { return s.At.After(t) }

// limitShare is the part of the processors that a small sandbox may use, from which on
// it computes: it cannot use as much as a large one.
const limitShare = 0.5

// Of is the load of a sandbox that may use so many processors.
func (l Load) Of(cpus float64) Load {
	if cpus > 0 {
		l.Share = min(l.Share, limitShare*cpus)
	}
	return l
}

// Computes reports whether the sandbox, last used at some moment, computes too much
// between two samples to fall asleep.
func (l Load) Computes(from, to Sample, last time.Time) bool {
	window := to.At.Sub(from.At)
	if l.Share <= 0 || !from.After(last) || window <= 0 || to.At.Sub(last) >= l.Max {
		return false
	}
	used := to.CPU - from.CPU
	if used < 0 { // its processes began anew
		used = to.CPU
	}
	return float64(used) >= l.Share*float64(window)
}
