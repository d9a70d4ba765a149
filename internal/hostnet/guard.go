package hostnet

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// A guard hears of every change of the packet filter of a namespace, by anybody.
type guard struct {
	conn *netlink.Conn
	over sync.WaitGroup
}

// guardPause is how long a guard waits after it could not hear.
const guardPause = 100 * time.Millisecond

// guardOf calls changed after every change, and now, until it is closed.
func guardOf(ns netns, changed func()) (*guard, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.fd()})
	if err != nil {
		return nil, fmt.Errorf("watch the packet filter: %w", err)
	}
	if err := conn.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return nil, errors.Join(fmt.Errorf("watch the packet filter: %w", err), conn.Close())
	}
	g := &guard{conn: conn}
	g.over.Go(func() {
		for {
			changed()
			_, err := conn.Receive()
			if errors.Is(err, os.ErrClosed) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.EBADF) {
				return
			}
			if err != nil { // there was more than fits into its queue
				time.Sleep(guardPause)
			}
		}
	})
	return g, nil
}

// close ends a guard, and waits for that. There may be none.
func (g *guard) close() error {
	if g == nil {
		return nil
	}
	err := g.conn.Close()
	g.over.Wait()
	return err
}

// shut ends all forwarding, since what is left of the filter may let a sandbox reach
// another one, and sets the filter anew, in which no link has a way. It is one change.
func (r *router) shut(o Options) error {
	return errors.Join(r.ns.do(func() error {
		return set([]sysctl{{"ipv4/ip_forward", "0"}, {"ipv4/conf/all/accept_redirects", "0"}}) // which the first one changes
	}), r.filter(o))
}

// without takes elements out of a set, in which they may be: to add them first makes
// that certain.
func without(conn *nftables.Conn, s *nftables.Set, elements []nftables.SetElement) error {
	return errors.Join(conn.SetAddElements(s, elements), conn.SetDeleteElements(s, elements))
}

// restore makes sure of the filter around the uplink. Others may change what is
// theirs in the machine at any time, and often throw away all that there is. If it
// cannot be set again, nothing passes the uplink any more.
func (n *Net) restore() {
	n.sources.Lock()
	defer n.sources.Unlock()
	now, err := n.guarded()
	if err == nil && slices.Equal(now, n.guards) {
		return
	}
	slog.Error("somebody changed the packet filter of sandboxes in this machine: it is set again", "table", n.uplink, "err", err)
	if err := n.guardMachine(n.uplink); err != nil {
		slog.Error("the packet filter of sandboxes cannot be set: none has a way past the proxy until dozed is started again", "table", n.uplink, "err", errors.Join(err, n.router.unlink(uplinkInner)))
	}
}

// guarded is what the kernel has of the filter around the uplink: its chains, and
// the numbers of its rules, which no rule gets that comes later.
func (n *Net) guarded() (all []string, err error) {
	err = n.outside.change(func(conn *nftables.Conn) error {
		table, err := conn.ListTableOfFamily(n.uplink, nftables.TableFamilyINet)
		if err != nil {
			return err
		}
		all = append(all, fmt.Sprintf("table %x", table.Flags))
		chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
		if err != nil {
			return err
		}
		for _, c := range chains {
			if c.Table.Name != n.uplink {
				continue
			}
			rules, err := conn.GetRules(table, c)
			if err != nil {
				return err
			}
			var numbers []uint64
			for _, r := range rules {
				numbers = append(numbers, r.Handle)
			}
			policy := "none"
			if c.Policy != nil {
				policy = fmt.Sprint(*c.Policy)
			}
			all = append(all, fmt.Sprintf("%s %s %v", c.Name, policy, numbers))
		}
		return nil
	})
	return all, err
}
