package front

import (
	"log/slog"
	"os"
	"slices"
	"strings"
)

// localhost is the domain whose names browsers and curl know by themselves.
const localhost = "localhost"

// noteLocalNames says, if sandboxes have names below localhost, that programs of
// this host which ask its system do not find them.
func noteLocalNames(domain string) {
	if !FindsNames(domain) {
		slog.Warn("programs of this host that ask its system, as node and python do, do not find names below localhost; browsers and curl do",
			"fix", "apt-get install libnss-myhostname, or start dozed without --domain")
	}
}

// FindsNames reports whether programs of this host find names below a domain as the
// rest of the world does. Below localhost, that takes a module of the host.
func FindsNames(domain string) bool {
	if domain != localhost && !strings.HasSuffix(domain, "."+localhost) {
		return true
	}
	sources, _ := os.ReadFile("/etc/nsswitch.conf") // without one there is nobody to ask but the DNS
	servers, _ := os.ReadFile("/etc/resolv.conf")
	return findsLocalNames(string(sources), string(servers))
}

// findsLocalNames reports whether a host with these files answers for names below
// localhost: by a module of its own, or by systemd-resolved (RFC 6761, 6.3).
func findsLocalNames(nsswitch, resolvConf string) bool {
	for line := range strings.Lines(nsswitch) {
		if hosts, ok := strings.CutPrefix(strings.TrimSpace(line), "hosts:"); ok {
			sources := strings.Fields(hosts)
			if slices.Contains(sources, "myhostname") || slices.Contains(sources, "resolve") {
				return true
			}
		}
	}
	return slices.Contains(strings.Fields(resolvConf), "127.0.0.53")
}
