package hostnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"doze"
)

// generations notices that somebody else changes the rules of a namespace of ours:
// the kernel counts all changes.
type generations struct {
	conn *netlink.Conn

	mu      sync.Mutex
	last    uint32 // guarded by mu; after our own last change
	touched bool   // guarded by mu; there was another one
}

// countGenerations begins with the rules as they are.
func countGenerations(ns netns) (*generations, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.fd()})
	if err != nil {
		return nil, fmt.Errorf("watch the packet filter: %w", err)
	}
	g := &generations{conn: conn}
	if g.last, err = g.now(); err != nil {
		return nil, errors.Join(fmt.Errorf("watch the packet filter: %w", err), conn.Close())
	}
	return g, nil
}

// now is the number of the rules that are in force.
func (g *generations) now() (uint32, error) {
	answers, err := g.conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   make([]byte, nfHeaderLen),
	})
	if err != nil {
		return 0, err
	}
	for _, m := range answers {
		if len(m.Data) < nfHeaderLen {
			continue
		}
		attributes, err := netlink.UnmarshalAttributes(m.Data[nfHeaderLen:])
		if err != nil {
			return 0, err
		}
		for _, a := range attributes {
			if a.Type == unix.NFTA_GEN_ID && len(a.Data) == 4 {
				return binary.BigEndian.Uint32(a.Data), nil
			}
		}
	}
	return 0, errors.New("the kernel does not number its rules")
}

// step makes one change of ours, of at most one generation.
func (g *generations) step(change func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.look(0)
	err := change()
	g.look(1)
	return err
}

// look compares what is with what was, but for changes of ours.
// Preconditions: mu is held.
func (g *generations) look(ours uint32) {
	now, err := g.now()
	if err != nil || now-g.last > ours {
		if !g.touched {
			slog.Error("somebody changed the packet filter around sandboxes: none is let out any more", "err", err)
		}
		g.touched = true
	}
	g.last = now
}

// intact is Unavailable if somebody else changed the rules: one may be missing.
func (g *generations) intact() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.look(0); g.touched {
		return doze.Errorf(doze.Unavailable, "somebody changed the packet filter around sandboxes: none is let out until dozed is started again")
	}
	return nil
}

// change makes one step out of what do asks for.
func (r *router) change(do func(*nftables.Conn) error) error {
	return r.generations.step(func() error { return r.changer.change(do) })
}
