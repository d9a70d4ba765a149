package doze_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

func TestDomainPattern(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		pattern, host string
		want          bool
	}{
		"itself":                       {"example.com", "example.com", true},
		"another case, a dot":          {"Example.COM.", "EXAMPLE.com.", true},
		"below":                        {"example.com", "a.example.com", false},
		"wildcard below":               {"*.example.com", "a.example.com", true},
		"wildcard far below":           {"*.example.com", "c.b.a.example.com", true},
		"wildcard itself":              {"*.example.com", "example.com", false},
		"wildcard of another":          {"*.example.com", "evilexample.com", false},
		"ends alike":                   {"example.com", "evilexample.com", false},
		"everything":                   {"*", "a.example.org", true},
		"an underscore":                {"*.example.com", "_dmarc.example.com", true},
		"with a port":                  {"example.com:8443", "example.com", true},
		"a name that goes on":          {"example.com", "example.com.evil.org", false},
		"an address is no name":        {"*", "1.2.3.4", false},
		"nor one in short form":        {"*", "127.1", false},
		"nor a number":                 {"*", "2130706433", false},
		"nor a hexadecimal one":        {"*", "0x7f.1", false},
		"nor one that ends in that":    {"*", "1.2.3.0x4", false},
		"nor an octal one":             {"*", "0177.0.0.01", false},
		"nor one in another alphabet":  {"*", "١.2.3.4", false},
		"nor an address of version 6":  {"*", "::1", false},
		"nor a name of one label":      {"*", "localhost", false},
		"nor an empty label":           {"*", "a..b.com", false},
		"nor a space":                  {"*", "a .com", false},
		"nor a NUL byte":               {"*", "a.com\x00.b.com", false},
		"nor nothing":                  {"*", "", false},
		"nor a name that is too long":  {"*", strings.Repeat("a.", 127) + "com", false},
		"nor a label that is too long": {"*", strings.Repeat("a", 64) + ".com", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := doze.ParseDomainPattern(tt.pattern)
			if err != nil {
				t.Fatal(err)
			}
			host, ok := doze.ParseHost(tt.host)
			if got := ok && p.Covers(host); got != tt.want {
				t.Errorf("%s covers %q: %v", tt.pattern, tt.host, got)
			}
		})
	}
}

func TestDomainPatternMistakes(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", ".", "*.", "**.a.com", "a.*.com", "*a.com", "a.com:", "a.com:0", "a.com:080", "a.com:65536", "a.com:8:9", "https://a.com",
		"a.com/path", "!a.com", "GET:a.com", "1.2.3.4", "10.0.0.0/8", "*.1", "[::1]", "bücher.example", "a b.com", ".a.com", "-a.com",
	} {
		if p, err := doze.ParseDomainPattern(s); err == nil {
			t.Errorf("%q is read as %s", s, p)
		}
	}
}

func FuzzDomainPattern(f *testing.F) {
	f.Add("*.example.com:443", "a.example.com")
	f.Add("*", "0x7f.1")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		p, err := doze.ParseDomainPattern(pattern)
		if err != nil {
			return
		}
		again, err := doze.ParseDomainPattern(p.String())
		if err != nil || again != p {
			t.Errorf("%q is read as %s, and that as %s, %v", pattern, p, again, err)
		}
		host, ok := doze.ParseHost(name)
		if !ok {
			return
		}
		if twice, ok := doze.ParseHost(host + "."); !ok || twice != host {
			t.Errorf("%q has the forms %q and %q", name, host, twice)
		}
		all, _, _ := strings.Cut(strings.TrimPrefix(p.String(), "*"), ":")
		if p.Covers(host) && !strings.HasSuffix(host, strings.TrimPrefix(all, ".")) {
			t.Errorf("%s covers %q", p, host)
		}
	})
}

func TestNetworkValidate(t *testing.T) {
	t.Parallel()
	hidden := doze.Hide(map[string]string{"key": "hunter2"})
	for name, tt := range map[string]struct {
		network doze.Network
		want    []string // nothing: it is fine
	}{
		"nothing": {},
		"everything": {network: doze.Network{
			Subnet: "default", Egress: &doze.Egress{Gateway: "gate", Mode: "dedicated", Policies: []doze.EgressPolicy{{Destinations: []string{"*"}, Mode: "shared"}}},
			Firewall: &doze.Firewall{Rulesets: []string{"default", "proxy", "dedicated-ip"}},
			Proxy: &doze.Proxy{
				AllowedDomains: []string{"a.example"}, ForbiddenDomains: []string{"*.b.example"}, Bypass: []string{"c.example:8443"},
				Routing: []doze.ProxyTarget{{
					Destinations: []string{"*"}, Headers: map[string]string{"Authorization": "Bearer {{SECRET:key}}"},
					Body: map[string]string{"api_key": "{{SECRET:key}}"}, Secrets: hidden,
				}},
			},
			AllowedDomains: []string{"a.example"}, ForbiddenDomains: []string{"b.example"},
		}},
		"domains": {
			doze.Network{AllowedDomains: []string{"1.2.3.4"}, Proxy: &doze.Proxy{Bypass: []string{"a/b"}}},
			[]string{`spec.network.allowedDomains has "1.2.3.4"`, "spec.network.proxy.bypass"},
		},
		"nothing allowed": {
			doze.Network{AllowedDomains: []string{}, Proxy: &doze.Proxy{AllowedDomains: []string{}}},
			[]string{"spec.network.allowedDomains is empty", `spec.network.proxy.allowedDomains is empty: name what may be reached, or leave it out if everything may; to let nothing out, forbid "*"`},
		},
		"too many domains": {doze.Network{ForbiddenDomains: make([]string, doze.DomainsMax+1)}, []string{"at most 256"}},
		"subnet":           {doze.Network{Subnet: "A b"}, []string{"spec.network.subnet"}},
		"ruleset":          {doze.Network{Firewall: &doze.Firewall{Rulesets: []string{"open"}}}, []string{"spec.network.firewall.rulesets", "open"}},
		"no gateway": {
			doze.Network{Egress: &doze.Egress{Mode: "dedicated", Policies: []doze.EgressPolicy{{Mode: "shared", Destinations: []string{"1.2.3.4/8", "1.2.3.4", "a.test"}}}}},
			[]string{"egress.gateway is required", "policies[0].destinations has \"1.2.3.4/8\""},
		},
		"no way out": {
			doze.Network{Egress: &doze.Egress{Gateway: "g", Policies: []doze.EgressPolicy{{Mode: "shared", Destinations: []string{"*"}}}}, Firewall: &doze.Firewall{Rulesets: []string{doze.RulesetDedicated}}},
			[]string{"firewall.rulesets has dedicated-ip"},
		},
		"egress": {
			doze.Network{Egress: &doze.Egress{Gateway: "-", Mode: "shared", Policies: []doze.EgressPolicy{{Mode: "odd"}}}},
			[]string{"egress.gateway", "egress.mode", "policies[0].destinations is required", "policies[0].mode"},
		},
		"a reference to nothing": {
			doze.Network{Proxy: &doze.Proxy{Routing: []doze.ProxyTarget{{Destinations: []string{"*"}, Headers: map[string]string{"A": "{{SECRET:other}}"}, Secrets: hidden}}}},
			[]string{"routing[0].headers", `"other"`},
		},
		"destinations": {
			doze.Network{Proxy: &doze.Proxy{Routing: []doze.ProxyTarget{
				{Destinations: []string{"!POST:*.a.test/v1", "GET:a.test/x", "https://a.test"}},
				{Destinations: []string{"a.test", "[METHOD:GET]a.test"}},
				{Destinations: []string{"!a.test"}},
				{},
				{Destinations: make([]string, doze.DomainsMax+1)},
			}}},
			[]string{`routing[1].destinations has "[METHOD:GET]a.test": must be a domain`, "routing[2].destinations has exceptions only", "routing[3].destinations is required", "routing[4].destinations has 257 entries; at most 256 are allowed"},
		},
		"a template": {
			doze.Network{Proxy: &doze.Proxy{Routing: []doze.ProxyTarget{{Destinations: []string{"*"}, Body: map[string]string{"a": "{{FUNC:exec}}", "b": "{{SECRET:key}"}, Secrets: hidden}}}},
			[]string{`routing[0].body has "a", which refers to a function`, `has "b", which has {{`},
		},
		"a secret of two lines": {
			doze.Network{Proxy: &doze.Proxy{Routing: []doze.ProxyTarget{{Destinations: []string{"*"}, Headers: map[string]string{"A": "{{SECRET:pem}}"}, Secrets: doze.Hide(map[string]string{"pem": "hunter2\r\n"})}}}},
			[]string{`routing[0].headers has "A" with the secret "pem"`},
		},
		"headers": {
			doze.Network{Proxy: &doze.Proxy{Routing: []doze.ProxyTarget{{Destinations: []string{"*"}, Headers: map[string]string{"Host": "a", "B C": "d", "E": "f\r\nG: h"}}}}},
			[]string{`"Host", which belongs`, `"B C"`, `"E"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sb := doze.Sandbox{Metadata: doze.Metadata{Name: "a"}, Spec: doze.SandboxSpec{Network: &tt.network}}
			sb.Default("here")
			var p doze.Problems
			sb.Check(&p)
			err := p.Err()
			if len(tt.want) == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
			for _, w := range append(tt.want, "spec.network") {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("%q is not in: %v", w, err)
				}
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Error("a secret is in the message")
			}
		})
	}
}

func TestNetworkRules(t *testing.T) {
	t.Parallel()
	n := &doze.Network{AllowedDomains: []string{"old"}, ForbiddenDomains: []string{"bad"}, Proxy: &doze.Proxy{AllowedDomains: []string{"new"}}}
	if r := n.Rules(); r.AllowedDomains[0] != "new" || r.ForbiddenDomains[0] != "bad" {
		t.Errorf("the rules are %+v", r)
	}
	for _, tt := range []struct {
		network *doze.Network
		want    bool
	}{
		{nil, false},
		{&doze.Network{}, false},
		{&doze.Network{Subnet: "default"}, false},
		{&doze.Network{Firewall: &doze.Firewall{Rulesets: []string{"default"}}}, false},
		{&doze.Network{Firewall: &doze.Firewall{Rulesets: []string{"proxy"}}}, true},
		{&doze.Network{Proxy: &doze.Proxy{}}, true},
		{&doze.Network{ForbiddenDomains: []string{"a.b"}}, true},
	} {
		if got := tt.network.Proxied(); got != tt.want {
			t.Errorf("%+v is proxied: %v", tt.network, got)
		}
	}
}

// TestDatagramSource: UDP leaves where nothing but an address decides.
func TestDatagramSource(t *testing.T) {
	t.Parallel()
	own := netip.MustParseAddr("1.2.3.4")
	with := func(change func(*doze.Network)) *doze.Network {
		n := &doze.Network{Egress: &doze.Egress{Gateway: "g", Mode: doze.EgressDedicated, Source: own}}
		change(n)
		return n
	}
	rulesets := func(all ...string) *doze.Network {
		return with(func(n *doze.Network) { n.Firewall = &doze.Firewall{Rulesets: all} })
	}
	none := netip.Addr{}
	for name, tt := range map[string]struct {
		network *doze.Network
		want    netip.Addr
	}{
		"no network":       {nil, none},
		"no gateway":       {&doze.Network{Subnet: "x"}, none},
		"dedicated":        {with(func(*doze.Network) {}), own},
		"a gateway alone":  {with(func(n *doze.Network) { n.Egress.Mode = "" }), own},
		"dedicated-ip":     {rulesets(doze.RulesetDefault, doze.RulesetDedicated), own},
		"the proxy only":   {rulesets(doze.RulesetProxy), none},
		"allowed domains":  {with(func(n *doze.Network) { n.Proxy = &doze.Proxy{AllowedDomains: []string{"a.test"}} }), none},
		"in the old place": {with(func(n *doze.Network) { n.ForbiddenDomains = []string{"a.test"} }), none},
		"routing": {with(func(n *doze.Network) {
			n.Proxy = &doze.Proxy{Routing: []doze.ProxyTarget{{Destinations: []string{"*"}}}}
		}), none},
		"policies": {with(func(n *doze.Network) {
			n.Egress.Policies = []doze.EgressPolicy{{Destinations: []string{"1.2.3.0/24"}, Mode: doze.EgressShared}}
		}), none},
		"no address": {with(func(n *doze.Network) { n.Egress.Source = none }), none},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tt.network.DatagramSource(); got != tt.want {
				t.Errorf("it leaves from %v", got)
			}
		})
	}
}

// TestBypass: an entry is a domain, an address or a network, and the ones that the
// specification lists are entries.
func TestBypass(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"example.com": "example.com", "*.example.com": "*.example.com", ".example.com": "*.example.com", "example.com:22": "example.com:22",
		"localhost": "localhost", ".local": "*.local", ".internal": "*.internal",
		"169.254.169.254": "169.254.169.254/32", "10.0.0.0/8": "10.0.0.0/8", "172.16.0.0/12": "172.16.0.0/12", "192.168.0.0/16": "192.168.0.0/16",
		"2600::7": "2600::7/128", "2600::/16": "2600::/16",
		"": "", ".": "", "10.0.0.1/8": "", "10.0.0.0/33": "", "fe80::1%eth0": "", "http://example.com": "", "1.2.3": "", "1.2.3.4:80": "",
	} {
		pattern, network, err := doze.ParseBypass(in)
		got := ""
		if network.IsValid() {
			got = network.String()
		} else if err == nil {
			got = pattern.String()
		}
		if got != want {
			t.Errorf("%q is %q, want %q: %v", in, got, want, err)
		}
	}
}

func FuzzBypass(f *testing.F) {
	f.Add("10.0.0.0/8")
	f.Add(".example.com")
	f.Fuzz(func(t *testing.T, s string) {
		pattern, network, err := doze.ParseBypass(s)
		if err != nil {
			return
		}
		if again, _, err := doze.ParseBypass(pattern.String()); !network.IsValid() && (err != nil || again != pattern) {
			t.Errorf("%q is %v, and that is %v, %v", s, pattern, again, err)
		}
		if network.IsValid() && network != network.Masked() {
			t.Errorf("%q is %v", s, network)
		}
	})
}
