package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
)

// rules are what the network of a box obeys. A lock of its own guards them.
type rules struct {
	leaseFor func(ctx context.Context, id string) (machine.Link, error)
	admitTo  func(id string, o fleet.Order) error

	mu    sync.Mutex  // held while a network is put in force
	order fleet.Order // guarded by mu; its network is nil before control says what it is
}

func newRules(o fleet.Order, lease func(context.Context, string) (machine.Link, error), admit func(string, fleet.Order) error) *rules {
	return &rules{leaseFor: lease, admitTo: admit, order: o}
}

// lease leases the network of a machine and has the rules of the sandbox
// obeyed there, before the machine runs.
func (r *rules) lease(ctx context.Context, machineID string) (machine.Link, error) {
	link, err := r.leaseFor(ctx, machineID)
	if err != nil {
		return link, err
	}
	return link, r.admit(machineID)
}

// admit has the rules of the sandbox obeyed for one of its machines.
func (r *rules) admit(machineID string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.admitTo(machineID, r.order)
}

// set replaces the rules, for the next admit.
func (r *rules) set(network *doze.Network) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order.Network = network
}

// SetNetwork implements [fleet.Node]. It waits for nothing that the sandbox is
// doing. A machine that has no network now gets the rules with its network.
func (n *Node) SetNetwork(_ context.Context, uid string, network *doze.Network) error {
	b := n.box(uid)
	if b == nil {
		return errUnknown
	}
	b.rules.set(network)
	n.mu.Lock()
	machineID := b.made.config.ID
	n.mu.Unlock()
	err := b.rules.admit(machineID)
	if doze.Public(err).Kind == doze.NotFound {
		return nil
	}
	return err
}

// nameservers are the addresses that a sandbox asks for names. With rules, every
// question is led to our resolver, whomever it asks.
func (n *Node) nameservers(network *doze.Network) []string {
	host, _, err := net.SplitHostPort(n.Proxy)
	if err != nil || !network.Led() {
		return n.Nameservers
	}
	return []string{host}
}

// alwaysDirect is what clients never send to a proxy (spec 2.6). That they may
// try to go there directly does not mean that they get there.
var alwaysDirect = []string{
	"localhost", "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.169.254", ".local", ".internal",
}

// proxyEnvironment tells clients that ask for it where the proxy is. Those that
// do not ask are led to it all the same.
func (n *Node) proxyEnvironment(network *doze.Network) (env []string) {
	if !network.Proxied() {
		return nil
	}
	direct := slices.Clone(alwaysDirect)
	for _, pattern := range network.Rules().Bypass {
		if below, ok := strings.CutPrefix(pattern, "*."); ok {
			pattern = "." + below
		}
		direct = append(direct, pattern)
	}
	for _, v := range []struct{ name, value string }{
		{"HTTP_PROXY", "http://" + n.Proxy}, {"HTTPS_PROXY", "http://" + n.Proxy}, {"NO_PROXY", strings.Join(direct, ",")},
	} {
		env = append(env, v.name+"="+v.value, strings.ToLower(v.name)+"="+v.value)
	}
	for _, name := range trustVariables {
		env = append(env, name+"="+doze.TrustFile)
	}
	return env
}

// trustVariables are those by which clients find the authorities that they trust:
// OpenSSL and Go, Node, Python's requests, curl, git, the AWS tools, Deno, Cargo.
var trustVariables = []string{
	"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT", "CARGO_HTTP_CAINFO",
}

// trust is the authority that a sandbox with a proxy must trust, in PEM. Rules
// that need it may come at any time: it is there from the beginning.
func (n *Node) trust(o fleet.Order) (string, error) {
	if !o.Network.Proxied() {
		return "", nil
	}
	pem, err := n.Trust(o.Issuer())
	if err != nil {
		return "", fmt.Errorf("the authority of the sandbox: %w", err)
	}
	return string(pem), nil
}
