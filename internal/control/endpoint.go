package control

import (
	"context"
	"net/http"
	"reflect"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/oauth"
)

// tarType is that of a body which is not JSON.
const tarType = "application/x-tar"

// An endpoint serves a route, and knows what goes in and comes out.
type endpoint struct {
	handler func(*Server) http.Handler
	in, out reflect.Type // bodies; in is nil without one in JSON, out for a page
	media   string       // of a body that is taken as it is
	params  []string     // in a body that may be a form
	query   []string     // names in the table of parameters
	headers []string     // that an answer may have
	gives   string       // media type of an answer that is a stream of lines, each of which is an out
	reveals bool         // a good answer has a credential in it
	gathers bool         // it reports what is wrong with the query, mistakesOf, with all else

	// What follows complete makes of the table.
	action   string // in the audit log
	collects bool   // it makes something in a collection
}

// asks adds what callers may ask in the query.
func (e endpoint) asks(names ...string) endpoint {
	e.query = append(e.query, names...)
	return e
}

// together has the mistakes of the query reported with those of the body.
func (e endpoint) together() endpoint {
	e.gathers = true
	return e
}

// revealing says that a good answer has a credential in it.
func (e endpoint) revealing() endpoint {
	e.reveals = true
	return e
}

// by asks a right of callers beyond the scope. A caller without it learns that,
// whatever else is wrong with the request.
func (e endpoint) by(right func(*Server, *http.Request) error) endpoint {
	handler := e.handler
	e.handler = func(s *Server) http.Handler {
		h := handler(s)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := right(s, r); err != nil {
				httpx.WriteError(w, r, err)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	return e
}

// takes says of which type the body is.
func (e endpoint) takes(media string) endpoint {
	e.media = media
	return e
}

// read and write lift a method into a route; write hands it the body, which has
// the members of an In.
func read[Out any](fn func(*Server, context.Context, *http.Request) (Out, error)) endpoint {
	e := endpoint{out: reflect.TypeFor[Out]()}
	e.handler = func(s *Server) http.Handler {
		return httpx.Handle(func(ctx context.Context, r *http.Request, _ httpx.None) (Out, error) {
			out, err := fn(s, ctx, r)
			s.noteRefusal(err)
			made(ctx, out)
			return out, err
		})
	}
	if list, ok := reflect.TypeAssert[interface{ parameters() []string }](reflect.Zero(e.out)); ok {
		return e.asks(list.parameters()...).together() // with the other mistakes of its query
	}
	return e
}

func write[In, Out any](fn func(*Server, context.Context, *http.Request, map[string]any) (Out, error)) endpoint {
	return endpoint{in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](), handler: func(s *Server) http.Handler {
		return httpx.Handle(func(ctx context.Context, r *http.Request, _ httpx.None) (out Out, err error) {
			body, err := readBody(r)
			if err != nil {
				return out, err
			}
			strange := strangers(r.Method, reflect.TypeFor[In](), body)
			if createIfNotExist.in(r.URL.Query()) { // the body counts only if there is none
				ctx = context.WithValue(ctx, strangersKey{}, strange)
			} else if err := strange.Err(); err != nil {
				return out, err
			}
			out, err = fn(s, ctx, r, body)
			s.noteRefusal(err)
			made(ctx, out)
			return out, err
		})
	}}
}

// offer is write for what may answer with an address to upload to.
func offer(fn func(*Server, context.Context, *http.Request, map[string]any) (doze.VolumeTemplate, string, error)) endpoint {
	e := endpoint{in: reflect.TypeFor[doze.VolumeTemplate](), out: reflect.TypeFor[doze.VolumeTemplate](), headers: []string{uploadHeader}}
	e.handler = func(s *Server) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			write[doze.VolumeTemplate](func(s *Server, ctx context.Context, r *http.Request, body map[string]any) (doze.VolumeTemplate, error) {
				t, address, err := fn(s, ctx, r, body)
				if err == nil && address != "" {
					w.Header().Set(uploadHeader, address)
				}
				return t, err
			}).handler(s).ServeHTTP(w, r)
		})
	}
	return e
}

// logins are the ways to a credential: they need none.
func logins() (all []route) {
	for _, rt := range oauth.Routes() {
		all = append(all, route{rt.Method, rt.Path, "", endpoint{out: rt.Out, query: rt.Query, params: rt.Body, gathers: true, handler: func(s *Server) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { rt.Serve(s.OAuth, w, r) })
		}}})
	}
	return all
}
