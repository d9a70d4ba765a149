package output

import (
	"context"
	"os"
	"strings"
	"time"

	"github.com/dozehq/doze/internal/agent/pump"
)

// Follower reads an output from its beginning to its end, each byte once.
type Follower struct {
	out     *Output
	files   [2]*os.File
	next    [2]int64  // guarded by out.mu: what was read of each stream
	stepped time.Time // guarded by out.mu: when that was
	cut     [2]bool   // bytes are missing before next
	told    int       // notices that were read
	lossy   bool      // guarded by out.mu: it was too slow, the writer goes on
}

// Each calls take for every piece until the process is over, and idle when
// there was none for a while. It calls send for what these add, once there is no
// other piece. It reports false when the caller is gone.
func (f *Follower) Each(ctx context.Context, silence time.Duration, send func() bool, take func(Piece) bool, idle func() bool) bool {
	quiet := time.NewTimer(silence)
	defer quiet.Stop()
	for {
		wait, ok := f.all(take)
		switch {
		case !ok || !send():
			return false
		case wait == nil:
			return true
		}
		select {
		case <-wait:
		case <-quiet.C:
			if !idle() {
				return false
			}
			quiet.Reset(silence)
		case <-ctx.Done():
			return false
		}
	}
}

// all calls take for every piece that there is. It returns what [Follower.read]
// does without one, and false when take does.
func (f *Follower) all(take func(Piece) bool) (wait <-chan struct{}, ok bool) {
	buf := pump.Lend(true)
	defer pump.Return(buf)
	for {
		p, wait, ok := f.read(buf)
		if !ok {
			return wait, true
		}
		if !take(p) {
			return nil, false
		}
	}
}

// Close detaches the reader.
func (f *Follower) Close() {
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

// read returns the next piece. Without one, it returns a channel that is
// closed once there may be; a nil channel means that there never will be.
func (f *Follower) read(buf []byte) (p Piece, wait <-chan struct{}, ok bool) {
	o := f.out
	o.mu.Lock()
	s, n := f.pending()
	switch {
	case n > 0:
		off := f.next[s]
		o.mu.Unlock()
		return f.fetch(s, buf[:min(n, int64(len(buf)))], off), nil, true
	case f.told < len(o.notices):
		p.Notice = o.notices[f.told]
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
func (f *Follower) pending() (of Stream, n int64) {
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
func (f *Follower) fetch(s Stream, buf []byte, off int64) Piece {
	r := &f.out.rings[s]
	p, next := Piece{Of: s}, off+int64(len(buf))
	if start, _ := r.bounds(); start > off {
		p.Lost, next = true, start
	} else {
		if f.files[s] == nil {
			f.files[s], _ = os.Open(r.path) // without it, reading fails and the bytes are lost
		}
		var from int64
		p.Data, from = r.read(f.files[s], buf, off)
		p.Lost = from > off
	}
	p.Lost = p.Lost || f.cut[s]
	f.cut[s] = false
	f.out.mu.Lock()
	defer f.out.mu.Unlock()
	f.next[s], f.stepped = next, time.Now()
	f.out.let()
	return p
}

// Follow attaches a reader. The caller must close it.
func (o *Output) Follow() *Follower {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := &Follower{out: o, told: len(o.notices)}
	for s := range f.next {
		f.next[s], _ = o.rings[s].bounds()
		f.cut[s] = f.next[s] > 0
	}
	if o.readers == nil {
		o.readers = map[*Follower]bool{}
	}
	o.readers[f] = true
	return f
}

// let tells a waiting writer that a reader moved. Preconditions: mu is held.
func (o *Output) let() {
	if o.moved != nil {
		close(o.moved)
		o.moved = nil
	}
}

// Piece is what a follower reads at once.
type Piece struct {
	Of     Stream
	Data   []byte // valid until the next read
	Notice string // instead of data
	Lost   bool   // bytes are missing before data
}

// Lines cuts the pieces of both streams into whole lines.
type Lines struct{ open [2][]byte }

// lineMax bounds a line that is held back until its end, for each reader. A longer
// one is cut.
const lineMax = 128 << 10

// Add calls emit for every line that data completes, without its newline.
func (l *Lines) Add(s Stream, data []byte, emit func(Stream, string)) {
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
		l.Flush(s, emit)
	}
}

// Flush emits the line that has no end.
func (l *Lines) Flush(s Stream, emit func(Stream, string)) {
	if len(l.open[s]) > 0 {
		emit(s, string(l.open[s]))
		l.open[s] = l.open[s][:0]
	}
}
