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

	"github.com/dozehq/doze"
)

// generations notices that somebody else changes the rules of a namespace of ours:
// the kernel counts all changes.
type generations struct {
	ns   netns
	shut func() error // is one change of ours after one that is not

	mu      sync.Mutex
	conn    *netlink.Conn // guarded by mu; nil after an error
	last    uint32        // guarded by mu; when we looked
	ours    uint32        // guarded by mu; changes of ours since, at most
	touched bool          // guarded by mu; there was another one
}

// countGenerations begins with the rules as they are.
func countGenerations(ns netns, shut func() error) (_ *generations, err error) {
	g := &generations{ns: ns, shut: shut}
	if g.last, err = g.now(); err != nil {
		return nil, fmt.Errorf("watch the packet filter: %w", err)
	}
	return g, nil
}

// now is the number of the rules that are in force. After an error the next
// question goes by a connection of its own: an answer may be under way still.
// Preconditions: mu is held.
func (g *generations) now() (number uint32, err error) {
	if g.conn == nil {
		if g.conn, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: g.ns.fd()}); err != nil {
			return 0, err
		}
	}
	if number, err = generation(g.conn); err != nil {
		err = errors.Join(err, g.close())
	}
	return number, err
}

// close ends the connection, of which there may be none.
// Preconditions: mu is held, or nobody else is about.
func (g *generations) close() error {
	if g.conn == nil {
		return nil
	}
	err := g.conn.Close()
	g.conn = nil
	return err
}

// generation asks the kernel.
func generation(conn *netlink.Conn) (uint32, error) {
	answers, err := conn.Execute(netlink.Message{
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

// step makes one change of ours, of at most one generation. One that lets somebody
// out is Unavailable if somebody else changed the rules: one may be missing.
func (g *generations) step(opens bool, change func() error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.look(); err != nil && opens {
		return err
	}
	if opens && g.touched {
		return doze.Errorf(doze.Unavailable, "somebody changed the packet filter around sandboxes: none is let out until dozed is started again")
	}
	err := change()
	g.ours++
	_ = g.look() // what it cannot see, the next one does
	return err
}

// check looks whether there was a change.
func (g *generations) check() {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.look() // every way that is opened asks as well
}

// look compares what is with what was, but for changes of ours.
// Preconditions: mu is held.
func (g *generations) look() error {
	now, err := g.now()
	if err != nil {
		return fmt.Errorf("watch the packet filter: %w", err)
	}
	foreign := now-g.last > g.ours
	g.last, g.ours = now, 0
	if foreign {
		g.touched = true
		g.ours = 1
		slog.Error("somebody changed the packet filter around sandboxes: all are shut in until dozed is started again", "err", g.shut())
	}
	return nil
}

// change makes one step out of what do asks for, which lets nobody out.
func (r *router) change(do func(*nftables.Conn) error) error {
	return r.generations.step(false, func() error { return r.changer.change(do) })
}

// open is change for what lets somebody out.
func (r *router) open(do func(*nftables.Conn) error) error {
	return r.generations.step(true, func() error { return r.changer.change(do) })
}
