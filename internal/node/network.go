package node

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
)

// lease leases the network of a machine and has the rules of the sandbox
// obeyed there, before the machine runs.
func (b *Box) lease(ctx context.Context, machineID string) (machine.Link, error) {
	link, err := b.n.Lease(ctx, machineID)
	if err != nil {
		return link, err
	}
	return link, b.admit(machineID)
}

// admit has the rules of the sandbox obeyed for one of its machines.
func (b *Box) admit(machineID string) error {
	b.rules.Lock()
	defer b.rules.Unlock()
	o := b.order
	o.Network = b.network
	return b.n.Admit(machineID, o)
}

// SetNetwork implements [fleet.Node]. It waits for nothing that the sandbox is
// doing. A machine that has no network now gets the rules with its network.
func (n *Node) SetNetwork(_ context.Context, uid string, network *doze.Network) error {
	b := n.box(uid)
	if b == nil {
		return errUnknown
	}
	b.rules.Lock()
	b.network = network
	b.rules.Unlock()
	n.mu.Lock()
	machineID := b.config.ID
	n.mu.Unlock()
	err := b.admit(machineID)
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
