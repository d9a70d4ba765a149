package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/trace"
)

// arrival is a request that wants a box to run.
type arrival struct {
	caller *trace.Caller // nil: it is one of our own
	at     time.Time     // when it came to the box
	waited bool          // and for a change that was under way
}

// trace begins the trace of a wake for the request that causes it. Others who wait
// for the same wake are not in it.
func (w *wakes) trace(by arrival, o *fleet.Order, traced func(trace.Record)) *trace.Trace {
	t := trace.Begin(trace.Wake, by.caller, o.UID, o.Workspace, by.at, traced)
	if by.waited {
		t.Next(trace.Settle).End()
	}
	w.traces.Add(t)
	return t
}

// traceCreate begins the trace of a create, and returns what ends it.
func (n *Node) traceCreate(ctx context.Context, b *Box) (traced context.Context, end func(error)) {
	t := trace.Begin(trace.Create, trace.CallerOf(ctx), b.order.UID, b.order.Workspace, time.Now(), b.traced())
	b.wakes.traces.Add(t)
	return trace.With(ctx, t), func(err error) {
		if err != nil {
			t.Fail(told(err))
		} else {
			slog.InfoContext(ctx, "created", "sandbox", b.order.UID, "from", t.From(), "took", time.Since(t.Began()))
		}
		t.Leave()
	}
}

// traced is who is told of the traces of a box.
func (b *Box) traced() func(trace.Record) {
	if b.hidden() {
		return func(trace.Record) {}
	}
	return b.n.Traced
}

// commit writes the record of a box that is being created.
func (n *Node) commit(ctx context.Context, b *Box, phase doze.Phase) error {
	defer trace.Start(ctx, trace.Commit).End()
	return n.save(b, phase, "")
}

// told is what a caller hears of an error.
func told(err error) string {
	if err == nil {
		return "the sandbox ended, or its request did, before it was awake"
	}
	return doze.Public(err).Message
}

// Traces implements [fleet.Node].
func (n *Node) Traces(_ context.Context, uid string) ([]doze.Trace, error) {
	b := n.box(uid)
	if b == nil {
		return []doze.Trace{}, nil
	}
	return b.wakes.traces.List(), nil
}
