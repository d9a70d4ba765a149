package history

import (
	"context"
	"net/http"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
)

// Server answers operators. It is made by a literal.
type Server struct {
	History  *History // nil: this process stores none
	Operator string   // the first workspace, whose admins operate the platform
}

// rows are the routes of this room.
var rows = []api.Row[*Server]{
	api.GET("/platform/history", access.Admin, "Read what the platform did and took", api.Read((*Server).history).Asks("series", "from", "to", "step").
		About("Only operators get it. The last 24 hours are in steps of 10 seconds or more, and 30 days in steps of 10 minutes or more. "+
			"The parameter series has names, separated by commas. A value of null was not recorded.")),
}

// Section is what this room adds to the API. To describe it, s may be nil.
func (s *Server) Section() api.Section { return api.Section{Routes: api.Bind(s, rows)} }

func (s *Server) history(ctx context.Context, r *http.Request) (doze.History, error) {
	if err := api.Operator(ctx, s.Operator); err != nil {
		return doze.History{}, err
	}
	q, err := parse(r.URL.Query(), time.Now())
	switch {
	case err != nil:
		return doze.History{}, err
	case s.History == nil:
		return doze.History{}, doze.Errorf(doze.Unsupported, "this platform stores no history: ask its Prometheus")
	}
	return s.History.Read(q), nil
}
