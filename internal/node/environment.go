package node

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// environment is what the agent gets for what it starts: the image's variables,
// who the sandbox is, the caller's, and what is for the agent alone. Of two with
// one name the later wins.
func (n *Node) environment(image Image, o fleet.Order) []string {
	env := slices.Concat(image.Env, []string{
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
func bootEnvironment(image Image, nameservers []string, tun bool) []string {
	env := hostEnvironment(image, nameservers)
	if !tun { // the engine has it everywhere, and programs look whether it is there
		env = append(env, "DOZE_HIDDEN=/dev/net/tun")
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
