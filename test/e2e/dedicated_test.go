package e2e_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// sourceIP and nextIP are the addresses of the pool of these tests.
const (
	sourceIP = "1.2.3.64"
	nextIP   = "1.2.3.65"
)

// api calls the control API with the admin key, and returns the status and the
// body.
func api(t *testing.T, p *testkit.Platform, method, path, body string) (status int, answer string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, p.Address+"/v0"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.Key)
	resp, err := (&http.Client{Timeout: patience}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// egressIP makes an egress IP in the gateway g.
func egressIP(t *testing.T, p *testkit.Platform, name, want string) {
	t.Helper()
	var ip doze.NetworkResource
	status, body := api(t, p, "POST", "/vpcs/default/egressgateways/g/ips", `{"metadata":{"name":"`+name+`"}}`)
	if err := json.Unmarshal([]byte(body), &ip); status != 200 || err != nil || ip.Spec.PublicIP != want {
		t.Fatalf("%d %s, %v", status, body, err)
	}
}

// TestDedicatedAddress: what a sandbox sends leaves from the address of its
// gateway, as the servers outside see it, and from no other one.
func TestDedicatedAddress(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	n := newInternet(t)
	p, c := start(t, "--egress", "open", "--egress-pool", sourceIP+"/31", "--egress-interface", "wan", "--resolver", n.zone.Address, "--pause-after", "1h", "--warm-pool", "1")
	api(t, p, "POST", "/vpcs/default/egressgateways", `{"metadata":{"name":"g"},"spec":{"region":"auto"}}`)
	sb := named("one", 512)
	sb.Spec.Network = &doze.Network{Egress: &doze.Egress{Gateway: "g", Mode: doze.EgressDedicated}}
	if _, err := c.Create(t.Context(), sb, false); err == nil || !strings.Contains(err.Error(), "has no address") {
		t.Errorf("by a gateway without an address: %v", err)
	}
	egressIP(t, p, "a", sourceIP)
	sb, one := create(t, c, sb)
	_, two := create(t, c, named("two", 512))

	const (
		byName = "200 host=allowed.test sni=- at=1.2.3.4:80 from="
		direct = "200 host=direct.test sni=- at=5.6.7.8:80 from="
		byIP   = "200 host=5.6.7.8 sni=- at=5.6.7.8:80 from="
	)
	dedicated := map[string]row{
		"a name":          {"web", args("allowed.test"), byName + sourceIP},
		"an address":      {"web", args(otherIP), byIP + sourceIP},
		"by TLS":          {"tls", args("allowed.test", "allowed.test"), secured + " from=" + sourceIP},
		"by the proxy":    {"tunnel", args("allowed.test:443", "allowed.test"), secured + " from=" + sourceIP},
		"its own address": {"raw", args(sourceIP, 80), "refused"},

		"UDP":                               {"udp", args(publicIP, 443), "from=" + sourceIP},
		"UDP to the metadata":               {"datagram", args(metadataIP, 443), "nothing"},
		"UDP to a private network":          {"datagram", args(privateIP, 443), "nothing"},
		"UDP to this machine":               {"datagram", args(ownIP, 443), "nothing"},
		"a resolver elsewhere":              {"dns", args(publicIP, "allowed.test", 16), "1 answers, code 0"},
		"a resolver elsewhere that is safe": {"datagram", args(publicIP, 853), "nothing"},
	}
	try(t, one, dedicated)
	try(t, two, map[string]row{
		"shared":        {"web", args(publicIP), "200 host=1.2.3.4 sni=- at=1.2.3.4:80 from=" + ownIP},
		"shared by UDP": {"datagram", args(publicIP, 443), "nothing"},
	})
	if status, body := api(t, p, "GET", "/egressgateways/usage", ""); status != 200 || !strings.Contains(body, `{"g":["one"]}`) {
		t.Errorf("usage: %d %s", status, body)
	}

	t.Run("crash", func(t *testing.T) {
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		try(t, one, dedicated)
	})
	t.Run("policies", func(t *testing.T) {
		policies := &doze.Egress{Gateway: "g", Mode: doze.EgressDedicated, Policies: []doze.EgressPolicy{
			{Destinations: []string{"a.wild.test"}, Mode: doze.EgressDedicated},
			{Destinations: []string{"direct.test", publicIP + "/32"}, Mode: doze.EgressShared},
		}}
		obey(t, c, &sb, &doze.Network{Egress: policies})
		try(t, one, map[string]row{
			"a name":                {"web", args("direct.test"), direct + ownIP},
			"another name":          {"web", args("evil.test"), "200 host=evil.test sni=- at=5.6.7.8:80 from=" + sourceIP},
			"in a network":          {"web", args(publicIP), "200 host=1.2.3.4 sni=- at=1.2.3.4:80 from=" + ownIP},
			"a name in it":          {"web", args("allowed.test"), byName + ownIP},
			"a name, which is said": {"web", args("a.wild.test"), "200 host=a.wild.test sni=- at=1.2.3.4:80 from=" + sourceIP},
		})
		obey(t, c, &sb, &doze.Network{Egress: policies, Firewall: &doze.Firewall{Rulesets: []string{doze.RulesetDedicated}}})
		try(t, one, map[string]row{
			"dedicated":            {"web", args("evil.test"), "200 host=evil.test sni=- at=5.6.7.8:80 from=" + sourceIP},
			"shared":               {"web", args("direct.test"), blocked},
			"shared, by TLS":       {"tls", args("direct.test", "direct.test"), "refused"},
			"shared, in a network": {"tls", args("allowed.test", "allowed.test"), "refused"},
		})
	})
	t.Run("UDP", func(t *testing.T) {
		egress := &doze.Egress{Gateway: "g", Mode: doze.EgressDedicated}
		obey(t, c, &sb, &doze.Network{Egress: egress, Proxy: &doze.Proxy{AllowedDomains: []string{"allowed.test"}}})
		try(t, one, map[string]row{
			"where rules are about names": {"datagram", args(publicIP, 443), "nothing"},
			"a name":                      {"web", args("allowed.test"), byName + sourceIP},
		})
		obey(t, c, &sb, &doze.Network{Egress: egress, Firewall: &doze.Firewall{Rulesets: []string{doze.RulesetDedicated}}})
		try(t, one, map[string]row{"where they are about addresses": {"udp", args(publicIP, 443), "from=" + sourceIP}})
	})
	t.Run("another address", func(t *testing.T) {
		obey(t, c, &sb, &doze.Network{Egress: &doze.Egress{Gateway: "g", Mode: doze.EgressDedicated}})
		const first = "/vpcs/default/egressgateways/g/ips/a"
		if status, body := api(t, p, "DELETE", first, ""); status != 409 || !strings.Contains(body, "the sandbox one leaves from this address") {
			t.Errorf("the last one: %d %s", status, body)
		}
		egressIP(t, p, "b", nextIP)
		if status, body := api(t, p, "DELETE", first, ""); status != 200 {
			t.Errorf("with another one: %d %s", status, body)
		}
		try(t, one, map[string]row{
			"the next":        {"web", args("allowed.test"), byName + nextIP},
			"the next by UDP": {"udp", args(publicIP, 443), "from=" + nextIP},
		})
		if has := run(t, "ip", "-4", "addr", "show", "wan"); strings.Contains(has, sourceIP) || !strings.Contains(has, nextIP) {
			t.Errorf("the host has\n%s", has)
		}
	})
	t.Run("shared", func(t *testing.T) {
		obey(t, c, &sb, &doze.Network{})
		try(t, one, map[string]row{"shared": {"web", args(publicIP), "200 host=1.2.3.4 sni=- at=1.2.3.4:80 from=" + ownIP}})
		if has := run(t, "ip", "-4", "addr", "show", "wan"); strings.Contains(has, nextIP) || !strings.Contains(has, ownIP) {
			t.Errorf("when nobody leaves from it, the host has\n%s", has)
		}
	})
	if n.leaked.Load() != 0 || n.datagrams.Load() != 0 {
		t.Errorf("%d connections and %d packets went where nothing may go", n.leaked.Load(), n.datagrams.Load())
	}
}

// TestSubnets: who names the same subnet of a VPC reaches the others in it, and
// nobody else does.
func TestSubnets(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "1h", "--warm-pool", "0")
	agents, in := map[string]*client.Agent{}, map[string]doze.Sandbox{}
	for name, subnet := range map[string]string{"one": "inner", "two": "inner", "far": "other"} {
		sb := named(name, 512)
		sb.Spec.Network = &doze.Network{Subnet: subnet}
		in[name], agents[name] = create(t, c, sb)
	}
	serveInside(t, agents["two"])
	serveInside(t, agents["far"])
	two, far := addressOf(t, agents["two"]), addressOf(t, agents["far"])
	rows := map[string]row{
		"a neighbour":              {"web", args(two, "x.test", 7000), "200"},
		"the agent of a neighbour": {"raw", args(two, doze.AgentPort), "refused"},
		"another subnet":           {"silent", args(far, 7000), "nothing"},
	}
	try(t, agents["one"], rows)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	try(t, agents["one"], rows)
	sb := in["one"]
	obey(t, c, &sb, &doze.Network{Subnet: "other"})
	try(t, agents["one"], map[string]row{
		"a neighbour now":    {"web", args(far, "x.test", 7000), "200"},
		"a neighbour before": {"silent", args(two, 7000), "nothing"},
	})
}

// obey gives a sandbox another network.
func obey(t *testing.T, c *client.Client, sb *doze.Sandbox, network *doze.Network) {
	t.Helper()
	sb.Spec.Network = network
	if _, err := c.Update(t.Context(), *sb); err != nil {
		t.Fatal(err)
	}
}
