package host

import (
	"context"
	"log/slog"

	"github.com/dozehq/doze/internal/metric"
	"github.com/dozehq/doze/internal/node"
	"github.com/dozehq/doze/internal/swap"
)

// Now is what the host does and takes. What cannot be measured is left out.
func (h *Host) Now(ctx context.Context) metric.Now {
	costs, sandboxes := h.costs(ctx)
	counts, err := h.net.Counts()
	if err != nil { // the other metrics say something all the same
		slog.ErrorContext(ctx, "metrics of the packet filter are left out", "err", err)
	}
	c := h.node.Committed()
	memory := metric.Memory{Committed: c.Bytes, Most: c.Most, Limit: c.Limit, Refusals: c.Refusals, CompressedMost: h.swap.Held()}
	if memory.CompressedMost > 0 {
		memory.Compressed = swap.Compressed(SwapFile(h.o.Data))
	}
	if memory.Available, err = hostAvailable(); err != nil {
		slog.ErrorContext(ctx, "the metric of available memory is 0", "err", err)
	}
	age := h.node.CheckpointAge()
	return metric.Now{
		Checkpoints: metric.Checkpoints{Oldest: age.Oldest, Overdue: age.Overdue},
		Costs:       costs, Sandboxes: sandboxes, Memory: memory, Warm: h.node.Warm(), Packets: metric.Packets{Refused: counts.Refused, Passed: counts.Passed}, Disk: h.diskMetrics(ctx),
	}
}

// costs are those of all sandboxes and, if the operator wants metrics of each, what each
// one takes.
func (h *Host) costs(ctx context.Context) (costs []metric.Cost, of metric.Sandboxes) {
	add := func(c node.Cost) {
		costs = append(costs, metric.Cost{Tier: c.Tier, Ready: c.Ready, Stats: c.Stats})
	}
	if h.o.MetricsPerSandbox == 0 {
		for _, c := range h.node.Costs(ctx) {
			add(c)
		}
		return costs, of
	}
	of.Most = h.o.MetricsPerSandbox
	for _, c := range h.node.Consumers(ctx) {
		if c.Cost != nil {
			add(*c.Cost)
		}
		of.All = append(of.All, metric.Sandbox{UID: c.UID, Workspace: c.Workspace, Name: c.Name, Usage: c.Usage})
	}
	return costs, of
}

// diskMetrics is what the disk has. What cannot be measured is left out.
func (h *Host) diskMetrics(ctx context.Context) metric.Disk {
	d := metric.Disk{Kinds: map[string]int64{}}
	u, err := h.node.Usage(ctx)
	if err != nil {
		slog.ErrorContext(ctx, "metrics of the disk are incomplete", "err", err)
	}
	for kind, n := range u.Host() {
		d.Kinds[string(kind)] = n
	}
	s, err := h.disk.State()
	if err != nil {
		slog.ErrorContext(ctx, "metrics of the disk are incomplete", "err", err)
	}
	d.Free, d.Reserve, d.Reserved = s.Free, s.Reserve, s.Reserved
	return d
}
