package e2e_test

import (
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/collector"
	"github.com/dozehq/doze/internal/trace"
)

// stages are those of each kind of trace, by where it comes from. A wait for a
// change that is under way may come besides.
var stages = map[string][]string{
	"wake paused":     {"admit", "turn", "memory", "launch", "launch/engine", "connect", "answer"},
	"wake saved":      {"admit", "turn", "memory", "retire", "launch", "launch/engine", "connect", "answer"},
	"wake disk":       {"admit", "turn", "memory", "manifest", "verify", "prepare", "prepare/process", "launch", "launch/link", "launch/engine", "connect", "answer"},
	"create image":    {"admit", "image", "commit", "memory", "network", "volumes", "launch", "launch/process", "launch/link", "launch/engine", "agent", "publish"},
	"create snapshot": {"admit", "image", "commit", "memory", "network", "volumes", "share", "manifest", "verify", "prepare", "prepare/process", "launch", "launch/link", "launch/engine", "agent", "publish"},
	"create spare":    {"admit", "image", "commit", "network", "launch", "launch/engine", "agent", "publish"},
}

// TestStagesAreKnown: each stage of the table is one of a real wake or create
// that TestTraces makes.
func TestStagesAreKnown(t *testing.T) {
	t.Parallel()
	// It depends on the moment whether these are there: see node.TestTraceOfWake
	// and node.TestTraceOfLostMachine.
	known := map[string]bool{"settle": true, "find": true}
	for _, list := range stages {
		for _, name := range list {
			known[path.Base(name)] = true
		}
	}
	for _, name := range trace.Stages() {
		if !known[name] {
			t.Errorf("no real trace has the stage %s", name)
		}
		delete(known, name)
	}
	if len(known) > 0 {
		t.Errorf("these are no stages: %v", known)
	}
}

// check fails unless a trace of a sandbox that has ended makes sense.
func check(t *testing.T, tr doze.Trace) {
	t.Helper()
	var names []string
	places := map[string]doze.TraceStage{}
	for _, s := range tr.Stages {
		if s.Name == "settle" {
			continue
		}
		places[s.Name] = s
		name := s.Name
		if s.Within != "" {
			name = s.Within + "/" + name
			in := places[s.Within]
			if s.StartUs < in.StartUs || s.StartUs+s.TookUs > in.StartUs+in.TookUs+1 {
				t.Errorf("%s is not within its stage: %+v, %+v", name, s, in)
			}
		}
		if s.StartUs < 0 || s.TookUs < 0 || s.Name != "answer" && s.StartUs+s.TookUs > tr.WaitedUs+1 {
			t.Errorf("the caller waited %d µs, and %s is %+v", tr.WaitedUs, name, s)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	want := slices.Sorted(slices.Values(stages[tr.Kind+" "+tr.From]))
	if d := cmp.Diff(want, slices.Compact(names)); d != "" || tr.Status != doze.TraceDone || tr.Error != "" {
		t.Errorf("%s from %s, %s %s:\n%s", tr.Kind, tr.From, tr.Status, tr.Error, d)
	}
}

// TestTraces wakes a sandbox from every tier, and makes others in every way: each
// trace has its stages, their times fit into what the caller waited, and the
// metrics count them.
func TestTraces(t *testing.T) {
	t.Parallel()
	sink := collector.Serve(t)
	p, c := launch(t, nil, testkit.Options{Args: []string{"--otlp-endpoint", sink.URL, "--warm-pool", "0", "--ready", "0", "--pause-after", "300ms", "--save-after", "500ms", "--disk-after", "8s"}})
	seen := map[string]bool{}
	last := func(name string) doze.Trace {
		t.Helper()
		all, err := c.Traces(t.Context(), name)
		if err != nil || len(all) == 0 {
			t.Fatalf("%+v, %v", all, err)
		}
		check(t, all[0])
		seen[all[0].Kind+" "+all[0].From] = true
		return all[0]
	}
	sb, _ := create(t, c, named("first", 512))
	if tr := last("first"); tr.Kind != doze.TraceCreate || tr.From != "image" {
		t.Errorf("%+v", tr)
	}
	for _, tier := range []string{"paused", "saved", "disk"} {
		if saved := strings.Count(p.Printed(), `"tier":"saved"`); tier == "saved" {
			until(t, "a checkpoint", func() bool { return strings.Count(p.Printed(), `"tier":"saved"`) > saved })
		} else {
			awaitTier(t, p, "first", tier)
		}
		began := time.Now()
		wake(t, p, sb, tier)
		tr := last("first")
		if tr.From != tier {
			t.Fatalf("it was %s: %+v", tier, tr)
		}
		if waited := time.Duration(tr.WaitedUs) * time.Microsecond; tr.Kind != doze.TraceWake || waited > time.Since(began) || tr.StartedAt.Before(began.Add(-time.Second)) {
			t.Errorf("the caller waited %v: %+v", time.Since(began), tr)
		}
		t.Logf("%s: %+v", tr.From, tr)
	}
	create(t, c, named("second", 512))
	last("second")
	if _, err := c.Fork(t.Context(), "first", doze.ForkRequest{TargetName: "third", TargetType: doze.KindSandbox}); err != nil {
		t.Fatal(err)
	}
	last("third")

	text := call{url: p.Address + "/metrics"}.want(t, p, 200).body
	for _, line := range []string{
		`doze_wake_stage_seconds_count{stage="engine",tier="saved"}`, `doze_wake_stage_seconds_count{stage="verify",tier="disk"}`,
		`doze_create_stage_seconds_count{source="snapshot",stage="share"} 1`, `doze_create_seconds_count{source="snapshot"} 1`,
	} {
		if !strings.Contains(text, line) {
			t.Errorf("%s is missing in the metrics", line)
		}
	}

	until(t, "every wake at the collector, below the span of its caller", func() bool {
		all := sink.Spans()
		for _, id := range traceIDs {
			if !slices.ContainsFunc(all[id], func(s *spans.Span) bool { return s.GetName() == "wake" && string(s.GetParentSpanId()) == spanID }) {
				return false
			}
		}
		return true
	})

	p.Arguments("--warm-pool", "1", "--pause-after", "1h")
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all, err := c.Traces(t.Context(), "first"); err != nil || len(all) != 0 {
		t.Errorf("after a restart it has %+v, %v", all, err)
	}
	create(t, c, named("fourth", 512)) // has the node start one more
	if err := p.AwaitWarmPool(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	until(t, "a create from a spare machine", func() bool {
		name := "spared-" + time.Now().Format("150405")
		create(t, c, named(name, 512))
		return last(name).From == "spare"
	})
	for kind := range stages {
		if !seen[kind] {
			t.Errorf("there was no %s", kind)
		}
	}

	s := shell{t.TempDir()}
	s.ok(t, "doze", "login", "--address", p.Address, "--data", p.Data)
	out := s.ok(t, "doze", "sandbox", "trace", "second")
	if strings.Contains(out, "create") || !strings.Contains(out, "WAITED") {
		t.Errorf("after a restart: %s", out)
	}
	out = s.ok(t, "doze", "sandbox", "trace", "fourth")
	if !strings.Contains(out, "create  image  done") || !strings.Contains(out, "launch") {
		t.Error(out)
	}
	p.Arguments("--warm-pool", "0") // a spare machine is nobody's, and would be left
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// traceIDs are the ids of the traces that our requests belong to, by tier.
var traceIDs = map[string]string{"paused": strings.Repeat("p", 16), "saved": strings.Repeat("s", 16), "disk": strings.Repeat("d", 16)}

// spanID is that of the span of each of them.
const spanID = "12345678"

// wake sends a request with a trace of its own.
func wake(t *testing.T, p *testkit.Platform, sb doze.Sandbox, tier string) {
	t.Helper()
	call{url: sb.Metadata.URL + "/health", header: map[string]string{"Traceparent": fmt.Sprintf("00-%x-%x-00", traceIDs[tier], spanID)}}.want(t, p, http.StatusOK)
}
