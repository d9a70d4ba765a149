package control

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// nodeSetting is the record of the node that the other records are about.
	nodeSetting = "node"
	// joinWait is how long a call waits for the node to join. After a start of control
	// it does so within a second.
	joinWait = 10 * time.Second
)

// errNoNode is for what nobody can do before a node has joined.
var errNoNode = doze.Errorf(doze.Unavailable, "no node has joined since the control role started: start the node role, or try again in a moment")

// Roster is the node of a platform whose node is another process. It is what the
// node asks of control.
type Roster struct {
	s *Server
	// joined hears of a node before it is told anything: calls have to reach it.
	joined func(fleet.NodeInfo)

	joining sync.Mutex    // held while control tells a node what it forgot
	adopted chan struct{} // closed when Adopt is done
	present atomic.Pointer[string]

	mu    sync.Mutex
	bytes map[string]*sent // guarded by mu; by workspace
}

var _ fleet.Control = (*Roster)(nil)

// sent counts what sandboxes of a workspace have sent and received since this
// process began, over the processes of the node. Its sum only grows.
type sent struct {
	sum  atomic.Uint64
	last uint64 // that the present process of the node told; guarded by the roster's mu
}

// NewRoster returns a roster without a node.
func NewRoster(s *Server, joined func(fleet.NodeInfo)) *Roster {
	r := &Roster{s: s, joined: joined, adopted: make(chan struct{}), bytes: map[string]*sent{}}
	r.present.Store(new(string))
	return r
}

// Join implements [fleet.Control].
func (r *Roster) Join(ctx context.Context, n fleet.NodeInfo) error {
	if n.ID == "" || n.Incarnation == "" || n.URL == "" {
		return doze.Errorf(doze.Invalid, "a node that joins says its id, its incarnation and its address")
	}
	r.joining.Lock()
	defer r.joining.Unlock()
	if err := r.admit(ctx, n.ID); err != nil {
		return err
	}
	r.joined(n)
	r.s.node.Store(&n)
	if err := r.tell(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	for _, of := range r.bytes {
		of.last = 0 // its process counts from the beginning
	}
	r.present.Store(&n.Incarnation)
	r.mu.Unlock()
	slog.InfoContext(ctx, "a node joined", "node", n.ID, "url", n.URL, "version", n.Version)
	return nil
}

// admit refuses a node that has not what the records are about: all of that would
// look as if it were gone.
func (r *Roster) admit(ctx context.Context, id string) error {
	known, err := r.s.Store.Setting(ctx, nodeSetting)
	switch {
	case err != nil:
		return err
	case known == "":
		return r.s.Store.SetSetting(ctx, nodeSetting, id)
	case known != id:
		return doze.Errorf(doze.Conflict, "the sandboxes of this platform are on the node %s, and this one is %s: start the node role with the data directory of the first one", known, id)
	}
	return nil
}

// tell brings a node that has joined to what the records say.
func (r *Roster) tell(ctx context.Context) error {
	select {
	case <-r.adopted: // only the process of the node is new
		return r.s.tellNode(ctx)
	default:
	}
	if err := r.s.Adopt(ctx); err != nil {
		return err
	}
	close(r.adopted)
	return nil
}

// Record implements [fleet.Control].
func (r *Roster) Record(ctx context.Context, reports []fleet.Report) error {
	for batch := range slices.Chunk(reports, reportBatch) {
		if err := r.s.accept(ctx, batch); err != nil {
			return err
		}
	}
	return nil
}

// ImageRefs implements [fleet.Control].
func (r *Roster) ImageRefs(ctx context.Context) ([]string, error) { return r.s.Store.ImageRefs(ctx) }

// Traffic implements [fleet.Control].
func (r *Roster) Traffic(_ context.Context, incarnation string, bytes map[string]uint64) (map[string]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if *r.present.Load() != incarnation {
		return nil, fleet.ErrNotJoined
	}
	for workspace, n := range bytes {
		of := r.bytes[workspace]
		if of == nil {
			of = &sent{}
			r.bytes[workspace] = of
			r.s.Quotas.Meter(workspace, of.sum.Load)
		}
		of.sum.Add(n - min(n, of.last))
		of.last = n
	}
	barred := map[string]string{}
	for workspace := range r.bytes {
		if why := r.s.Quotas.Barred(workspace); why != "" {
			barred[workspace] = why
		}
	}
	return barred, nil
}

// Present returns the version of the node that has joined, or nothing.
func (r *Roster) Present() string {
	if *r.present.Load() == "" {
		return ""
	}
	return cmp.Or(r.s.node.Load().Version, "unknown")
}

// OnceAdopted lets calls wait until the node has joined for the first time. Until then
// the records may show operations as under way that a crash cut off. Reads wait only
// soon after the start, and are served without a node.
func (r *Roster) OnceAdopted(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		reads, most := q.Method == http.MethodGet || q.Method == http.MethodHead, joinWait
		if reads {
			most = time.Until(r.s.began.Add(joinWait))
		}
		wait := time.NewTimer(most)
		defer wait.Stop()
		select {
		case <-r.adopted:
		case <-wait.C:
			if !reads {
				httpx.WriteError(w, q, errNoNode)
				return
			}
		case <-q.Context().Done():
			return
		}
		h.ServeHTTP(w, q)
	})
}
