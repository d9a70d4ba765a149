package control

import (
	"context"

	"github.com/dozehq/doze/internal/fleet"
)

// Link is what a server offers to those who keep its nodes.
type Link struct{ *Server }

// TellNode tells a node what its process before knew: limits, and for each sandbox that
// is there, its grace period and network.
func (l Link) TellNode(ctx context.Context, n fleet.Node, has func(machine string) bool) error {
	return l.tellNode(ctx, n, has)
}

// Accept records reports of a node. When it returns, they outlast a crash.
func (l Link) Accept(ctx context.Context, reports []fleet.Report) error {
	return l.accept(ctx, reports)
}

// Inform says what the nodes of the platform can do.
func (l Link) Inform(info fleet.NodeInfo) { l.node.Store(&info) }

// Began is when the server was made.
func (l Link) Began() (at int64) { return l.began.UnixNano() }
