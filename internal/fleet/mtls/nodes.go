package mtls

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/url"
	"sync"

	"github.com/dozehq/doze"
)

// Nodes are the ways to the nodes of a platform. Each leads to one node alone, wherever that
// is: at an address where another node answers, a request is not sent. They are safe for
// concurrent use.
type Nodes struct {
	identity *Identity

	mu  sync.Mutex
	all map[string]http.RoundTripper // guarded by mu; by the id of the node
}

// Nodes returns the ways to nodes.
func (i *Identity) Nodes() *Nodes { return &Nodes{identity: i, all: map[string]http.RoundTripper{}} }

// To returns the way to the node with an id. A node with a certificate of [Make] has no id in
// it, and may be any. With an empty id, any node may answer.
func (n *Nodes) To(id string) http.RoundTripper {
	n.mu.Lock()
	defer n.mu.Unlock()
	there := n.all[id]
	if there == nil {
		t := n.identity.Transport(Node)
		t.TLSClientConfig.VerifyConnection = only(id)
		there = speaker{t, Contract}
		n.all[id] = there
	}
	return there
}

// Forget lets go of the way to a node that is not one any more. Requests under way end as they would.
func (n *Nodes) Forget(id string) {
	n.mu.Lock()
	there := n.all[id]
	delete(n.all, id)
	n.mu.Unlock()
	if there != nil {
		(&http.Client{Transport: there}).CloseIdleConnections()
	}
}

// Check is an error unless the node with an id answers at a base URL. Another node there is
// Forbidden, and nobody is Unavailable.
func (n *Nodes) Check(ctx context.Context, id, base string) error {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return doze.Errorf(doze.Invalid, "%.200q is no address of a node: it begins with https://", base)
	}
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	config := n.identity.Transport(Node).TLSClientConfig
	config.NextProtos = []string{"h2"}
	config.VerifyConnection = only(id)
	c, err := (&tls.Dialer{Config: config, NetDialer: new(net.Dialer)}).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")))
	if err != nil {
		if kind := doze.Public(err).Kind; kind == doze.Forbidden {
			return err
		}
		return doze.Wrap(err, doze.Unavailable, "the node %s does not answer at %s: see --node and --node-listen", id, base)
	}
	_ = c.Close() // nothing was sent
	return nil
}

// only has connections made to the node with an id alone.
func only(id string) func(tls.ConnectionState) error {
	return func(s tls.ConnectionState) error {
		if got := nodeID(s.PeerCertificates[0].DNSNames); got != "" && got != id && id != "" {
			return doze.Errorf(doze.Forbidden, "the node %s answers at the address of the node %.80q", got, id)
		}
		return nil
	}
}
