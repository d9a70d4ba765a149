package agent

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/httpx"
)

// bodyMax bounds a JSON body. But for the contents of files, it is held in memory;
// larger files go as multipart/form-data.
var bodyMax = bound{64 << 20, "write what is large to a file, as multipart/form-data"}

// handler answers one route. An error that it returns is reported to the
// caller, so it must not have written anything then.
type handler func(a *Agent, w http.ResponseWriter, r *http.Request, arg string) error

// route is one row of the API. The pattern has at most one variable: {id}, one
// segment, or {path...}, the rest of the path. The first row that matches wins.
type route struct {
	method  string
	pattern string
	serve   handler
}

var routes = []route{
	{"GET", "/", answer((*Agent).welcome)},
	{"POST", "/", answer((*Agent).welcome)},
	{"PUT", "/", answer((*Agent).welcome)},
	{"DELETE", "/", answer((*Agent).welcome)},
	{"PATCH", "/", answer((*Agent).welcome)},
	{"GET", "/health", answer((*Agent).health)},
	{"POST", "/upgrade", (*Agent).skipUpgrade},
	{"POST", "/environment/reload", answer((*Agent).reloadVariables)},

	{"GET", "/filesystem/tree/{path...}", answer((*Agent).readTree)},
	{"PUT", "/filesystem/tree/{path...}", (*Agent).writeTree},
	{"DELETE", "/filesystem/tree/{path...}", answer((*Agent).deleteTree)},
	{"GET", "/filesystem/{path...}", (*Agent).readFile},
	{"PUT", "/filesystem/{path...}", (*Agent).writeFile},
	{"DELETE", "/filesystem/{path...}", answer((*Agent).deleteFile)},

	{"GET", "/filesystem-multipart", answer((*Agent).listUploads)},
	{"POST", "/filesystem-multipart/initiate/{path...}", (*Agent).beginUpload},
	{"PUT", "/filesystem-multipart/{id}/part", answer((*Agent).putPart)},
	{"GET", "/filesystem-multipart/{id}/parts", answer((*Agent).readParts)},
	{"POST", "/filesystem-multipart/{id}/complete", accept((*Agent).completeUpload)},
	{"DELETE", "/filesystem-multipart/{id}/abort", answer((*Agent).abortUpload)},

	{"GET", "/filesystem-find/{path...}", answer((*Agent).find)},
	{"GET", "/filesystem-search/{path...}", answer((*Agent).fuzzyFind)},
	{"GET", "/filesystem-content-search/{path...}", answer((*Agent).grep)},

	{"GET", "/watch/filesystem/{path...}", (*Agent).watchFiles},

	{"GET", "/process", answer((*Agent).listProcesses)},
	{"POST", "/process", (*Agent).runProcess},
	{"GET", "/process/{id}", answer((*Agent).readProcess)},
	{"DELETE", "/process/{id}", answer((*Agent).stopProcess)},
	{"DELETE", "/process/{id}/kill", answer((*Agent).killProcess)},
	{"GET", "/process/{id}/logs", answer((*Agent).readLogs)},
	{"GET", "/process/{id}/logs/stream", (*Agent).followLogs},
	{"POST", "/process/{id}/stdin", (*Agent).writeStdin},
	{"DELETE", "/process/{id}/stdin", answer((*Agent).closeStdin)},

	{"GET", "/network/process/{id}/ports", answer((*Agent).listPorts)},
	{"POST", "/network/process/{id}/monitor", (*Agent).startMonitor},
	{"DELETE", "/network/process/{id}/monitor", answer((*Agent).stopMonitor)},
	{"PUT", "/network/tunnel/config", accept((*Agent).setTunnel)},
	{"DELETE", "/network/tunnel", answer((*Agent).deleteTunnel)},

	{"GET", "/terminal", (*Agent).showTerminal},
	{"GET", "/terminal/ws", (*Agent).openTerminal},

	{"POST", "/archive/export", (*Agent).export},
	{"GET", "/archive/status", answer((*Agent).archiveStatus)},
	{"POST", "/archive/resume", answer((*Agent).resume)},

	{"PUT", "/codegen/fastapply/{path...}", answer((*Agent).refuseCodegen)},
	{"GET", "/codegen/reranking/{path...}", answer((*Agent).refuseCodegen)},

	{"POST", "/mcp", (*Agent).serveMCP},
	{"GET", "/mcp", (*Agent).refuseMCP},

	private(agentapi.AskState, answer((*Agent).state)),
	private(agentapi.TellWoken, answer((*Agent).wake)),
	private(agentapi.Identify, (*Agent).become),
	private(agentapi.Quiesce, (*Agent).quiesce),
	private(agentapi.Unpack, (*Agent).unpack),
	private(agentapi.Stop, answer((*Agent).stop)),
	private(agentapi.PrepareDrive, (*Agent).prepareDrive),
	private(agentapi.ServeDrive, (*Agent).serveDrive),
	private(agentapi.DropDrive, answer((*Agent).dropDrive)),
}

// Route is one row of the API, for those who prove something of each.
type Route struct{ Method, Pattern string }

// Routes returns the rows that callers can reach.
func Routes() (all []Route) {
	for _, rt := range routes {
		if !strings.HasPrefix(rt.pattern, agentapi.Prefix) {
			all = append(all, Route{rt.method, rt.pattern})
		}
	}
	return all
}

// RouteOf returns the row that serves a method and an escaped path; or false.
func RouteOf(method, escaped string) (Route, bool) {
	decoded, err := url.PathUnescape(escaped)
	if err != nil {
		return Route{}, false
	}
	rt, _ := match(method, decoded, escaped)
	if rt == nil {
		return Route{}, false
	}
	return Route{rt.method, rt.pattern}, true
}

// private is a row for the node alone. Its answers say which version this agent
// speaks.
func private(c agentapi.Call, serve handler) route {
	return route{c.Method, c.Path, func(a *Agent, w http.ResponseWriter, r *http.Request, arg string) error {
		w.Header().Set(agentapi.VersionHeader, strconv.Itoa(agentapi.Version))
		return serve(a, w, r, arg)
	}}
}

// answer adapts a call that has no body.
func answer[Out any](fn func(a *Agent, r *http.Request, arg string) (Out, error)) handler {
	return func(a *Agent, w http.ResponseWriter, r *http.Request, arg string) error {
		out, err := fn(a, r, arg)
		if err == nil {
			httpx.WriteJSON(w, http.StatusOK, out)
		}
		return err
	}
}

// accept adapts a call with a JSON body.
func accept[In, Out any](fn func(a *Agent, arg string, in In) (Out, error)) handler {
	return func(a *Agent, w http.ResponseWriter, r *http.Request, arg string) error {
		in, err := decode[In](w, r)
		if err != nil {
			return err
		}
		out, err := fn(a, arg, in)
		if err == nil {
			httpx.WriteJSON(w, http.StatusOK, out)
		}
		return err
	}
}

// decode reads a JSON body. Unknown members are ignored.
func decode[In any](w http.ResponseWriter, r *http.Request) (in In, err error) {
	b, err := body(w, r, bodyMax)
	if err != nil {
		return in, err
	}
	return parse[In](b)
}

// parse reads a JSON body and has it check itself, if it can. Every error is
// Invalid, and names all mistakes.
func parse[In any](b []byte) (in In, err error) {
	in, p, err := read[In](b)
	if err != nil {
		return in, err
	}
	if c, ok := any(&in).(checker); ok {
		c.check(&p)
	}
	return in, p.Err()
}

// checker is a body that finds its own mistakes. Members of a wrong type, which p
// has already, are as if they were not there.
type checker interface{ check(p *doze.Problems) }

// read reads a JSON body without checking more than its types, as far as these
// are right. Every error is Invalid.
func read[In any](b []byte) (in In, p doze.Problems, err error) {
	if len(b) == 0 {
		return in, nil, doze.Errorf(doze.Invalid, "the body is empty; send a JSON object")
	}
	if err := httpx.CheckText(b); err != nil {
		return in, nil, err
	}
	err = json.Unmarshal(b, &in)
	switch wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); {
	case err == nil:
		return in, nil, nil
	case !ok:
		return in, nil, doze.Wrap(err, doze.Invalid, "the body is not the JSON object we expect: %v", err)
	case wrong.Field == "":
		return in, nil, doze.Wrap(err, doze.Invalid, "the body must be a JSON object, not %s", wrong.Value)
	}
	return in, wrongTypes[In](b), nil
}

// bound is how large a body may be, and what who needs more does.
type bound struct {
	bytes  int64
	advice string
}

// body reads a whole body within a bound.
func body(w http.ResponseWriter, r *http.Request, limit bound) ([]byte, error) {
	src, err := limited(w, r, limit)
	if err != nil {
		return nil, err
	}
	in, ok := r.Body.(*incoming)
	if !ok {
		return nil, nil // there is none
	}
	b, err := in.readAll(src)
	if err != nil {
		return nil, cutOff(err, "send it again")
	}
	return b, nil
}

// limited returns the body of a request, which is TooLarge beyond its bound:
// without a byte of it, if its sender says so.
func limited(w http.ResponseWriter, r *http.Request, limit bound) (io.Reader, error) {
	if r.ContentLength > limit.bytes {
		return nil, limit.exceeded()
	}
	return &capped{http.MaxBytesReader(w, r.Body, limit.bytes), limit}, nil
}

// capped is a body that says what to do if it is too large.
type capped struct {
	io.Reader
	limit bound
}

func (c *capped) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		err = c.limit.exceeded()
	}
	return n, err
}

func (b bound) exceeded() error {
	return doze.Errorf(doze.TooLarge, "the body has more than %d MiB; %s", b.bytes>>20, b.advice)
}

// match finds the row of a request. It works on the path as it was sent: a
// cleaned one has lost which slashes were doubled or escaped.
func match(method, decoded, escaped string) (rt *route, arg string) {
	for i := range routes {
		rt := &routes[i]
		if rt.method != method {
			continue
		}
		if arg, ok := rt.arg(decoded, escaped); ok {
			return rt, arg
		}
	}
	return nil, ""
}

// arg matches the pattern and returns the value of its variable.
func (rt *route) arg(decoded, escaped string) (arg string, ok bool) {
	before, after, variable := strings.Cut(rt.pattern, "{")
	switch {
	case !variable:
		return "", escaped == before || escaped == before+"/" && before != "/"
	case after == "path...}":
		prefix := strings.TrimSuffix(before, "/")
		if prefix == treePrefix {
			if decoded == prefix {
				return "/", true
			}
			return decoded[min(len(prefix), len(decoded)):], strings.HasPrefix(decoded, before)
		}
		return tail(decoded, escaped, prefix), strings.HasPrefix(decoded, before)
	}
	after = strings.TrimPrefix(after, "id}")
	arg, ok = strings.CutPrefix(escaped, before)
	if !ok {
		return "", false
	}
	arg, ok = strings.CutSuffix(strings.TrimSuffix(arg, "/"), after)
	if !ok || arg == "" || strings.Contains(arg, "/") {
		return "", false
	}
	arg, err := url.PathUnescape(arg)
	return arg, err == nil
}

// ServeHTTP answers every request: by the table, or with 404. It never
// redirects and knows no 405.
func (a *Agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer a.trim.mark()
	if a.vars.given().get(timingEnv) == "true" {
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
	if a.vars.given().get(quietEnv) != "true" {
		out, began := &answered{ResponseWriter: w}, time.Now()
		w = out
		defer func() { logAccess(r, out.status, time.Since(began)) }() // after a panic too
	}
	if r.ContentLength != 0 {
		in := &incoming{ReadCloser: r.Body, all: &a.bodies}
		r.Body = in
		defer func() {
			if in.release() {
				a.trim.free()
			}
		}()
	}
	// RawPath is what was sent, unless it is the usual way to escape Path.
	rt, arg := match(method, r.URL.Path, cmp.Or(r.URL.RawPath, r.URL.EscapedPath()))
	if rt == nil || r.Method == http.MethodHead && (rt.pattern == "/" || rt.pattern == "/mcp") {
		refuse(w, r, errNoRoute)
		return
	}
	if r.Method == http.MethodHead {
		return
	}
	r.Pattern = rt.pattern
	defer recovered(w, r)
	if err := a.serve(w, r, rt, arg); err != nil {
		refuse(w, r, err)
	}
}

// serve answers by a row of the table, unless the sandbox is frozen.
func (a *Agent) serve(w http.ResponseWriter, r *http.Request, rt *route, arg string) error {
	if rt.changes() && a.archives.frozen() {
		return errFrozen(rt)
	}
	return rt.serve(a, w, r, arg)
}

// errNoRoute is the answer to what is not in the table.
var errNoRoute = doze.Errorf(doze.NotFound, "there is no such path, or it does not take this method")

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
