package network_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

type network = doze.NetworkResource

func TestNetworksLiveInEachOther(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	if all := planetest.Want[[]network](p, 200, "GET", "/vpcs", ""); len(all) != 1 || all[0].Metadata.Name != "default" {
		t.Errorf("%+v", all)
	}
	planetest.Want[network](p, 200, "POST", "/vpcs", planetest.Named("v"))
	g := planetest.Want[network](p, 200, "POST", "/vpcs/v/egressgateways", `{"metadata":{"name":"g","displayName":"G","labels":{"a":"b"}},"spec":{"region":"here-1","publicIp":"192.0.2.1"}}`)
	if g.Metadata.VPCName != "v" || g.Metadata.Workspace != "main" || g.Metadata.CreatedBy != "admin" || g.Status != "DEPLOYED" || len(g.Events) != 1 || g.Spec.PublicIP != "" {
		t.Errorf("%+v", g)
	}
	ip := planetest.Want[network](p, 200, "POST", "/vpcs/v/egressgateways/g/ips", planetest.Named("i"))
	if ip.Metadata.GatewayName != "g" || ip.Metadata.VPCName != "v" || ip.Spec.IPFamily != "IPv4" || ip.Status != "FAILED" || ip.Spec.PublicIP != "" {
		t.Errorf("%+v", ip)
	}
	planetest.Want[network](p, 200, "POST", "/vpcs/default/egressgateways", `{"metadata":{"name":"h"},"spec":{"region":"auto"}}`)
	for _, tt := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/vpcs/default", "", 200},
		{"GET", "/vpcs/none", "", 404},
		{"GET", "/vpcs/none/egressgateways", "", 404},
		{"GET", "/vpcs/default/egressgateways/g", "", 404}, // it is in v
		{"GET", "/vpcs/default/egressgateways/h/ips/i", "", 404},
		{"DELETE", "/vpcs/default/egressgateways/h/ips/i", "", 404},
		{"POST", "/vpcs", planetest.Named("v"), 409},
		{"POST", "/vpcs", planetest.Named("default"), 400},
		{"POST", "/vpcs", `{}`, 400},
		{"POST", "/vpcs/none/egressgateways", `{"metadata":{"name":"x"},"spec":{"region":"here-1"}}`, 404},
		{"POST", "/vpcs/default/egressgateways", `{"metadata":{"name":"g"},"spec":{"region":"here-1"}}`, 409}, // unique in the workspace
		{"POST", "/vpcs/v/egressgateways", `{"metadata":{"name":"x"}}`, 400},
		{"POST", "/vpcs/v/egressgateways", `{"metadata":{"name":"x"},"spec":{"region":"mars"}}`, 400},
		{"POST", "/vpcs/v/egressgateways/g/ips", `{"metadata":{"name":"x"},"spec":{"ipFamily":"IPv5"}}`, 400},
		{"POST", "/vpcs/v/egressgateways/none/ips", planetest.Named("x"), 404},
		{"DELETE", "/vpcs/default", "", 409},
		{"DELETE", "/vpcs/v", "", 409},
		{"DELETE", "/vpcs/v/egressgateways/g", "", 409},
	} {
		w := p.Do(tt.method, tt.path, tt.body)
		if w.Code != tt.status {
			t.Errorf("%s %s %s: %d %s, want %d", tt.method, tt.path, tt.body, w.Code, w.Body, tt.status)
		}
		if tt.status >= 400 {
			planetest.CheckError(t, w)
		}
	}
	if all := planetest.Want[[]network](p, 200, "GET", "/egressgateways", ""); len(all) != 2 {
		t.Errorf("%+v", all)
	}
	if all := planetest.Want[[]network](p, 200, "GET", "/egressips", ""); len(all) != 1 {
		t.Errorf("%+v", all)
	}
	if usage := planetest.Want[map[string][]string](p, 200, "GET", "/egressgateways/usage", ""); len(usage) != 2 || usage["g"] == nil {
		t.Errorf("%+v", usage)
	}
	if gone := planetest.Want[network](p, 200, "DELETE", "/vpcs/v/egressgateways/g/ips/i", ""); gone.Metadata.Name != "i" {
		t.Errorf("%+v", gone)
	}
	planetest.Want[network](p, 200, "DELETE", "/vpcs/v/egressgateways/g", "")
	planetest.Want[network](p, 200, "DELETE", "/vpcs/v", "")
	planetest.Want[any](p, 404, "GET", "/vpcs/v", "")
	if all := planetest.Want[[]network](p, 200, "GET", "/vpcs/default/egressgateways", ""); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

func TestEgressIPsGetAddresses(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	planetest.Want[network](p, 200, "POST", "/vpcs/default/egressgateways", `{"metadata":{"name":"g"},"spec":{"region":"auto"}}`)
	const ips = "/vpcs/default/egressgateways/g/ips"
	if ip := planetest.Want[network](p, 200, "POST", ips, planetest.Named("early")); ip.Status != "FAILED" || !strings.Contains(ip.Events[1].Message, "--egress-pool") {
		t.Errorf("without a pool: %+v", ip)
	}
	p.Pool = doze.AddressPool{netip.MustParsePrefix("203.0.113.0/31")}
	p.Reopen()
	if ip := planetest.Want[network](p, 200, "GET", ips+"/early", ""); ip.Spec.PublicIP != "203.0.113.0" || ip.Status != "DEPLOYED" {
		t.Errorf("with a pool: %+v", ip)
	}
	ip := planetest.Want[network](p, 200, "POST", ips, `{"metadata":{"name":"second"},"spec":{"publicIp":"203.0.113.0"}}`)
	if ip.Spec.PublicIP != "203.0.113.1" || ip.Status != "DEPLOYED" || len(ip.Events) != 2 {
		t.Errorf("the second: %+v", ip)
	}
	if ip := planetest.Want[network](p, 200, "POST", ips, planetest.Named("third")); ip.Spec.PublicIP != "" || ip.Status != "FAILED" || !strings.Contains(ip.Events[1].Message, "are taken: delete an egress IP") {
		t.Errorf("of a pool without a free one: %+v", ip)
	}
	if w := p.Do("POST", ips, `{"metadata":{"name":"sixth"},"spec":{"ipFamily":"IPv6"}}`); w.Code != 400 || !strings.Contains(w.Body.String(), "spec.ipFamily is IPv6, of which") {
		t.Errorf("of version 6: %d %s", w.Code, w.Body)
	}
	// One in another VPC has its turn like any other.
	planetest.Want[network](p, 200, "POST", "/vpcs", planetest.Named("v"))
	planetest.Want[network](p, 200, "POST", "/vpcs/v/egressgateways", `{"metadata":{"name":"far"},"spec":{"region":"auto"}}`)
	if ip := planetest.Want[network](p, 200, "POST", "/vpcs/v/egressgateways/far/ips", planetest.Named("far")); ip.Spec.PublicIP != "" || ip.Status != "FAILED" {
		t.Errorf("of another VPC: %+v", ip)
	}
	planetest.Want[network](p, 200, "DELETE", ips+"/early", "")
	if ip := planetest.Want[network](p, 200, "GET", ips+"/third", ""); ip.Spec.PublicIP != "203.0.113.0" || ip.Status != "DEPLOYED" || len(ip.Events) != 3 {
		t.Errorf("when one was returned: %+v", ip)
	}
	far := func() network {
		return planetest.Want[network](p, 200, "GET", "/vpcs/v/egressgateways/far/ips/far", "")
	}
	if ip := far(); ip.Spec.PublicIP != "" || len(ip.Events) != 2 {
		t.Errorf("of another VPC, behind an older one: %+v", ip)
	}
	planetest.Want[network](p, 200, "DELETE", ips+"/second", "")
	if ip := far(); ip.Spec.PublicIP != "203.0.113.1" || ip.Status != "DEPLOYED" {
		t.Errorf("of another VPC: %+v", ip)
	}
}

// TestSandboxesLeaveByGateways: the node hears from which address, and again when
// that changes.
func TestSandboxesLeaveByGateways(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Pool = doze.AddressPool{netip.MustParsePrefix("203.0.113.0/31")}
	p.Reopen()
	const ips = "/vpcs/default/egressgateways/g/ips"
	body := func(network string) string {
		return `{"metadata":{"name":"s"},"spec":{"network":` + network + `}}`
	}
	const dedicated = `{"egress":{"gateway":"g","mode":"dedicated"}}`
	source := func() string {
		t.Helper()
		sb, err := p.Store.SandboxByName(t.Context(), "main", "s")
		if err != nil {
			t.Fatal(err)
		}
		p.Node.Mu.Lock()
		defer p.Node.Mu.Unlock()
		return p.Node.Machines[sb.Machine].Order.Network.Source().String()
	}
	refused := func(status int, method, path, body, why string) {
		t.Helper()
		if w := p.Do(method, path, body); w.Code != status || !strings.Contains(w.Body.String(), why) {
			t.Errorf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
	}
	refused(400, "POST", "/sandboxes", body(dedicated), "no such egress gateway")
	planetest.Want[network](p, 200, "POST", "/vpcs", planetest.Named("v"))
	planetest.Want[network](p, 200, "POST", "/vpcs/v/egressgateways", `{"metadata":{"name":"far"},"spec":{"region":"auto"}}`)
	refused(400, "POST", "/sandboxes", body(`{"egress":{"gateway":"far"}}`), "no such egress gateway in the VPC default")
	refused(400, "POST", "/sandboxes", `{"metadata":{"name":"s"},"spec":{"vpc":"v","network":{"egress":{"gateway":"nowhere"}}}}`, "in the VPC default, nor in v")
	refused(400, "POST", "/sandboxes", `{"metadata":{"name":"s"},"spec":{"vpc":"v","network":{"egress":{"gateway":"far"}}}}`, "has no address")
	planetest.Want[network](p, 200, "POST", "/vpcs/v/egressgateways/far/ips", planetest.Named("there"))
	planetest.Want[doze.Sandbox](p, 200, "POST", "/sandboxes", `{"metadata":{"name":"s"},"spec":{"vpc":"v","network":{"egress":{"gateway":"far"}}}}`)
	if got := source(); got != "203.0.113.0" {
		t.Errorf("in its own VPC it leaves from %s", got)
	}
	refused(400, "PUT", "/sandboxes/s", `{"spec":{"vpc":"default"}}`, "no such egress gateway in the VPC default")
	planetest.Want[doze.Sandbox](p, 200, "PUT", "/sandboxes/s", `{"spec":{"vpc":"default","network":{}}}`)
	planetest.Want[doze.Sandbox](p, 200, "DELETE", "/sandboxes/s", "")
	planetest.Want[network](p, 200, "DELETE", "/vpcs/v/egressgateways/far/ips/there", "")
	planetest.Want[network](p, 200, "POST", "/vpcs/default/egressgateways", `{"metadata":{"name":"g"},"spec":{"region":"auto"}}`)
	refused(400, "POST", "/sandboxes", body(dedicated), "has no address")
	planetest.Want[network](p, 200, "POST", ips, planetest.Named("a"))
	planetest.Want[doze.Sandbox](p, 200, "POST", "/sandboxes", body(dedicated))
	if got := source(); got != "203.0.113.0" {
		t.Errorf("it leaves from %s", got)
	}
	planetest.Want[doze.Sandbox](p, 200, "POST", "/sandboxes", planetest.Named("other"))
	if usage := planetest.Want[map[string][]string](p, 200, "GET", "/egressgateways/usage", ""); len(usage["g"]) != 1 || usage["g"][0] != "s" {
		t.Errorf("%+v", usage)
	}
	refused(409, "DELETE", ips+"/a", "", "the sandbox s leaves from this address")
	planetest.Want[network](p, 200, "POST", ips, planetest.Named("b"))
	planetest.Want[network](p, 200, "DELETE", ips+"/a", "")
	if got := source(); got != "203.0.113.1" {
		t.Errorf("when its address is gone, it leaves from %s", got)
	}
	p.Reopen()
	if got := source(); got != "203.0.113.1" {
		t.Errorf("after a restart it leaves from %s", got)
	}
	planetest.Want[doze.Sandbox](p, 200, "PUT", "/sandboxes/s", body(`{}`))
	if got := source(); got != "invalid IP" {
		t.Errorf("without a gateway it leaves from %s", got)
	}
	planetest.Want[network](p, 200, "DELETE", ips+"/b", "")
}

// TestAddressIsVacated: who read an address before its egress IP is deleted leaves
// sendFrom it no more when somebody else may get it.
func TestAddressIsVacated(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before                string // the sandbox that there is, if any
		method, path, pending string
	}{
		"a create": {"", "POST", "/sandboxes", `{"metadata":{"name":"a"},"spec":{"network":{"egress":{"gateway":"g"}}}}`},
		"an update": {
			`{"metadata":{"name":"a"}}`, "PUT", "/sandboxes/a",
			`{"spec":{"runtime":{"memory":768},"network":{"egress":{"gateway":"g"}}}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := planetest.Start(t, false)
			p.Pool = doze.AddressPool{netip.MustParsePrefix("203.0.113.0/31")}
			p.Reopen()
			planetest.Want[network](p, 200, "POST", "/vpcs/default/egressgateways", `{"metadata":{"name":"g"},"spec":{"region":"auto"}}`)
			const ips = "/vpcs/default/egressgateways/g/ips"
			planetest.Want[network](p, 200, "POST", ips, planetest.Named("a"))
			planetest.Want[network](p, 200, "POST", ips, planetest.Named("b"))
			if tt.before != "" {
				planetest.Want[doze.Sandbox](p, 200, "POST", "/sandboxes", tt.before)
			}
			creates, release := p.Node.Ordered(), p.Node.Hold()
			made, gone := make(chan int), make(chan int)
			go func() { made <- p.Do(tt.method, tt.path, tt.pending).Code }()
			for p.Node.Ordered() == creates && t.Context().Err() == nil {
				time.Sleep(time.Millisecond)
			}
			go func() { gone <- p.Do("DELETE", ips+"/a", "").Code }()
			for len(planetest.Want[[]network](p, 200, "GET", ips, "")) > 1 {
				time.Sleep(time.Millisecond)
			}
			release()
			if a, b := <-made, <-gone; a != 200 || b != 200 {
				t.Errorf("it ends with %d, the delete with %d", a, b)
			}
			if source := p.Network().Source().String(); source != "203.0.113.1" {
				t.Errorf("it leaves from %s", source)
			}
		})
	}
}
