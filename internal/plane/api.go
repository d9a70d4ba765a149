package plane

import (
	"net/http"

	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/oauth"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/tenancy"
)

// API composes the control API of the rooms that serve it.
func API(c api.Config, t *tenancy.Server, ctl *control.Server, logins *oauth.Server) *api.Server {
	c.Counted, c.Settle = store.Counted, ctl.Settle
	return api.New(c, ctl.Section(), t.Section(), loginsOf(logins))
}

// Describe returns the control API for those who look at its routes, and send nothing.
func Describe() *api.Server { return API(api.Config{}, nil, nil, nil) }

// loginsOf are the ways to a credential: they need none.
func loginsOf(s *oauth.Server) api.Section {
	var rows []api.Row[*oauth.Server]
	for _, rt := range oauth.Routes() {
		e := api.Plain(rt.Serve, rt.Out, rt.Query, rt.Body)
		rows = append(rows, api.Row[*oauth.Server]{Method: rt.Method, Pattern: rt.Path, Endpoint: e})
	}
	return api.Section{Routes: api.Bind(s, rows)}
}

// Turned writes to the audit log that a request was turned away at the door of a sandbox, as
// an edge finds it.
func (p *Plane) Turned(r *http.Request, id string, c access.Caller, upstream fleet.Upstream, err error) {
	p.API.Turned(r, id, c, upstream.Name, err)
}
