package hostnet

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/dozehq/doze"
)

// addressesOf are the addresses of version 4 that a machine has on its wan.
func addressesOf(t *testing.T, machine string) (all []string) {
	t.Helper()
	ns, err := openNetns(machine)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.do(func() error {
		link, err := netlink.LinkByName("wan")
		if err != nil {
			return err
		}
		has, err := netlink.AddrList(link, netlink.FAMILY_V4)
		for _, a := range has {
			all = append(all, a.IP.String())
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(all)
	return all
}

// TestDedicate: the machine has an address as long as anybody wants it, also
// after a kill, and keeps those that are not ours.
func TestDedicate(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir()
	machine := filepath.Join(dir, "machine")
	world(t, machine, filepath.Join(dir, "internet"))
	o := Options{EgressLink: "wan", machine: machine}
	n := open(t, filepath.Join(dir, "net"), o)
	none := netip.Addr{}
	one, two, own := netip.MustParseAddr("9.9.9.64"), netip.MustParseAddr("9.9.9.65"), netip.MustParseAddr("9.9.9.1")
	want := func(step string, more ...string) {
		t.Helper()
		has := append([]string{"192.168.7.1", "9.9.9.1"}, more...)
		if got := addressesOf(t, machine); !slices.Equal(got, has) {
			t.Errorf("%s: the machine has %v, want %v", step, got, has)
		}
	}
	dedicate := func(id string, a netip.Addr) {
		t.Helper()
		if err := n.Dedicate(id, a); err != nil {
			t.Error(err)
		}
	}
	restart := func(o Options) {
		t.Helper()
		n.Close()
		n = open(t, n.dir, o)
	}
	sweep := func() {
		t.Helper()
		if err := n.SweepAddresses(); err != nil {
			t.Error(err)
		}
	}
	sweep()
	dedicate("a", one)
	dedicate("b", one)
	dedicate("c", own)
	want("two that leave from one", "9.9.9.64")
	dedicate("a", two)
	want("another one", "9.9.9.64", "9.9.9.65")
	dedicate("b", none)
	want("the last one left", "9.9.9.65")
	dedicate("c", none)
	want("one that the machine had", "9.9.9.65")
	dedicate("b", one)

	restart(o)
	want("after a kill", "9.9.9.64", "9.9.9.65")
	dedicate("a", one)
	want("before all are known", "9.9.9.64", "9.9.9.65")
	sweep()
	want("when all are known", "9.9.9.64")
	leased(t, n, "a")
	if err := n.Release("a"); err != nil {
		t.Error(err)
	}
	want("released")

	dedicate("a", one)
	restart(Options{machine: machine})
	want("without an interface")
	if err := n.Dedicate("a", one); doze.Public(err).Kind != doze.Unavailable || !strings.Contains(err.Error(), "--egress-interface") {
		t.Errorf("without an interface: %v", err)
	}
	restart(o)
	dedicate("a", one)
	if err := n.Destroy(); err != nil {
		t.Error(err)
	}
	want("destroyed")
}
