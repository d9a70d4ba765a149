package node

import (
	"context"
	"net/http"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/node/descent"
)

// hiddenPrefix begins the UIDs of machines that serve the platform itself. Control
// makes no UID that begins so.
const hiddenPrefix = "builder-"

// hidden reports whether a UID is one of the platform's own machines.
func hidden(uid string) bool { return strings.HasPrefix(uid, hiddenPrefix) }

// hidden reports whether the box is a machine of the platform itself. Nobody hears of
// it, it counts for no workspace, and its output is not stored.
func (b *Box) hidden() bool { return hidden(b.order.UID) }

// schedule says when the box moves down.
func (b *Box) schedule() *descent.Schedule {
	if b.hidden() {
		return &b.n.hiddenly
	}
	return &b.n.schedule
}

// Hidden are the machines of a node that serve the platform itself: they build images.
// They sleep and wake as sandboxes do, and take of the same memory. Calls that name a
// sandbox do not find them.
//
// What runs in such a machine has more power than in a sandbox, towards the guest's
// kernel alone: it mounts file systems and makes namespaces. Its agent answers nobody
// from inside.
type Hidden struct{ n *Node }

// Hidden returns the machines that serve the platform itself.
func (n *Node) Hidden() Hidden { return Hidden{n} }

// UID returns that of the machine with a name, which is of letters in lower case, digits
// and dashes.
func (Hidden) UID(name string) string { return hiddenPrefix + name }

// Create boots a machine on the root file system in a file, and returns when its agent
// answers. On an error nothing of it is left. Of the order, Image and From do not count.
func (h Hidden) Create(ctx context.Context, o fleet.Order, root string) error {
	if !hidden(o.UID) || !idPattern.MatchString(o.UID) {
		return doze.Errorf(doze.Internal, "%q is no UID of a machine of the platform", o.UID)
	}
	return h.n.create(ctx, o, func(context.Context, fleet.Order) (made, error) {
		m := made{config: h.n.configOf(o), image: Image{Path: root}}
		m.config.Root = root
		m.config.Env = append(bootEnvironment(m.image, h.n.Nameservers, m.config), "DOZE_BUILDER=1") // see package identity of the agent
		return m, nil
	})
}

// Delete ends a machine in any state, and returns when nothing of it is left. One that
// is not there is no error.
func (h Hidden) Delete(ctx context.Context, uid string) error {
	b := h.box(uid)
	if b == nil {
		return nil
	}
	return h.n.remove(ctx, b)
}

// box returns the box of a machine of the platform.
func (h Hidden) box(uid string) *Box {
	if !hidden(uid) {
		return nil
	}
	return h.n.lookup(uid)
}

// Egress returns where a machine connected to, and what it was refused, as that of
// [fleet.Node].
func (h Hidden) Egress(uid string) doze.EgressSummary { return h.n.Options.Egress(uid) }

// SetNetwork has the rules of a network obeyed from now on, as that of [fleet.Node].
func (h Hidden) SetNetwork(ctx context.Context, uid string, network *doze.Network) error {
	b := h.box(uid)
	if b == nil {
		return errUnknown
	}
	return b.setNetwork(ctx, network)
}

// Transport carries requests to a port of a machine, as that of [fleet.Gate].
func (h Hidden) Transport(uid string, port uint16) http.RoundTripper {
	return gate{h.box, uid, port}
}

// Hold wakes a machine, and has it stay awake until release is called.
func (h Hidden) Hold(ctx context.Context, uid string) (release func(), err error) {
	b := h.box(uid)
	if b == nil {
		return nil, errUnknown
	}
	return b.Hold(ctx, doze.AgentPort)
}

// HiddenMachine is what the node knows of a machine of the platform.
type HiddenMachine struct {
	fleet.Status

	Root  string // the file of its root file system
	Agent string // the file with its agent
	// Memory is what its guest may use, in bytes.
	Memory int64
}

// All returns the machines that there are, by UID.
func (h Hidden) All() map[string]HiddenMachine {
	all := map[string]HiddenMachine{}
	for _, b := range h.n.all() {
		if b.hidden() {
			all[b.order.UID] = h.n.describe(b)
		}
	}
	return all
}

// describe is what All says of a box.
func (n *Node) describe(b *Box) HiddenMachine {
	m := HiddenMachine{Status: b.status()}
	n.mu.Lock()
	defer n.mu.Unlock()
	c := &b.made.config
	m.Root, m.Agent, m.Memory = c.Root, c.Agent, c.Memory
	return m
}
