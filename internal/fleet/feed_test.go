package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// copies is what a follower knows.
type copies struct {
	mu  sync.Mutex
	all map[string]string // guarded by mu
}

func (c *copies) apply(key string, raw json.RawMessage) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if raw == nil {
		delete(c.all, key)
		return nil
	}
	var value string
	err := json.Unmarshal(raw, &value)
	c.all[key] = value
	return err
}

func (c *copies) now() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.all)
}

// followed is a server whose feed can be replaced, as by a restart of its process.
type followed struct {
	*httptest.Server

	mu   sync.Mutex
	feed *Feed // guarded by mu
}

func serveFeed(t *testing.T, f *Feed) *followed {
	t.Helper()
	s := &followed{feed: f}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		f := s.feed
		s.mu.Unlock()
		f.Serve(w, r)
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

func (s *followed) replace(f *Feed) {
	s.mu.Lock()
	s.feed = f
	s.mu.Unlock()
	s.CloseClientConnections()
}

// follower follows until the test ends.
func (s *followed) follower(t *testing.T) (*Follower, *copies) {
	t.Helper()
	c := &copies{all: map[string]string{}}
	f := NewFollower(s.URL, &http.Transport{}, map[string]Apply{"x": c.apply})
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = f.Run(ctx) })
	t.Cleanup(func() { cancel(); run.Wait() })
	return f, c
}

// knows waits until a follower is at the end of a feed, and compares.
func knows(t *testing.T, f *Follower, c *copies, feed *Feed, want map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := f.Wait(ctx, feed.Mark()); err != nil {
		t.Fatalf("it is at %s, and the feed at %s: %v", f.Mark(), feed.Mark(), err)
	}
	if diff := cmp.Diff(want, c.now()); diff != "" {
		t.Errorf("what is known (-want +got):\n%s", diff)
	}
}

func TestFeed(t *testing.T) {
	t.Parallel()
	feed := NewFeed()
	tell := feed.Topic("x")
	tell("before", "1")
	tell("gone before", "1")
	tell("gone before", nil)
	tell("never there", nil)
	feed.Tell("of a newer version", "a", map[string]int{"b": 1})
	s := serveFeed(t, feed)
	f, c := s.follower(t)
	knows(t, f, c, feed, map[string]string{"before": "1"})

	tell("later", "1")
	tell("later", "2")
	tell("before", nil)
	knows(t, f, c, feed, map[string]string{"later": "2"})

	mark := feed.Mark()
	tell("later", "2") // no change
	if feed.Mark() != mark {
		t.Error("what did not change is told again")
	}

	// A way that breaks costs nothing.
	s.CloseClientConnections()
	tell("meanwhile", "1")
	tell("later", nil)
	knows(t, f, c, feed, map[string]string{"meanwhile": "1"})

	// Another process knows other things.
	next := NewFeed()
	next.Tell("x", "new", "1")
	s.replace(next)
	knows(t, f, c, next, map[string]string{"new": "1"})
}

// TestFeedBatches tells more than one line can have, and more that is gone than a
// feed remembers.
func TestFeedBatches(t *testing.T) {
	t.Parallel()
	feed := NewFeed()
	tell := feed.Topic("x")
	want := map[string]string{}
	for i := range 3*feedBatch + 1 {
		want[fmt.Sprint(i)] = "1"
		tell(fmt.Sprint(i), "1")
	}
	s := serveFeed(t, feed)
	f, c := s.follower(t)
	knows(t, f, c, feed, want)

	at := f.Mark()
	for i := range gonesMax + 10 {
		key := fmt.Sprintf("short-lived-%d", i)
		tell(key, "1")
		tell(key, nil)
	}
	if n := feed.gones.Len(); n != gonesMax || len(feed.facts) != gonesMax+len(want) || feed.order.Len() != len(feed.facts) {
		t.Errorf("%d that are gone are remembered, and %d facts", n, len(feed.facts))
	}
	if feed.stands(at) {
		t.Error("who missed too much may go on")
	}
	knows(t, f, c, feed, want)
}

// TestFeedUnderChange has things come and go while followers come and break: each
// knows the same in the end.
func TestFeedUnderChange(t *testing.T) {
	t.Parallel()
	feed := NewFeed()
	s := serveFeed(t, feed)
	want := map[string]string{}
	var followers []*Follower
	var all []*copies
	for i := range 20_000 {
		if i%4000 == 0 {
			f, c := s.follower(t)
			followers, all = append(followers, f), append(all, c)
		}
		if i%3000 == 2999 {
			s.CloseClientConnections()
		}
		key := fmt.Sprint(rand.IntN(4 * feedBatch))
		if rand.IntN(3) == 0 {
			delete(want, key)
			feed.Tell("x", key, nil)
			continue
		}
		want[key] = fmt.Sprint(i)
		feed.Tell("x", key, want[key])
	}
	for i, f := range followers {
		knows(t, f, all[i], feed, want)
	}
}

func TestMark(t *testing.T) {
	t.Parallel()
	m := NewFeed().Mark()
	if back, err := ParseMark(m.String()); err != nil || back != m {
		t.Errorf("%v, %v", back, err)
	}
	for _, text := range []string{"", ".", "a", ".1", "a.", "a.-1", "a.1.2"} {
		if m, err := ParseMark(text); err == nil {
			t.Errorf("%q is %v", text, m)
		}
	}
}

// TestWaitEnds: a mark of another epoch never comes by itself.
func TestWaitEnds(t *testing.T) {
	t.Parallel()
	feed := NewFeed()
	f, _ := serveFeed(t, feed).follower(t)
	if err := f.Wait(t.Context(), Mark{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := f.Wait(ctx, Mark{Epoch: "another", Revision: 0}); err == nil {
		t.Error("it knows a feed that it never followed")
	}
}

// FuzzFollower reads what a feed might send.
func FuzzFollower(f *testing.F) {
	f.Add(`{"Epoch":"e","Revision":1,"Restart":true,"Synced":true,"Facts":[{"Topic":"x","Key":"a","Value":"1"}]}` + "\n")
	f.Add(`{"Facts":[{"Topic":"x","Key":"a"}]}`)
	f.Add("null\n[]\n")
	f.Fuzz(func(t *testing.T, text string) {
		c := &copies{all: map[string]string{}}
		follower := NewFollower("http://control", says(text), map[string]Apply{"x": c.apply})
		if err := follower.follow(t.Context()); err == nil {
			t.Error("a feed ended, and nobody was told")
		}
		if len(c.all) > strings.Count(text, "{") {
			t.Errorf("%d facts", len(c.all))
		}
	})
}

type says string

func (s says) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(string(s)))}, nil
}

// TestTold: what one directory tells, another one knows, until it is gone.
func TestTold(t *testing.T) {
	t.Parallel()
	feed := NewFeed()
	directory, previews := NewDirectory(), NewPreviews()
	directory.Put(Upstream{UID: "early", Workspace: "w", Name: "early", Enabled: true})
	directory.Tell(feed.Topic("routes"))
	previews.Tell(feed.Topic("previews"), feed.Topic("domains"))

	upstreams, copied := NewDirectory(), NewPreviews()
	s := serveFeed(t, feed)
	f := NewFollower(s.URL, &http.Transport{}, map[string]Apply{"routes": upstreams.Apply, "previews": copied.Apply, "domains": copied.ApplyDomain})
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = f.Run(ctx) })
	defer run.Wait()
	defer cancel()
	same := func() {
		t.Helper()
		if err := f.Wait(ctx, feed.Mark()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(directory.byName, upstreams.byName); diff != "" {
			t.Error("routes:", diff)
		}
		if diff := cmp.Diff(previews.byLabel, copied.byLabel); diff != "" {
			t.Error("previews:", diff)
		}
		if diff := cmp.Diff(previews.domains, copied.domains); diff != "" {
			t.Error("domains:", diff)
		}
	}
	until := time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)
	directory.Put(Upstream{UID: "1", Workspace: "w", Name: "a-b", Enabled: true, Failed: true, Why: "no file", Building: true, Until: until})
	previews.PutDomain(Domain{Name: "example.test", Workspace: "w", Shared: []string{"v"}, Fallback: "x"})
	previews.Put(Preview{
		ID: "p", Label: "x", Domain: "example.test", Workspace: "w", Sandbox: "a-b", Port: 80, Public: true, Expires: until,
		RequestHeaders: map[string]string{"A": "b"}, ResponseHeaders: map[string]string{"C": "d"},
		Tokens: map[TokenHash]time.Time{HashToken("good"): {}, HashToken("late"): until},
	})
	same()
	if p, ok := copied.Find("x", until.Add(-time.Hour)); !ok || !p.Opens("good", until) {
		t.Errorf("the copy of a preview is %+v, %t", p, ok)
	}
	directory.Drop("w", "a-b", "another")
	directory.Drop("w", "a-b", "1")
	directory.Drop("w", "never", "")
	previews.Drop("x", "p")
	previews.DropDomain("example.test", "w")
	same()
	if len(upstreams.byName) != 1 || len(copied.byLabel)+len(copied.domains) != 0 {
		t.Errorf("left: %v %v %v", upstreams.byName, copied.byLabel, copied.domains)
	}
	for _, text := range []string{"", "00", strings.Repeat("0", 63), strings.Repeat("0", 66), strings.Repeat("x", 64)} {
		if err := new(TokenHash).UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is the hash of a token", text)
		}
	}
}
