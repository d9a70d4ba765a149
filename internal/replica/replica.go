// Package replica composes what an edge in a process of its own knows of the records,
// and whom it asks: control at its desk, the node for its ports. It decides nothing,
// and keeps nothing on a disk.
package replica

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/desk"
	"github.com/dozehq/doze/internal/quota"
)

// Options are what a [Replica] needs.
type Options struct {
	Control  string            // base URL of control
	Controls http.RoundTripper // to control
	// Nodes returns the way to the node with an id, and to no other one.
	Nodes func(id string) http.RoundTripper
	// Forget lets go of the way to a node that is off the records.
	Forget func(id string)
	Edge   string      // names this process
	Quotas *quota.Book // gets the limits
	// Metrics adds what this process counts to the metrics of the others.
	Metrics func(others []byte) ([]byte, error)
}

// Replica is made by New, and knows nothing before Follow.
type Replica struct {
	Directory   *fleet.Directory
	Previews    *fleet.Previews
	Credentials *access.Credentials
	Ports       *fleet.Ports
	Desk        *desk.Client

	follower *fleet.Follower
	nodes    *nodes
	recheck  func()
}

// New returns a replica of what control says.
func New(o Options) (*Replica, error) {
	r := &Replica{
		Directory: fleet.NewDirectory(), Previews: fleet.NewPreviews(), Credentials: access.NewReplica(),
		nodes: newNodes(o.Nodes, o.Forget), recheck: func() {},
	}
	r.Ports = fleet.NewPorts(r.nodes.of)
	r.Ports.Moves = r.nodes
	r.follower = fleet.NewFollower(o.Control, o.Controls, map[string]fleet.Apply{
		fleet.TopicUpstreams:  r.Directory.Apply,
		fleet.TopicPreviews:   r.less(r.Previews.Apply),
		fleet.TopicDomains:    r.less(r.Previews.ApplyDomain),
		fleet.TopicPrincipals: r.Credentials.ApplyPrincipal,
		fleet.TopicKeys:       r.Credentials.ApplyKey,
		fleet.TopicRevoked:    r.Credentials.ApplyRevoked,
		fleet.TopicVerifier:   r.Credentials.ApplyVerifier,
		fleet.TopicLimits:     o.Quotas.Apply,
		fleet.TopicNodes:      r.nodes.reach,
		fleet.TopicPlaces:     r.nodes.atlas.Apply,
	})
	var err error
	r.Desk, err = desk.NewClient(desk.Options{
		URL: o.Control, Transport: o.Controls, Edge: o.Edge, Follower: r.follower, Metrics: o.Metrics,
		Seen: func(after time.Time) (map[string]time.Time, map[string]int64) {
			return r.Credentials.Keys.Used(after), o.Quotas.Load()
		},
	})
	return r, err
}

// OnLess has fn called whenever somebody may do less than before. It must not block,
// and is set before Follow.
func (r *Replica) OnLess(fn func()) {
	r.recheck = fn
	r.Credentials.OnLess(fn)
}

// less has the edge look at open requests after a change.
func (r *Replica) less(apply fleet.Apply) fleet.Apply {
	return func(key string, value json.RawMessage) error {
		defer func() { r.recheck() }()
		return apply(key, value)
	}
}

// Follow begins to follow control, and returns when the replica knows what control
// knew then. Stop ends that.
func (r *Replica) Follow(ctx context.Context) (stop func(), err error) {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var following sync.WaitGroup
	following.Go(func() { _ = r.follower.Run(life) }) // it logs what does not work
	return func() { cancel(); following.Wait() }, r.follower.Wait(ctx, fleet.Mark{})
}
