package roster

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/fleet/crew"
)

// Server answers operators about nodes. It is made by a literal.
type Server struct {
	Roster   *Roster // nil: control and the only node are one process
	Operator string  // the first workspace, whose admins operate the platform
}

// tokens is where operators get tokens for new nodes.
const tokens = "/platform/nodes/tokens"

// settlement is where operators have restored records count again.
const settlement = "/platform/nodes/settle"

// siblings are the paths in the place of a node's id.
var siblings = api.SiblingsOf(rows)

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/platform/nodes", access.Admin, "List nodes", api.Read((*Server).list).
		About("Only operators get it. A platform of one process has no list of nodes.")),
	api.GET("/platform/nodes/{node}/sandboxes", access.Admin, "List sandboxes of a node", api.Read((*Server).sandboxes).
		About("Those of all workspaces that live, with a memory or an archive. Those come first that were used last.")),
	api.POST("/platform/nodes/{node}/cordon", access.Admin, "Cordon a node", api.Read((*Server).cordon).
		About("It keeps its sandboxes, and takes no new ones.")),
	api.POST("/platform/nodes/{node}/uncordon", access.Admin, "Uncordon a node", api.Read((*Server).uncordon)),
	api.POST("/platform/nodes/{node}/drain", access.Admin, "Drain a node", api.Read((*Server).drain).
		About("It takes no new sandboxes, and those that it has move to other nodes. Requests to one that moves wait. The answer comes when all have moved, and says how many could not.")),
	api.POST(tokens, access.Admin, "Create a token for new nodes", api.Write[doze.NodeTokenRequest]((*Server).token).Revealing().
		About("Only operators get it. The token is in this answer alone. Machines join with it until it expires.")),
	api.POST(settlement, access.Admin, "Settle restored records", api.Read((*Server).settle).Asks("force").
		About("Until then, restored records count as older than the nodes. It is 409 if something would be lost, or a node on record is away. With force, that is lost, and the answer lists it.")),
	api.DELETE("/platform/nodes/{node}", access.Admin, "Remove a node", api.Read((*Server).remove).Asks("force").
		About("It is 409 while the node has a lease, or has what the bucket does not have. With force, that is lost, and the answer lists it.")),
	api.GET("/sandboxes/{name}/node", access.Admin, "Get the node of a sandbox", api.Read((*Server).node).
		About("Only operators get it. It is 409 for a sandbox that has no node, such as one that failed.")),
	api.POST("/sandboxes/{name}/move", access.Admin, "Move a sandbox to another node", api.Write[doze.MoveRequest]((*Server).move).
		About("Only operators can do it. The sandbox sleeps here and wakes there, with its memory and processes. Requests to it wait meanwhile.")),
}

// Section is what this room adds to the API. To describe it, s may be nil.
func (s *Server) Section() api.Section { return api.Section{Routes: api.Bind(s, rows)} }

// may is an error unless an operator asks a platform of many nodes.
func (s *Server) may(ctx context.Context) error {
	if err := api.Operator(ctx, s.Operator); err != nil {
		return err
	}
	if s.Roster == nil {
		return doze.Errorf(doze.Unsupported, "this platform is one process on one host: run control, nodes and edges as processes of their own to have more nodes")
	}
	return nil
}

func (s *Server) list(ctx context.Context, _ *http.Request) ([]doze.Node, error) {
	if err := s.may(ctx); err != nil {
		return nil, err
	}
	return s.Roster.List(ctx)
}

// List returns all nodes, by id.
func (r *Roster) List(ctx context.Context) ([]doze.Node, error) {
	records, err := r.Store.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	all := []doze.Node{}
	for _, n := range records {
		out := doze.Node{
			ID: n.ID, State: n.State, Epoch: int64(n.Epoch), URL: n.Body.URL, Version: n.Body.Version, Driver: n.Body.Driver, Memory: n.Body.Memory, //nolint:gosec // G115: it counts losses
			CreatedAt: doze.Time{Time: n.CreatedAt}, Unrecorded: len(r.unknown(n.ID).unknown),
		}
		if m := r.member(n.ID); m != nil {
			r.mu.Lock()
			l := m.load
			r.mu.Unlock()
			out.Present, out.RenewedAt = !r.silent(m), doze.Time{Time: r.renewedAt(m)}
			out.Memory, out.Reserved, out.Sandboxes, out.Awake = cmp.Or(l.Memory, out.Memory), l.Reserved, l.Sandboxes, l.Awake
		}
		all = append(all, out)
	}
	return all, nil
}

// renewedAt is when a node was heard of last.
func (r *Roster) renewedAt(m *member) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return m.heard
}

// silent reports whether a node that joined has said nothing for so long that it is away. One with a
// lease is lost by then.
func (r *Roster) silent(m *member) bool { return time.Since(r.renewedAt(m)) >= max(silence, r.TTL) }

// set changes the state of a node, and returns the node.
func (s *Server) set(ctx context.Context, q *http.Request, to doze.NodeState) (doze.Node, error) {
	if err := s.may(ctx); err != nil {
		return doze.Node{}, err
	}
	if err := s.Roster.SetState(ctx, q.PathValue("node"), to); err != nil {
		return doze.Node{}, err
	}
	return s.one(ctx, q.PathValue("node"))
}

func (s *Server) one(ctx context.Context, id string) (doze.Node, error) {
	all, err := s.Roster.List(ctx)
	for _, n := range all {
		if n.ID == id {
			return n, nil
		}
	}
	return doze.Node{}, cmp.Or(err, doze.Errorf(doze.NotFound, "there is no such node"))
}

func (s *Server) cordon(ctx context.Context, q *http.Request) (doze.Node, error) {
	return s.set(ctx, q, doze.NodeCordoned)
}

func (s *Server) uncordon(ctx context.Context, q *http.Request) (doze.Node, error) {
	return s.set(ctx, q, doze.NodeReady)
}

func (s *Server) drain(ctx context.Context, q *http.Request) (doze.Drained, error) {
	if err := s.may(ctx); err != nil {
		return doze.Drained{}, err
	}
	moved, stayed, err := s.Roster.Drain(ctx, q.PathValue("node"))
	return doze.Drained{Moved: moved, Stayed: stayed}, err
}

func (s *Server) token(ctx context.Context, _ *http.Request, body map[string]any) (out doze.NodeToken, err error) {
	if err := s.may(ctx); err != nil {
		return out, err
	}
	var p doze.Problems
	var in doze.NodeTokenRequest
	api.Decode(&in, body, "", &p)
	ttl := tokenTTL(in.TTL, &p)
	if err := p.Err(); err != nil {
		return out, err
	}
	return s.Roster.CreateToken(ctx, ttl)
}

func (s *Server) remove(ctx context.Context, q *http.Request) (out doze.RemovedNode, err error) {
	if err := s.may(ctx); err != nil {
		return out, err
	}
	lost, err := s.Roster.remove(ctx, q.PathValue("node"), api.Force.In(q.URL.Query()))
	return doze.RemovedNode{Total: len(lost), Lost: listed(lost)}, err
}

func (s *Server) settle(ctx context.Context, q *http.Request) (out doze.Settled, err error) {
	if err := s.may(ctx); err != nil {
		return out, err
	}
	lost, err := s.Roster.conclude(ctx, api.Force.In(q.URL.Query()))
	return doze.Settled{Total: len(lost), Lost: listed(lost)}, err
}

// listed are those losses that an answer lists.
func listed(lost []doze.NodeLoss) []doze.NodeLoss {
	return append([]doze.NodeLoss{}, lost[:min(len(lost), doze.NodeLossesMax)]...)
}

// moveHome makes another node the home of things without a place. There must be none: they
// are on the disk of the home that was. Preconditions: the node that was cannot join meanwhile.
func (r *Roster) moveHome(ctx context.Context, from string) error {
	_, admitted, err := r.joins.Take(ctx, admitTurn)
	if err != nil {
		return err
	}
	defer admitted()
	if err := r.Store.CheckEmpty(ctx, from); err != nil { // edges would look for it at the next home
		return err
	}
	if err := r.Store.CheckPlaced(ctx); err != nil {
		return err
	}
	for _, m := range r.Crew.Members() { // by id
		if to := m.Info.ID; to != from {
			if err := r.Store.SetSetting(ctx, HomeSetting, to); err != nil {
				return err
			}
			r.Crew.SetHome(to)
			return nil
		}
	}
	return doze.Errorf(doze.Conflict, "it is the only node: add another one first")
}

func (s *Server) move(ctx context.Context, q *http.Request, body map[string]any) (doze.Moved, error) {
	if err := s.may(ctx); err != nil {
		return doze.Moved{}, err
	}
	var p doze.Problems
	var in doze.MoveRequest
	api.Decode(&in, body, "", &p)
	if err := p.Err(); err != nil {
		return doze.Moved{}, err
	}
	l, err := s.Roster.Control.LodgerNamed(ctx, api.Caller(ctx).Workspace, q.PathValue("name"))
	if err != nil {
		return doze.Moved{}, err
	}
	if err := s.Roster.Move(ctx, l, in.Node); err != nil {
		return doze.Moved{}, err
	}
	return doze.Moved{Node: s.Roster.where(l.Machine)}, nil
}

func (s *Server) node(ctx context.Context, q *http.Request) (doze.SandboxNode, error) {
	if err := s.may(ctx); err != nil {
		return doze.SandboxNode{}, err
	}
	l, err := s.Roster.Control.LodgerNamed(ctx, api.Caller(ctx).Workspace, q.PathValue("name"))
	if err != nil {
		return doze.SandboxNode{}, err
	}
	return doze.SandboxNode{Node: s.Roster.where(l.Machine)}, nil
}

func (s *Server) sandboxes(ctx context.Context, q *http.Request) (out doze.NodeSandboxes, err error) {
	if err := s.may(ctx); err != nil {
		return out, err
	}
	id := q.PathValue("node")
	if _, err := s.Roster.Store.Node(ctx, id); err != nil {
		return out, err
	}
	all, err := s.Roster.lodgers(ctx, id)
	if err != nil {
		return out, err
	}
	out = doze.NodeSandboxes{Total: len(all), Sandboxes: []doze.NodeSandbox{}}
	for _, l := range all[:min(len(all), doze.NodeSandboxesMax)] {
		out.Sandboxes = append(out.Sandboxes, doze.NodeSandbox{Workspace: l.Workspace, Name: l.Name, Status: l.Phase.Status(), State: l.Phase.State(), LastUsedAt: doze.Time{Time: l.Used}})
	}
	return out, nil
}

// lodgers are the living sandboxes that a node has, those first that were used last.
func (r *Roster) lodgers(ctx context.Context, id string) ([]control.Lodger, error) {
	return r.Control.Lodgers(ctx, func(machine string) bool { return r.where(machine) == id }, r.machines(id), id == r.Crew.Home())
}

// where is the node of a machine.
func (r *Roster) where(machine string) string { return r.Crew.Of(crew.Machine, machine) }
