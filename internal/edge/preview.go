package edge

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

const (
	previewHeader = "X-Blaxel-Preview-Token"
	previewParam  = "bl_preview_token"
	previewCookie = ourCookie + "preview"
)

// listener is where a request came in.
type listener int

const (
	main     listener = iota // of the API: previews have a host of their own
	previews                 // of previews, also by path, and of nothing else
)

// Previews serves previews, by host and by path. It belongs behind a listener of
// its own: what is served by path has the origin of the listener.
func (e *Edge) Previews() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { e.serveAt(w, r, previews) })
}

// previewPlace reads the address of a preview, on a domain of the platform or a
// custom one. The listener's own name is that of no preview.
func (e *Edge) previewPlace(r *http.Request, l listener) (previewPlace, bool) {
	path, _ := target(r)
	if label, missed, ok := e.customPreview(hostOf(r.Host)); ok {
		return previewPlace{label: label, path: path, missed: missed.label, domain: missed.domain}, true
	}
	if l == previews {
		return e.previewLabel(r)
	}
	return e.previewHost(r)
}

// missed is what was asked for where the fallback of a domain answers.
type missed struct{ label, domain string }

// customPreview reads the host of a preview on a custom domain, <label>.preview.<domain>.
// A name that no preview has is that of the domain's fallback.
func (e *Edge) customPreview(host string) (label string, m missed, ok bool) {
	first, d, ok := e.custom(host)
	if !ok {
		return "", m, false
	}
	if _, found := e.previews.Find(host, time.Now()); !found && fallsBack(first, d) {
		return d.Fallback + previewHost + d.Name, missed{first, d.Name}, true
	}
	return host, m, true
}

// custom takes a host below a custom domain apart.
func (e *Edge) custom(host string) (label string, d fleet.Domain, ok bool) {
	label, name, _ := strings.Cut(host, previewHost)
	d, ok = e.previews.Domain(name)
	return label, d, ok && host != e.own
}

// fallsBack reports whether a domain serves a label that no preview has.
func fallsBack(label string, d fleet.Domain) bool {
	return d.Fallback != "" && label != "" && !strings.Contains(label, ".")
}

// admitPreview proves that r may use a preview, and fills in where it leads.
// Nothing has been woken when it returns. It is done if it answered r itself.
func (e *Edge) admitPreview(w http.ResponseWriter, r *http.Request, v *visit, at previewPlace) (done bool, err error) {
	now := time.Now()
	p, ok := e.previews.Find(at.label, now)
	if !ok {
		return false, errNoPreview
	}
	if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" && allowsOrigins(p) {
		// A browser asks before it sends a token, and without one.
		setHeaders(w.Header(), p.ResponseHeaders)
		originOf(r, &visit{preview: &p, at: at}).finish(w.Header())
		w.WriteHeader(http.StatusNoContent)
		return true, nil
	}
	_, v.query = target(r)
	v.preview, v.at, v.token = &p, at, previewToken(r, v.query)
	switch {
	case p.Opens(v.token, now):
	case v.token == "":
		return false, errNoToken
	default:
		return false, errBadToken
	}
	if !p.Public && swaps(r, v.query) {
		e.swap(w, v, at)
		return true, nil
	}
	v.query = without(v.query, isPreviewToken)
	if v.upstream, ok = e.directory.Find(p.Workspace, p.Sandbox, now); !ok {
		return false, errNoPreview
	}
	if e.streamOf(p, v.upstream) != "" {
		return false, &doze.Error{Kind: doze.Invalid, Name: badRequest, Message: "the port of this preview is declared without HTTP: connect by TLS to " + strings.TrimPrefix(e.StreamURL(at.label), streamScheme)}
	}
	v.upstream.Why = "" // the reason is for the owners of the sandbox
	if err := barred(v.upstream); err != nil {
		return false, err
	}
	v.caller.Workspace = p.Workspace
	if p.Port != doze.ControlPort && p.Port != doze.AgentPort {
		v.port, v.path = uint16(p.Port), at.path //nolint:gosec // G115: control takes 1 to 65535
		return false, nil
	}
	query := v.query
	err = v.aim(r, at.path)
	if v.query = query; strings.HasPrefix(v.path, terminalPrefix) {
		v.query = withoutToken(query)
	}
	return false, err
}

// tell lets the program behind a fallback know what was asked for.
func (at previewPlace) tell(h http.Header) {
	if at.missed == "" {
		return
	}
	h.Set("X-Blaxel-Fallback", "true")
	h.Set("X-Blaxel-Preview", at.missed)
	h.Set("X-Blaxel-Domain", at.domain)
}

// opens reports whether a preview is still as it was and opens for a token.
func (e *Edge) opens(was *fleet.Preview, token string) bool {
	now := time.Now()
	p, ok := e.previews.Find(was.Label, now)
	return ok && p.ID == was.ID && p.Port == was.Port && p.Opens(token, now)
}

func allowsOrigins(p fleet.Preview) bool {
	for name := range p.ResponseHeaders {
		if strings.EqualFold(name, "Access-Control-Allow-Origin") {
			return true
		}
	}
	return false
}

// previewToken is the token in a request: of the header, the query or our
// cookie.
func previewToken(r *http.Request, query string) string {
	if t := r.Header.Get(previewHeader); t != "" {
		return t
	}
	if t := param(query, isPreviewToken); t != "" {
		return t
	}
	for _, prefix := range cookiePrefixes {
		if c, err := r.Cookie(prefix + previewCookie); err == nil {
			return c.Value
		}
	}
	return ""
}

// cookiePrefixes are in front of the names of our cookies. A browser takes a cookie
// with one of the first two from its own host only, and by TLS. So pages of other hosts
// of the domain cannot overwrite it. Such cookies win over the others.
var cookiePrefixes = []string{"__Host-", "__Secure-", ""}

// cookieName is the name of our cookie at a place.
func (e *Edge) cookieName(at previewPlace) string {
	switch {
	case e.scheme != "https":
		return previewCookie
	case at.prefix == "":
		return cookiePrefixes[0] + previewCookie
	default: // the other one wants the path /
		return cookiePrefixes[1] + previewCookie
	}
}

func isPreviewToken(pair string) bool {
	name, _, _ := strings.Cut(pair, "=")
	name, err := url.QueryUnescape(name)
	return err == nil && name == previewParam
}

// swaps reports whether a person opened a link with a token in it.
func swaps(r *http.Request, query string) bool {
	return r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") && r.Header.Get("Upgrade") == "" &&
		param(query, isPreviewToken) != "" && r.Header.Get(previewHeader) == ""
}

// swap puts the token of a link into a cookie of this preview, so that it
// stands in no history, log or referrer.
func (e *Edge) swap(w http.ResponseWriter, v *visit, at previewPlace) {
	cookie := &http.Cookie{ //nolint:gosec // Secure where there is TLS; a browser drops such a cookie elsewhere
		Name: e.cookieName(at), Value: v.token, Path: at.prefix + "/",
		HttpOnly: true, Secure: e.scheme == "https", SameSite: http.SameSiteLaxMode,
	}
	http.SetCookie(w, cookie)
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	// "./" keeps a path that begins with two slashes from naming a host.
	path := at.prefix + at.path
	if strings.HasPrefix(path, "//") || strings.HasPrefix(path, `/\`) {
		path = "/." + path
	}
	h.Set("Location", path+without(v.query, isPreviewToken))
	w.WriteHeader(http.StatusFound)
}

// ownAuthorization is what the header Authorization of a request by a preview
// says to the program behind it. A credential of the platform is none of its
// business.
func (e *Edge) ownAuthorization(r *http.Request, v *visit) []string {
	own := r.Header["Authorization"]
	if v.preview == nil || v.port == doze.AgentPort || len(own) != 1 {
		return nil
	}
	probe := &http.Request{Header: http.Header{"Authorization": own}, URL: &url.URL{Path: "/"}}
	if _, err := e.authenticate(probe.WithContext(context.WithoutCancel(r.Context()))); err == nil || strings.Contains(own[0], " dz") {
		return nil
	}
	return own
}

// setHeaders writes the headers of a preview over those that are there.
func setHeaders(h http.Header, set map[string]string) {
	for name, value := range set {
		h.Set(name, value)
	}
}

// param returns the first value in a query for whose pair is holds.
func param(query string, is func(pair string) bool) string {
	for pair := range strings.SplitSeq(strings.TrimPrefix(query, "?"), "&") {
		if !is(pair) {
			continue
		}
		_, value, _ := strings.Cut(pair, "=")
		if text, err := url.QueryUnescape(value); err == nil && text != "" {
			return text
		}
	}
	return ""
}

// without returns query without the pairs for which is holds. The rest keeps
// its bytes.
func without(query string, is func(pair string) bool) string {
	pairs := strings.Split(strings.TrimPrefix(query, "?"), "&")
	rest := slices.DeleteFunc(slices.Clone(pairs), is)
	switch len(rest) {
	case len(pairs):
		return query
	case 0:
		return ""
	default:
		return "?" + strings.Join(rest, "&")
	}
}
