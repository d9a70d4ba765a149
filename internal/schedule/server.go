// Package schedule starts processes in sandboxes when they are due: its records say when,
// one loop starts them, and each start wakes its sandbox.
package schedule

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/bell"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

const (
	// clockCheck bounds how long the timer sleeps, if nobody tells us of a step of the clock.
	clockCheck = time.Minute
	// retryAfter is the pause after the database refused something.
	retryAfter = time.Second
)

// Config is what a Server works with. Every field is required.
type Config struct {
	Store *store.Store
	Gate  fleet.Gate // through which processes are started
	Audit *audit.Journal
	// Settled waits until nobody changes a sandbox: until its fresh machine is there.
	Settled func(ctx context.Context, uid string) error
}

// Server keeps schedules.
type Server struct {
	Config
	due     bell.Bell // a schedule may be due earlier, or there is room for another start
	setBack atomic.Bool
	// nodeStops says that nothing can be started any more.
	nodeStops atomic.Bool
}

// New returns a server that serves at once; [Server.Load] and [Server.Run] belong to it.
func New(c Config) *Server { return &Server{Config: c, due: bell.New()} }

// Run starts what is due until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	s.run(ctx)
	return context.Cause(ctx)
}

// ClockStepped tells that somebody set the clock of the host.
func (s *Server) ClockStepped() {
	s.setBack.Store(true)
	s.due.Ring()
}
