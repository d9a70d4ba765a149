package plane

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/drive"
	"github.com/dozehq/doze/internal/edge"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/fleet/desk"
	"github.com/dozehq/doze/internal/fleet/enroll"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/history"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/metric"
	"github.com/dozehq/doze/internal/roster"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/vault"
)

// Remote is a control role whose nodes and edges are processes of their own.
type Remote struct {
	plane  *Plane
	crew   *crew.Crew
	roster *roster.Roster
	feed   *fleet.Feed
	nodes  *mtls.Nodes

	mu      sync.Mutex
	clients map[string]*fleet.Client // guarded by mu; by the id of the node
	gates   map[string]fleet.Gate    // guarded by mu; likewise
}

// BeginRemote is Begin for nodes that will join, over the ways to them.
func (p *Plane) BeginRemote(ctx context.Context, nodes *mtls.Nodes, a edge.Addresses) (_ *Remote, key string, err error) {
	r := &Remote{plane: p, feed: fleet.NewFeed(), nodes: nodes, clients: map[string]*fleet.Client{}, gates: map[string]fleet.Gate{}}
	home, err := p.Store.Setting(ctx, roster.HomeSetting)
	if err != nil {
		return nil, "", err
	}
	master, err := seal.Key(instance.SealFile(p.settings.Data))
	if err != nil {
		return nil, "", err
	}
	had, err := p.copies(ctx, master)
	if err != nil {
		return nil, "", err
	}
	atlas := fleet.NewAtlas()
	if r.crew, err = crew.Open(ctx, Ledger{p.Store}, home, atlas); err != nil {
		return nil, "", err
	}
	least, err := p.Store.LeastEpoch(ctx)
	if err != nil {
		return nil, "", err
	}
	r.crew.SetLeast(least)
	n := Node{Node: r.crew, Gate: r.crew.Ports(r.gate)}
	if n.Bucket, err = drive.Find(ctx, p.settings.Bucket()); err != nil {
		return nil, "", err
	}
	if key, err = p.Begin(ctx, n, a, func() {}); err != nil { // an edge hears of less by the feed
		return nil, "", err
	}
	if err := p.Load(ctx); err != nil {
		return nil, "", err
	}
	r.roster = roster.New(roster.Config{
		Store: p.Store, Crew: r.crew, Control: control.Link{Server: p.Control}, Quotas: p.quotas, Dial: r.dial, Check: nodes.Check, Met: r.met, Removed: r.removed,
		TTL: p.settings.Lease.Duration, Grace: p.settings.LeaseGrace.Duration,
		Copies: had, Master: master,
		Enrollment: roster.Enrollment{
			Keys: p.settings.FleetKeys, Egress: instance.EgressFile(p.settings.Data), URL: p.settings.Control, Life: p.settings.NodeCertificate.Duration,
		},
	})
	p.Nodes.Roster = r.roster
	atlas.Tell(r.feed.Topic(fleet.TopicPlaces))
	p.Directory.Tell(r.feed.Topic(fleet.TopicUpstreams))
	p.Previews.Tell(r.feed.Topic(fleet.TopicPreviews), r.feed.Topic(fleet.TopicDomains))
	p.Credentials.Tell(access.Told{
		Principals: r.feed.Topic(fleet.TopicPrincipals), Keys: r.feed.Topic(fleet.TopicKeys),
		Revoked: r.feed.Topic(fleet.TopicRevoked), Verifier: r.feed.Topic(fleet.TopicVerifier),
	})
	p.quotas.Tell(r.feed.Topic(fleet.TopicLimits))
	return r, key, nil
}

// copies is what the bucket of checkpoints has.
type copies struct {
	*vault.Vault

	master []byte
}

// Archived implements [roster.Copies].
func (c copies) Archived(ctx context.Context, id string) (bool, error) {
	key, err := vault.Derive(c.master, id)
	if err != nil {
		return false, err
	}
	names, err := c.Names(ctx, id, key)
	return slices.Contains(names, fleet.ArchiveFile), err
}

// Needs implements [roster.Copies].
func (c copies) Needs(ctx context.Context, id string) ([]fleet.FileNeed, error) {
	return roster.NeedsIn(ctx, c.Vault, c.master, id)
}

// copies is what the bucket of checkpoints has, or nil if there is no bucket.
func (p *Plane) copies(ctx context.Context, master []byte) (roster.Copies, error) {
	bucket, err := drive.Find(ctx, p.settings.RemoteBucket())
	if err != nil || bucket == nil {
		return nil, err
	}
	client, name := bucket.Client()
	v, err := vault.New(client, name, vault.Options{})
	if err != nil {
		return nil, err
	}
	return copies{v, master}, nil
}

// dial returns the client of a node that joins.
func (r *Remote) dial(n fleet.NodeInfo) fleet.Node {
	c := fleet.NewClient(n.URL, r.nodes.To(n.ID))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clients[n.ID], r.gates[n.ID] = c, fleet.NewPorts(func(string) (string, *fleet.Client) { return n.ID, c })
	return c
}

// gate returns the gate of a node, or nil.
func (r *Remote) gate(node string) fleet.Gate {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gates[node]
}

// met has edges find a node at its address.
func (r *Remote) met(n fleet.NodeInfo) { r.feed.Tell(fleet.TopicNodes, n.ID, n.URL) }

// removed has nobody keep a way to a node that is off the records.
func (r *Remote) removed(id string) {
	r.mu.Lock()
	delete(r.clients, id)
	delete(r.gates, id)
	r.mu.Unlock()
	r.nodes.Forget(id)
	r.feed.Tell(fleet.TopicNodes, id, "") // edges keep one of which they hear nothing
}

// Run keeps the leases of nodes until ctx ends.
func (r *Remote) Run(ctx context.Context) error { return r.roster.Run(ctx) }

// Recorded are the metrics of the platform for its history. It is an error while no node
// has joined: numbers without it would be those of no platform.
func (r *Remote) Recorded(all history.Source) history.Source {
	return func(ctx context.Context) (map[string]*dto.MetricFamily, error) {
		if !r.roster.Present() {
			return nil, doze.Errorf(doze.Unavailable, "no node has joined")
		}
		return all(ctx)
	}
}

// metricsTime is what a node has to tell what it counts.
const metricsTime = 3 * time.Second

// NodeMetrics returns what each node counts that has joined. What a node counts that does
// not answer in time is missing.
func (r *Remote) NodeMetrics(ctx context.Context) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, metricsTime)
	defer cancel()
	members := r.crew.Members()
	texts := make([][]byte, len(members))
	var calls sync.WaitGroup
	for i, m := range members {
		r.mu.Lock()
		c := r.clients[m.Info.ID]
		r.mu.Unlock()
		if c == nil { // it was removed just now
			continue
		}
		calls.Go(func() {
			text, err := c.Metrics(ctx)
			if err != nil {
				slog.WarnContext(ctx, "the metrics of a node are missing", "node", m.Info.ID, "err", err)
			}
			texts[i] = text
		})
	}
	calls.Wait()
	return slices.DeleteFunc(texts, func(text []byte) bool { return text == nil }), nil
}

// Census returns what is counted of nodes, as [roster.Roster.Census] says.
func (r *Remote) Census(ctx context.Context) metric.Nodes { return r.roster.Census(ctx) }

// Handler serves the other two roles, and machines that join. Metrics is the page of them.
func (r *Remote) Handler(metrics http.Handler) http.Handler {
	calls := http.NewServeMux()
	fleet.NewControlServer(r.roster, mtls.NodeID).Register(calls)
	c := r.plane.Control
	return mtls.WithStrangers(enroll.Path, r.roster.Enroll(), mtls.ByRole(map[mtls.Role]http.Handler{
		mtls.Node: calls,
		mtls.Edge: desk.Control{
			API: r.roster.OnceAdopted(r.plane.Handler()), Metrics: metrics, Mounts: c.ServeMounts, Denied: r.plane.Turned,
			Seen: r.seen, Tickets: r.plane.Credentials.Tickets, Files: r.plane.Store, Feed: r.feed,
		}.Handler(),
	}))
}

// End sends edges away, which would stay for ever, and readers of the feed.
func (r *Remote) End() {
	r.feed.Close()
	r.plane.Feed.Close()
}

// seen takes note of what an edge has seen.
func (r *Remote) seen(s desk.Seen) {
	for id, at := range s.Keys {
		r.plane.Credentials.Keys.Touch(id, at)
	}
	r.plane.quotas.Elsewhere(s.Edge, s.Open)
}
