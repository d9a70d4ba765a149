package host

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/lease"
	"github.com/dozehq/doze/internal/machine/fence"
	"github.com/dozehq/doze/internal/machine/hostproc"
	"github.com/dozehq/doze/internal/node"
)

const (
	// leaseLeast is how long a lease must still be good for a new process to adopt machines
	// under it. Control has to renew it within that time.
	leaseLeast = 5 * time.Second
	// reclaimTimeout bounds one try to get a lease back.
	reclaimTimeout = 10 * time.Second
)

// A Remote is control in another process, for the host of a node.
type Remote struct {
	control *fleet.ControlClient
	quotas  *RemoteQuotas
	session *fleet.Session
	lease   *lease.Holder
	file    lease.File
	gate    *fence.Gate
	options Options
	id      string // of the node
	leased  bool   // the marker is there; used by tell alone
	host    *Host  // after Services
}

// NewRemote returns control at a base URL, for the host with the node id. o are the
// options of that host.
func NewRemote(base string, transport http.RoundTripper, id string, o Options) *Remote {
	r := &Remote{
		id:      id,
		control: fleet.NewControlClient(base, transport), quotas: NewRemoteQuotas(),
		file: lease.FileOf(o.Run), gate: fence.NewGate(), options: o,
	}
	r.lease = lease.NewHolder(lease.Actions{Fence: r.fence, Unfence: r.unfence, Check: r.check, Tell: r.tell})
	r.session = fleet.NewSession(r.control, fleet.Side{
		Traffic: r.quotas.Traffic,
		Barred: func(barred map[string]string) {
			if r.quotas.Bar(barred) {
				r.host.Enforce()
			}
		},
		Lease: r.lease, Lost: r.lost,
		Load:     func(context.Context) fleet.Load { return r.host.load() },
		Machines: func() []string { return r.host.node.UIDs() },
		Held:     func() map[string]fleet.Held { return r.host.node.Held() },
		Leaving:  func() []string { return r.host.node.Leaving() },
	})
	return r
}

// Resume takes up the lease that a process before may have had. What ran under it goes on, as
// if that process had not ended. If the lease is over, Resume waits for another one, and ends
// what other nodes have since. Machines can be adopted after it.
func (r *Remote) Resume(ctx context.Context) error {
	if _, err := os.Lstat(r.marker()); errors.Is(err, fs.ErrNotExist) {
		// Guards of an earlier node with this run directory may have stopped what it left.
		r.tell(time.Time{})
		if err := hostproc.Freeze(ctx, r.options.Cgroup, false); !errors.Is(err, hostproc.ErrNoFreezer) {
			return err
		}
		return nil
	}
	r.leased = true
	if left, ok := r.file.Left(); ok && left > leaseLeast {
		r.lease.Resume(time.Now().Add(left))
		// The process before stopped what ran some time before the end of its lease.
		if err := hostproc.Freeze(ctx, r.options.Cgroup, false); !errors.Is(err, hostproc.ErrNoFreezer) {
			return err
		}
		return nil
	}
	if err := hostproc.Freeze(ctx, r.options.Cgroup, true); err != nil {
		return err
	}
	all, held, err := node.Saved(r.sandboxes())
	if err != nil {
		return err
	}
	l, asked, err := r.reclaim(ctx, slices.Sorted(maps.Keys(all)), held)
	if err != nil {
		return err
	}
	var machines []string
	for _, uid := range l.Gone {
		machines = append(machines, all[uid])
	}
	if err := hostproc.KillAll(r.options.Cgroup, machines); err != nil {
		return err
	}
	if err := node.Disown(r.sandboxes(), l.Gone); err != nil { // Open removes the rest
		return err
	}
	r.lease.Extend(asked, l.TTL)
	return hostproc.Freeze(ctx, r.options.Cgroup, false)
}

// reclaim asks control for a lease until it grants one.
func (r *Remote) reclaim(ctx context.Context, machines []string, held map[string]fleet.Held) (l fleet.Lease, asked time.Time, err error) {
	for tick := time.NewTicker(time.Second); ; {
		asked = time.Now()
		bounded, cancel := context.WithTimeout(ctx, reclaimTimeout)
		l, err = r.control.Reclaim(bounded, r.id, machines, held)
		cancel()
		if err == nil {
			tick.Stop()
			return l, asked, nil
		}
		slog.WarnContext(ctx, "this node has no lease, and waits for control to grant one: others may have its sandboxes", "err", err)
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return l, asked, context.Cause(ctx)
		}
	}
}

// mark has the next process know whether this one had a lease.
func (r *Remote) mark(leased bool) error {
	if leased {
		return durable.Replace(r.marker(), nil, 0o600)
	}
	return os.Remove(r.marker())
}

// marker is a file that is there while a node has leases, over restarts of the host too.
func (r *Remote) marker() string { return filepath.Join(r.options.Data, leasedFile) }

func (r *Remote) sandboxes() string { return filepath.Join(r.options.Data, sandboxesDir) }

// tell has guards know until when sandboxes may run.
func (r *Remote) tell(until time.Time) {
	if leased := !until.IsZero(); leased != r.leased {
		if err := r.mark(leased); err != nil {
			slog.Error("the next process of this node does not know whether it had a lease", "err", err)
		} else {
			r.leased = leased
		}
	}
	if err := r.file.Write(until); err != nil {
		slog.Error("guards do not know of the lease, and may stop sandboxes that have one", "err", err)
	}
}

// fence has nothing run any more. What was begun may end, as long as the lease is good.
func (r *Remote) fence(ctx context.Context) {
	left, _ := r.lease.Left()
	bounded, cancel := context.WithTimeout(ctx, max(left, 0))
	defer cancel()
	if err := r.gate.Close(bounded); err != nil {
		slog.WarnContext(ctx, "operations of machines are cut short", "err", err)
	}
	for {
		err := hostproc.Freeze(ctx, r.options.Cgroup, true)
		if err == nil || ctx.Err() != nil || errors.Is(err, hostproc.ErrNoFreezer) {
			return
		}
		slog.ErrorContext(ctx, "sandboxes run on without a lease", "err", err)
	}
}

// unfence has run again what ran before.
func (r *Remote) unfence(ctx context.Context) {
	for {
		err := hostproc.Freeze(ctx, r.options.Cgroup, false)
		if err == nil || ctx.Err() != nil || errors.Is(err, hostproc.ErrNoFreezer) {
			r.gate.Open()
			return
		}
		slog.ErrorContext(ctx, "sandboxes stand still although the lease is good", "err", err)
	}
}

// check has run again what a guard stopped, although the lease is good. This process had no
// processor when the lease before was about to end, and it was renewed just after its end.
func (r *Remote) check(ctx context.Context) {
	frozen, err := hostproc.Frozen(r.options.Cgroup)
	if err != nil {
		slog.ErrorContext(ctx, "nobody knows whether sandboxes stand still", "err", err)
	}
	if frozen {
		slog.WarnContext(ctx, "the sandboxes of this node stood still until its lease was renewed: they go on")
		r.unfence(ctx)
	}
}

// lost ends machines that other nodes have now. Their processes stand still, and get no
// time to end.
func (r *Remote) lost(ctx context.Context, machines []string) error {
	return r.host.node.Discard(ctx, machines, func(ids []string) error {
		defer r.gate.Open()
		err := hostproc.KillAll(r.options.Cgroup, ids) // what is frozen dies when it would go on
		return errors.Join(err, hostproc.Freeze(ctx, r.options.Cgroup, false))
	})
}

// Upstream is what a host tells and asks control.
func (r *Remote) Upstream() Upstream {
	return Upstream{Report: r.session.Report, Named: r.control.ImageRefs, Quotas: r.quotas, Gate: r.gate, ID: r.id, Rights: r.control}
}

// Services keep the node of a host known to control. n is what it says of itself.
func (r *Remote) Services(h *Host, n fleet.NodeInfo) []daemon.Service {
	r.host = h
	return []daemon.Service{
		{Name: "session", Run: func(ctx context.Context) error {
			defer r.quit()
			return r.session.Run(ctx, n)
		}},
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

// quit has nothing wait for a lease that nobody renews any more. The services that end after the
// session would wait for what waits for it. The next process finds their machines.
func (r *Remote) quit() {
	if r.gate.Closed() {
		r.host.node.Stop() // first: what fails since then is no failure of a sandbox
		r.gate.End()
	}
}

// Certify gets the next certificate of the node from control, as [mtls.Signer] says.
func (r *Remote) Certify(ctx context.Context, request []byte) ([]byte, error) {
	return r.control.Certify(ctx, r.id, request)
}

// Handler serves the other two roles: control all of it, an edge tunnels alone. The metrics
// have traces that were dropped, and when certificates of the node with an id end.
func (h *Host) Handler(drops func() map[string]uint64, ends func(id string) map[string]time.Time) http.Handler {
	all, tunnels := http.NewServeMux(), http.NewServeMux()
	server := fleet.NewServer(h.Node(), gated{h.node, h.o.Gate})
	server.Register(all)
	server.RegisterTunnels(tunnels)
	fleet.RegisterMetrics(all, func(ctx context.Context) ([]byte, error) {
		now := h.Now(ctx)
		now.Drops, now.Front = drops(), now.Front.With(ends(h.o.ID))
		return h.o.Metrics.Text(now)
	})
	return mtls.ByRole(map[mtls.Role]http.Handler{mtls.Control: all, mtls.Edge: tunnels})
}

// errFenced is for a request to a node that may run nothing: others may have the sandbox
// soon.
var errFenced = doze.Wrap(errors.Join(fleet.ErrMoved, fence.ErrClosed), doze.Unavailable, "the node of the sandbox has lost its connection to the platform: try again in a moment")

// gated is a node that lets nobody in while it may run nothing.
type gated struct {
	*node.Node

	gate *fence.Gate
}

// Dial implements [fleet.Dialer].
func (g gated) Dial(ctx context.Context, uid string, port uint16) (net.Conn, error) {
	if g.gate != nil && g.gate.Closed() {
		return nil, errFenced
	}
	return g.Node.Dial(ctx, uid, port)
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
