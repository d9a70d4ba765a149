package control

import (
	"context"

	"github.com/dozehq/doze"
)

// SetLimits has the limits of a workspace in force where its sandboxes run.
func (s *Server) SetLimits(ctx context.Context, workspace string, own doze.Limits) error {
	return s.Node.SetLimits(ctx, workspace, own)
}

// DropLogs removes what the sandboxes of a workspace wrote.
func (s *Server) DropLogs(ctx context.Context, workspace string) error {
	return s.Node.DropLogs(ctx, workspace)
}

// Awake returns how many sandboxes of a workspace are awake, and their memory.
func (s *Server) Awake(ctx context.Context, workspace string) (int, doze.Megabytes, error) {
	awake, err := s.Node.Awake(ctx, workspace)
	return awake.Sandboxes, awake.Memory, err
}

// Unmetered reports whether sandboxes send past what counts it.
func (s *Server) Unmetered() bool { return s.node.Load().Unmetered }
