package host

import (
	"context"
	"maps"
	"net/http"
	"sync"

	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/mtls"
)

// A Remote is control in another process, for the host of a node.
type Remote struct {
	control *fleet.ControlClient
	quotas  *RemoteQuotas
	session *fleet.Session
	host    *Host // after Services
}

// NewRemote returns control at a base URL.
func NewRemote(base string, transport http.RoundTripper) *Remote {
	r := &Remote{control: fleet.NewControlClient(base, transport), quotas: NewRemoteQuotas()}
	r.session = fleet.NewSession(r.control, r.quotas.Traffic, func(barred map[string]string) {
		if r.quotas.Bar(barred) {
			r.host.Enforce()
		}
	})
	return r
}

// Upstream is what a host tells and asks control.
func (r *Remote) Upstream() Upstream {
	return Upstream{Report: r.session.Report, Named: r.control.ImageRefs, Quotas: r.quotas}
}

// Services keep the node of a host known to control. n is what it says of itself.
func (r *Remote) Services(h *Host, n fleet.NodeInfo) []daemon.Service {
	r.host = h
	return []daemon.Service{
		{Name: "session", Run: func(ctx context.Context) error { return r.session.Run(ctx, n) }},
		{Name: "addresses", Run: func(ctx context.Context) error {
			select {
			case <-r.session.Joined(): // control has told every network
				h.SweepAddresses()
			case <-ctx.Done():
			}
			<-ctx.Done()
			return nil
		}},
	}
}

// Handler serves the other two roles: control all of it, an edge tunnels alone.
func (h *Host) Handler(drops func() map[string]uint64) http.Handler {
	all, tunnels := http.NewServeMux(), http.NewServeMux()
	server := fleet.NewServer(h.Node(), h.node)
	server.Register(all)
	server.RegisterTunnels(tunnels)
	fleet.RegisterMetrics(all, func(ctx context.Context) ([]byte, error) {
		now := h.Now(ctx)
		now.Drops = drops()
		return h.o.Metrics.Text(now)
	})
	return mtls.ByRole(map[mtls.Role]http.Handler{mtls.Control: all, mtls.Edge: tunnels})
}

// RemoteQuotas are [Quotas] that control decides in another process. It is safe for
// concurrent use.
type RemoteQuotas struct {
	mu     sync.Mutex
	counts map[string]func() uint64 // guarded by mu; by workspace
	barred map[string]string        // guarded by mu; why, by workspace
}

var _ Quotas = (*RemoteQuotas)(nil)

// NewRemoteQuotas bar nobody yet.
func NewRemoteQuotas() *RemoteQuotas { return &RemoteQuotas{counts: map[string]func() uint64{}} }

// Meter implements [Quotas].
func (q *RemoteQuotas) Meter(workspace string, count func() uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.counts[workspace] = count
}

// Barred implements [Quotas].
func (q *RemoteQuotas) Barred(workspace string) string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.barred[workspace]
}

// Traffic returns what sandboxes of each workspace have sent and received since the
// process began, in bytes.
func (q *RemoteQuotas) Traffic() map[string]uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	bytes := map[string]uint64{}
	for workspace, count := range q.counts {
		bytes[workspace] = count()
	}
	return bytes
}

// Bar takes over what control decided, and reports whether that is news: open
// connections have to be looked at.
func (q *RemoteQuotas) Bar(barred map[string]string) (changed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	same := func(string, string) bool { return true } // the reason ends no connection
	changed = !maps.EqualFunc(q.barred, barred, same)
	q.barred = barred
	return changed
}
