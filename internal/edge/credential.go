package edge

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// terminalPaths are where a browser may send its credential in the query: it
// can set a header neither on a WebSocket nor on an address that somebody types.
// Below the prefix, it is taken out.
var terminalPaths = []string{terminalPrefix, terminalPrefix + "/", terminalPrefix + "/ws"}

const (
	terminalPrefix = "/terminal"
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
	if rest, ok := a.rest(r); !ok || !slices.Contains(terminalPaths, rest) {
		return probe, false
	}
	_, query := target(r)
	token := tokenOf(query)
	if token == "" {
		return probe, false
	}
	probe.Header.Set("Authorization", "Bearer "+token)
	return probe, true
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
		kept := slices.DeleteFunc(strings.Split(line, ";"), isOurCookie)
		if rest := strings.TrimSpace(strings.Join(kept, ";")); rest != "" {
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
