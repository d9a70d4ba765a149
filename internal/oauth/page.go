package oauth

import (
	"embed"
	"errors"
	"html/template"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/dozehq/doze"
)

//go:embed page.html
var pageFile embed.FS

var pages = template.Must(template.ParseFS(pageFile, "page.html"))

// page is what a person sees.
type page struct {
	Title   string
	Problem string // what went wrong; may be empty
	Note    string // all there is to say, without a form
	Action  string // where the form goes
	Client  string
	Host    string // where the browser goes next
	Allows  []string
	Hidden  map[string]string
	Code    bool // ask for the user code
	User    string
	Typed   string // the user code so far
}

// show answers a page that no other page can frame, and that loads nothing.
func (s *Server) show(w http.ResponseWriter, r *http.Request, status int, p page, formTo ...string) {
	h := w.Header()
	noStore(w)
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'self' "+strings.Join(formTo, " "))
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(status)
	if err := pages.Execute(w, p); err != nil {
		slog.DebugContext(r.Context(), "a page was not sent", "err", err)
	}
}

func (s *Server) showLogin(w http.ResponseWriter, r *http.Request, q request, p params, problem string) {
	hidden := map[string]string{}
	for _, name := range asked {
		if p[name] != "" {
			hidden[name] = p[name]
		}
	}
	to, host := "", ""
	if u, err := url.Parse(q.redirect); err == nil {
		to, host = u.Scheme+"://"+u.Host, u.Host // browsers check the redirect after a form too
	}
	status := http.StatusOK
	if problem != "" {
		status = http.StatusForbidden
	}
	s.show(w, r, status, page{
		Title: "Log in", Problem: problem, Action: s.Base + "/oauth/authorize", Client: q.client.Name, Host: host,
		Allows: describe(q.scopes), Hidden: hidden, User: p["name"],
	}, to)
}

func (s *Server) showDevice(w http.ResponseWriter, r *http.Request, code, user, problem string) {
	status := http.StatusOK
	if problem != "" {
		status = http.StatusForbidden
	}
	out := page{
		Title: "Log in on a device", Problem: problem, Action: s.Base + "/login/verify", Client: "a device",
		Code: true, Typed: code, User: user, Allows: []string{"what it asked for: allow it only if you began this yourself, and the code is the same on the device"},
	}
	s.show(w, r, status, out)
}

func (s *Server) showDone(w http.ResponseWriter, r *http.Request, allowed bool) {
	note := "The device is logged in. You can close this page."
	if !allowed {
		note = "The device was refused. You can close this page."
	}
	s.show(w, r, http.StatusOK, page{Title: "Done", Note: note})
}

func (s *Server) showError(w http.ResponseWriter, r *http.Request, err error) {
	status, message := doze.Public(err).Kind.Status(), doze.Public(err).Message
	if f, ok := errors.AsType[*failure](err); ok {
		status, message = f.status, f.message
	}
	if status >= http.StatusInternalServerError {
		slog.ErrorContext(r.Context(), "request failed", "route", r.Pattern, "err", err)
	}
	s.show(w, r, status, page{Title: "This did not work", Note: message})
}
