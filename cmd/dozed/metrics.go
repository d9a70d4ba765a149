package main

import (
	"net/http"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/trace"
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
	now := p.host.Now(r.Context())
	now.Front, now.Drops = p.frontMetrics(), p.drops()
	p.metrics.Serve(w, r, now)
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
