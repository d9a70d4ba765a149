package hostnet

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A feature is a part of the kernel that our filters need, by the name of its
// module, and what works only with it.
type feature struct {
	module string
	works  func(*changer) error
}

// features are all of them. A rule is tried where it would be.
var features = []feature{
	{"nf_tables", inChain(nftables.ChainTypeFilter, nftables.ChainHookPrerouting, isIPv4, accept)},
	{"nft_ct", inChain(nftables.ChainTypeFilter, nftables.ChainHookInput, established, accept)},
	{"nft_reject_inet", inChain(nftables.ChainTypeFilter, nftables.ChainHookPrerouting, protocol(unix.IPPROTO_TCP), reset)},
	{"nft_redir", inChain(nftables.ChainTypeNAT, nftables.ChainHookPrerouting, protocol(unix.IPPROTO_TCP), redirect(RedirectPort))},
	{"nft_nat", inChain(nftables.ChainTypeNAT, nftables.ChainHookPostrouting, isIPv4, []expr.Any{
		&expr.Immediate{Register: 1, Data: uplinkInnerIP.AsSlice()},
	}, snat)},
	{"nft_masq", inChain(nftables.ChainTypeNAT, nftables.ChainHookPostrouting, isIPv4, masquerade)},
	{"nft_limit", inChain(nftables.ChainTypeFilter, nftables.ChainHookForward, []expr.Any{noteLimit})},
	{"nft_fib_inet", inChain(nftables.ChainTypeFilter, nftables.ChainHookPrerouting, isIPv4, toMachine)},
	{"nft_log", inChain(nftables.ChainTypeFilter, nftables.ChainHookForward, []expr.Any{noteLog})},
	{"nfnetlink_log", func(c *changer) error {
		conn, err := bindLog(c.ns, noteGroup, noteLength)
		if err != nil {
			return err
		}
		return conn.Close()
	}},
	{"nf_conntrack_netlink", func(c *changer) error { return forgetFlows(c.ns, plan) }},
	{"all rules of the router", func(c *changer) error {
		// Whether the host has name servers is another question.
		return (&router{changer: changer{ns: c.ns}}).filter(Options{OpenEgress: true, OpenDatagrams: true, resolvConf: os.DevNull})
	}},
}

// inChain tries a rule in a chain of its own.
func inChain(kind nftables.ChainType, hook *nftables.ChainHook, parts ...[]expr.Any) func(*changer) error {
	return func(c *changer) error {
		return c.change(func(conn *nftables.Conn) error {
			t := &table{conn, &nftables.Table{Name: "try", Family: nftables.TableFamilyINet}}
			t.remove()
			conn.AddTable(t.Table)
			t.rule(conn.AddChain(&nftables.Chain{
				Table: t.Table, Name: "try", Type: kind, Hooknum: hook, Priority: nftables.ChainPriorityFilter,
			}), slices.Concat(parts...))
			return nil
		})
	}
}

// Lacking returns the modules that this kernel does not have of those that filters
// need. It tries what they are for in a network namespace that is gone afterwards,
// for which it needs to be root.
func Lacking() ([]string, error) { return lacking(features) }

func lacking(all []feature) (modules []string, err error) {
	var ns netns
	if err := apart(func() (err error) {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		ns, err = here()
		return err
	}); err != nil {
		return nil, err
	}
	c := &changer{ns: ns}
	for _, f := range all {
		if f.works(c) != nil {
			modules = append(modules, f.module)
		}
	}
	return modules, errors.Join(c.close(), ns.Close())
}
