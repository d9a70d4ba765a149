package front

import (
	"net/http"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// APIPath is the path that the control API is below.
	APIPath = "/v0"
	// docsPath is the page that describes it.
	docsPath = "/docs"
	// pagePath is what the parts of the page of the platform are below.
	pagePath = "/console"
	// feedPath is the part of the API whose answers have no end.
	feedPath = APIPath + "/feed"
	// registryPath is what docker puts before each path of a registry.
	registryPath = "/v2"
)

// Mux shares one address between the roles.
type Mux struct {
	Edge interface {
		http.Handler
		// Matches reports whether a request is for a sandbox.
		Matches(r *http.Request) bool
	}
	API     http.Handler // at and below APIPath, docsPath, pagePath and registryPath; and at the root, for browsers
	Metrics http.Handler
	Version string
}

func (m Mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case m.Edge.Matches(r):
		m.Edge.ServeHTTP(w, r)
	case within(r.URL.Path, APIPath), within(r.URL.Path, docsPath), within(r.URL.Path, pagePath), within(r.URL.Path, registryPath), r.URL.Path == "/" && shows(r):
		m.API.ServeHTTP(w, r)
	case r.URL.Path == "/openapi.json": // where tools look for it
		r = r.Clone(r.Context())
		r.URL.Path, r.URL.RawPath = APIPath+r.URL.Path, ""
		m.API.ServeHTTP(w, r)
	case r.URL.Path == "/metrics":
		m.Metrics.ServeHTTP(w, r)
	case r.URL.Path == "/health":
		httpx.WriteJSON(w, http.StatusOK, map[string]string{"status": "ok", "version": m.Version})
	default:
		w.Header().Add("Vary", "Accept")
		httpx.WriteError(w, r, doze.Errorf(doze.NotFound, "nothing is here: the API is below %s, sandboxes below /run/, and %s describes both", APIPath, docsPath))
	}
}

// Lasts reports whether the answer to a request ends with this process only. Nobody waits
// for such an answer: its reader comes again, and goes on where it was.
func (m Mux) Lasts(r *http.Request) bool { return r.URL.Path == feedPath && !m.Edge.Matches(r) }

// within reports whether a path is base, or below it.
func within(path, base string) bool { return path == base || strings.HasPrefix(path, base+"/") }

// shows reports whether a client shows pages, as a browser does. A program that asks for the
// root gets an error that says where the API is.
func shows(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && strings.Contains(strings.Join(r.Header.Values("Accept"), ","), "text/html")
}
