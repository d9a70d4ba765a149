package testkit

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"os/exec"
	"slices"
	"strings"

	"github.com/dozehq/doze/internal/npm"
)

// Mirrors are flags of a platform whose sandboxes reach what this host gets packages from:
// it may be in a private network.
func Mirrors(ctx context.Context, registry npm.Registry) []string {
	// Without apt, the step that needs it says what is wrong.
	said, _ := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "$(SITE)").Output()
	var networks []string
	for _, site := range append(strings.Fields(string(said)), registry.URL) {
		u, err := url.Parse(site)
		if err != nil || u.Hostname() == "" {
			continue
		}
		addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip4", u.Hostname())
		if err != nil {
			continue // the step says so
		}
		for _, a := range addresses {
			networks = append(networks, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()).String())
		}
	}
	if len(networks) == 0 {
		return nil
	}
	slices.Sort(networks)
	return []string{"--egress-allow", strings.Join(slices.Compact(networks), ",")}
}
