package edge

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/page"
)

// pagePaths are addresses that a browser shows and remembers. In their query, a
// ticket opens them, and never a key or an access token. socketPath takes these,
// too: no browser keeps the address of a WebSocket, and programs that cannot set
// its header send them so. Below the prefix, the parameter is taken out.
var pagePaths = []string{terminalPrefix, terminalPrefix + "/"}

const (
	terminalPrefix = "/terminal"
	socketPath     = terminalPrefix + "/ws"
	ticketPath     = terminalPrefix + "/ticket" // where a page gets another ticket
	tokenParam     = "token"
)

// ourCookie begins the name of every cookie of the platform.
const ourCookie = "doze_"

// ourHeaders are set by the edge or hold a credential, as are all that begin
// with one of ourPrefixes. A client can send none of them to a sandbox.
var (
	ourHeaders  = []string{"authorization", "proxy-authorization", "forwarded", "x-real-ip", "x-request-id", "x-subject-id", "x-subject-type"}
	ourPrefixes = []string{"x-blaxel-", "x-forwarded-"}
)

// isOurs reports whether a header belongs to the platform. Servers that hand
// headers on as variables cannot tell _ from -, so neither do we.
func isOurs(name string) bool {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	return slices.Contains(ourHeaders, name) ||
		slices.ContainsFunc(ourPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// bearing returns a request that carries the credential of r and no body, to
// be authenticated now and again while r is open. sent is false if r has no
// credential.
func (a Addresses) bearing(r *http.Request) (probe *http.Request, sent bool) {
	probe = r.WithContext(r.Context())
	probe.Body = http.NoBody
	probe.Header = r.Header.Clone()
	probe.URL = &url.URL{Path: "/"} // the query is for the sandbox: it names no workspace of ours
	if probe.Header.Get("Authorization") != "" || probe.Header.Get("X-Blaxel-Authorization") != "" {
		return probe, true
	}
	rest, ok := a.rest(r)
	isPage := slices.Contains(pagePaths, rest)
	if !ok || !isPage && rest != socketPath {
		return probe, false
	}
	_, query := target(r)
	token := tokenOf(query)
	if token == "" || isPage && !access.IsTicket(token) {
		return probe, false
	}
	probe.Header.Set("Authorization", "Bearer "+token)
	return probe, true
}

// keyInPage reports whether r is for a page, with something else than a ticket
// in its address.
func (a Addresses) keyInPage(r *http.Request) bool {
	rest, ok := a.rest(r)
	_, query := target(r)
	return ok && slices.Contains(pagePaths, rest) && tokenOf(query) != ""
}

// redeem puts the credential of a ticket in the place of the ticket. It works
// once. A ticket counts in an address only.
func (e *Edge) redeem(r, probe *http.Request, v *visit) error {
	if r.Header.Get("Authorization") != "" || r.Header.Get("X-Blaxel-Authorization") != "" {
		return nil
	}
	text, err := access.Token(probe)
	if err != nil || !access.IsTicket(text) {
		return err
	}
	pass, err := e.tickets.Redeem(r.Context(), text, time.Now())
	if err != nil {
		return err
	}
	v.pass = &pass
	pass.Authorize(probe)
	return nil
}

// renew answers a page of a terminal that asks for another ticket, if r is from
// one. The sandbox hears nothing of it.
func (e *Edge) renew(w http.ResponseWriter, r *http.Request) (done bool, err error) {
	rest, ok := e.rest(r)
	text, _ := access.Token(r) // without one, r is not from a page
	if !ok || rest != ticketPath || r.Method != http.MethodPost || !access.IsTicket(text) {
		return false, nil
	}
	pass, err := e.tickets.Renew(r.Context(), text, time.Now())
	if err != nil {
		return true, err
	}
	probe := r.Clone(r.Context())
	probe.URL = &url.URL{Path: "/"}
	pass.Authorize(probe)
	if !e.holds(probe, pass.Workspace) {
		return true, errRevoked
	}
	// The address decides nothing: a ticket opens the sandbox of its pass.
	ticket, _, err := e.tickets.Issue(r.Context(), pass, time.Now())
	if err != nil {
		return true, err
	}
	w.Header().Set("Cache-Control", "no-store")
	httpx.WriteJSON(w, http.StatusOK, map[string]string{"ticket": ticket})
	return true, nil
}

// passFor returns what the page of a terminal gets: the ticket of its address is
// used. A caller with a header needs none.
func (e *Edge) passFor(ctx context.Context, v *visit) (p page.Pass, err error) {
	if v.pass == nil {
		return p, nil
	}
	if p.Lease, err = e.tickets.Lease(ctx, *v.pass, time.Now()); err != nil {
		return p, err
	}
	p.Ticket, _, err = e.tickets.Issue(ctx, *v.pass, time.Now())
	return p, err
}

func isToken(pair string) bool {
	name, _, _ := strings.Cut(pair, "=")
	name, err := url.QueryUnescape(name)
	return err == nil && strings.EqualFold(name, tokenParam)
}

// tokenOf returns the credential in a query, or nothing.
func tokenOf(query string) string { return param(query, isToken) }

// withoutToken returns query without credentials. The rest keeps its bytes.
func withoutToken(query string) string { return without(query, isToken) }

// withoutOurCookies drops the cookies of the platform from the Cookie header.
func withoutOurCookies(h http.Header) {
	lines := h["Cookie"]
	delete(h, "Cookie")
	for _, line := range lines {
		rest := slices.DeleteFunc(strings.Split(line, ";"), isOurCookie)
		if rest := strings.TrimSpace(strings.Join(rest, ";")); rest != "" {
			h["Cookie"] = append(h["Cookie"], rest)
		}
	}
}

// isOurCookie looks at name=value, possibly with attributes behind.
func isOurCookie(cookie string) bool {
	name := strings.ToLower(strings.TrimSpace(cookie))
	name = strings.TrimPrefix(strings.TrimPrefix(name, "__host-"), "__secure-")
	return strings.HasPrefix(name, ourCookie)
}
