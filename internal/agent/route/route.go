// Package route has the rows of the API: which handler answers which method and
// path.
package route

import (
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/httpx"
)

// treePrefix is where trees are. Their paths are always absolute.
const treePrefix = "/filesystem/tree"

// thaws are the calls that change something and are answered in a frozen
// sandbox all the same.
var thaws = map[string]bool{
	"/": true, "/upgrade": true, "/archive/export": true, agentapi.ResumeArchive.Path: true,
	agentapi.TellWoken.Path: true, agentapi.Identify.Path: true, agentapi.Quiesce.Path: true, agentapi.Stop.Path: true,
}

// NoRoute is the answer to a request that is not in the table. It names the path, or
// its beginning.
func NoRoute(r *http.Request) error {
	return doze.Errorf(doze.NotFound, "no such path, or it does not take %.20s: %.200s", r.Method, r.URL.EscapedPath())
}

// Handler answers one route. An error that it returns is reported to the
// caller, so it must not have written anything then.
type Handler func(w http.ResponseWriter, r *http.Request, arg string) error

// Route is one row of the API. The pattern has at most one variable: {id}, one
// segment, or {path...}, the rest of the path. The first row that matches wins.
type Route struct {
	Method  string
	Pattern string
	Call
}

// Call is a handler, and the types of what goes in and comes out of it. They are
// for the description of the API. A nil type is no JSON: nothing, or bytes.
type Call struct {
	Serve   Handler
	In, Out reflect.Type
}

// Bytes stands for a body that is not JSON, or for none.
type Bytes struct{}

// Table is all rows.
type Table []Route

// Private is a row for the node alone. Its answers say which version this agent
// speaks.
func Private(c agentapi.Call, serve Handler) Route {
	return Route{c.Method, c.Path, Call{Serve: func(w http.ResponseWriter, r *http.Request, arg string) error {
		w.Header().Set(agentapi.VersionHeader, strconv.Itoa(agentapi.Version))
		return serve(w, r, arg)
	}}}
}

// Raw is a call whose handler reads its body and writes its answer by itself. In is
// the JSON that it takes. Out is the JSON that it answers, or that of each line.
func Raw[In, Out any](serve Handler) Call { return Call{serve, typeOf[In](), typeOf[Out]()} }

// typeOf is the type of a body, or nil for [Bytes].
func typeOf[Body any]() reflect.Type {
	if t := reflect.TypeFor[Body](); t != reflect.TypeFor[Bytes]() {
		return t
	}
	return nil
}

// Answer adapts a call that has no body.
func Answer[Out any](fn func(r *http.Request, arg string) (Out, error)) Call {
	return Raw[Bytes, Out](func(w http.ResponseWriter, r *http.Request, arg string) error {
		out, err := fn(r, arg)
		if err == nil {
			httpx.WriteJSON(w, http.StatusOK, out)
		}
		return err
	})
}

// Accept adapts a call with a JSON body.
func Accept[In, Out any](fn func(arg string, in In) (Out, error)) Call {
	return Raw[In, Out](func(w http.ResponseWriter, r *http.Request, arg string) error {
		in, err := body.Decode[In](w, r)
		if err != nil {
			return err
		}
		out, err := fn(arg, in)
		if err == nil {
			httpx.WriteJSON(w, http.StatusOK, out)
		}
		return err
	})
}

// Match finds the row of a request. It works on the path as it was sent: a
// cleaned one has lost which slashes were doubled or escaped.
func (t Table) Match(method, decoded, escaped string) (rt *Route, arg string) {
	for i := range t {
		rt := &t[i]
		if rt.Method != method {
			continue
		}
		if arg, ok := rt.arg(decoded, escaped); ok {
			return rt, arg
		}
	}
	return nil, ""
}

// arg matches the pattern and returns the value of its variable.
func (rt *Route) arg(decoded, escaped string) (arg string, ok bool) {
	before, after, variable := strings.Cut(rt.Pattern, "{")
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

// tail returns what a request says after the prefix of its route. Clients send
// an absolute path with its slashes escaped or doubled; a %2F anywhere makes
// the whole path absolute.
func tail(decoded, escaped, prefix string) string {
	p := strings.TrimPrefix(decoded, prefix)
	if strings.Contains(escaped, "%2F") {
		return p
	}
	return strings.TrimPrefix(p, "/")
}

// Changes reports whether a call may change files or start something.
func (rt *Route) Changes() bool {
	return rt.Method != http.MethodGet && !thaws[rt.Pattern] || rt.Pattern == "/terminal/ws" || rt.Pattern == "/ssh"
}

// Success is the answer to most calls that change something.
type Success struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}
