package feed

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze"
)

// board has what the last look at a workspace saw, and the messages of the looks before.
type board struct {
	workspace string
	epoch     string

	// guarded by the mu of the server
	entered int
	forget  *time.Timer

	mu      sync.Mutex
	readers int                // guarded by mu
	run     *run               // guarded by mu; nil while nobody looks
	stop    context.CancelFunc // guarded by mu; of run
	rows    map[string]row     // guarded by mu; by name; the map itself never changes
	at      time.Time          // guarded by mu; of the last look
	seq     uint64             // guarded by mu; of the last message; 0 before the first look
	ring    []message          // guarded by mu; the oldest first
	bytes   int                // guarded by mu; of the ring
	changed chan struct{}      // guarded by mu; closed with the next change
}

// run is one loop of looks. It ends with the last reader, or when a look fails.
type run struct {
	fresh bool  // guarded by the mu of the board: it has looked
	err   error // likewise: why it ended
}

// row is a sandbox as the last look saw it.
type row struct {
	text    json.RawMessage // as readers get it, without its last wake
	measure measure
}

// measure is what the next look compares.
type measure struct {
	at, since, woke time.Time
	seconds         float64
}

// message is one of a ring, encoded once for all readers.
type message struct {
	seq  uint64
	text []byte // the data
}

// newBoard returns a board whose epoch nobody knows.
func newBoard(workspace string) *board {
	return &board{workspace: workspace, epoch: rand.Text()[:epochLetters], changed: make(chan struct{})}
}

// join counts a reader, and has somebody look.
func (b *board) join(ctx context.Context, s *Server) *run {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readers++
	if b.run == nil {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the last reader ends it, who may be another one
		r := &run{}
		b.run, b.stop = r, cancel
		s.loops.Go(func() { s.look(ctx, b, r) })
	}
	return b.run
}

// leave undoes join. Nobody looks for nobody.
func (b *board) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.readers--; b.readers == 0 && b.run != nil {
		b.stop()
		b.run, b.stop = nil, nil
	}
}

func (b *board) looking() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.run != nil
}

// ready waits until a run has looked.
func (b *board) ready(ctx context.Context, r *run) error {
	for {
		b.mu.Lock()
		fresh, err, changed := r.fresh, r.err, b.changed
		b.mu.Unlock()
		if fresh || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// look is one look at a workspace, beside the one before.
type look struct {
	at      time.Time
	first   bool
	before  map[string]row
	rows    map[string]row
	changes []json.RawMessage
}

func (b *board) begin() *look {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &look{at: time.Now(), first: b.seq == 0, before: b.rows, rows: make(map[string]row, len(b.rows))}
}

// page takes a page of sandboxes in.
func (l *look) page(all []doze.FeedSandbox) error {
	for i := range all {
		if err := l.add(&all[i]); err != nil {
			return err
		}
	}
	return nil
}

// add compares a sandbox with how it was. Of two with one name, the newest counts: another
// one is about to end.
func (l *look) add(sb *doze.FeedSandbox) error {
	if _, twice := l.rows[sb.Name]; twice {
		return nil
	}
	before, known := l.before[sb.Name]
	trace := sb.LastWake
	sb.LastWake = nil
	now := measure{at: l.at, since: sb.CountedSince.Time, seconds: sb.Processor.Seconds}
	if trace != nil {
		now.woke = trace.StartedAt.Time
	}
	sb.Busy = now.busy(before.measure, sb.Processor.Limit)
	text, err := json.Marshal(sb)
	if err != nil {
		return err
	}
	if known && string(text) == string(before.text) {
		text = before.text // the same memory
	}
	l.rows[sb.Name] = row{text, now}
	woke := trace != nil && known && !now.woke.Equal(before.measure.woke)
	if l.first || !woke && known && string(text) == string(before.text) {
		return nil
	}
	if woke {
		sb.LastWake = trace
		if text, err = json.Marshal(sb); err != nil {
			return err
		}
	}
	l.changes = append(l.changes, text)
	return nil
}

// busy is the share of its processors that a sandbox took since the look before, in
// hundredths. It is 0 if nobody can say.
func (m measure) busy(before measure, limit float64) float64 {
	passed := m.at.Sub(before.at).Seconds()
	if before.at.IsZero() || !m.since.Equal(before.since) || passed <= 0 || limit <= 0 || m.seconds < before.seconds {
		return 0
	}
	return math.Round(min(1, (m.seconds-before.seconds)/passed/limit)*100) / 100
}

// data is a message with rows that are encoded already.
type data struct {
	At        doze.Time         `json:"at"`
	Sandboxes []json.RawMessage `json:"sandboxes,omitempty"`
	Gone      []string          `json:"gone,omitempty"`
	Total     *int              `json:"total,omitempty"`
}

func (d data) encode() []byte {
	text, _ := json.Marshal(d) // text, numbers, and what was encoded before, always encode
	return text
}

// messages are the changes of a look, in parts.
func (l *look) messages() (all [][]byte) {
	for part := range slices.Chunk(l.changes, partMax) {
		all = append(all, data{At: doze.Time{Time: l.at}, Sandboxes: part}.encode())
	}
	var gone []string
	for name := range l.before {
		if _, here := l.rows[name]; !here {
			gone = append(gone, name)
		}
	}
	slices.Sort(gone)
	for part := range slices.Chunk(gone, partMax) {
		all = append(all, data{At: doze.Time{Time: l.at}, Gone: part}.encode())
	}
	return all
}

// publish takes over a look, and tells readers. A look of a run that nobody waits for any
// more counts for nothing: another one may have begun.
func (b *board) publish(r *run, l *look) {
	all := l.messages()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.run != r {
		return
	}
	if l.first {
		b.seq = 1
	}
	newest := b.seq + 1 // the first message of this look
	for _, text := range all {
		b.seq++
		b.ring = append(b.ring, message{b.seq, text})
		b.bytes += len(text)
	}
	b.trim(newest)
	b.rows, b.at, r.fresh = l.rows, l.at, true
	b.announceLocked()
}

// trim forgets the oldest messages until the ring is within its bounds, but none from a
// sequence number on. Preconditions: the caller holds mu.
func (b *board) trim(newest uint64) {
	n := 0
	for n < len(b.ring) && b.ring[n].seq < newest && (len(b.ring)-n > ringMax || b.bytes > ringBytesMax) {
		b.bytes -= len(b.ring[n].text)
		n++
	}
	b.ring = slices.Delete(b.ring, 0, n)
}

// failed ends a run with an error that its readers hear.
func (b *board) failed(r *run, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r.err = err
	if b.run == r {
		b.stop()
		b.run, b.stop = nil, nil
	}
	b.announceLocked()
}

// announceLocked wakes the readers that wait for a change. Preconditions: the caller holds mu.
func (b *board) announceLocked() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// resume is where a reader goes on that has read until p: there, or at the beginning.
func (b *board) resume(p Position) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.Epoch != b.epoch || p.Seq == 0 || p.Seq > b.seq || p.Seq < b.oldest() {
		return 0
	}
	return p.Seq
}

// oldest is the oldest position whose successors are all here. Preconditions: the caller
// holds mu.
func (b *board) oldest() uint64 {
	if len(b.ring) == 0 {
		return b.seq
	}
	return b.ring[0].seq - 1
}

// after returns the messages behind a position, and what tells of the next ones.
func (b *board) after(at uint64, r *run) (all []message, changed <-chan struct{}, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case r.err != nil:
		return nil, nil, r.err
	case at < b.oldest():
		return nil, nil, errForgotten
	}
	from := len(b.ring) - int(b.seq-at) //nolint:gosec // G115: no more than the ring has
	return slices.Clone(b.ring[from:]), b.changed, nil
}

// state returns all sandboxes in parts, and the position that they are of.
func (b *board) state() (parts func(yield func([]byte) bool), total int, at time.Time, seq uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rows, at := b.rows, b.at // the map never changes
	return func(yield func([]byte) bool) {
		for names := range slices.Chunk(slices.Sorted(maps.Keys(rows)), partMax) {
			part := make([]json.RawMessage, len(names))
			for i, name := range names {
				part[i] = rows[name].text
			}
			if !yield(data{At: doze.Time{Time: at}, Sandboxes: part}.encode()) {
				return
			}
		}
	}, len(rows), at, b.seq
}
