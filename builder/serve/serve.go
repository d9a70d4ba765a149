// Package serve answers what a node asks a builder: see package buildapi.
package serve

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dozehq/doze/internal/buildapi"

	"github.com/dozehq/doze/builder/engine"
	"github.com/dozehq/doze/builder/layout"
	"github.com/dozehq/doze/builder/recipe"
	"github.com/dozehq/doze/builder/unpack"
)

const (
	// headerTimeout is how long a node may take for the header of a request.
	headerTimeout = 10 * time.Second
	// headerMax bounds it, in bytes.
	headerMax = 64 << 10
	// stopTimeout is how long a call may take after the end was asked for.
	stopTimeout = 5 * time.Second
	// flushEvery is how long an event waits for others before it is sent.
	flushEvery = 100 * time.Millisecond
)

// Config is what a server needs.
type Config struct {
	Engine *engine.Engine
	// Dir is for contexts. It is emptied.
	Dir   string
	Token string
	Log   *slog.Logger
}

// A Server answers a node.
type Server struct {
	engine *engine.Engine
	dir    string
	token  string
	log    *slog.Logger
	slots  chan struct{} // one for each build that runs

	mu       sync.Mutex
	contexts map[string]*archive // guarded by mu; by id
	results  []string            // guarded by mu; ids, the oldest first
}

// archive is a context.
type archive struct {
	dir    string
	at     time.Time
	args   map[string]string // defaults that the archive has
	logins map[string]buildapi.Login
	users  int  // guarded by the server's mu; calls that read it
	gone   bool // guarded by the server's mu; the last user deletes it
}

// New returns a server.
func New(c Config) (*Server, error) {
	if err := errors.Join(os.RemoveAll(c.Dir), os.MkdirAll(c.Dir, 0o700)); err != nil {
		return nil, err
	}
	return &Server{
		engine: c.Engine, dir: c.Dir, token: c.Token, log: c.Log,
		slots: make(chan struct{}, buildapi.BuildsMax), contexts: map[string]*archive{},
	}, nil
}

// Run serves until ctx ends. It closes the listener. Of TCP it takes connections from other
// machines only.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: headerTimeout, MaxHeaderBytes: headerMax,
		BaseContext: func(net.Listener) context.Context { return ctx }, // the end of it ends the builds
	}
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		stopped <- server.Shutdown(wait)
	}()
	if l.Addr().Network() == "tcp" {
		l = outside{l}
	}
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}

// outside is a listener that closes connections from this machine: the steps of Dockerfiles
// share its network.
type outside struct {
	net.Listener
}

// Accept implements [net.Listener].
func (o outside) Accept() (net.Conn, error) {
	for {
		conn, err := o.Listener.Accept()
		if err != nil || !inside(conn) {
			return conn, err
		}
		_ = conn.Close()
	}
}

// inside reports whether a connection comes from this machine. It says yes if it cannot tell.
func inside(conn net.Conn) bool {
	remote, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || remote.IP.IsLoopback() {
		return true
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		return true
	}
	return slices.ContainsFunc(own, func(a net.Addr) bool {
		n, ok := a.(*net.IPNet)
		return ok && n.IP.Equal(remote.IP)
	})
}

// Handler returns the calls of package buildapi, for callers with the token.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for call, handle := range s.table() {
		mux.HandleFunc(call.Pattern(), handle)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1 {
			refuse(w, http.StatusUnauthorized, "only the node of this machine may ask")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// table is the table of package buildapi with its handlers.
func (s *Server) table() map[buildapi.Call]http.HandlerFunc {
	return map[buildapi.Call]http.HandlerFunc{
		buildapi.AskStatus:   s.status,
		buildapi.PutContext:  s.named(s.putContext),
		buildapi.MakePlan:    s.named(s.plan),
		buildapi.DropContext: s.named(s.dropContext),
		buildapi.HasImage:    s.named(s.hasImage),
		buildapi.PutImage:    s.named(s.putImage),
		buildapi.StartBuild:  s.build,
		buildapi.AskResult:   s.named(s.result),
		buildapi.DropResult:  s.named(s.dropResult),
		buildapi.PruneCache:  s.prune,
	}
}

// named hands over the id of a path.
func (s *Server) named(handle func(w http.ResponseWriter, r *http.Request, id string)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		if !buildapi.ValidID(id) {
			refuse(w, http.StatusBadRequest, "the id is not valid")
			return
		}
		handle(w, r, id)
	}
}

// refuse answers with a mistake.
func refuse(w http.ResponseWriter, status int, text string) {
	answer(w, status, buildapi.Mistake{Error: text})
}

// answer answers with JSON.
func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the caller has gone
}

// fail answers with an error.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := http.StatusInternalServerError
	text := err.Error()
	archive, isArchive := errors.AsType[*unpack.MistakeError](err)
	image, isImage := errors.AsType[*layout.MistakeError](err)
	dockerfile, isDockerfile := errors.AsType[*recipe.MistakeError](err)
	switch {
	case errors.Is(err, syscall.ENOSPC):
		status, text = http.StatusInsufficientStorage, "the disk of the builder is full; send less, or have the operator raise --build-disk-mb"
	case isArchive && archive.TooLarge:
		status, text = http.StatusRequestEntityTooLarge, archive.Text
	case isArchive:
		status, text = http.StatusBadRequest, archive.Text
	case isImage:
		status, text = http.StatusBadRequest, image.Text
	case isDockerfile:
		status, text = http.StatusUnprocessableEntity, dockerfile.Text
	case errors.Is(err, engine.ErrNoResult):
		status = http.StatusNotFound
	default:
		s.log.ErrorContext(r.Context(), "a call has failed", "route", r.Pattern, "err", err)
	}
	refuse(w, status, text)
}

// read reads the JSON of a request.
func read(w http.ResponseWriter, r *http.Request, into any, check func() error) bool {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, buildapi.RequestMax)).Decode(into)
	if err == nil {
		err = check()
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return false
	}
	return true
}

func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	out, err := s.engine.Status(r.Context())
	if err != nil {
		s.fail(w, r, err)
		return
	}
	answer(w, http.StatusOK, out)
}

// putContext unpacks an archive.
func (s *Server) putContext(w http.ResponseWriter, r *http.Request, id string) {
	s.makeRoom(id)
	dir, err := os.MkdirTemp(s.dir, "c-")
	if err != nil {
		s.fail(w, r, err)
		return
	}
	a := &archive{dir: dir, at: time.Now()}
	stats, err := s.fill(a, r.Body)
	if err != nil {
		s.fail(w, r, errors.Join(err, os.RemoveAll(dir)))
		return
	}
	s.mu.Lock()
	s.forget(id)
	s.contexts[id] = a
	s.mu.Unlock()
	answer(w, http.StatusOK, buildapi.Context{
		Files: stats.Files, Bytes: stats.Bytes, Args: slices.Sorted(maps.Keys(a.args)), Registries: slices.Sorted(maps.Keys(a.logins)),
	})
}

// files is the directory of a context's files.
func (a *archive) files() string { return filepath.Join(a.dir, "files") }

// fill unpacks an archive, and takes out of it what is for the builder.
func (s *Server) fill(a *archive, r io.Reader) (unpack.Stats, error) {
	if err := os.Mkdir(a.files(), 0o755); err != nil { //nolint:gosec // a directory of images
		return unpack.Stats{}, err
	}
	limits := unpack.Default
	var disk syscall.Statfs_t
	if err := syscall.Statfs(s.dir, &disk); err != nil {
		return unpack.Stats{}, err
	}
	limits.Bytes = buildapi.ContextMost(int64(disk.Blocks) * disk.Bsize) //nolint:gosec // G115: disks are smaller
	stats, err := unpack.Archive(r, a.files(), limits)
	if err != nil {
		return stats, err
	}
	a.args, a.logins, err = takeSettings(a.files())
	return stats, err
}

// makeRoom deletes the oldest context that nobody reads, if there are too many. A node that
// has crashed leaves some.
func (s *Server) makeRoom(except string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.contexts) >= buildapi.ContextsMax {
		oldest := ""
		for id, a := range s.contexts {
			if a.users == 0 && id != except && (oldest == "" || a.at.Before(s.contexts[oldest].at)) {
				oldest = id
			}
		}
		if oldest == "" {
			return
		}
		s.forget(oldest)
	}
}

// forget deletes a context, once nobody reads it. Callers hold mu.
func (s *Server) forget(id string) {
	a := s.contexts[id]
	if a == nil {
		return
	}
	delete(s.contexts, id)
	a.gone = true
	if a.users == 0 {
		s.remove(a)
	}
}

// remove deletes the files of a context.
func (s *Server) remove(a *archive) {
	if err := os.RemoveAll(a.dir); err != nil {
		s.log.Error("cannot delete a context", "err", err)
	}
}

// open returns a context for a call. The caller closes it.
func (s *Server) open(id string) (a *archive, closes func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a = s.contexts[id]
	if a == nil {
		return nil, nil, false
	}
	a.users++
	return a, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if a.users--; a.users == 0 && a.gone {
			s.remove(a)
		}
	}, true
}

func (s *Server) dropContext(w http.ResponseWriter, _ *http.Request, id string) {
	s.mu.Lock()
	s.forget(id)
	s.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) plan(w http.ResponseWriter, r *http.Request, id string) {
	var in buildapi.Plan
	if !read(w, r, &in, in.Check) {
		return
	}
	a, closes, ok := s.open(id)
	if !ok {
		refuse(w, http.StatusNotFound, noContext)
		return
	}
	defer closes()
	text, err := engine.Dockerfile(a.files(), in.Dockerfile)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	needs, err := recipe.Read(text, in.Target, merge(a.args, in.Args))
	if err != nil {
		s.fail(w, r, err)
		return
	}
	answer(w, http.StatusOK, buildapi.Planned{Images: slices.Concat([]string{}, needs.Images)})
}

// noContext is the text of a refusal.
const noContext = "there is no such context: put it first"

// merge returns values, and defaults for those that are not given.
func merge[V any](defaults, given map[string]V) map[string]V {
	all := maps.Clone(defaults)
	if all == nil {
		all = map[string]V{}
	}
	maps.Copy(all, given)
	return all
}

func (s *Server) hasImage(w http.ResponseWriter, _ *http.Request, id string) {
	if !s.engine.HasImage(id) {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.WriteHeader(http.StatusOK)
}

func (s *Server) putImage(w http.ResponseWriter, r *http.Request, id string) {
	if err := s.engine.PutImage(r.Context(), id, r.Body); err != nil {
		s.fail(w, r, err)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

func (s *Server) result(w http.ResponseWriter, r *http.Request, id string) {
	out := &lazy{w: w}
	err := s.engine.Result(r.Context(), id, r.URL.Query()["without"], out)
	switch {
	case err == nil:
	case out.began:
		s.log.ErrorContext(r.Context(), "a result was cut", "err", err)
		panic(http.ErrAbortHandler) // the caller sees that the rest is missing
	default:
		s.fail(w, r, err)
	}
}

// lazy writes the header of an answer with its first bytes.
type lazy struct {
	w     http.ResponseWriter
	began bool
}

func (l *lazy) Write(p []byte) (int, error) {
	if !l.began {
		l.began = true
		l.w.Header().Set("Content-Type", "application/x-tar")
	}
	return l.w.Write(p)
}

func (s *Server) dropResult(w http.ResponseWriter, r *http.Request, id string) {
	if err := s.engine.DropResult(r.Context(), id); err != nil {
		s.fail(w, r, err)
		return
	}
	s.mu.Lock()
	s.results = slices.DeleteFunc(s.results, func(known string) bool { return known == id })
	s.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) prune(w http.ResponseWriter, r *http.Request) {
	var in buildapi.Prune
	if !read(w, r, &in, func() error { return nil }) {
		return
	}
	out, err := s.engine.Prune(r.Context(), in)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	answer(w, http.StatusOK, out)
}
