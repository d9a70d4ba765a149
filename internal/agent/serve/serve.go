// Package serve is the HTTP server of an agent: connections, bodies, the log and
// the search for a row.
package serve

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/environ"
	"github.com/dozehq/doze/internal/agent/journal"
	"github.com/dozehq/doze/internal/agent/memory"
	"github.com/dozehq/doze/internal/agent/route"
	"github.com/dozehq/doze/internal/httpx"
)

// The server has no read or write timeout: both bound the whole life of a
// request and would cut every stream.
const (
	headerTimeout = 30 * time.Second
	idleTimeout   = 2 * time.Minute
	headerMax     = 1 << 20
)

// Server answers requests by a table.
type Server struct {
	table  route.Table
	vars   *environ.Variables
	frozen func() bool // nothing may change the sandbox
	bodies *body.Memory
	trim   memory.Trimmer
}

// New returns a server of a table in a sandbox with total bytes of memory.
// While frozen says so, it refuses calls that change something.
func New(table route.Table, vars *environ.Variables, frozen func() bool, total int64) *Server {
	return &Server{table: table, vars: vars, frozen: frozen, bodies: body.NewMemory(total)}
}

// ServeHTTP answers every request: by the table, or with 404. It never
// redirects and knows no 405.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer s.trim.Mark()
	if s.vars.Given().Get(timingEnv) == "true" {
		w = &timed{ResponseWriter: w, began: time.Now()}
	}
	httpx.SandboxHeaders(w.Header())

	method := r.Method
	switch method {
	case http.MethodOptions:
		w.WriteHeader(http.StatusNoContent)
		return
	case http.MethodHead: // asks whether the route exists, nothing else
		method = http.MethodGet
	}
	if s.vars.Given().Get(journal.Quiet) != "true" {
		out, began := &journal.Answer{ResponseWriter: w}, time.Now()
		w = out
		defer func() { journal.Access(r, out.Status, time.Since(began)) }() // after a panic too
	}
	if r.ContentLength != 0 {
		in := s.bodies.Hold(r)
		defer func() {
			if in.Release() {
				s.trim.Free()
			}
		}()
	}
	// RawPath is what was sent, unless it is the usual way to escape Path.
	rt, arg := s.table.Match(method, r.URL.Path, cmp.Or(r.URL.RawPath, r.URL.EscapedPath()))
	if rt == nil || r.Method == http.MethodHead && (rt.Pattern == "/" || rt.Pattern == "/mcp") {
		body.Refuse(w, r, route.NoRoute(r))
		return
	}
	if r.Method == http.MethodHead {
		return
	}
	r.Pattern = rt.Pattern
	defer recovered(w, r)
	if err := s.serve(w, r, rt, arg); err != nil {
		body.Refuse(w, r, err)
	}
}

// serve answers by a row of the table, unless the sandbox is frozen.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, rt *route.Route, arg string) error {
	if rt.Changes() && s.frozen() {
		return errFrozen(rt)
	}
	return rt.Serve(w, r, arg)
}

// HTTP returns the server of s, which answers calls at most until ctx ends. How
// long a body or an answer takes has no limit.
func (s *Server) HTTP(ctx context.Context) *http.Server {
	return &http.Server{
		Handler:           s,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerMax,
	}
}

// errFrozen is the answer to calls that would change a frozen sandbox.
func errFrozen(rt *route.Route) error {
	return doze.Errorf(doze.Conflict, "the sandbox is frozen for an archive, so %s %s is refused; POST /archive/resume ends that",
		rt.Method, cmp.Or(strings.TrimSuffix(rt.Pattern, "/{path...}"), "/"))
}

// recovered keeps a bug in one handler from ending the others.
func recovered(w http.ResponseWriter, r *http.Request) {
	switch v := recover(); v {
	case nil:
	case http.ErrAbortHandler: // cut the connection: the answer is incomplete
		panic(v)
	default:
		slog.ErrorContext(r.Context(), "handler panicked", "route", r.Pattern, "err", v, "stack", string(debug.Stack()))
		w.WriteHeader(http.StatusInternalServerError)
	}
}
