package control

import (
	"context"
	"net/http"
	"slices"
	"sync"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/trace"
)

// traces answers where the time of the last wakes of a sandbox and of its create
// went, the newest first. The node has them in memory.
func (s *Server) traces(ctx context.Context, r *http.Request) ([]doze.Trace, error) {
	sb, err := s.living(ctx, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	all, err := s.Node.Traces(ctx, sb.Machine)
	if err == nil {
		s.published.complete(sb.Machine, all)
	}
	return all, err
}

// publishedMax bounds the creates whose last stage control remembers. Nobody looks
// at the trace of an older one but with a node in the same process.
const publishedMax = 1000

// published are the last stages of creates that control measured, for a node in
// another process: its traces end when it has answered. It is safe for concurrent
// use.
type published struct {
	mu    sync.Mutex
	stage map[string]doze.TraceStage // guarded by mu; by machine
	order []string                   // guarded by mu; the oldest first
}

// begin begins the last stage of a create, and returns what ends it.
func (p *published) begin(ctx context.Context, machine string) (end func()) {
	if here := trace.Of(ctx); here != nil { // the node's own trace
		return func() { here.Next(trace.Publish).End() }
	}
	caller := trace.CallerOf(ctx)
	if caller == nil {
		return func() {}
	}
	start := caller.Waited()
	return func() {
		p.add(machine, doze.TraceStage{Name: trace.Publish.String(), StartUs: start.Microseconds(), TookUs: (caller.Waited() - start).Microseconds()})
	}
}

func (p *published) add(machine string, s doze.TraceStage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stage == nil {
		p.stage = map[string]doze.TraceStage{}
	}
	if _, again := p.stage[machine]; !again {
		p.order = append(p.order, machine)
	}
	p.stage[machine] = s
	if len(p.order) > publishedMax {
		delete(p.stage, p.order[0])
		p.order = slices.Delete(p.order, 0, 1)
	}
}

// complete adds the last stage to the trace of a create that worked and lacks it.
func (p *published) complete(machine string, all []doze.Trace) {
	p.mu.Lock()
	stage, ok := p.stage[machine]
	p.mu.Unlock()
	is := func(s doze.TraceStage) bool { return s.Name == stage.Name }
	for i, t := range all {
		if ok && t.Kind == string(trace.Create) && t.Status == doze.TraceDone && !slices.ContainsFunc(t.Stages, is) {
			all[i].Stages = append(slices.Clone(t.Stages), stage)
			all[i].WaitedUs = max(t.WaitedUs, stage.StartUs+stage.TookUs)
			return
		}
	}
}
