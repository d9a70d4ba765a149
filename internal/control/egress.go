package control

import (
	"context"
	"net/http"

	"github.com/dozehq/doze"
)

// sandboxEgress answers where a sandbox connected to of late, and what it was refused.
// The node has it in memory.
var sandboxEgress = func(s *Server, ctx context.Context, r *http.Request) (doze.EgressSummary, error) {
	sb, err := s.living(ctx, r.PathValue("name"))
	if err != nil {
		return doze.EgressSummary{}, err
	}
	return s.Node.Egress(ctx, sb.Machine)
}
