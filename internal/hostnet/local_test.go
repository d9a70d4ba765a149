package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TestLocal: a machine is whatever its routes lead to itself, and not only the
// addresses of its interfaces.
func TestLocal(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir()
	machine, internet := filepath.Join(dir, "machine"), filepath.Join(dir, "internet")
	world(t, machine, internet)
	ns, err := openNetns(machine)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	dedicated := netip.MustParseAddr("9.9.9.1")
	err = ns.do(func() error {
		if err := set([]sysctl{{"ipv6/conf/all/disable_ipv6", "0"}, {"ipv6/conf/lo/disable_ipv6", "0"}}); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		local := func(table int, network string) error {
			_, dst, err := net.ParseCIDR(network)
			return errors.Join(err, netlink.RouteAdd(&netlink.Route{
				LinkIndex: lo.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL, Table: table, Scope: netlink.SCOPE_HOST,
			}))
		}
		const elsewhere, ofSource = 100, 101
		rule := func(table int, change func(*netlink.Rule)) error {
			r := netlink.NewRule()
			r.Table, r.Family = table, netlink.FAMILY_V4
			change(r)
			return netlink.RuleAdd(r)
		}
		_, ruled, _ := net.ParseCIDR("55.0.0.0/8")
		if err := errors.Join(
			local(unix.RT_TABLE_LOCAL, "11.22.0.0/16"), local(unix.RT_TABLE_LOCAL, "2600:1::/64"),
			local(unix.RT_TABLE_MAIN, "33.44.55.66/32"),
			netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParseAddr("66.1.1.0")), Type: unix.RTN_BLACKHOLE}),
			netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParseAddr("66.1.2.0")), Type: unix.RTN_PROHIBIT}),
			netlink.RouteAdd(&netlink.Route{Dst: ipNet(netip.MustParseAddr("66.1.3.0")), Type: unix.RTN_UNREACHABLE}),
			local(elsewhere, "55.66.0.0/16"), rule(elsewhere, func(r *netlink.Rule) { r.Dst = ruled }),
			local(ofSource, "77.0.0.0/8"), rule(ofSource, func(r *netlink.Rule) { r.Src = ipNet(dedicated) }),
		); err != nil {
			return err
		}
		for name, tt := range map[string]struct {
			from, to string
			want     bool
		}{
			"the internet":                         {"", "8.8.8.8", false},
			"a neighbour":                          {"", "9.9.9.2", false},
			"an address of an interface":           {"", "9.9.9.1", true},
			"all in a network":                     {"", "9.9.9.255", true},
			"a group":                              {"", "224.0.0.1", true},
			"the loopback":                         {"", "127.0.0.1", true},
			"a network that is local":              {"", "11.22.33.44", true},
			"a local route among others":           {"", "33.44.55.66", true},
			"beside that":                          {"", "33.44.55.67", false},
			"a table of its own":                   {"", "55.66.1.1", true},
			"dropped by a route":                   {"", "66.1.1.1", true},
			"closed by a route":                    {"", "66.1.2.1", true},
			"without a way by a route":             {"", "66.1.3.1", false},
			"beside that table":                    {"", "55.67.1.1", false},
			"local for another source":             {"", "77.1.1.1", false},
			"local for this source":                {"9.9.9.1", "77.1.1.1", true},
			"from a source that nobody has":        {"9.9.9.77", "8.8.8.8", false},
			"the machine, from such a source":      {"9.9.9.77", "9.9.9.1", true},
			"version 6: local":                     {"", "2600:1::77", true},
			"version 6: the loopback":              {"", "::1", true},
			"version 6: a network without a route": {"", "2600:2::1", false},
		} {
			var from netip.Addr
			if tt.from != "" {
				from = netip.MustParseAddr(tt.from)
			}
			if got, err := Local(from, netip.MustParseAddr(tt.to)); got != tt.want || err != nil {
				t.Errorf("%s: %t, %v", name, got, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMachineIsClosed: a sandbox with a way past the proxy does not reach what is
// the machine's by a route, nor what the machine makes of such an address.
func TestMachineIsClosed(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir()
	machine, internet := filepath.Join(dir, "machine"), filepath.Join(dir, "internet")
	world(t, machine, internet)
	n := open(t, filepath.Join(dir, "net"), Options{OpenEgress: true, machine: machine})
	t.Cleanup(func() {
		if err := n.Destroy(); err != nil {
			t.Error(err)
		}
	})
	err := n.machine.do(func() error {
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		_, dst, err := net.ParseCIDR("11.22.0.0/16")
		return errors.Join(err, netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: dst, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}))
	})
	if err != nil {
		t.Fatal(err)
	}
	// The operator forwards a port of the machine to a container whose address
	// looks like a public one.
	tamper(t, n.machine, func(conn *nftables.Conn) error {
		policy := nftables.ChainPolicyAccept
		table := conn.AddTable(&nftables.Table{Name: "operator", Family: nftables.TableFamilyINet})
		chain := conn.AddChain(&nftables.Chain{
			Table: table, Name: "forward", Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest, Policy: &policy,
		})
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: append(append(append([]expr.Any{}, isIPv4...), toAddr(netip.MustParseAddr("9.9.9.1"))...), dnat(netip.MustParseAddr("8.8.8.8"))...)})
		return nil
	})
	s := leased(t, n, "a")
	serve(t, s)
	admitted(t, n, Direct)
	inside(t, s, func() error {
		if got, err := said("8.8.8.8:80"); err != nil {
			t.Errorf("the internet says %q, %v", got, err)
		}
		for name, to := range map[string]string{"a network that is local": "11.22.33.44:80", "a port that is forwarded": "9.9.9.1:80"} {
			if got, err := said(to); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s says %q, %v", name, got, err)
			}
		}
		return nil
	})
}
