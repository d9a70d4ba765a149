package main

import (
	"net/http"
	"time"

	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/edge"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/settings"
)

// A feed is what control has the edge know.
type feed struct {
	directory   *fleet.Directory
	previews    *fleet.Previews
	credentials *access.Credentials
}

// backend is whom the edge asks about a request.
type backend struct {
	gate   fleet.Gate
	age    func(uid string) (age time.Duration, ok bool)
	mounts func(w http.ResponseWriter, r *http.Request, route fleet.Route, path string)
	denied func(r *http.Request, id string, c access.Caller, route fleet.Route, err error)
}

// addressesOf says how sandboxes and previews are called.
func addressesOf(s settings.Settings) (edge.Addresses, error) {
	a, err := edge.NewAddresses(s.Region, s.Domain, s.PublicURL)
	if err == nil && s.ByPath() {
		a, err = a.WithPreviews(s.PreviewURL)
	}
	return a, err
}

// newEdge returns the edge. It ends open requests whose credential is worth less.
func newEdge(a edge.Addresses, m meters, f feed, b backend) *edge.Edge {
	e := edge.New(edge.Config{
		Addresses: a, Directory: f.directory, Previews: f.previews, Gate: b.gate,
		Authenticate: f.credentials.Authenticate, Tickets: f.credentials.Tickets,
		Enter: m.quotas.Enter, StateAge: b.age, Mounts: b.mounts, Denied: b.denied,
	})
	f.credentials.OnLess(e.Recheck)
	return e
}
