package control

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/api"
)

// ticket is an address of a terminal that opens once.
type ticket struct {
	Ticket    string    `json:"ticket"`
	ExpiresAt doze.Time `json:"expiresAt"`
	URL       string    `json:"url"` // of the page, with the ticket in it
}

// createTicket makes a ticket in the name of the caller's credential: it is void
// as soon as that is.
func (s *Server) createTicket(ctx context.Context, r *http.Request) (ticket, error) {
	sb, err := s.living(ctx, r.PathValue("name"))
	if err != nil {
		return ticket{}, err
	}
	credential, err := access.Token(r)
	if err != nil {
		return ticket{}, err
	}
	c := api.Caller(ctx)
	text, until, err := s.Credentials.Tickets.Issue(ctx, access.Pass{
		Sub: c.Sub, Credential: credential, Workspace: c.Workspace, Sandbox: sb.Metadata.Name,
	}, time.Now())
	return ticket{
		Ticket: text, ExpiresAt: doze.Time{Time: until}, URL: s.URL(c.Workspace, sb.Metadata.Name) + "/terminal?" + url.Values{"token": {text}}.Encode(),
	}, err
}
