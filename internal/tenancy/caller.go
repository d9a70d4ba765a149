package tenancy

import (
	"context"
	"net/http"
	"slices"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/api"
)

// whoami answers whose credential a call has, and what that may do.
func (s *Server) whoami(ctx context.Context, _ *http.Request) (doze.Caller, error) {
	c := api.Caller(ctx)
	return doze.Caller{
		Sub: c.Sub, Type: c.SubType, Workspace: c.Workspace, Role: c.Roles[c.Workspace],
		Scopes: append([]string{}, slices.Clone(c.Scopes)...), // [] in JSON
	}, nil
}
