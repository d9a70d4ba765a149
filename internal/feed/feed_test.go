package feed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/feed"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// event is a message as a reader gets it.
type event struct {
	name, id string
	data     doze.FeedMessage
}

// stream is a reader of the feed. It is the writer of its answer too.
type stream struct {
	t      testing.TB
	cancel context.CancelFunc
	ended  chan struct{}
	header http.Header

	mu       sync.Mutex
	status   int       // guarded by mu
	text     string    // guarded by mu; that nobody took yet
	comments int       // guarded by mu
	deaf     bool      // guarded by mu; writes wait for their deadline
	deadline time.Time // guarded by mu
	last     string    // guarded by mu; the id of the last event
}

// follow opens a feed. Headers are pairs.
func follow(p *planetest.Platform, headers ...string) *stream {
	return open(p, "/v0/feed?follow=true", headers...)
}

func open(p *planetest.Platform, path string, headers ...string) *stream {
	p.T.Helper()
	ctx, cancel := context.WithCancel(p.T.Context())
	s := &stream{t: p.T, cancel: cancel, ended: make(chan struct{}), header: http.Header{}}
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://control.test"+path, http.NoBody)
	r.Header.Set("Authorization", "Bearer "+p.Key)
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	go func() {
		defer close(s.ended)
		p.HTTP.ServeHTTP(s, r)
	}()
	synctest.Wait()
	return s
}

func (s *stream) Header() http.Header { return s.header }

func (s *stream) WriteHeader(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

func (s *stream) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.deaf {
		wait := time.Until(s.deadline)
		s.mu.Unlock()
		time.Sleep(wait)
		s.mu.Lock()
		return 0, os.ErrDeadlineExceeded
	}
	s.text += string(text)
	return len(text), nil
}

func (s *stream) SetWriteDeadline(at time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = at
	return nil
}

func (s *stream) Flush() {}

// take returns what came since the last call.
func (s *stream) take() (all []event) {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status != http.StatusOK {
		s.t.Fatalf("the answer is %d %s", s.status, s.text)
	}
	for part := range strings.SplitSeq(strings.TrimSuffix(s.text, "\n\n"), "\n\n") {
		if part == ":" {
			s.comments++
			continue
		}
		if part == "" {
			continue
		}
		var e event
		for line := range strings.SplitSeq(part, "\n") {
			name, value, _ := strings.Cut(line, ": ")
			switch name {
			case "event":
				e.name = value
			case "id":
				e.id = value
			case "data":
				if err := json.Unmarshal([]byte(value), &e.data); err != nil {
					s.t.Fatal(err)
				}
			default:
				s.t.Fatalf("a line of %q", line)
			}
		}
		s.last = e.id
		all = append(all, e)
	}
	s.text = ""
	return all
}

// over reports whether the answer has ended.
func (s *stream) over() bool {
	synctest.Wait()
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// say is what events say, in short.
func say(all []event) (out []string) {
	for _, e := range all {
		text := e.name
		for _, sb := range e.data.Sandboxes {
			text += " " + sb.Name + ":" + sb.Tier
		}
		for _, name := range e.data.Gone {
			text += " -" + name
		}
		if e.data.Total != nil {
			text += fmt.Sprintf(" %d", *e.data.Total)
		}
		out = append(out, text)
	}
	return out
}

func (s *stream) want(want ...string) {
	s.t.Helper()
	if diff := cmp.Diff(want, say(s.take())); diff != "" {
		s.t.Errorf("(-want +got)\n%s", diff)
	}
}

// create makes a sandbox, and waits until its record is at rest.
func create(p *planetest.Platform, name string) {
	p.T.Helper()
	p.Create(`{"metadata":{"name":"` + name + `"},"spec":{"runtime":{"memory":1024}}}`)
	planetest.After(time.Minute)
}

func sleep(p *planetest.Platform, name string) {
	p.T.Helper()
	planetest.Want[doze.Sandbox](p, 200, "POST", "/sandboxes/"+name+"/sleep", "")
}

// TestFollow: a reader gets all sandboxes, then what changes, and nothing while nothing
// does. Two readers cost the looks of one, and none costs nothing.
func TestFollow(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		create(p, "a")
		create(p, "b")
		s := follow(p)
		s.want("state a:awake b:awake", "complete 2")
		time.Sleep(10 * time.Second)
		s.want()
		sleep(p, "a")
		other := follow(p)
		other.take()
		time.Sleep(time.Second)
		s.want("change a:paused")
		if n := p.Rooms.Feed.Looking(); n != 1 {
			t.Errorf("%d loops look", n)
		}
		planetest.Want[doze.Sandbox](p, 200, "PUT", "/sandboxes/b", `{"metadata":{"name":"b","labels":{"team":"x"}},"spec":{"runtime":{}}}`)
		time.Sleep(time.Second)
		if all := s.take(); len(all) != 1 || all[0].data.Sandboxes[0].Labels["team"] != "x" || all[0].data.Sandboxes[0].Version == "1.0" {
			t.Errorf("%+v", all)
		}
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/b", "")
		time.Sleep(5 * time.Second)
		if all := say(s.take()); len(all) == 0 || all[len(all)-1] != "change -b" {
			t.Errorf("%q", all)
		}
		time.Sleep(time.Minute)
		if s.take(); s.comments < 4 || s.comments > 5 {
			t.Errorf("%d comments in 77 s", s.comments)
		}
		s.cancel()
		other.cancel()
		if !s.over() || !other.over() || p.Rooms.Feed.Looking() != 0 {
			t.Error("somebody looks still")
		}
		once := open(p, "/v0/feed")
		once.want("state a:paused", "complete 1")
		if !once.over() {
			t.Error("without follow it goes on")
		}
		if got := planetest.Want[doze.Sandbox](p, 200, "GET", "/sandboxes/a", ""); got.State != "STANDBY" {
			t.Errorf("to be looked at made a %s", got.State)
		}
	})
}

// TestResume: a reader that is cut again and again, at any message, reads what one reads
// that never is: no gap, and no repetition.
func TestResume(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		names := []string{"a", "b", "c", "d"}
		for _, name := range names {
			create(p, name)
		}
		whole := follow(p)
		whole.take()
		cut := follow(p)
		cut.take()
		at := cut.last
		var want, got []string
		random := rand.New(rand.NewPCG(1, 2))
		for range 60 {
			name := names[random.IntN(len(names))]
			if random.IntN(2) == 0 {
				sleep(p, name)
			} else {
				planetest.Want[doze.Sandbox](p, 200, "POST", "/sandboxes/"+name+"/wake", "")
			}
			time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
			for _, e := range whole.take() {
				want = append(want, e.id+" "+say([]event{e})[0])
			}
			// It takes only a part of what came, and comes again behind that.
			came := cut.take()
			came = came[:min(len(came), random.IntN(4))]
			for _, e := range came {
				got = append(got, e.id+" "+say([]event{e})[0])
				at = e.id
			}
			cut.cancel()
			if random.IntN(10) == 0 {
				time.Sleep(30 * time.Second)
			}
			cut = follow(p, "Last-Event-ID", at)
		}
		time.Sleep(2 * time.Second)
		for _, e := range whole.take() {
			want = append(want, e.id+" "+say([]event{e})[0])
		}
		for _, e := range cut.take() {
			got = append(got, e.id+" "+say([]event{e})[0])
		}
		if diff := cmp.Diff(want, got); diff != "" || len(want) < 20 {
			t.Errorf("(-never cut +cut)\n%s", diff)
		}
		whole.cancel()
		cut.cancel()
	})
}

// TestAnew: a reader that nobody remembers begins with all sandboxes.
func TestAnew(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		create(p, "a")
		s := follow(p)
		s.take()
		s.cancel()
		time.Sleep(59 * time.Second)
		remembered := follow(p, "Last-Event-ID", s.last)
		remembered.want()
		remembered.cancel()
		for name, id := range map[string]string{"of a state": strings.Split(s.last, ".")[0] + ".0", "of the future": strings.Split(s.last, ".")[0] + ".99", "nonsense": "x"} {
			again := follow(p, "Last-Event-ID", id)
			if got := say(again.take()); !slices.Equal(got, []string{"state a:awake", "complete 1"}) {
				t.Errorf("%s: %q", name, got)
			}
			again.cancel()
		}
		time.Sleep(61 * time.Second)
		late := follow(p, "Last-Event-ID", s.last)
		late.want("state a:awake", "complete 1")
		late.cancel()
	})
}

// TestEnds: a stream ends when its reader may read no longer, when the node does not
// answer, and when the process ends. The next call says why.
func TestEnds(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		create(p, "a")
		few := planetest.As(p.KeyFor("main", time.Time{}, "sandboxes:get"))
		if w := p.Do("GET", "/feed", "", few...); w.Code != http.StatusForbidden {
			t.Errorf("without the scope: %d", w.Code)
		}
		made := planetest.Want[map[string]any](p, 200, "POST", "/api_keys", `{"name":"x","scopes":["sandboxes:list"]}`)
		s := follow(p, planetest.As(made["apiKey"].(string))...)
		s.want("state a:awake", "complete 1")
		p.Creds.RemoveKey(made["id"].(string))
		if time.Sleep(3 * time.Second); !s.over() {
			t.Error("a deleted key reads on")
		}
		s = follow(p)
		s.take()
		p.Node.Set("consumption", doze.Wrap(errors.New("gone"), doze.Unavailable, "the node is away"))
		if time.Sleep(2 * time.Second); !s.over() {
			t.Error("a reader does not hear that nobody looks")
		}
		if w := p.Do("GET", "/feed?follow=true", ""); w.Code != http.StatusServiceUnavailable {
			t.Errorf("without a node: %d", w.Code)
		}
		p.Node.Set("consumption", nil)
		sleep(p, "a")
		s = follow(p, "Last-Event-ID", s.last)
		s.want("change a:paused")
		p.Rooms.Feed.Close()
		if !s.over() {
			t.Error("it goes on when the process ends")
		}
		if w := p.Do("GET", "/feed?follow=true", ""); w.Code != http.StatusServiceUnavailable {
			t.Errorf("at the end: %d", w.Code)
		}
	})
}

// TestBounds: a credential has so many feeds, and a slow reader holds up nobody.
func TestBounds(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		create(p, "a")
		var all []*stream
		for range feed.KeyReadersMax {
			all = append(all, follow(p))
		}
		if w := p.Do("GET", "/feed?follow=true", ""); w.Code != http.StatusTooManyRequests || !strings.Contains(w.Body.String(), "close one first") {
			t.Errorf("one too many: %d %s", w.Code, w.Body)
		}
		slow, quick := all[0], all[1]
		slow.mu.Lock()
		slow.deaf = true
		slow.mu.Unlock()
		quick.take()
		for i := range 5 {
			if i%2 == 0 {
				sleep(p, "a")
			} else {
				planetest.Want[doze.Sandbox](p, 200, "POST", "/sandboxes/a/wake", "")
			}
			time.Sleep(time.Second)
			if got := quick.take(); len(got) != 1 {
				t.Errorf("a quick one gets %q", say(got))
			}
		}
		if time.Sleep(8 * time.Second); !slow.over() {
			t.Error("a slow reader stays")
		}
		slow.mu.Lock()
		slow.deaf = false
		slow.mu.Unlock()
		s := follow(p, "Last-Event-ID", slow.last)
		s.take()
		s.cancel()
		for _, one := range all {
			one.cancel()
		}
	})
}
