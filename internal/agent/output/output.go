// Package output keeps what processes write in bounded files, for readers that
// follow at their own pace.
package output

import (
	"bytes"
	"slices"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	// runsMax bounds the memory that remembers how the streams interleaved. Of
	// what is older only the order is lost, not a byte.
	runsMax = 4096
	// stallMax is how long a reader that stands still may hold up a process
	// whose output has filled its ring. After that it loses bytes instead.
	stallMax = 10 * time.Second

	TailMax   = 64 << 10 // of each stream in a description of a process
	LogsMax   = 4 << 20  // of each stream where the caller asked for the output
	Truncated = "[... truncated, see the process log file for the full output ...]\n"
)

// Stream is one of the two outputs of a process.
type Stream uint8

const (
	Stdout Stream = iota
	Stderr
)

// Streams are both.
var Streams = [...]Stream{Stdout, Stderr}

func (s Stream) String() string { return [...]string{"stdout", "stderr"}[s] }

// run is a stretch of output that came from one stream without a break.
type run struct {
	of Stream
	n  int64
}

// Output is what a process wrote: each stream in a ring, and the order in
// which they took turns. Readers follow it at their own pace.
type Output struct {
	name    string // of the process
	feed    *Feed
	rings   [2]ring
	writing [2]sync.Mutex // held by the writer of a ring, across its I/O

	mu      sync.Mutex
	runs    []run              // guarded by mu, oldest first
	notices []string           // guarded by mu: for attached readers only
	fed     [2]int64           // guarded by mu: how much of each stream the feed has
	begun   [2]int             // guarded by mu: bytes of a line without an end yet
	readers map[*Follower]bool // guarded by mu; nil before the first
	ended   bool               // guarded by mu: nothing will follow
	changed chan struct{}      // guarded by mu: closed for those who wait; nil if nobody does
	moved   chan struct{}      // guarded by mu: the same for the writer
}

// New returns the output of a named process, whose files begin with path. They
// count in b. The feed gets what is written; it may be nil.
func New(name, path string, b *Budget, feed *Feed) *Output {
	o := &Output{name: name, feed: feed}
	for _, s := range Streams {
		o.rings[s].path = path + "." + s.String()
		o.rings[s].budget = b
	}
	return o
}

// Write appends b to a stream. It waits for readers that would lose bytes.
func (o *Output) Write(s Stream, b []byte) {
	if len(b) == 0 {
		return
	}
	o.writing[s].Lock()
	defer o.writing[s].Unlock()
	r := &o.rings[s]
	o.wait(s, r.reserve(int64(len(b))))
	r.write(b)

	o.mu.Lock()
	defer o.mu.Unlock()
	if last := len(o.runs) - 1; last >= 0 && o.runs[last].of == s {
		o.runs[last].n += int64(len(b))
	} else {
		o.runs = append(o.runs, run{s, int64(len(b))})
	}
	if len(o.runs) > runsMax {
		o.runs = coarsen(o.runs)
	}
	if i := bytes.LastIndexByte(b, '\n'); i >= 0 {
		o.begun[s] = len(b) - i - 1
	} else {
		o.begun[s] += len(b)
	}
	o.offer(s, o.begun[s])
	o.wake()
}

// wait holds the writer up while an attached reader still needs what is before
// start.
func (o *Output) wait(s Stream, start int64) {
	began := time.Now()
	for {
		o.mu.Lock()
		left := o.patience(s, start, began)
		if left == 0 {
			o.mu.Unlock()
			return
		}
		if o.moved == nil {
			o.moved = make(chan struct{})
		}
		moved := o.moved
		o.mu.Unlock()

		stalled := time.NewTimer(left)
		select {
		case <-moved:
		case <-stalled.C:
		}
		stalled.Stop()
	}
}

// patience returns how long a writer that has waited since began has to wait
// before it looks again at the readers that would lose bytes, 0 for none. Those
// that have stood still for too long count no more. Preconditions: mu is held.
func (o *Output) patience(s Stream, start int64, began time.Time) (left time.Duration) {
	for f := range o.readers {
		if f.lossy || f.next[s] >= start {
			continue
		}
		since := began
		if f.stepped.After(began) {
			since = f.stepped
		}
		switch rest := stallMax - time.Since(since); {
		case rest <= 0:
			f.lossy = true
		case left == 0 || rest < left:
			left = rest
		}
	}
	return left
}

// coarsen halves the runs by forgetting in which order the older ones came.
func coarsen(runs []run) []run {
	half := len(runs) / 2
	sum := [2]run{{of: Stdout}, {of: Stderr}}
	for _, r := range runs[:half] {
		sum[r.of].n += r.n
	}
	return slices.Concat(sum[:], runs[half:])
}

// offer gives the feed what it does not have of a stream and ends before the last
// bytes, which are the beginning of a line. A line that is too long is not waited
// for. Preconditions: mu is held.
func (o *Output) offer(s Stream, begun int) {
	if o.feed == nil {
		return
	}
	_, end := o.rings[s].bounds()
	to := end - int64(begun)
	if end-max(to, o.fed[s]) > openMax {
		to = end
	}
	if to > o.fed[s] {
		o.feed.add(o, s, o.fed[s], to)
		o.fed[s], o.begun[s] = to, int(end-to)
	}
}

// wake tells the readers that there is something new. Preconditions: mu is held.
func (o *Output) wake() {
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
}

// Notice tells the readers of this moment something that is not output.
func (o *Output) Notice(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.readers) > 0 {
		o.notices = append(o.notices, text)
		o.wake()
	}
}

// End says that the process is over. Children that it left behind may still
// write, but readers do not wait for them.
func (o *Output) End() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	for _, s := range Streams {
		o.offer(s, 0)
	}
	o.wake()
}

// Close ends writing for good.
func (o *Output) Close() {
	o.mu.Lock()
	for _, s := range Streams {
		o.offer(s, 0)
	}
	o.mu.Unlock()
	for s := range o.rings {
		o.writing[s].Lock()
		o.rings[s].close()
		o.writing[s].Unlock()
	}
}

// Buffered reports whether there is output to drop.
func (o *Output) Buffered() bool {
	for s := range o.rings {
		r := &o.rings[s]
		r.mu.Lock()
		buffered := r.size > 0
		r.mu.Unlock()
		if buffered {
			return true
		}
	}
	return false
}

// Drop forgets all output.
func (o *Output) Drop() {
	for s := range o.rings {
		o.rings[s].drop()
	}
}

// Text returns the last bytes of a stream as text, at most limit.
func (o *Output) Text(s Stream, limit int64) string {
	b, cut := o.rings[s].tail(limit)
	if !cut {
		return string(b)
	}
	for len(b) > 0 && !utf8.RuneStart(b[0]) {
		b = b[1:]
	}
	return Truncated + string(b)
}
