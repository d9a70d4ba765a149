package fleet

import (
	"bufio"
	"bytes"
	"container/list"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dozehq/doze"
)

const (
	feedPath = Prefix + "feed"
	// gonesMax bounds the facts of which a feed remembers that they are gone. A
	// follower that missed more of them starts again.
	gonesMax = 100_000
	// feedBatch bounds the facts of one line of a feed.
	feedBatch = 1000
	// feedLineMax bounds one line of a feed, in bytes.
	feedLineMax = 256 << 20
)

// The topics of control's feed, and what their keys are.
const (
	TopicUpstreams  = "routes"     // of sandboxes; see Directory. The value is older than the word: edges of earlier builds follow it
	TopicPreviews   = "previews"   // by label
	TopicDomains    = "domains"    // by name
	TopicPrincipals = "principals" // by sub
	TopicKeys       = "keys"       // of the API, by id
	TopicRevoked    = "revoked"    // by grant
	TopicVerifier   = "verifier"   // of tokens, by issuer
	TopicLimits     = "limits"     // by workspace
	TopicNodes      = "nodes"      // where one is, by its id
	TopicPlaces     = "places"     // which node has a machine; see Atlas
)

// A Fact is what a feed says of one thing.
type Fact struct {
	Topic string
	Key   string
	Value json.RawMessage `json:",omitempty"` // none: it is gone
}

type factID struct{ topic, key string }

// A Mark is a moment of a feed. Marks of two epochs cannot be compared.
type Mark struct {
	Epoch    string
	Revision uint64
}

func (m Mark) String() string { return m.Epoch + "." + strconv.FormatUint(m.Revision, 10) }

// ParseMark reads what [Mark.String] wrote.
func ParseMark(text string) (Mark, error) {
	epoch, revision, ok := strings.Cut(text, ".")
	n, err := strconv.ParseUint(revision, 10, 64)
	if !ok || err != nil || epoch == "" {
		return Mark{}, fmt.Errorf("%.60q is no mark of a feed", text)
	}
	return Mark{epoch, n}, nil
}

// A Feed tells followers what is, and then what changes. It is safe for concurrent
// use.
type Feed struct {
	epoch  string
	closed chan struct{}
	once   sync.Once // closes closed

	mu       sync.Mutex
	revision uint64                   // guarded by mu; of the last change
	facts    map[factID]*list.Element // guarded by mu
	order    *list.List               // guarded by mu; of change, by revision
	gones    *list.List               // guarded by mu; factID, the oldest first
	complete uint64                   // guarded by mu; a follower before it has to start again
	changed  chan struct{}            // guarded by mu; closed by the next change
}

// change is an element of the order of a feed.
type change struct {
	Fact

	revision uint64
	gone     *list.Element // in gones, if there is no value
}

// NewFeed returns a feed that says nothing yet. Its epoch is new: nobody takes it
// for the feed of an earlier process.
func NewFeed() *Feed {
	return &Feed{epoch: rand.Text(), closed: make(chan struct{}), facts: map[factID]*list.Element{}, order: list.New(), gones: list.New(), changed: make(chan struct{})}
}

// Tell says what a thing is from now on. Without a value, it is gone.
func (f *Feed) Tell(topic, key string, value any) {
	var raw json.RawMessage
	if value != nil {
		var err error
		if raw, err = json.Marshal(value); err != nil {
			slog.Error("a fact cannot be told", "topic", topic, "key", key, "err", err) // a test tells one of each type
			return
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	id := factID{topic, key}
	e, known := f.facts[id]
	if !known && raw == nil {
		return
	}
	if known {
		was, _ := e.Value.(*change)
		if bytes.Equal(was.Value, raw) {
			return
		}
		f.remove(id, e)
	}
	f.revision++
	c := &change{Fact: Fact{topic, key, raw}, revision: f.revision}
	if raw == nil {
		c.gone = f.gones.PushBack(id)
	}
	f.facts[id] = f.order.PushBack(c)
	f.forget()
	close(f.changed)
	f.changed = make(chan struct{})
}

// Topic returns Tell for one topic.
func (f *Feed) Topic(name string) func(key string, value any) {
	return func(key string, value any) { f.Tell(name, key, value) }
}

// remove takes a change out of the order. Preconditions: mu is held.
func (f *Feed) remove(id factID, e *list.Element) {
	if was, _ := f.order.Remove(e).(*change); was.gone != nil {
		f.gones.Remove(was.gone)
	}
	delete(f.facts, id)
}

// forget drops what is gone for longest. Preconditions: mu is held.
func (f *Feed) forget() {
	for f.gones.Len() > gonesMax {
		id, _ := f.gones.Front().Value.(factID)
		e := f.facts[id]
		was, _ := e.Value.(*change)
		f.complete = max(f.complete, was.revision)
		f.remove(id, e)
	}
}

// Mark is the moment now: what was told before it is in it.
func (f *Feed) Mark() Mark {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Mark{f.epoch, f.revision}
}

// line is one message of a feed. The lines of one start carry Restart until that
// which has Synced: what none of them names is gone.
type line struct {
	Mark

	Restart bool   `json:",omitempty"`
	Synced  bool   `json:",omitempty"` // with it, the follower knows what was so at its mark
	Facts   []Fact `json:",omitempty"`
}

// after returns up to feedBatch facts that changed after a revision, and a channel
// that is closed by the next change. last is the revision up to which the follower
// knows all then; more says that there are others. What was gone by the revision
// unknown is left out: the follower never knew it.
func (f *Feed) after(revision, unknown uint64) (facts []Fact, last uint64, more bool, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	// From the end: a follower is seldom far behind.
	from := f.order.Back()
	for e := from; e != nil; e = e.Prev() {
		if c, _ := e.Value.(*change); c.revision <= revision {
			break
		}
		from = e
	}
	for e := from; e != nil; e = e.Next() {
		c, _ := e.Value.(*change)
		if c.revision <= revision || c.gone != nil && c.revision <= unknown {
			continue
		}
		if len(facts) == feedBatch {
			return facts, last, true, f.changed
		}
		facts, last = append(facts, c.Fact), c.revision
	}
	return facts, f.revision, false, f.changed
}

// stands reports whether a follower that knows all up to a mark can go on from there.
func (f *Feed) stands(m Mark) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return m.Epoch == f.epoch && m.Revision <= f.revision && m.Revision >= f.complete
}

// Serve sends the feed to a follower, from the mark that it names on, until the
// follower goes away.
func (f *Feed) Serve(w http.ResponseWriter, r *http.Request) {
	at, err := ParseMark(r.URL.Query().Get("after"))
	restart := err != nil || !f.stands(at)
	var unknown uint64
	if restart {
		at, unknown = Mark{Epoch: f.epoch}, f.Mark().Revision
	}
	control := http.NewResponseController(w)
	out := json.NewEncoder(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	for first := true; ; first = false {
		facts, last, more, changed := f.after(at.Revision, unknown)
		at.Revision = last
		if first || len(facts) > 0 || restart {
			if out.Encode(line{Mark: at, Restart: restart, Synced: !more, Facts: facts}) != nil || control.Flush() != nil {
				return // the follower is gone
			}
		}
		if more {
			continue
		}
		restart = false
		select {
		case <-changed:
		case <-f.closed:
			return
		case <-r.Context().Done():
			return
		}
		if !f.stands(at) { // it was too slow: it comes back, and starts again
			return
		}
	}
}

// Close sends all followers away. They come back to the next process.
func (f *Feed) Close() { f.once.Do(func() { close(f.closed) }) }

// Register adds the route of the feed.
func (f *Feed) Register(mux *http.ServeMux) { mux.HandleFunc("GET "+feedPath, f.Serve) }

// Apply has a topic say what a thing is from now on; without a value, it is gone.
type Apply func(key string, value json.RawMessage) error

// A Follower keeps copies of what a [Feed] says. It is safe for concurrent use.
type Follower struct {
	base   string
	http   *http.Client
	topics map[string]Apply

	known map[factID]struct{} // of the goroutine of Run alone

	mu    sync.Mutex
	at    Mark          // guarded by mu
	moved chan struct{} // guarded by mu; closed when at changes
}

// NewFollower returns a follower of the feed of the server at a base URL. Facts of
// other topics are of a newer version, and are left alone.
func NewFollower(base string, transport http.RoundTripper, topics map[string]Apply) *Follower {
	return &Follower{base: base, http: &http.Client{Transport: transport}, topics: topics, known: map[factID]struct{}{}, moved: make(chan struct{})}
}

// followRetry bounds the wait before the next try to reach the feed.
const (
	followRetry    = 100 * time.Millisecond
	followRetryMax = 2 * time.Second
)

// Run follows until the context ends. Without the feed, what is known stays.
func (f *Follower) Run(ctx context.Context) error {
	wait, level := followRetry, slog.LevelWarn
	for {
		began := f.Mark()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end
		}
		if f.Mark() != began {
			wait, level = followRetry, slog.LevelWarn
		}
		slog.Log(ctx, level, "control sends no changes: what is known stays", "err", err, "again", wait)
		level = slog.LevelDebug // once is enough
		select {
		case <-time.After(wait):
			wait = min(2*wait, followRetryMax)
		case <-ctx.Done():
			return nil
		}
	}
}

// follow reads the feed from where the follower is.
func (f *Follower) follow(ctx context.Context) error {
	query := url.Values{"after": {f.Mark().String()}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, f.base+feedPath+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := f.http.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return doze.Errorf(doze.KindOfStatus(resp.StatusCode), "control answers %d", resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, feedLineMax)
	var seen map[factID]struct{} // since the restart
	for lines.Scan() {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return fmt.Errorf("the feed cannot be read: %w", err)
		}
		if l.Restart && seen == nil {
			seen = map[factID]struct{}{}
		}
		for _, fact := range l.Facts {
			if err := f.apply(fact, seen); err != nil {
				return err
			}
		}
		if !l.Synced {
			continue
		}
		if seen != nil {
			if err := f.dropBut(seen); err != nil {
				return err
			}
			seen = nil
		}
		f.move(l.Mark)
	}
	return errors.Join(lines.Err(), io.ErrUnexpectedEOF)
}

// apply takes over one fact.
func (f *Follower) apply(fact Fact, seen map[factID]struct{}) error {
	take, ours := f.topics[fact.Topic]
	if !ours {
		return nil
	}
	if err := take(fact.Key, fact.Value); err != nil {
		return fmt.Errorf("take over what the feed says of %s %s: %w", fact.Topic, fact.Key, err)
	}
	id := factID{fact.Topic, fact.Key}
	if fact.Value == nil {
		delete(f.known, id)
		delete(seen, id)
		return nil
	}
	f.known[id] = struct{}{}
	if seen != nil {
		seen[id] = struct{}{}
	}
	return nil
}

// dropBut drops all that is known but what was seen.
func (f *Follower) dropBut(seen map[factID]struct{}) error {
	for id := range f.known {
		if _, still := seen[id]; still {
			continue
		}
		if err := f.topics[id.topic](id.key, nil); err != nil {
			return err
		}
		delete(f.known, id)
	}
	return nil
}

// move says that the follower knows all up to a mark.
func (f *Follower) move(to Mark) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.at = to
	close(f.moved)
	f.moved = make(chan struct{})
}

// Mark is the moment up to which the follower knows all; its epoch is empty before
// the first.
func (f *Follower) Mark() Mark {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at
}

// Wait returns when the follower knows all up to a mark, or when the context ends.
// The zero mark is anything.
func (f *Follower) Wait(ctx context.Context, m Mark) error {
	for {
		f.mu.Lock()
		at, moved := f.at, f.moved
		f.mu.Unlock()
		if at.Epoch != "" && (m.Epoch == "" || at.Epoch == m.Epoch && at.Revision >= m.Revision) {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
