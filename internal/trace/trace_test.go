package trace_test

import (
	"context"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/trace"
)

// TestStagesAreRecorded: every stage of the table is begun by code of ours.
func TestStagesAreRecorded(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, root := range []string{"..", "../../cmd"} {
		err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				return err
			}
			inside := f.Name.Name == "trace"
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					if p, ok := n.X.(*ast.Ident); ok && p.Name == "trace" {
						used[strings.ToLower(n.Sel.Name)] = true
					}
				case *ast.CompositeLit: // Begin records a stage itself
					if id, ok := n.Type.(*ast.Ident); ok && inside && id.Name == "span" {
						if stage, ok := n.Elts[0].(*ast.Ident); ok {
							used[strings.ToLower(stage.Name)] = true
						}
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	seen := map[string]bool{}
	for _, name := range trace.Stages() {
		if name == "" || seen[name] {
			t.Errorf("the name %q is empty, or of two stages", name)
		}
		if seen[name] = true; !used[name] {
			t.Errorf("nothing records the stage %s", name)
		}
	}
}

// TestStagesAreDocumented: the documentation of the API has every stage.
func TestStagesAreDocumented(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../docs/api/traces.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range trace.Stages() {
		if !strings.Contains(string(raw), "\n| `"+name+"` | ") {
			t.Errorf("docs/api/traces.md does not say what the stage %s is", name)
		}
	}
}

func TestTrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ended []trace.Record
		ctx, caller := trace.Arrive(t.Context(), time.Now(), "00-parent")
		time.Sleep(2 * time.Millisecond) // at the edge
		w := trace.Begin(trace.Wake, trace.CallerOf(ctx), "uid", "main", time.Now(), func(r trace.Record) { ended = append(ended, r) })
		var ring trace.Ring
		ring.Add(w)
		w.Comes("saved")

		time.Sleep(time.Millisecond)
		trace.Next(ctx, trace.Turn).End()
		inner := trace.With(context.WithoutCancel(ctx), w)
		call := trace.Start(inner, trace.Launch)
		time.Sleep(10 * time.Millisecond)
		call.End(trace.Parts{Took: 8 * time.Millisecond, Stages: []trace.Part{
			{Stage: trace.Engine.String(), Start: time.Millisecond, Took: 6 * time.Millisecond},
			{Stage: "of a later build", Took: time.Millisecond},
			{Stage: trace.Link.String(), Start: -1},
		}})
		if s := ring.List()[0]; s.Status != doze.TraceRunning || s.WaitedUs != 13_000 {
			t.Errorf("under way it is %+v", s)
		}
		w.Leave()
		connect := w.Next(trace.Connect)
		time.Sleep(2 * time.Millisecond)
		connect.End()
		answer := caller.Trace().Next(trace.Answer)
		time.Sleep(time.Second)
		answer.End()
		if len(ended) > 0 {
			t.Error("it ended before its caller left")
		}
		caller.Leave()
		caller.Leave()
		w.Start(trace.Agent).End() // too late

		if len(ended) != 1 || ended[0].Parent != "00-parent" || ended[0].Waited != 15*time.Millisecond || ended[0].Took != 1015*time.Millisecond {
			t.Fatalf("%+v", ended)
		}
		want := []doze.TraceStage{
			{Name: "admit", TookUs: 2000},
			{Name: "turn", StartUs: 2000, TookUs: 1000},
			{Name: "launch", StartUs: 3000, TookUs: 10_000},
			{Name: "engine", Within: "launch", StartUs: 5000, TookUs: 6000},
			{Name: "connect", StartUs: 13_000, TookUs: 2000},
			{Name: "answer", StartUs: 15_000, TookUs: 1_000_000},
		}
		s := ring.List()[0]
		if d := cmp.Diff(want, s.Stages); d != "" || s.Status != doze.TraceDone || s.From != "saved" {
			t.Errorf("%s\n%+v", d, s)
		}
	})
}

// TestNothing: without a trace, nothing is recorded and nothing fails.
func TestNothing(t *testing.T) {
	t.Parallel()
	r := trace.Start(t.Context(), trace.Engine)
	if r.On() {
		t.Error("a stage of no trace is recorded")
	}
	r.End(trace.Parts{})
	var none *trace.Trace
	none.Leave()
	none.Fail("")
	none.Comes("")
	none.Next(trace.Turn).End()
	var nobody *trace.Caller
	nobody.Leave()
	if none.From() != "" || !none.Began().IsZero() || nobody.Trace() != nil || len(none.Parts().Stages) > 0 {
		t.Error("no trace says something")
	}
}

// TestBounds: neither stages nor traces grow without end.
func TestBounds(t *testing.T) {
	t.Parallel()
	var ring trace.Ring
	for i := range 3 * doze.TracesMax {
		w := trace.Begin(trace.Wake, nil, "uid", "main", time.UnixMilli(int64(i)), nil)
		for range 1000 {
			w.Start(trace.Engine).End(trace.Parts{Stages: []trace.Part{{Stage: "link"}, {Stage: "link"}}})
		}
		w.Leave()
		ring.Add(w)
	}
	all := ring.List()
	if len(all) != doze.TracesMax || len(all[0].Stages) > 50 {
		t.Errorf("%d traces, and %d stages", len(all), len(all[0].Stages))
	}
	for i, s := range all {
		if want := int64(3*doze.TracesMax - 1 - i); s.StartedAt.UnixMilli() != want {
			t.Errorf("trace %d began at %v, want %d ms", i, s.StartedAt, want)
		}
	}
	_, c := trace.Arrive(t.Context(), time.Now(), strings.Repeat("x", 1<<20))
	w := trace.Begin(trace.Wake, c, "uid", "main", time.Now(), nil)
	if p := w.Record().Parent; p != "" {
		t.Errorf("it keeps %d bytes of its caller", len(p))
	}
}

// TestRecordsTogether is for the race detector: a wake and its caller record at
// the same time, and others look.
func TestRecordsTogether(t *testing.T) {
	t.Parallel()
	_, c := trace.Arrive(t.Context(), time.Now(), "")
	ends := make(chan trace.Record, 2)
	w := trace.Begin(trace.Wake, c, "uid", "main", time.Now(), func(r trace.Record) { ends <- r })
	var ring trace.Ring
	ring.Add(w)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() { w.Start(trace.Verify).End(); ring.List(); w.Comes("disk") })
	}
	all.Go(c.Leave)
	all.Wait()
	w.Leave()
	if r := <-ends; len(r.Spans) != 5 {
		t.Errorf("%d spans", len(r.Spans))
	}
}

// FuzzParts: what another process says of its stages is not believed blindly.
func FuzzParts(f *testing.F) {
	f.Add([]byte(`{"took":1000,"stages":[{"stage":"engine","start":1,"took":2}]}`))
	f.Add([]byte(`{}`)) // of an older launcher
	f.Add([]byte(`{"took":-9223372036854775808,"stages":[{"stage":"link","start":9223372036854775807,"took":9223372036854775807}]}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var p trace.Parts
		if json.Unmarshal(raw, &p) != nil {
			return
		}
		w := trace.Begin(trace.Wake, nil, "uid", "main", time.Now(), nil)
		w.Start(trace.Launch).End(p)
		s := w.Record().Shown()
		for _, stage := range s.Stages {
			if stage.StartUs < 0 || stage.TookUs < 0 || stage.StartUs+stage.TookUs > s.WaitedUs {
				t.Errorf("%+v in %+v", stage, s)
			}
		}
	})
}

// BenchmarkWake records what a wake from disk does. It says how much that is of
// the shortest wakes, which take a millisecond.
func BenchmarkWake(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		ctx, caller := trace.Arrive(context.Background(), time.Now(), "") //nolint:forbidigo // as a request has
		w := trace.Begin(trace.Wake, caller, "uid", "main", time.Now(), nil)
		inner := trace.With(ctx, w)
		for s := range 12 {
			trace.Start(inner, trace.Stage(s)).End()
		}
		w.Leave()
		caller.Leave()
	}
	b.ReportMetric(100*float64(b.Elapsed())/float64(b.N)/float64(time.Millisecond), "%of1ms")
}

// BenchmarkNoWake is what a request costs that wakes nobody.
func BenchmarkNoWake(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_, caller := trace.Arrive(context.Background(), time.Now(), "") //nolint:forbidigo // as a request has
		caller.Leave()
	}
}
