package main

import (
	"log/slog"
	"net/http"

	"doze"
	"doze/internal/httpx"
	"doze/internal/metric"
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
	p.metrics.Serve(w, r, costs, metric.Packets{Refused: counts.Refused, Passed: counts.Passed})
}
