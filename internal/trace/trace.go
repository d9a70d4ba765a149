// Package trace records where the time of a wake or a create went: its stages,
// in memory. A stage costs two looks at the clock and a lock that is free; the
// package writes nothing and waits for nobody. otlp sends traces elsewhere.
package trace

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze"
)

const (
	// spansMax bounds the spans of one trace. A wake that falls back from one tier
	// to the next records fewer than 20.
	spansMax = 40
	// spansUsual is what most traces need.
	spansUsual = 12
	// parentMax bounds what a caller says of its own trace: the header that the
	// standard defines has 55 bytes.
	parentMax = 128
)

// A Trace is the record of one wake or create while it is being made. All its
// methods may be called with nil, and by any number of goroutines.
type Trace struct {
	kind               Kind
	sandbox, workspace string
	parent             string
	began              time.Time
	ended              func(Record)

	mu      sync.Mutex
	from    string    // guarded by mu
	spans   []span    // guarded by mu
	latest  time.Time // guarded by mu; when the next stage begins, if it follows
	failure string    // guarded by mu
	parties int       // guarded by mu; who may still record
	done    bool      // guarded by mu
}

// span is one stage.
type span struct {
	stage  Stage
	within int8          // index of the span that it is a part of; -1: of none
	start  time.Duration // after began
	took   time.Duration
}

// Begin returns a new trace. The caller c, if there is one, waits for what is
// traced: it was admitted at a moment, and its time before that counts. The trace
// ends when Leave was called for it and for its caller; then ended gets it, which
// must not wait.
func Begin(k Kind, c *Caller, sandbox, workspace string, admitted time.Time, ended func(Record)) *Trace {
	t := &Trace{
		kind: k, sandbox: sandbox, workspace: workspace, began: admitted, latest: admitted, ended: ended,
		spans: make([]span, 0, spansUsual), parties: 1,
	}
	if c == nil || c.left.Load() {
		return t
	}
	if !c.began.IsZero() {
		t.began, t.parent = c.began, strings.Clone(c.parent)
		t.spans = append(t.spans, span{Admit, -1, 0, admitted.Sub(c.began)})
	}
	t.parties++
	if old := c.trace.Swap(t); old != nil {
		old.Leave()
	}
	return t
}

// Began returns when the request came that caused it; zero for nil.
func (t *Trace) Began() time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.began
}

// Comes says which tier a wake began in, or what the machine of a create is made
// of. The last word counts.
func (t *Trace) Comes(from string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.from = from
}

// From returns what Comes said last.
func (t *Trace) From() string {
	if t == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.from
}

// Fail says, in public words, that what is traced did not work.
func (t *Trace) Fail(reason string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failure = reason
}

// Leave says that one of those who record has nothing more to say.
func (t *Trace) Leave() {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.parties--
	over := t.parties == 0
	t.done = t.done || over
	t.mu.Unlock()
	if over && t.ended != nil {
		t.ended(t.Record())
	}
}

// Running is a stage that has begun.
type Running struct {
	trace *Trace
	stage Stage
	start time.Time
}

// Start begins a stage.
func (t *Trace) Start(s Stage) Running {
	if t == nil {
		return Running{}
	}
	return Running{t, s, time.Now()}
}

// Next begins a stage at the end of the latest one, or at the last Pass: what is
// between two stages that follow each other is a wait for the second.
func (t *Trace) Next(s Stage) Running {
	if t == nil {
		return Running{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return Running{t, s, t.latest}
}

// Pass says that the stages so far are over: the next one begins now.
func (t *Trace) Pass() {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.latest = time.Now()
}

// On reports whether somebody records the stage.
func (r Running) On() bool { return r.trace != nil }

// A Part is a stage that another process has recorded, after the start of what it
// was asked for.
type Part struct {
	Stage string        `json:"stage"`
	Start time.Duration `json:"start"` // in nanoseconds, as Took
	Took  time.Duration `json:"took"`
}

// Parts are what another process did for a call, and how long it took in all.
type Parts struct {
	Took   time.Duration `json:"took,omitempty"`
	Stages []Part        `json:"stages,omitempty"`
}

// End ends a stage. Stages that another process recorded within it are placed in
// its middle: the way there is taken to be as long as the way back.
func (r Running) End(within ...Parts) {
	if r.trace == nil {
		return
	}
	now := time.Now()
	t := r.trace
	t.mu.Lock()
	defer t.mu.Unlock()
	took := now.Sub(r.start)
	own := t.add(r.stage, -1, r.start.Sub(t.began), took)
	if now.After(t.latest) {
		t.latest = now
	}
	for _, parts := range within {
		if parts.Took < 0 || parts.Took > took {
			continue // it makes no sense
		}
		shift := r.start.Sub(t.began) + (took-parts.Took)/2
		for _, p := range parts.Stages {
			stage, known := parse(p.Stage)
			if known && p.Start >= 0 && p.Took >= 0 && p.Start <= parts.Took && p.Took <= parts.Took-p.Start {
				t.add(stage, own, shift+p.Start, p.Took)
			}
		}
	}
}

// add records a span, and returns its index. Preconditions: mu is held.
func (t *Trace) add(s Stage, within int8, start, took time.Duration) int8 {
	if t.done || len(t.spans) >= spansMax {
		return -1
	}
	t.spans = append(t.spans, span{s, within, start, took})
	return int8(len(t.spans) - 1) //nolint:gosec // G115: below spansMax
}

// Parts returns what was recorded so far, for another process.
func (t *Trace) Parts() (p Parts) {
	if t == nil {
		return p
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	p.Took = time.Since(t.began)
	for _, s := range t.spans {
		p.Stages = append(p.Stages, Part{s.stage.String(), s.start, s.took})
	}
	return p
}

// Record is what a trace says.
type Record struct {
	Kind               Kind
	Sandbox, Workspace string // the sandbox by its UID
	// Parent is what the caller said of its own trace, in the form of the header
	// traceparent. It is a stranger's word, and may be anything.
	Parent string
	Began  time.Time
	From   string // see [Trace.Comes]
	Status string // see [doze.Trace]
	Error  string
	Waited time.Duration // of the caller, until the answer of the sandbox is all that is missing
	Took   time.Duration // with that
	Spans  []Span
}

// Span is one stage of a record.
type Span struct {
	Stage  Stage
	Within int // index of the span that it is a part of; -1: of none
	Start  time.Duration
	Took   time.Duration
}

// Record returns what is known now.
func (t *Trace) Record() Record {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := Record{
		Kind: t.kind, Sandbox: t.sandbox, Workspace: t.workspace, Parent: t.parent, Began: t.began, From: t.from,
		Status: doze.TraceDone, Error: t.failure, Spans: make([]Span, 0, len(t.spans)),
	}
	for _, s := range t.spans {
		r.Spans = append(r.Spans, Span{s.stage, int(s.within), s.start, s.took})
		r.Took = max(r.Took, s.start+s.took)
		if s.stage != Answer {
			r.Waited = max(r.Waited, s.start+s.took)
		}
	}
	until := t.latest.Sub(t.began)
	switch {
	case t.failure != "":
		r.Status = doze.TraceFailed
	case !t.done:
		r.Status = doze.TraceRunning
		until = time.Since(t.began)
	}
	r.Took = max(r.Took, until)
	if !slices.ContainsFunc(t.spans, func(s span) bool { return s.stage == Connect }) {
		r.Waited = r.Took
	}
	return r
}

// Shown is the record as the API has it, the stages in the order of their starts.
func (r Record) Shown() doze.Trace {
	s := doze.Trace{
		Kind: string(r.Kind), StartedAt: doze.Time{Time: r.Began}, From: r.From, Status: r.Status, Error: r.Error,
		WaitedUs: r.Waited.Microseconds(), Stages: make([]doze.TraceStage, 0, len(r.Spans)),
	}
	for _, span := range r.Spans {
		stage := doze.TraceStage{Name: span.Stage.String(), StartUs: span.Start.Microseconds(), TookUs: span.Took.Microseconds()}
		if span.Within >= 0 {
			stage.Within = r.Spans[span.Within].Stage.String()
		}
		s.Stages = append(s.Stages, stage)
	}
	slices.SortStableFunc(s.Stages, func(a, b doze.TraceStage) int { return int(a.StartUs - b.StartUs) })
	return s
}

// A Caller waits for a sandbox: what its request makes the node do is traced from
// its arrival.
type Caller struct {
	began  time.Time // zero: it is known from its admission on only
	parent string
	trace  atomic.Pointer[Trace] // what it caused, if it did
	left   atomic.Bool
}

type callerKey struct{}

// Arrive returns a context that says that a request came at a moment. parent is
// its header traceparent, if it has one.
func Arrive(ctx context.Context, at time.Time, parent string) (context.Context, *Caller) {
	c := &Caller{began: at}
	if len(parent) <= parentMax {
		c.parent = parent
	}
	return context.WithValue(ctx, callerKey{}, c), c
}

// Expect returns the caller of ctx, or puts one there of which no more is known.
func Expect(ctx context.Context) (context.Context, *Caller) {
	if c := CallerOf(ctx); c != nil {
		return ctx, c
	}
	c := &Caller{}
	return context.WithValue(ctx, callerKey{}, c), c
}

// CallerOf returns the caller of ctx, or nil.
func CallerOf(ctx context.Context) *Caller {
	c, _ := ctx.Value(callerKey{}).(*Caller)
	return c
}

// Trace returns the trace of what the caller caused, or nil.
func (c *Caller) Trace() *Trace {
	if c == nil {
		return nil
	}
	return c.trace.Load()
}

// Waited returns how long the caller has waited since it arrived; 0 if that is not
// known.
func (c *Caller) Waited() time.Duration {
	if c.began.IsZero() {
		return 0
	}
	return time.Since(c.began)
}

// Parent is the header traceparent of the caller's request, or empty.
func (c *Caller) Parent() string { return c.parent }

// Leave says that the caller waits no more. Only the first call counts.
func (c *Caller) Leave() {
	if c == nil || c.left.Swap(true) {
		return
	}
	c.trace.Load().Leave()
}

// With returns a context in which stages of t are recorded.
func With(ctx context.Context, t *Trace) context.Context {
	c := &Caller{}
	c.left.Store(true) // nobody waits
	c.trace.Store(t)
	return context.WithValue(ctx, callerKey{}, c)
}

// Of returns the trace that a context is for, or nil.
func Of(ctx context.Context) *Trace { return CallerOf(ctx).Trace() }

// Start begins a stage of the trace that ctx is for, if there is one.
func Start(ctx context.Context, s Stage) Running { return Of(ctx).Start(s) }

// Next is [Trace.Next] for the trace that ctx is for.
func Next(ctx context.Context, s Stage) Running { return Of(ctx).Next(s) }

// Ring keeps the newest traces of one sandbox. The zero value is empty.
type Ring struct {
	mu   sync.Mutex
	list [doze.TracesMax]*Trace // guarded by mu
	n    int                    // guarded by mu; of all that were ever added
}

// Add keeps a trace, in place of the oldest if there are too many.
func (r *Ring) Add(t *Trace) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list[r.n%len(r.list)] = t
	r.n++
}

// List returns what the traces say now, the newest first.
func (r *Ring) List() []doze.Trace {
	r.mu.Lock()
	var left []*Trace
	for i := range min(r.n, len(r.list)) {
		left = append(left, r.list[(r.n-1-i)%len(r.list)])
	}
	r.mu.Unlock()
	all := make([]doze.Trace, 0, len(left))
	for _, t := range left {
		all = append(all, t.Record().Shown())
	}
	return all
}
