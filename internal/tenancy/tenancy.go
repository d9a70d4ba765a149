// Package tenancy says who may use the platform, and how much of it. It has workspaces
// and their members, invitations, service accounts, API keys, registered programs,
// passwords, policies, secrets, quotas, and the audit log of it all. It serves its part
// of the control API. It knows no sandbox: where they have to obey, it asks a
// [Runtime].
package tenancy

import (
	"context"
	"sync"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/keylock"
	"github.com/dozehq/doze/internal/oauth"
	"github.com/dozehq/doze/internal/quota"
	"github.com/dozehq/doze/internal/store"
)

// Runtime is what runs sandboxes, for those who only want to bound them.
type Runtime interface {
	// SetLimits has the limits of a workspace in force where its sandboxes run.
	SetLimits(ctx context.Context, workspace string, own doze.Limits) error
	// DropLogs removes what the sandboxes of a workspace wrote.
	DropLogs(ctx context.Context, workspace string) error
	// Awake returns how many sandboxes of a workspace are awake, and their memory.
	Awake(ctx context.Context, workspace string) (sandboxes int, memory doze.Megabytes, err error)
	// Unmetered reports whether sandboxes send past what counts it.
	Unmetered() bool
}

// Config is what a Server works with. Every field but Enforce is required.
type Config struct {
	Store       *store.Store
	Credentials *access.Credentials
	OAuth       *oauth.Server
	Audit       *audit.Journal
	Quotas      *quota.Book // what workspaces may have, and how much they ask
	Runtime     Runtime
	Regions     []string                                          // the names of this place; the first is the default
	Operator    string                                            // the first workspace, whose admins operate the platform
	DropBuilds  func(ctx context.Context, w doze.Workspace) error // removes those of a workspace that was deleted
	Enforce     func()                                            // has egress ask again which workspaces may send; nil: none sends
}

// Server serves the part of the control API that is about tenants.
type Server struct {
	Config
	locks     *keylock.Locks
	governing sync.Mutex // held while limits are recorded and put in force
	siblings  api.Siblings
}

// New returns a server that serves at once; [Server.Load] and [Server.Run] belong to it.
func New(c Config) *Server {
	return &Server{Config: c, locks: keylock.New(), siblings: api.SiblingsOf(rows)}
}

// Run records what was used, and ends connections over their quota, until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	tasks.Go(func() { s.noteKeys(ctx) })
	tasks.Go(func() { s.meterEgress(ctx) })
	tasks.Wait()
	return context.Cause(ctx)
}
