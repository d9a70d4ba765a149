package agent

import (
	"os"
	"slices"
	"strings"
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

	tailMax  = 64 << 10 // of each stream in a description of a process
	logsMax  = 4 << 20  // of each stream where the caller asked for the output
	truncate = "[... truncated, see the process log file for the full output ...]\n"
)

// stream is one of the two outputs of a process.
type stream uint8

const (
	stdout stream = iota
	stderr
)

var streams = [...]stream{stdout, stderr}

func (s stream) String() string { return [...]string{"stdout", "stderr"}[s] }

// run is a stretch of output that came from one stream without a break.
type run struct {
	of stream
	n  int64
}

// output is what a process wrote: each stream in a ring, and the order in
// which they took turns. Readers follow it at their own pace.
type output struct {
	rings   [2]ring
	writing [2]sync.Mutex // held by the writer of a ring, across its I/O

	mu      sync.Mutex
	runs    []run              // guarded by mu, oldest first
	notices []string           // guarded by mu: for attached readers only
	readers map[*follower]bool // guarded by mu; nil before the first
	ended   bool               // guarded by mu: nothing will follow
	changed chan struct{}      // guarded by mu: closed for those who wait; nil if nobody does
	moved   chan struct{}      // guarded by mu: the same for the writer
}

func newOutput(path string, b *budget) *output {
	o := &output{}
	for _, s := range streams {
		o.rings[s].path = path + "." + s.String()
		o.rings[s].budget = b
	}
	return o
}

// write appends b to a stream. It waits for readers that would lose bytes.
func (o *output) write(s stream, b []byte) {
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
	o.wake()
}

// wait holds the writer up while an attached reader still needs what is before
// start.
func (o *output) wait(s stream, start int64) {
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
func (o *output) patience(s stream, start int64, began time.Time) (left time.Duration) {
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
	sum := [2]run{{of: stdout}, {of: stderr}}
	for _, r := range runs[:half] {
		sum[r.of].n += r.n
	}
	return slices.Concat(sum[:], runs[half:])
}

// wake tells the readers that there is something new. Preconditions: mu is held.
func (o *output) wake() {
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
}

// notice tells the readers of this moment something that is not output.
func (o *output) notice(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.readers) > 0 {
		o.notices = append(o.notices, text)
		o.wake()
	}
}

// end says that the process is over. Children that it left behind may still
// write, but readers do not wait for them.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.wake()
}

// close ends writing for good.
func (o *output) close() {
	for s := range o.rings {
		o.writing[s].Lock()
		o.rings[s].close()
		o.writing[s].Unlock()
	}
}

// kept reports whether there is output to drop.
func (o *output) kept() bool {
	for s := range o.rings {
		r := &o.rings[s]
		r.mu.Lock()
		kept := r.size > 0
		r.mu.Unlock()
		if kept {
			return true
		}
	}
	return false
}

// drop forgets all output.
func (o *output) drop() {
	for s := range o.rings {
		o.rings[s].drop()
	}
}

// text returns the last bytes of a stream as text, at most limit.
func (o *output) text(s stream, limit int64) string {
	b, cut := o.rings[s].tail(limit)
	if !cut {
		return string(b)
	}
	for len(b) > 0 && !utf8.RuneStart(b[0]) {
		b = b[1:]
	}
	return truncate + string(b)
}

// follower reads an output from its beginning to its end, each byte once.
type follower struct {
	out     *output
	files   [2]*os.File
	next    [2]int64  // guarded by out.mu: what was read of each stream
	stepped time.Time // guarded by out.mu: when that was
	cut     [2]bool   // bytes are missing before next
	told    int       // notices that were read
	lossy   bool      // guarded by out.mu: it was too slow, the writer goes on
}

// follow attaches a reader. The caller must close it.
func (o *output) follow() *follower {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := &follower{out: o, told: len(o.notices)}
	for s := range f.next {
		f.next[s], _ = o.rings[s].bounds()
		f.cut[s] = f.next[s] > 0
	}
	if o.readers == nil {
		o.readers = map[*follower]bool{}
	}
	o.readers[f] = true
	return f
}

func (f *follower) close() {
	f.out.mu.Lock()
	delete(f.out.readers, f)
	f.out.let()
	f.out.mu.Unlock()
	for _, file := range f.files {
		if file != nil {
			_ = file.Close() // it was only read
		}
	}
}

// let tells a waiting writer that a reader moved. Preconditions: mu is held.
func (o *output) let() {
	if o.moved != nil {
		close(o.moved)
		o.moved = nil
	}
}

// piece is what a follower reads at once.
type piece struct {
	of     stream
	data   []byte // valid until the next read
	notice string // instead of data
	lost   bool   // bytes are missing before data
}

// read returns the next piece. Without one, it returns a channel that is
// closed once there may be; a nil channel means that there never will be.
func (f *follower) read(buf []byte) (p piece, wait <-chan struct{}, ok bool) {
	o := f.out
	o.mu.Lock()
	s, n := f.pending()
	switch {
	case n > 0:
		off := f.next[s]
		o.mu.Unlock()
		return f.fetch(s, buf[:min(n, int64(len(buf)))], off), nil, true
	case f.told < len(o.notices):
		p.notice = o.notices[f.told]
		f.told++
		ok = true
	case !o.ended:
		if o.changed == nil {
			o.changed = make(chan struct{})
		}
		wait = o.changed
	}
	o.mu.Unlock()
	return p, wait, ok
}

// pending returns the stream to read next and how many bytes of it come before
// the other one's turn. Preconditions: out.mu is held.
func (f *follower) pending() (of stream, n int64) {
	var sum [2]int64
	for _, r := range f.out.runs {
		sum[r.of] += r.n
		if left := sum[r.of] - f.next[r.of]; left > 0 {
			return r.of, left
		}
	}
	return 0, 0
}

// fetch reads one stretch of a stream and moves on.
func (f *follower) fetch(s stream, buf []byte, off int64) piece {
	r := &f.out.rings[s]
	p, next := piece{of: s}, off+int64(len(buf))
	if start, _ := r.bounds(); start > off {
		p.lost, next = true, start
	} else {
		if f.files[s] == nil {
			f.files[s], _ = os.Open(r.path) // without it, reading fails and the bytes are lost
		}
		var from int64
		p.data, from = r.read(f.files[s], buf, off)
		p.lost = from > off
	}
	p.lost = p.lost || f.cut[s]
	f.cut[s] = false
	f.out.mu.Lock()
	defer f.out.mu.Unlock()
	f.next[s], f.stepped = next, time.Now()
	f.out.let()
	return p
}

// lines cuts the pieces of both streams into whole lines.
type lines struct{ open [2][]byte }

// lineMax bounds a line that is held back until its end, for each reader. A longer
// one is cut.
const lineMax = 128 << 10

// add calls emit for every line that data completes, without its newline.
func (l *lines) add(s stream, data []byte, emit func(stream, string)) {
	text := string(data)
	for {
		line, rest, whole := strings.Cut(text, "\n")
		if !whole {
			break
		}
		emit(s, string(l.open[s])+line)
		l.open[s], text = l.open[s][:0], rest
	}
	l.open[s] = append(l.open[s], text...)
	if len(l.open[s]) > lineMax {
		l.flush(s, emit)
	}
}

// flush emits the line that has no end.
func (l *lines) flush(s stream, emit func(stream, string)) {
	if len(l.open[s]) > 0 {
		emit(s, string(l.open[s]))
		l.open[s] = l.open[s][:0]
	}
}
