package plane

import (
	"context"
	"net/http"

	dto "github.com/prometheus/client_model/go"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/drive"
	"github.com/dozehq/doze/internal/edge"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/desk"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/history"
)

// Remote is a control role whose node and edges are processes of their own.
type Remote struct {
	plane  *Plane
	node   *fleet.Client
	roster *control.Roster
	feed   *fleet.Feed
}

// BeginRemote is Begin for a node that will join, over a transport to nodes.
func (p *Plane) BeginRemote(ctx context.Context, nodes http.RoundTripper, a edge.Addresses) (_ *Remote, key string, err error) {
	r := &Remote{plane: p, node: fleet.NewClient("", nodes), feed: fleet.NewFeed()}
	n := Node{Node: r.node, Gate: fleet.NewPorts(r.node)}
	if n.Bucket, err = drive.Find(ctx, p.settings.Bucket()); err != nil {
		return nil, "", err
	}
	if key, err = p.Begin(ctx, n, a, func() {}); err != nil { // an edge hears of less by the feed
		return nil, "", err
	}
	if err := p.Load(ctx); err != nil {
		return nil, "", err
	}
	r.roster = control.NewRoster(p.Control, r.joined)
	p.Directory.Tell(r.feed.Topic(fleet.TopicUpstreams))
	p.Previews.Tell(r.feed.Topic(fleet.TopicPreviews), r.feed.Topic(fleet.TopicDomains))
	p.Credentials.Tell(access.Told{
		Principals: r.feed.Topic(fleet.TopicPrincipals), Keys: r.feed.Topic(fleet.TopicKeys),
		Revoked: r.feed.Topic(fleet.TopicRevoked), Verifier: r.feed.Topic(fleet.TopicVerifier),
	})
	p.quotas.Tell(r.feed.Topic(fleet.TopicLimits))
	return r, key, nil
}

// joined has control and edges find the node at its address.
func (r *Remote) joined(n fleet.NodeInfo) {
	r.node.Reach(n.URL)
	r.feed.Tell(fleet.TopicNodes, n.ID, n.URL)
}

// Recorded are the metrics of the platform for its history. It is an error while no node
// has joined: numbers without it would be those of no platform.
func (r *Remote) Recorded(all history.Source) history.Source {
	return func(ctx context.Context) (map[string]*dto.MetricFamily, error) {
		if r.roster.Present() == "" {
			return nil, doze.Errorf(doze.Unavailable, "no node has joined")
		}
		return all(ctx)
	}
}

// NodeMetrics returns what the node counts, or nothing while there is none.
func (r *Remote) NodeMetrics(ctx context.Context) ([][]byte, error) {
	if r.roster.Present() == "" {
		return nil, nil
	}
	text, err := r.node.Metrics(ctx)
	return [][]byte{text}, err
}

// Handler serves the other two roles. Metrics is the page of them.
func (r *Remote) Handler(metrics http.Handler) http.Handler {
	calls := http.NewServeMux()
	fleet.NewControlServer(r.roster).Register(calls)
	c := r.plane.Control
	return mtls.ByRole(map[mtls.Role]http.Handler{
		mtls.Node: calls,
		mtls.Edge: desk.Control{
			API: r.roster.OnceAdopted(r.plane.Handler()), Metrics: metrics, Mounts: c.ServeMounts, Denied: r.plane.Turned,
			Seen: r.seen, Tickets: r.plane.Credentials.Tickets, Files: r.plane.Store, Feed: r.feed,
		}.Handler(),
	})
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
