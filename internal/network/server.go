// Package network keeps the VPCs of a workspace, the gateways in them by which sandboxes
// leave, and the egress IPs of those.
package network

import (
	"context"
	"errors"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
)

// Config is what a Server works with. Every field but Pool is required.
type Config struct {
	Store   *store.Store
	Regions []string         // the names of this place; the first is the default
	Pool    doze.AddressPool // of egress IPs; none: they wait for one
	// Reroute has the node obey the network of a sandbox as the records have it now, in the
	// turn of the sandbox.
	Reroute func(context.Context, store.Sandbox) error
}

// Server serves networks.
type Server struct {
	Config
	began time.Time
}

// New returns a server that serves at once; [Server.Load] belongs to it.
func New(c Config) *Server { return &Server{Config: c, began: time.Now()} }

// Load completes what a process before this one began: nobody leaves from an address any
// more that is given up, and those that wait for one get it.
func (s *Server) Load(ctx context.Context) error {
	return errors.Join(s.Store.DropRetired(ctx), s.Store.GiveAddresses(ctx, s.Pool, s.began))
}
