// Package registry serves the images of workspaces to docker and its like, read-only, by
// the distribution API of OCI: WORKSPACE/NAME:TAG. It has no copy of them. What it sends
// comes from the node, which writes the same bytes of an image each time.
package registry

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"

	"cuelabs.dev/go/oci/ociregistry/ociserver"
	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/quota"
)

// Path is the path of the API, in front of everything.
const Path = "/v2"

const (
	// streamsMax is how many layers of one workspace are on their way at a time. Each
	// costs the node a processor's worth of reading.
	streamsMax = 4
	// knownMax is how many images are remembered, by their small files.
	knownMax = 256
	// tagPageMax is the longest page of tags that a client may ask for. They ask for a
	// thousand, and an image has fewer.
	tagPageMax = 10_000
)

// Images is what the registry serves.
type Images interface {
	// Tags returns the tags of an image that a workspace has, or that is shared with
	// it, or NotFound.
	Tags(ctx context.Context, workspace, name string) ([]doze.ImageTag, error)
	// Save returns a tag of an image as an OCI layout in a tar: the small files first,
	// the one layer last.
	Save(ctx context.Context, workspace, name, tag string) (io.ReadCloser, error)
}

// Config is what a Server works with. Every field is required.
type Config struct {
	Images      Images
	Credentials *access.Credentials
	Quotas      *quota.Book
}

// Server is the registry.
type Server struct {
	Config
	serve http.Handler
	known *lru.Cache[string, *head] // by what a tag means

	mu      sync.Mutex
	streams map[string]int // guarded by mu; layers on their way, by workspace
}

// New returns a registry that serves at once.
func New(c Config) *Server {
	s := &Server{Config: c, streams: map[string]int{}}
	s.known, _ = lru.New[string, *head](knownMax) // an error is about a size of 0
	s.serve = ociserver.New(backend{server: s}, &ociserver.Options{
		DisableReferrersAPI: true, MaxListPageSize: tagPageMax,
	})
	return s
}

// ServeHTTP answers below Path. A caller proves who it is by the password of Basic, which
// docker asks its user for: an API key. The user name does not matter.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Docker-Distribution-Api-Version", "registry/2.0")
	workspace, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, Path+"/"), "/")
	if strings.HasPrefix(workspace, "_") { // of the API, as in _catalog
		workspace = ""
	}
	caller, err := s.authenticate(r, workspace)
	if err == nil && !caller.May(access.Admin) {
		err = doze.Errorf(doze.Forbidden, "images need a key with the scope %s in the workspace", access.Admin)
	}
	if err == nil {
		err = s.Quotas.Take(w.Header(), caller.Workspace, caller.Key)
	}
	if err == nil && r.Method != http.MethodGet && r.Method != http.MethodHead {
		err = doze.Errorf(doze.Unsupported, "this registry is read-only: to add an image, use doze image load, or name one of another registry")
	}
	if err != nil {
		refuse(w, err)
		return
	}
	s.serve.ServeHTTP(w, r)
}

// authenticate returns who calls, in a workspace or in that of the credential.
func (s *Server) authenticate(r *http.Request, workspace string) (access.Caller, error) {
	asked := &http.Request{Method: r.Method, URL: r.URL, Header: http.Header{}}
	for _, name := range []string{"Authorization", "X-Blaxel-Authorization"} {
		if v := r.Header.Get(name); v != "" {
			asked.Header.Set(name, v)
		}
	}
	if _, password, ok := r.BasicAuth(); ok {
		asked.Header.Set("Authorization", "Bearer "+password)
	}
	if workspace != "" {
		asked.Header.Set("X-Blaxel-Workspace", workspace)
	}
	return s.Credentials.Authenticate(asked)
}

// codes are what docker calls our errors.
var codes = map[doze.Kind]string{
	doze.Unauthenticated: "UNAUTHORIZED",
	doze.Forbidden:       "DENIED",
	doze.NotFound:        "NAME_UNKNOWN",
	doze.Exhausted:       "TOOMANYREQUESTS",
	doze.Unsupported:     "UNSUPPORTED",
}

// refuse answers a request that is not let in.
func refuse(w http.ResponseWriter, err error) {
	e := doze.Public(err)
	status, code := e.Kind.Status(), codes[e.Kind]
	switch e.Kind { //nolint:exhaustive // the others have the status that they have
	case doze.Unauthenticated:
		w.Header().Set("WWW-Authenticate", `Basic realm="Doze: an API key is the password"`)
	case doze.Unsupported:
		status = http.StatusMethodNotAllowed
	}
	if code == "" {
		code = "UNAVAILABLE"
	}
	raw, err := json.Marshal(map[string]any{"errors": []map[string]string{{"code": code, "message": e.Message}}})
	if err != nil {
		raw = []byte(`{"errors":[]}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(raw) // the caller is gone, then
}

// enter counts a layer on its way until leave is called.
func (s *Server) enter(workspace string) (leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[workspace] >= streamsMax {
		return nil, doze.Errorf(doze.Exhausted, "the workspace has %d layers on their way, which is the limit: try again when one has come", streamsMax)
	}
	s.streams[workspace]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.streams[workspace]--; s.streams[workspace] == 0 {
			delete(s.streams, workspace)
		}
	}), nil
}
