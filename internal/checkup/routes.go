package checkup

import (
	"context"
	"net/http"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
)

// Server answers operators. It is made by a literal.
type Server struct {
	Checkup  *Checkup // nil: this process looks at no host
	Operator string   // the first workspace, whose admins operate the platform
}

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/platform/doctor", access.Admin, "Read what is amiss with the host", api.Read((*Server).checkup).
		About("Only operators get it. It is what `dozed doctor` finds on the host of this process, and what dozed warned of at its start. "+
			"The platform looks when somebody asks, and at most once a minute. It tries no rules of the packet filter, as `dozed doctor` does.")),
}

// Section is what this room adds to the API. To describe it, s may be nil.
func (s *Server) Section() api.Section { return api.Section{Routes: api.Bind(s, rows)} }

func (s *Server) checkup(ctx context.Context, _ *http.Request) (doze.Checkup, error) {
	if err := api.Operator(ctx, s.Operator); err != nil {
		return doze.Checkup{}, err
	}
	if s.Checkup == nil {
		return doze.Checkup{}, doze.Errorf(doze.Unsupported, "this process looks at no host: run dozed doctor on it")
	}
	return s.Checkup.Read(ctx)
}
