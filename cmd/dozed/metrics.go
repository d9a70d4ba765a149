package main

import (
	"context"
	"log/slog"
	"net/http"

	"doze"
	"doze/internal/httpx"
	"doze/internal/metric"
	"doze/internal/swap"
	"doze/internal/trace"
)

// showMetrics shows what the platform does and takes. It is about all workspaces:
// the caller must be an administrator of the first one, which is the operator's.
func (p *platform) showMetrics(w http.ResponseWriter, r *http.Request) {
	caller, err := p.credentials.Authenticate(r)
	if err == nil && !caller.Operates(p.config.Workspace) {
		err = doze.Errorf(doze.Forbidden, "metrics are for administrators of the workspace %s", p.config.Workspace)
	}
	if err != nil {
		httpx.WriteError(w, r, err)
		return
	}
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		httpx.WriteError(w, r, doze.Errorf(doze.Unsupported, "metrics can be read only"))
		return
	}
	var costs []metric.Cost
	for _, c := range p.node.Costs(r.Context()) {
		costs = append(costs, metric.Cost{Tier: c.Tier, Ready: c.Ready, Stats: c.Stats})
	}
	counts, err := p.net.Counts()
	if err != nil { // the other metrics say something all the same
		slog.Error("metrics of the packet filter are left out", "err", err)
	}
	c := p.node.Committed()
	memory := metric.Memory{Committed: c.Bytes, Most: c.Most, Limit: c.Limit, Refusals: c.Refusals, CompressedMost: p.swap.Held()}
	if memory.CompressedMost > 0 {
		memory.Compressed = swap.Compressed(swapFile(p.config.Data))
	}
	age := p.node.CheckpointAge()
	p.metrics.Serve(w, r, metric.Now{
		Checkpoints: metric.Checkpoints{Oldest: age.Oldest, Overdue: age.Overdue},
		Costs:       costs, Memory: memory, Packets: metric.Packets{Refused: counts.Refused, Passed: counts.Passed}, Disk: p.diskMetrics(r.Context()), Front: p.frontMetrics(), Drops: p.drops(),
	})
}

// traced counts a wake or create that has ended, and has it sent to a collector.
func (p *platform) traced(r trace.Record) {
	p.metrics.Traced(r)
	if p.traces != nil {
		p.traces.Offer(r)
	}
}

// drops are the traces that no collector got, by reason.
func (p *platform) drops() map[string]uint64 {
	if p.traces == nil {
		return nil
	}
	return p.traces.Drops()
}

// diskMetrics is what the disk has. What cannot be measured is left out.
func (p *platform) diskMetrics(ctx context.Context) metric.Disk {
	d := metric.Disk{Kinds: map[string]int64{}}
	u, err := p.node.Usage(ctx)
	if err != nil {
		slog.ErrorContext(ctx, "metrics of the disk are incomplete", "err", err)
	}
	for kind, n := range u.Host() {
		d.Kinds[string(kind)] = n
	}
	s, err := p.disk.State()
	if err != nil {
		slog.ErrorContext(ctx, "metrics of the disk are incomplete", "err", err)
	}
	d.Free, d.Reserve, d.Promised = s.Free, s.Reserve, s.Promised
	return d
}
