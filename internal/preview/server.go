// Package preview stores previews: public or token-protected URLs of a port. It also
// stores custom domains, and verifies by the DNS which workspace a domain belongs to.
// The edge learns of both as soon as they change.
package preview

import (
	"context"
	"time"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/keylock"
	"github.com/dozehq/doze/internal/store"
)

// endTimeout bounds the removal of previews whose sandbox ends, which goes on when its
// caller goes away.
const endTimeout = 30 * time.Second

// Config is what a Server works with. Every field is required.
type Config struct {
	Store        *store.Store
	Previews     *fleet.Previews
	Regions      []string                  // the names of this place; the first is the default
	URL          func(label string) string // the address of a preview
	StreamURL    func(label string) string // the same of a port without HTTP; empty where none is served
	Resolver     Resolver                  // asks the DNS about custom domains
	DomainTarget string                    // the host that custom domains lead to
	Recheck      func()                    // has the edge look again at who may do less; it does not wait
}

// Server serves previews and custom domains.
type Server struct {
	Config
	locks *keylock.Locks
}

// New returns a server that serves at once; [Server.Load] and [Server.Run] belong to it.
func New(c Config) *Server { return &Server{Config: c, locks: keylock.New()} }

// Run verifies custom domains again until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	s.reverify(ctx)
	return context.Cause(ctx)
}
