package egress

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

func TestDecide(t *testing.T) {
	t.Parallel()
	named := func(name string, port uint16) Destination { return Destination{Name: name, Port: port} }
	public := Destination{IP: netip.MustParseAddr("1.2.3.4"), Port: 443}
	allow := func(rule string, rules ...int) Verdict { return Verdict{Allow: true, Rule: rule, Rules: rules} }
	lists := func(p doze.Proxy) *doze.Network { return &doze.Network{Proxy: &p} }
	allowed := lists(doze.Proxy{AllowedDomains: []string{"a.test", "*.b.test", "c.test:8443", "d.test:25"}, ForbiddenDomains: []string{"a.test"}, Bypass: []string{"past.test", "*.local"}})
	forbidden := lists(doze.Proxy{ForbiddenDomains: []string{"a.test", "b.test:8443"}})
	sealed := lists(*allowed.Proxy)
	sealed.Firewall = &doze.Firewall{Rulesets: []string{doze.RulesetProxy}}
	addressed := lists(doze.Proxy{AllowedDomains: []string{"a.test"}, Bypass: []string{"1.2.3.4", "5.6.0.0/16", "2600::/16", ".dotted.test"}})
	sealedAddressed := lists(*addressed.Proxy)
	sealedAddressed.Firewall = sealed.Firewall
	routed := lists(doze.Proxy{Routing: []doze.ProxyTarget{{Destinations: []string{"a.test"}}, {Destinations: []string{"*"}}}})

	for name, tt := range map[string]struct {
		network *doze.Network
		to      Destination
		want    Verdict
	}{
		"in the list":                      {allowed, named("a.test", 443), allow("allowedDomains[0]")},
		"allowed goes before forbidden":    {allowed, named("a.test", 80), allow("allowedDomains[0]")},
		"a wildcard":                       {allowed, named("x.b.test", 443), allow("allowedDomains[1]")},
		"a wildcard is not itself":         {allowed, named("b.test", 443), Verdict{Rule: "allowedDomains"}},
		"not in the list":                  {allowed, named("z.test", 443), Verdict{Rule: "allowedDomains"}},
		"any port":                         {allowed, named("a.test", 22), allow("allowedDomains[0]")},
		"any port of a wildcard":           {allowed, named("x.b.test", 5432), allow("allowedDomains[1]")},
		"any port of all":                  {lists(doze.Proxy{AllowedDomains: []string{"*"}}), named("z.test", 22), allow("allowedDomains[0]")},
		"mail of all":                      {lists(doze.Proxy{AllowedDomains: []string{"*"}}), named("z.test", 25), Verdict{Rule: "mail"}},
		"DNS by TLS of all":                {lists(doze.Proxy{AllowedDomains: []string{"*"}}), named("z.test", 853), Verdict{Rule: "resolver"}},
		"DNS by TLS past the lists":        {allowed, named("past.test", 853), Verdict{Rule: "resolver"}},
		"past the lists at any port":       {allowed, named("past.test", 22), allow("bypass[0]")},
		"an address past the lists":        {addressed, public, allow("bypass[0]")},
		"a network past the lists":         {addressed, Destination{IP: netip.MustParseAddr("5.6.1.1"), Port: 22}, allow("bypass[1]")},
		"one of IPv6 past the lists":       {addressed, Destination{IP: netip.MustParseAddr("2600::1"), Port: 22}, allow("bypass[2]")},
		"mail past the lists":              {addressed, Destination{IP: public.IP, Port: 25}, Verdict{Rule: "mail"}},
		"an address beside it":             {addressed, Destination{IP: netip.MustParseAddr("1.2.3.5"), Port: 443}, Verdict{Rule: "no-name"}},
		"a name with a dot in front":       {addressed, named("x.dotted.test", 443), allow("bypass[3]")},
		"no address past a sealed proxy":   {sealedAddressed, public, Verdict{Rule: "no-name"}},
		"a port of an entry":               {allowed, named("c.test", 8443), allow("allowedDomains[2]")},
		"no other port than that":          {allowed, named("c.test", 443), Verdict{Rule: "allowedDomains"}},
		"mail, whatever the list says":     {allowed, named("d.test", 25), Verdict{Rule: "mail"}},
		"past the lists":                   {allowed, named("past.test", 443), allow("bypass[0]")},
		"private, whatever the list says":  {allowed, named("x.local", 443), Verdict{Rule: "private"}},
		"the metadata of a cloud":          {lists(doze.Proxy{}), named("metadata.google.internal", 80), Verdict{Rule: "private"}},
		"an address with a list":           {allowed, public, Verdict{Rule: "no-name"}},
		"nothing with a list":              {allowed, Destination{Port: 443}, Verdict{Rule: "no-name"}},
		"nothing without":                  {nil, Destination{Port: 443}, Verdict{Rule: "no-name"}},
		"nothing past a sealed proxy":      {sealed, named("past.test", 443), Verdict{Rule: "allowedDomains"}},
		"in the list, sealed":              {sealed, named("a.test", 443), allow("allowedDomains[0]")},
		"forbidden":                        {forbidden, named("a.test", 9999), Verdict{Rule: "forbiddenDomains[0]"}},
		"forbidden at one port":            {forbidden, named("b.test", 8443), Verdict{Rule: "forbiddenDomains[1]"}},
		"not forbidden at another":         {forbidden, named("b.test", 443), allow("default")},
		"not forbidden":                    {forbidden, named("z.test", 22), allow("default")},
		"an address, with names forbidden": {forbidden, public, Verdict{Rule: "no-name"}},
		"without rules":                    {nil, named("z.test", 22), allow("default")},
		"an address without rules":         {nil, public, allow("default")},
		"mail without rules":               {nil, named("z.test", 25), Verdict{Rule: "mail"}},
		"DNS by TLS without rules":         {nil, named("z.test", 853), Verdict{Rule: "resolver"}},
		"DNS by TLS to an address":         {nil, Destination{IP: public.IP, Port: 853}, Verdict{Rule: "resolver"}},
		"DNS by TLS, not forbidden":        {forbidden, named("z.test", 853), Verdict{Rule: "resolver"}},
		"DNS by TLS in the list":           {lists(doze.Proxy{AllowedDomains: []string{"a.test:853"}}), named("a.test", 853), allow("allowedDomains[0]")},
		"only a bypass":                    {lists(doze.Proxy{Bypass: []string{"a.test"}}), named("b.test", 443), allow("default")},
		"two routes":                       {routed, named("a.test", 443), allow("default", 0, 1)},
		"one route":                        {routed, named("b.test", 443), allow("default", 1)},
		"no route past the proxy":          {lists(doze.Proxy{Bypass: []string{"a.test"}, Routing: routed.Proxy.Routing}), named("a.test", 443), allow("bypass[0]")},
		"deprecated lists":                 {&doze.Network{AllowedDomains: []string{"a.test"}}, named("b.test", 443), Verdict{Rule: "allowedDomains"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Compile(tt.network, false)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, p.Decide(tt.to)); diff != "" {
				t.Error(diff)
			}
			shut, err := Compile(tt.network, true)
			if err != nil {
				t.Fatal(err)
			}
			if v := shut.Decide(tt.to); v.Allow {
				t.Errorf("with everything closed: %+v", v)
			}
		})
	}
}

// TestResolves: the DNS is asked about a name if the sandbox may connect to it, and
// about no other.
func TestResolves(t *testing.T) {
	t.Parallel()
	allowed := &doze.Proxy{AllowedDomains: []string{"a.test", "*.b.test", "c.test:22"}, Bypass: []string{"past.test"}}
	forbidden := &doze.Proxy{ForbiddenDomains: []string{"a.test", "b.test:22"}}
	for name, tt := range map[string]struct {
		proxy   *doze.Proxy
		private bool
		want    bool
	}{
		"a.test": {allowed, false, true}, "x.b.test": {allowed, false, true}, "c.test": {allowed, false, true}, "past.test": {allowed, false, true},
		"b.test": {allowed, false, false}, "secret.z.test": {allowed, false, false}, "x.a.test": {allowed, false, false},
		"any.test": {nil, false, true}, "x.internal": {nil, false, false}, "y.internal": {nil, true, true},
	} {
		p, err := Compile(&doze.Network{Proxy: tt.proxy}, false)
		if err != nil {
			t.Fatal(err)
		}
		p.private = tt.private
		if got := p.Resolves(name); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
		if shut, err := Compile(&doze.Network{Proxy: tt.proxy}, true); err != nil || shut.Resolves(name) {
			t.Errorf("%s, with everything closed: %v", name, err)
		}
	}
	p, err := Compile(&doze.Network{Proxy: forbidden}, false)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"a.test": false, "b.test": true, "z.test": true} {
		if got := p.Resolves(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestCompileMistake(t *testing.T) {
	t.Parallel()
	if _, err := Compile(&doze.Network{AllowedDomains: []string{"1.2.3.4"}}, false); err == nil {
		t.Error("an address is read as a domain")
	}
}

func TestSource(t *testing.T) {
	t.Parallel()
	own := netip.MustParseAddr("203.0.113.7")
	dedicated, shared := doze.EgressDedicated, doze.EgressShared
	network := func(mode string, policies ...doze.EgressPolicy) *doze.Network {
		return &doze.Network{Egress: &doze.Egress{Gateway: "g", Mode: mode, Policies: policies, Source: own}}
	}
	policy := func(mode string, to ...string) doze.EgressPolicy {
		return doze.EgressPolicy{Mode: mode, Destinations: to}
	}
	exclusive := func(n *doze.Network) *doze.Network {
		n.Firewall = &doze.Firewall{Rulesets: []string{doze.RulesetDedicated}}
		return n
	}
	missing := network(dedicated)
	missing.Egress.Source = netip.Addr{}
	named := Destination{Name: "a.test", Port: 8443}
	to := netip.MustParseAddr("1.2.3.4")
	for name, tt := range map[string]struct {
		network *doze.Network
		to      Destination
		want    netip.Addr // none is that of the platform
		broken  string
	}{
		"no rules":                     {nil, named, netip.Addr{}, ""},
		"dedicated":                    {network(dedicated), named, own, ""},
		"a gateway alone":              {network(""), named, own, ""},
		"an address":                   {network(dedicated), Destination{IP: to, Port: 80}, own, ""},
		"shared by name":               {network(dedicated, policy(shared, "*.test")), named, netip.Addr{}, ""},
		"shared by another name":       {network(dedicated, policy(shared, "b.test")), named, own, ""},
		"shared at a port":             {network(dedicated, policy(shared, "a.test:8443")), named, netip.Addr{}, ""},
		"shared at another port":       {network(dedicated, policy(shared, "a.test:443")), named, own, ""},
		"shared by address":            {network(dedicated, policy(shared, "1.2.3.4")), named, netip.Addr{}, ""},
		"shared by network":            {network(dedicated, policy(shared, "1.2.0.0/16")), named, netip.Addr{}, ""},
		"a network, no name":           {network(dedicated, policy(shared, "1.2.0.0/16")), Destination{IP: to, Port: 80}, netip.Addr{}, ""},
		"dedicated by name":            {network("", policy(dedicated, "a.test")), named, own, ""},
		"dedicated by another name":    {network("", policy(dedicated, "b.test")), named, netip.Addr{}, ""},
		"the first counts":             {network("", policy(shared, "a.test"), policy(dedicated, "*")), named, netip.Addr{}, ""},
		"exclusive, dedicated":         {exclusive(network(dedicated)), named, own, ""},
		"exclusive, shared":            {exclusive(network(dedicated, policy(shared, "*"))), named, netip.Addr{}, ruleShared},
		"exclusive, no policy":         {exclusive(network("", policy(dedicated, "b.test"))), named, netip.Addr{}, ruleShared},
		"exclusive, without a gateway": {exclusive(&doze.Network{}), named, netip.Addr{}, ruleShared},
		"no address":                   {missing, named, netip.Addr{}, ruleNoSource},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Compile(tt.network, false)
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Source(tt.to, to)
			if rule, is := errors.AsType[broken](err); got != tt.want || string(rule) != tt.broken || is != (err != nil) {
				t.Errorf("it leaves from %v, %v", got, err)
			}
		})
	}
}

// TestFiltered: what the filter did is written down with its reason.
func TestFiltered(t *testing.T) {
	t.Parallel()
	private := netip.MustParseAddr("10.0.0.1")
	e := New(Options{Pool: pool, Denied: func(_, a netip.Addr) bool { return a == private }})
	public := netip.MustParseAddr("1.2.3.4")
	for name, tt := range map[string]struct {
		protocol string
		to       Destination
		passed   bool
		want     Verdict
	}{
		"a private network":         {"tcp", Destination{IP: private, Port: 80}, false, Verdict{Rule: rulePrivate}},
		"a private network, by UDP": {"udp", Destination{IP: private, Port: 80}, false, Verdict{Rule: rulePrivate}},
		"the machine":               {"udp", Destination{IP: private, Port: 80}, true, Verdict{Rule: rulePrivate}},
		"UDP":                       {"udp", Destination{IP: public, Port: 443}, false, Verdict{Rule: ruleTransport}},
		"UDP that passes":           {"udp", Destination{IP: public, Port: 443}, true, Verdict{Allow: true, Rule: ruleOpen}},
		"ICMP":                      {"icmp", Destination{IP: public}, false, Verdict{Rule: ruleTransport}},
		"mail":                      {"tcp", Destination{IP: public, Port: 25}, false, Verdict{Rule: ruleMail}},
		"anything":                  {"tcp", Destination{IP: public, Port: 80}, false, Verdict{Rule: ruleClosed}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := e.filtered(Packet{Protocol: tt.protocol, Passed: tt.passed}, tt.to)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestReasons: who has no rules is not told to change them.
func TestReasons(t *testing.T) {
	t.Parallel()
	p, err := Compile(nil, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []Destination{{Name: "a.test", Port: dnsTLSPort}, {Name: "a.local", Port: 80}, {Name: "a.test", Port: mailPort}} {
		if v := p.Decide(d); v.Allow || reasons[v.Rule] == "" {
			t.Errorf("%v is refused by %q for %q", d, v.Rule, v.reason())
		}
	}
}
