package node_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest"
)

// programs are the programs of the images of a host, as the agents of all its machines
// have them.
type programs struct {
	mu      sync.Mutex
	begun   []string            // guarded by mu; machine and body of each
	started []string            // guarded by mu; the same of processes
	quiet   string              // guarded by mu; what ran before an archive
	state   agentapi.ImageState // guarded by mu
	asked   int                 // guarded by mu
	changed chan struct{}       // guarded by mu; closed with the next change
}

// runs has the images of a host say what they run.
func (h *host) runs(config doze.ImageConfig) *programs {
	h.image = config
	all := &programs{changed: make(chan struct{}), quiet: "[]"}
	quiet := h.Handler
	h.Handler = func(c machine.Config, port uint16) http.Handler {
		inner := quiet(c, port)
		if port != doze.AgentPort {
			return inner
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !all.serve(c.ID, w, r) {
				inner.ServeHTTP(w, r)
			}
		})
	}
	return all
}

// serve answers what is about programs.
func (a *programs) serve(id string, w http.ResponseWriter, r *http.Request) bool {
	switch r.Method + " " + r.URL.Path {
	case "POST /doze/image", "POST /process":
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return true
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if r.URL.Path == "/process" {
			a.started = append(a.started, id+" "+string(body))
		} else {
			a.begun = append(a.begun, id+" "+string(body))
		}
		_, _ = io.WriteString(w, "{}")
	case "POST /doze/quiesce":
		a.mu.Lock()
		defer a.mu.Unlock()
		_, _ = fmt.Fprintf(w, `{"processes":%s}`, a.quiet)
	case "GET /doze/image":
		a.await(w, r)
	default:
		return false
	}
	return true
}

func (a *programs) await(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
	for {
		a.mu.Lock()
		state, changed := a.state, a.changed
		if state.Change != after {
			a.asked++
			_ = json.NewEncoder(w).Encode(state)
			a.mu.Unlock()
			return
		}
		a.mu.Unlock()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// is makes a change, and has nodes hear of it.
func (a *programs) is(do func(*agentapi.ImageState)) {
	a.mu.Lock()
	do(&a.state)
	a.state.Change++
	a.state.At = time.Now().UnixMilli()
	close(a.changed)
	a.changed = make(chan struct{})
	a.mu.Unlock()
	time.Sleep(3 * time.Second) // longer than a node waits between two answers
	synctest.Wait()
}

// all are the programs that were begun until now.
func (a *programs) all() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.begun)
}

// starts are the processes that were started since the last look.
func (a *programs) starts() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.started
	a.started = nil
	return all
}

// questions is how often somebody heard how a program is.
func (a *programs) questions() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}

// ran says what ran before an archive.
func (a *programs) ran(processes string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.quiet = processes
}

// events are what control hears about a sandbox besides its phases.
func (h *host) events(uid string) (all []string) {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.reports {
		if r.UID == uid && r.Note {
			all = append(all, r.Message)
		}
	}
	return all
}

var server = doze.ImageConfig{
	Entrypoint: []string{"/start"}, Cmd: []string{"serve", "a b"}, StopSignal: "SIGINT", Ports: []string{"80/tcp"},
	Health: &doze.ImageHealth{Test: []string{"CMD", "check"}, Interval: 1.5, Timeout: 2, StartPeriod: 3, StartInterval: 4, Retries: 5},
}

const begun = `{"program":["/start","serve","a b"],"stopSignal":2,` +
	`"health":{"test":["CMD","check"],"intervalMillis":1500,"timeoutMillis":2000,"startPeriodMillis":3000,"startIntervalMillis":4000,"retries":5}}`

// TestProgramBegins: the program of an image begins once on each fresh machine, and never
// where memory has it.
func TestProgramBegins(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		all := h.runs(server)
		p := h.has("a")
		want := []string{"a " + begun}
		same := func(when string) {
			t.Helper()
			if diff := cmp.Diff(want, all.all()); diff != "" {
				t.Errorf("%s: %s", when, diff)
			}
		}
		same("created")
		p.sleep("disk")
		p.hello("a")
		p.snap("a", "n1")
		if err := p.fork("b", "n1"); err != nil {
			t.Fatal(err)
		}
		p.hello("b")
		p.stop()
		p = h.start()
		p.hello("a")
		same("slept, woken, forked, and adopted")

		o := order("c")
		o.NoEntrypoint = true
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		p.hello("c")
		same("without a program")
		if st, _ := p.Status("c"); st.Entrypoint == nil || st.Entrypoint.Status != doze.EntrypointDisabled {
			t.Errorf("it shows %+v", st.Entrypoint)
		}

		// It starts again with the other processes, if it ran before the archive.
		for _, ran := range []string{`[{"name":"entrypoint","command":""},{"name":"app","command":"run"}]`, `[]`} {
			all.ran(ran)
			if _, err := p.Archive(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			if err := p.Unarchive(t.Context(), order("a")); err != nil {
				t.Fatal(err)
			}
			want = append(want, "a "+strings.Replace(begun, `"stopSignal"`, `"waits":true,"stopSignal"`, 1))
			same("unarchived")
		}
		if diff := cmp.Diff([]string{`a {"command":"","name":"entrypoint"}`, `a {"command":"run","name":"app"}`}, all.starts()); diff != "" {
			t.Error(diff)
		}
		all.ran(`[{"name":"entrypoint","command":""}]`)
		h.FailNext(machinetest.OpArchive, errBroken)
		if _, err := p.Archive(t.Context(), "a"); err == nil {
			t.Error("it is archived")
		}
		same("not archived")
		if diff := cmp.Diff([]string{`a {"command":"","name":"entrypoint"}`}, all.starts()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestProgramOfSpares: the program begins when a machine is somebody's, and not before.
func TestProgramOfSpares(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		all := h.runs(server)
		p := h.startWith(h.spare(1))
		p.create("a")
		spares := h.machines("a")
		if len(spares) != 1 || len(all.all()) != 1 {
			t.Fatalf("spare machines %q, programs %q", spares, all.all())
		}
		p.create("b")
		if diff := cmp.Diff([]string{"a " + begun, spares[0] + " " + begun}, all.all()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestProgramOfOthers: an image that says nothing has nothing begun, and its agent is not
// asked. One whose program is an agent has its check alone.
func TestProgramOfOthers(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		all := h.runs(doze.ImageConfig{})
		p := h.has("a")
		p.hello("a")
		time.Sleep(5 * time.Second)
		if st, _ := p.Status("a"); st.Entrypoint != nil || len(all.all()) != 0 || all.questions() != 0 {
			t.Errorf("it shows %+v, began %q, and was asked %d times", st.Entrypoint, all.all(), all.questions())
		}
		h.image = doze.ImageConfig{Entrypoint: []string{"/usr/bin/sandbox-api"}, Ports: []string{"3000/tcp"}}
		if err := p.Create(t.Context(), order("b")); err != nil {
			t.Fatal(err)
		}
		want := &doze.Entrypoint{Ports: []string{"3000/tcp"}}
		if st, _ := p.Status("b"); !cmp.Equal(st.Entrypoint, want) || len(all.all()) != 0 {
			t.Errorf("it shows %+v, and began %q", st.Entrypoint, all.all())
		}
		h.image.Health = &doze.ImageHealth{Test: []string{"CMD", "check"}}
		if err := p.Create(t.Context(), order("c")); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{`c {"health":{"test":["CMD","check"]}}`}, all.all()); diff != "" {
			t.Error(diff)
		}
	})
}

// TestProgramNews: the node knows how the program is. Its owner hears once of what is
// wrong. Nobody is awake because of that.
func TestProgramNews(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		all := h.runs(server)
		p := h.has("a")
		shows := func(want doze.Entrypoint) {
			t.Helper()
			want.Ports = []string{"80/tcp"}
			if st, _ := p.Status("a"); !cmp.Equal(&want, st.Entrypoint) {
				t.Errorf("it shows %+v, want %+v", st.Entrypoint, want)
			}
		}
		shows(doze.Entrypoint{})
		all.is(func(s *agentapi.ImageState) { s.Status, s.Health = "running", "starting" })
		shows(doze.Entrypoint{Status: "running", Health: "starting"})
		all.is(func(s *agentapi.ImageState) { s.Health, s.Output = "unhealthy", "refused\n" })
		shows(doze.Entrypoint{Status: "running", Health: "unhealthy", HealthOutput: "refused\n"})
		const sick = `the health check of its image fails: "refused"`
		hears := func(want ...string) {
			t.Helper()
			if diff := cmp.Diff(want, h.events("a")); diff != "" {
				t.Error(diff)
			}
		}
		hears(sick)
		p.sleep("paused") // although the node waits for a change
		shows(doze.Entrypoint{Status: "running", Health: "unhealthy", HealthOutput: "refused\n"})
		asked := all.questions()
		p.sleep("disk")
		p.hello("a")
		time.Sleep(3 * time.Second)
		hears(sick)
		if all.questions() != asked {
			t.Error("it was asked in its sleep, or hears of what it knows")
		}
		for range 3 { // back and forth: once in a while
			all.is(func(s *agentapi.ImageState) { s.Health = "healthy" })
			all.is(func(s *agentapi.ImageState) { s.Health = "unhealthy" })
		}
		hears(sick)
		p.hello("a")
		all.is(func(s *agentapi.ImageState) { s.Status, s.Health, s.ExitCode, s.Restarts = "failed", "", 3, 10 })
		const broken = "the program of its image failed with the exit code 3, after 10 restarts: see the logs of the process entrypoint"
		hears(sick, broken)

		// The next node knows as soon as the sandbox is awake, and says nothing twice.
		p.stop()
		p = h.start()
		p.hello("a")
		time.Sleep(3 * time.Second)
		shows(doze.Entrypoint{Status: "failed", ExitCode: 3, RestartCount: 10, HealthOutput: "refused\n"})
		hears(sick, broken)

		// A copy has the past, and no news of it.
		p.snap("a", "n1")
		if err := p.fork("b", "n1"); err != nil {
			t.Fatal(err)
		}
		p.hello("b")
		time.Sleep(3 * time.Second)
		if st, _ := p.Status("b"); st.Entrypoint == nil || st.Entrypoint.Status != "failed" || len(h.events("b")) != 0 {
			t.Errorf("a fork shows %+v, and its owner hears %q", st.Entrypoint, h.events("b"))
		}
	})
}

// TestProgramThatCannotStart: the sandbox is there, and its owner hears why it has no
// program.
func TestProgramThatCannotStart(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		all := h.runs(server)
		p := h.has("a")
		all.is(func(s *agentapi.ImageState) { s.Status, s.Message = "failed", "there is no program" })
		p.hello("a")
		if got := h.events("a"); !slices.Equal(got, []string{`the program of its image could not be started: "there is no program"`}) {
			t.Errorf("its owner hears %q", got)
		}
	})
}

// TestProgramOfHostileAgent: whatever an agent answers, the node goes on, and its owner
// hears no flood.
func TestProgramOfHostileAgent(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		all := h.runs(server)
		p := h.has("a")
		for i, s := range []agentapi.ImageState{
			{Status: "<script>", Health: "well", Message: "x"},
			{Change: -9, Status: "failed", Message: strings.Repeat("\xff\n", 5000)},
			{Change: 1 << 62, At: 1 << 62, Health: "unhealthy", Output: strings.Repeat("ä", 5000)},
			{Status: "failed", ExitCode: -1 << 31},
		} {
			p.hello("a")
			all.is(func(now *agentapi.ImageState) { *now = s })
			st, _ := p.Status("a")
			if e := st.Entrypoint; len(e.Status) > 9 || len(e.Health) > 9 || len(e.Message)+len(e.HealthOutput) > 2<<10 {
				t.Errorf("answer %d shows %+v", i, e)
			}
		}
		if got := h.events("a"); len(got) > 2 || len(strings.Join(got, "")) > 2000 {
			t.Errorf("its owner hears %q", got)
		}
		p.sleep("disk")
	})
}

// TestProgramOfOldAgent: an agent that does not know programs is asked once, and the
// sandbox is as it was.
func TestProgramOfOldAgent(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		h.image = server
		h.set(func() { h.old = true })
		p := h.start()
		o := order("a")
		o.Name = "box" // as on record
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		p.hello("a")
		p.sleep("disk")
		p.hello("a")
	})
}
