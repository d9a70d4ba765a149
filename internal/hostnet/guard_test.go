package hostnet

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/dozehq/doze"
)

// tamper changes the packet filter of a namespace as somebody else.
func tamper(t *testing.T, ns netns, change func(*nftables.Conn) error) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(ns.fd()))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(change(conn), conn.Flush()); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: it never is so", what)
		}
	}
}

// TestRouterWithoutFilter: who throws the filter away opens no way from one sandbox
// to another.
func TestRouterWithoutFilter(t *testing.T) {
	t.Parallel()
	n := fresh(t)
	a, b := leased(t, n, "a"), leased(t, n, "b")
	serve(t, a)
	port := serve(t, b)
	if err := errors.Join(n.Join("a", "x"), n.Join("b", "x")); err != nil {
		t.Fatal(err)
	}
	to := netip.AddrPortFrom(b.IP, port).String()
	inside(t, a, func() error {
		if got, err := said(to); got != "b" {
			t.Errorf("in one subnet: %q, %v", got, err)
		}
		return nil
	})
	tamper(t, n.router.ns, func(conn *nftables.Conn) error { conn.DelTable(ownTable); return nil })
	eventually(t, "nothing is forwarded", func() (closed bool) {
		if err := n.router.ns.do(func() error {
			b, err := os.ReadFile(forwardSysctl)
			closed = strings.TrimSpace(string(b)) == "0"
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return closed
	})
	inside(t, a, func() error {
		if c, err := net.DialTimeout("tcp4", to, silence); err == nil {
			c.Close()
			t.Error("without the filter a sandbox reaches another one")
		}
		return nil
	})
	leased(t, n, "c")
	if err := n.Join("c", "x"); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("into a subnet: %v", err)
	}
	// We reach it, and tell of what it sends, as before.
	if got := ask(t, n, b, port); got != "b" {
		t.Errorf("we hear %q", got)
	}
	if err := errors.Join(n.Join("a", ""), n.Release("b")); err != nil {
		t.Error(err)
	}
}

// TestMachineWithoutFilter: what others throw away in the machine is there again.
func TestMachineWithoutFilter(t *testing.T) {
	t.Parallel()
	needRoot(t)
	dir := t.TempDir()
	machine, internet := filepath.Join(dir, "machine"), filepath.Join(dir, "internet")
	world(t, machine, internet)
	mirror(t, internet, "443")
	conf := filepath.Join(dir, "resolv.conf")
	if err := os.WriteFile(conf, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before := state(t, machine)
	n := open(t, filepath.Join(dir, "net"), Options{OpenEgress: true, OpenDatagrams: true, EgressLink: "wan", machine: machine, resolvConf: conf})
	a, b := leased(t, n, "a"), leased(t, n, "b")
	dress(t, a)
	dress(t, b)
	admitted(t, n, Direct)
	one := netip.MustParseAddr("9.9.9.64")
	if err := errors.Join(n.Dedicate("b", one), n.Datagrams("b", one), n.Admit("b", Proxied)); err != nil {
		t.Fatal(err)
	}
	ours := &nftables.Table{Name: n.uplink, Family: nftables.TableFamilyINet}
	for name, change := range map[string]func(*nftables.Conn) error{
		"everything": func(conn *nftables.Conn) error { conn.FlushRuleset(); return nil },
		"the rules":  func(conn *nftables.Conn) error { conn.FlushTable(ours); return nil },
		"one rule": func(conn *nftables.Conn) error {
			rules, err := conn.GetRules(ours, &nftables.Chain{Name: "input"})
			if err != nil || len(rules) == 0 {
				return errors.Join(err, errors.New("no rules"))
			}
			return conn.DelRule(rules[len(rules)-2])
		},
		"its effect": func(conn *nftables.Conn) error {
			conn.AddTable(&nftables.Table{Name: ours.Name, Family: ours.Family, Flags: 1}) // it is dormant
			return nil
		},
	} {
		n.sources.Lock()
		was := n.guards
		n.sources.Unlock()
		tamper(t, n.machine, change)
		eventually(t, name, func() bool {
			n.sources.Lock()
			defer n.sources.Unlock()
			now, err := n.guarded()
			return err == nil && strings.Join(now, "\n") == strings.Join(n.guards, "\n") && len(now) == len(was)
		})
		inside(t, a, func() error {
			if got, err := said("9.9.9.1:80"); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("without %s the machine says %q, %v", name, got, err)
			}
			if got, err := said("8.8.8.8:80"); got != "9.9.9.1" {
				t.Errorf("without %s the internet sees %q, %v", name, got, err)
			}
			return nil
		})
		inside(t, b, func() error {
			c, err := net.Dial("udp4", "9.9.9.2:443")
			if err != nil {
				return err
			}
			defer c.Close()
			if got, err := heard(c, true); got != one.String() {
				t.Errorf("without %s UDP comes from %q, %v", name, got, err)
			}
			return nil
		})
	}
	// What is not ours is nobody's business of ours.
	other := &nftables.Table{Name: "other", Family: nftables.TableFamilyINet}
	n.sources.Lock()
	was := n.guards
	n.sources.Unlock()
	tamper(t, n.machine, func(conn *nftables.Conn) error { conn.AddTable(other); return nil })
	tamper(t, n.machine, func(conn *nftables.Conn) error { conn.DelTable(other); return nil })
	if err := n.Admit("a", Closed); err != nil {
		t.Error(err)
	}
	n.sources.Lock()
	if strings.Join(was, "\n") != strings.Join(n.guards, "\n") {
		t.Error("it is set again for what is somebody else's")
	}
	n.sources.Unlock()
	if err := n.Destroy(); err != nil {
		t.Error(err)
	}
	if after := state(t, machine); strings.Join(after, "\n") != strings.Join(before, "\n") {
		t.Errorf("the machine has %q, and had %q", after, before)
	}
}
