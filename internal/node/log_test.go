package node_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/logbook"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node"
)

// withLogs has the nodes of a host store output, until the test ends.
func (h *host) withLogs(o *node.Options) {
	h.t.Helper()
	b, err := logbook.Open(logbook.Options{
		Dir: filepath.Join(h.dir, "logs"), Retention: time.Hour, Quota: 1 << 20,
		Room: func(int64) (func(), error) { return func() {}, nil },
	})
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(h.t.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = b.Run(ctx) })
	h.t.Cleanup(func() { stop(); running.Wait() })
	o.Logbook = b
}

// feed is the output of an agent.
type feed struct {
	mu      sync.Mutex
	chunks  []agentapi.Chunk // guarded by mu
	changed chan struct{}    // guarded by mu; closed with the next write
	calls   int              // guarded by mu
	last    int64            // guarded by mu; stamp
}

// write adds a line.
func (f *feed) write(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = max(f.last+1000, time.Now().UnixNano())
	f.chunks = append(f.chunks, agentapi.Chunk{At: f.last, Process: "app", Stream: "stdout", Text: text})
	close(f.changed)
	f.changed = make(chan struct{})
}

// serve answers what a node asks about output.
func (f *feed) serve(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
	for {
		f.mu.Lock()
		out := agentapi.Collected{Chunks: []agentapi.Chunk{}}
		for _, c := range f.chunks {
			if c.At > after {
				out.Chunks = append(out.Chunks, c)
			}
		}
		changed := f.changed
		f.calls++
		f.mu.Unlock()
		if r.URL.Path == "/doze/logs" || len(out.Chunks) > 0 {
			_ = json.NewEncoder(w).Encode(out)
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// talks has the agents of a host write to a feed.
func (h *host) talks() *feed {
	f := &feed{changed: make(chan struct{})}
	quiet := h.Handler
	h.Handler = func(c machine.Config, port uint16) http.Handler {
		inner := quiet(c, port)
		if port != doze.AgentPort {
			return inner
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, "/doze/logs") {
				f.serve(w, r)
				return
			}
			inner.ServeHTTP(w, r)
		})
	}
	return f
}

// logOf is the log of the sandbox a, the oldest line first.
func (p *process) logOf() string {
	p.h.t.Helper()
	page, err := p.Logs(p.h.t.Context(), fleet.LogQuery{Workspace: order("a").Workspace, Name: order("a").Name, OldestFirst: true, Limit: 100, Bytes: 1 << 20})
	if err != nil {
		p.h.t.Fatal(err)
	}
	var all []string
	for _, l := range page.Lines {
		all = append(all, l.Text)
	}
	return strings.Join(all, " ")
}

// TestLogs: what processes write is stored as they write it, at most once, over sleeps and
// a new node. It wakes nobody, holds nobody awake, and outlives the sandbox.
func TestLogs(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		said := h.talks()
		start := func() *process {
			o := h.options()
			h.withLogs(&o)
			return h.startWith(o)
		}
		p := start()
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		said.write("one\n")
		if got := p.logOf(); got != "one" {
			t.Errorf("at once the log is %q", got)
		}
		said.write("two\n")
		p.sleep("paused") // although the node waits for output
		calls := said.calls
		said.write("three\n") // which a process of a sleeping sandbox cannot: the node must not see it
		time.Sleep(time.Hour / 4)
		if got := p.logOf(); got != "one two" || said.calls != calls {
			t.Errorf("asleep the log is %q, after %d calls", got, said.calls-calls)
		}
		p.hello("a")
		time.Sleep(2 * time.Second)
		if got := p.logOf(); got != "one two three" {
			t.Errorf("awake the log is %q", got)
		}
		p.stop()
		p = start()
		p.hello("a")
		time.Sleep(2 * time.Second)
		said.write("four\n")
		if got := p.logOf(); got != "one two three four" {
			t.Errorf("with a new node the log is %q", got)
		}
		said.write("last\n")
		if err := p.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if got := p.logOf(); got != "one two three four last" {
			t.Errorf("of a deleted sandbox the log is %q", got)
		}
		p.empty("a")
	})
}

// TestLogsOfAdopted: a new node goes on with the output of a sandbox that never slept, though
// nobody looks at its log.
func TestLogsOfAdopted(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		said := h.talks()
		o := h.options()
		h.withLogs(&o)
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		h.set(func() { h.holds["a"] = 1 }) // it stays awake
		p.stop()
		p = h.startWith(o)
		said.write("on\n")
		time.Sleep(5 * time.Second)
		stamp, err := o.Logbook.Stamp(t.Context(), "a")
		if err != nil || stamp != said.last {
			t.Errorf("the newest line that is stored is of %d, not of %d, %v", stamp, said.last, err)
		}
		if err := p.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	})
}

// TestLogsOfFlood: a sandbox that always writes has its output collected at a rate, and
// the node asks it no more often than that.
func TestLogsOfFlood(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		said := h.talks()
		o := h.options()
		h.withLogs(&o)
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		h.set(func() { h.holds["a"] = 1 }) // it stays awake
		stop := make(chan struct{})
		var writer sync.WaitGroup
		writer.Go(func() {
			for {
				said.write(strings.Repeat("x", 99<<10) + "\n")
				select {
				case <-stop:
					return
				case <-time.After(50 * time.Millisecond):
				}
				said.mu.Lock()
				if n := len(said.chunks); n > 1 { // it has room for the newest alone
					said.chunks = said.chunks[n-1:]
				}
				said.mu.Unlock()
			}
		})
		time.Sleep(10 * time.Minute)
		close(stop)
		writer.Wait()
		// 128 KiB in a second, and 4 MiB at once: about 800 chunks of 99 KiB.
		if said.calls < 400 || said.calls > 2500 {
			t.Errorf("the agent was asked %d times", said.calls)
		}
		if err := p.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	})
}

// TestLogsOfOldAgent: the log says why there is no output.
func TestLogsOfOldAgent(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		h.set(func() { h.old = true })
		o := h.options()
		h.withLogs(&o)
		p := h.startWith(o)
		in := order("a")
		in.Name = "box" // as on record
		if err := p.Create(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		page, err := p.Logs(t.Context(), fleet.LogQuery{Workspace: in.Workspace, Name: in.Name, Limit: 10, Bytes: 1 << 20})
		if err != nil || len(page.Lines) != 1 || !strings.Contains(page.Lines[0].Text, "agent is older") {
			t.Errorf("the log is %+v, %v", page, err)
		}
		p.sleep("paused")
	})
}

// TestLogsOfHostileAgent: whatever an agent answers, the node goes on.
func TestLogsOfHostileAgent(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		answers := []string{"{", `{"chunks":[{"at":-5}]}`, strings.Repeat(`[`, 1<<20), `{"chunks":[{"at":9223372036854775807,"text":"far\n","process":"\n#"}]}`, ""}
		var mu sync.Mutex
		asked := 0
		quiet := h.Handler
		h.Handler = func(c machine.Config, port uint16) http.Handler {
			inner := quiet(c, port)
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if port != doze.AgentPort || !strings.HasPrefix(r.URL.Path, "/doze/logs") {
					inner.ServeHTTP(w, r)
					return
				}
				mu.Lock()
				answer := answers[asked%len(answers)]
				asked++
				mu.Unlock()
				_, _ = fmt.Fprint(w, answer)
			})
		}
		o := h.options()
		h.withLogs(&o)
		p := h.startWith(o)
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		p.sleep("paused")
		p.hello("a")
		p.sleep("disk")
		mu.Lock()
		if asked == 0 || asked > 200 {
			t.Errorf("it was asked %d times", asked)
		}
		mu.Unlock()
		if got := p.logOf(); got != "far" {
			t.Errorf("its log is %q", got)
		}
		if err := p.Delete(t.Context(), "a"); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}
