package httpx_test

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/dozehq/doze/internal/httpx"
)

func TestSource(t *testing.T) {
	for remote, want := range map[string]struct{ addr, network string }{
		"192.0.2.7:4711":                {"192.0.2.7", "192.0.2.7/32"},
		"[::ffff:192.0.2.7]:4711":       {"192.0.2.7", "192.0.2.7/32"},
		"[2001:db8:1:2:3:4:5:6]:4711":   {"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
		"[fe80::1%eth0]:4711":           {"fe80::1", "fe80::/64"},
		"@":                             {"invalid IP", "invalid Prefix"},
		"":                              {"invalid IP", "invalid Prefix"},
		"name.example.com:80":           {"invalid IP", "invalid Prefix"},
		"192.0.2.7":                     {"invalid IP", "invalid Prefix"},
		"[2001:db8:1:2:ffff::1]:1":      {"2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"},
		"192.0.2.7:99999":               {"invalid IP", "invalid Prefix"},
		"[::ffff:192.0.2.7%eth0]:4711":  {"192.0.2.7", "192.0.2.7/32"},
		"[2001:db8:1:2:3:4:5:6%x]:4711": {"2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"},
	} {
		got := httpx.Source(&http.Request{RemoteAddr: remote})
		if got.String() != want.addr || httpx.SourceNetwork(got).String() != want.network {
			t.Errorf("%q: %v in %v, want %s in %s", remote, got, httpx.SourceNetwork(got), want.addr, want.network)
		}
	}
	if got := httpx.SourceNetwork(netip.Addr{}); got.IsValid() {
		t.Errorf("the zero address is in %v", got)
	}
}
