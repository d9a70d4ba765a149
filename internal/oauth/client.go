package oauth

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/dozehq/doze"
)

// redirectsMax bounds the redirect URIs of a client.
const redirectsMax = 10

// builtIn are the clients that everybody has: command lines, which wait on the
// loopback interface of their user or use the device flow.
var builtIn = []doze.OAuthClient{
	{ClientID: "doze", Name: "Doze command line", RedirectURIs: []string{"http://127.0.0.1/callback", "http://[::1]/callback"}},
	{ClientID: "blaxel", Name: "Command line", RedirectURIs: []string{"http://127.0.0.1/callback", "http://[::1]/callback"}},
}

// client finds the client of an id.
func (s *Server) client(ctx context.Context, id string) (doze.OAuthClient, error) {
	if i := slices.IndexFunc(builtIn, func(c doze.OAuthClient) bool { return c.ClientID == id }); i >= 0 {
		return builtIn[i], nil
	}
	c, err := s.Store.OAuthClient(ctx, id)
	if doze.Public(err).Kind == doze.NotFound {
		return c, fail(http.StatusUnauthorized, invalidClient, "there is no such client")
	}
	return c, err
}

// CheckRedirects adds what is wrong with the redirect URIs of a new client.
func (s *Server) CheckRedirects(p *doze.Problems, field string, all []string) {
	if len(all) == 0 || len(all) > redirectsMax {
		p.Add(field, "has %d entries; it must have 1 to %d", len(all), redirectsMax)
	}
	for _, text := range all {
		u, err := url.Parse(text)
		switch {
		case err != nil || u.Host == "" || u.User != nil || len(text) > paramMax || strings.Contains(text, "#"):
			p.Add(field, "must be absolute URLs without a fragment or a user")
		case u.Scheme != "https" && (u.Scheme != "http" || !isLoopback(u)):
			p.Add(field, "must be https, or http to 127.0.0.1 or [::1]")
		}
	}
}

func isLoopback(u *url.URL) bool {
	ip, err := netip.ParseAddr(u.Hostname())
	return err == nil && ip.IsLoopback()
}

// redirects reports whether a client may be called back at uri, which must be exactly
// as registered. Only the port on the loopback interface may differ, since programs
// cannot choose it in advance (RFC 8252, section 7.3).
func redirects(c doze.OAuthClient, uri string) bool {
	for _, registered := range c.RedirectURIs {
		if uri == registered {
			return true
		}
		want, err := url.Parse(registered)
		if err != nil || want.Scheme != "http" || !isLoopback(want) {
			continue
		}
		got, err := url.Parse(uri)
		if err != nil || got.Port() == "" {
			continue
		}
		want.Host = net.JoinHostPort(want.Hostname(), got.Port())
		if uri == want.String() {
			return true
		}
	}
	return false
}
