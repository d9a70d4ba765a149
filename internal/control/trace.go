package control

import (
	"context"
	"net/http"

	"github.com/dozehq/doze"
)

// traces answers where the time of the last wakes of a sandbox and of its create
// went, the newest first. The node has them in memory.
func (s *Server) traces(ctx context.Context, r *http.Request) ([]doze.Trace, error) {
	sb, err := s.living(ctx, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	return s.Node.Traces(ctx, sb.Machine)
}
