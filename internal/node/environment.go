package node

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
)

// environment is what the agent gets for what it starts: the image's variables,
// who the sandbox is, the caller's, and what is for the agent alone. Of two with
// one name the later wins.
func (n *Node) environment(image Image, o fleet.Order) []string {
	env := slices.Concat(trustEnvironment(), image.Env, []string{
		"HOST=0.0.0.0", // where servers that ask are to listen, so that previews reach them
		"HOSTNAME=" + o.Name, "BL_NAME=" + o.Name, "BL_WORKSPACE=" + o.Workspace, "BL_REGION=" + o.Region,
	}, n.proxyEnvironment(o.Network), o.Env, hostEnvironment(image, n.nameservers(o.Network)))
	last := map[string]int{}
	for i, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		last[name] = i
	}
	var out []string
	for i, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); last[name] == i {
			out = append(out, kv)
		}
	}
	return out
}

// bootEnvironment is what the first process is started with. The agent gets the rest
// when it answers. So neither copied memory nor the start of a process shows the
// variables of a sandbox.
func bootEnvironment(image Image, nameservers []string, c machine.Config) []string {
	env := hostEnvironment(image, nameservers)
	if !c.Tun { // the engine has it everywhere, and programs look whether it is there
		env = append(env, "DOZE_HIDDEN=/dev/net/tun")
	}
	if c.Containers {
		env = append(env, "DOZE_CONTAINERS=1")
	}
	return env
}

// hostEnvironment is what an agent must know at any time. It knows them by these
// names and passes them on to nobody.
func hostEnvironment(image Image, nameservers []string) []string {
	return []string{
		"DOZE_NAMESERVERS=" + strings.Join(nameservers, ","), "DOZE_USER=" + image.User, "DOZE_WORKDIR=" + image.WorkDir,
	}
}

// nameservers are the addresses that a sandbox asks for names. With rules, every
// question goes to our resolver, whatever its address.
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

// proxyEnvironment tells clients that ask for it where the proxy is, and whom to trust
// behind it. Without a proxy there are none, as the specification wants. Clients that
// do not ask are led to the proxy all the same.
func (n *Node) proxyEnvironment(network *doze.Network) (env []string) {
	if !network.Proxied() {
		return nil
	}
	direct := slices.Clone(alwaysDirect)
	for _, pattern := range network.Rules().Bypass {
		if below, ok := strings.CutPrefix(pattern, "*."); ok {
			pattern = "." + below
		}
		if !slices.Contains(direct, pattern) {
			direct = append(direct, pattern)
		}
	}
	for _, v := range []struct{ name, value string }{
		{"HTTP_PROXY", "http://" + n.Proxy}, {"HTTPS_PROXY", "http://" + n.Proxy}, {"NO_PROXY", strings.Join(direct, ",")},
	} {
		env = append(env, v.name+"="+v.value, strings.ToLower(v.name)+"="+v.value)
	}
	for _, name := range []string{"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"} {
		env = append(env, name+"="+doze.TrustFile)
	}
	return append(env, trustEnvironment()...)
}

// trustVariables are those by which clients with authorities of their own find more:
// Python's requests, curl, git, the AWS tools, Deno, Cargo.
var trustVariables = []string{
	"REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT", "CARGO_HTTP_CAINFO",
}

// trustEnvironment has clients trust the authority of the sandbox. Every sandbox has it
// from its first instruction: a routing rule may come while its processes run. Node
// reads the authorities of the system, which the agent adds to.
func trustEnvironment() (env []string) {
	for _, name := range trustVariables {
		env = append(env, name+"="+doze.TrustFile)
	}
	return append(env, "NODE_USE_SYSTEM_CA=1")
}

// networkEnvironment are the variables that follow from a network: those that a change
// of it replaces.
func (n *Node) networkEnvironment(network *doze.Network) []string {
	if network.Proxied() {
		return n.proxyEnvironment(network)
	}
	return trustEnvironment()
}

// platformNames are the names of variables in env that have the value of
// networkEnvironment: neither the image nor the caller has set another one.
func (n *Node) platformNames(env []string, network *doze.Network) (names []string) {
	ours := n.networkEnvironment(network)
	for _, kv := range env {
		if name, _, _ := strings.Cut(kv, "="); slices.Contains(ours, kv) {
			names = append(names, name)
		}
	}
	return names
}

// trust is the authority that a sandbox trusts, in PEM. Rules that need it may come at
// any time: it is there from the beginning.
func (n *Node) trust(o fleet.Order) (string, error) {
	pem, err := n.Trust(o.Issuer())
	if err != nil {
		return "", fmt.Errorf("the authority of the sandbox: %w", err)
	}
	return string(pem), nil
}
