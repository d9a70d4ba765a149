package output

import (
	"bytes"
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/agentapi"
)

const (
	// marksMax bounds the memory that a feed takes. Only a host that collects
	// nothing for a while meets it.
	marksMax = 2048
	// openMax is how long a line may get before a feed has what is there of it.
	openMax = 8 << 10
	// joinWithin is how close two stretches of one stream must come to share a
	// mark and its time.
	joinWithin = 5 * time.Millisecond
	// stampStep is between two marks at least, in nanoseconds. A mark that is
	// collected in parts needs a stamp for each.
	stampStep = 1000
	// CollectMax bounds the text of one batch, in bytes.
	CollectMax = 128 << 10
)

// Feed has all outputs of an agent for the host, in the order in which they were
// written. It has no copy: it remembers which stretches of which rings nobody has
// collected. A process never waits for it.
type Feed struct {
	mu      sync.Mutex
	marks   []mark        // guarded by mu; the oldest first
	last    int64         // guarded by mu; the newest stamp
	served  int64         // guarded by mu; the newest stamp that a collector got
	lost    int64         // guarded by mu; bytes that were forgotten, and nobody was told
	changed chan struct{} // guarded by mu; closed for those who wait; nil if nobody does
}

// mark is a stretch of an output. Its lines are whole, but for one that is too long
// or that its process left open.
type mark struct {
	at       int64 // the stamp: unix nanoseconds, and more than all before
	out      *Output
	of       Stream
	from, to int64 // offsets in the ring
}

// add takes note of a stretch.
func (f *Feed) add(out *Output, of Stream, from, to int64) {
	now := time.Now().UnixNano()
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.marks); n > 0 {
		last := &f.marks[n-1]
		if last.out == out && last.of == of && last.to == from && last.at > f.served && now-last.at < int64(joinWithin) {
			last.to = to
			return
		}
	}
	if len(f.marks) >= marksMax {
		half := len(f.marks) / 2
		for _, m := range f.marks[:half] {
			f.lost += m.to - m.from
		}
		f.marks = slices.Delete(f.marks, 0, half)
	}
	f.last = max(now, f.last+stampStep)
	f.marks = append(f.marks, mark{f.last, out, of, from, to})
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// Collect returns what was written after a stamp, at most [CollectMax] bytes of
// text. What is not after the stamp is forgotten: the caller has it.
func (f *Feed) Collect(after int64) agentapi.Collected {
	marks, _ := f.after(after)
	return f.batch(marks)
}

// Await waits until something was written after a stamp, or ctx ends.
func (f *Feed) Await(ctx context.Context, after int64) {
	for {
		marks, changed := f.after(after)
		if len(marks) > 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// Reset forgets everything: what comes is of another sandbox.
func (f *Feed) Reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.marks, f.lost = nil, 0
}

// after forgets what a collector has, and returns what fits into its next batch, or
// what is closed once there is something.
func (f *Feed) after(stamp int64) (marks []mark, changed chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := 0
	for known < len(f.marks) && f.marks[known].at <= stamp {
		known++
	}
	f.marks = slices.Delete(f.marks, 0, known)
	if len(f.marks) == 0 {
		f.marks = nil
		if f.changed == nil {
			f.changed = make(chan struct{})
		}
		return nil, f.changed
	}
	size, n := int64(0), 0
	for n < len(f.marks) && size < CollectMax {
		size += f.marks[n].to - f.marks[n].from
		n++
	}
	f.served = f.marks[n-1].at
	return slices.Clone(f.marks[:n]), nil
}

// batch reads what marks stand for.
func (f *Feed) batch(marks []mark) agentapi.Collected {
	all := agentapi.Collected{Chunks: []agentapi.Chunk{}}
	left := int64(CollectMax)
	for _, m := range marks {
		data, next, lost := m.read(left)
		all.Lost += lost
		// A stamp without text tells the collector to go on after it.
		all.Chunks = append(all.Chunks, agentapi.Chunk{At: m.at, Process: m.out.name, Stream: m.of.String(), Text: string(data)})
		if left -= int64(len(data)); next < m.to {
			f.split(m, next)
			break
		}
		if left <= 0 {
			break
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	all.Lost += f.lost
	f.lost = 0
	return all
}

// split makes two marks of one, so that a collector can have the first alone.
func (f *Feed) split(m mark, at int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.marks, func(other mark) bool { return other.at == m.at })
	if i < 0 || f.marks[i].to <= at { // another collector was faster
		return
	}
	rest := f.marks[i]
	rest.at, rest.from = rest.at+1, at
	f.marks[i].to = at
	f.marks = slices.Insert(f.marks, i+1, rest)
}

// read returns what a mark stands for: at most n bytes, to the end of a line if that
// is not all. The rest begins at next. Lost are bytes that the ring has no more.
func (m mark) read(n int64) (data []byte, next, lost int64) {
	r := &m.out.rings[m.of]
	start, _ := r.bounds()
	from := min(max(m.from, start), m.to)
	lost = from - m.from
	n = min(n, m.to-from)
	next = from + n
	if n == 0 {
		return nil, next, lost
	}
	file, err := os.Open(r.path)
	if err != nil { // it was dropped
		return nil, next, lost + n
	}
	defer func() { _ = file.Close() }() // it was only read
	data, got := r.read(file, make([]byte, n), from)
	lost += got - from
	if end := bytes.LastIndexByte(data, '\n') + 1; next < m.to && end > 0 {
		next -= int64(len(data) - end)
		data = data[:end]
	}
	return data, next, lost
}
