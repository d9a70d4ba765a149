package api

import (
	"context"
	"net/http"
	"reflect"

	"github.com/dozehq/doze/internal/httpx"
)

// The types of bodies that are not one JSON value.
const (
	TarType    = "application/x-tar"
	ZipType    = "application/zip"
	NDJSONType = "application/x-ndjson" // lines of JSON
	EventsType = "text/event-stream"    // server-sent events
)

// A Route is one way into the API.
type Route struct {
	Method  string
	Pattern string // below [Prefix]: segments; one in braces is a path value
	Scope   string // what a credential needs; empty is open to everybody
	Summary string // what it does, in a few words
	Action  string // its name in the audit log
	shape
	collects bool // it makes something in a collection
	serve    func(*call) http.Handler
}

// shape is what goes into an endpoint, and what comes out.
type shape struct {
	in, out reflect.Type // bodies; in is nil without one in JSON, out for a page
	echoes  reflect.Type // what clients send back besides, nil for nothing
	media   string       // of a body that is taken as it is
	params  []string     // in a body that may be a form
	query   []string     // names in the table of parameters
	headers []string     // that an answer may have
	gives   string       // media type of an answer that is a stream: a tar, or lines or events, each of which is an out
	reveals bool         // a good answer has a credential in it
	gathers bool         // it reports what is wrong with the query, Mistakes, with all else
	about   string       // what its summary and its types do not say: sentences, or nothing
}

// A call is what an endpoint needs of the server and of its route.
type call struct {
	*Server
	*Route
}

// A Row is a route in the table of a room, before it is bound to what serves it. So a table
// is static, and is checked and described without a server.
type Row[T any] struct {
	Method, Pattern, Scope, Summary string
	Endpoint[T]
}

// GET makes a row.
func GET[T any](pattern, scope, summary string, e Endpoint[T]) Row[T] {
	return Row[T]{http.MethodGet, pattern, scope, summary, e}
}

// POST makes a row.
func POST[T any](pattern, scope, summary string, e Endpoint[T]) Row[T] {
	return Row[T]{http.MethodPost, pattern, scope, summary, e}
}

// PUT makes a row.
func PUT[T any](pattern, scope, summary string, e Endpoint[T]) Row[T] {
	return Row[T]{http.MethodPut, pattern, scope, summary, e}
}

// DELETE makes a row.
func DELETE[T any](pattern, scope, summary string, e Endpoint[T]) Row[T] {
	return Row[T]{http.MethodDelete, pattern, scope, summary, e}
}

// Bind makes routes of rows. To describe them, to may be nil.
func Bind[T any](to T, rows []Row[T]) []Route {
	all := make([]Route, len(rows))
	for i, row := range rows {
		all[i] = Route{
			Method: row.Method, Pattern: row.Pattern, Scope: row.Scope, Summary: row.Summary, shape: row.shape,
			serve: func(c *call) http.Handler { return row.serve(to, c) },
		}
	}
	return all
}

// An Endpoint serves a route by a T, and knows what goes in and comes out.
type Endpoint[T any] struct {
	shape
	serve func(T, *call) http.Handler
}

// Asks adds what callers may ask in the query.
func (e Endpoint[T]) Asks(names ...string) Endpoint[T] {
	e.query = append(e.query, names...)
	return e
}

// Together has the mistakes of the query reported with those of the body.
func (e Endpoint[T]) Together() Endpoint[T] {
	e.gathers = true
	return e
}

// Revealing says that a good answer has a credential in it.
func (e Endpoint[T]) Revealing() Endpoint[T] {
	e.reveals = true
	return e
}

// About adds what the description says of the route besides its summary: sentences about
// an error, or about an effect that callers do not expect.
func (e Endpoint[T]) About(text string) Endpoint[T] {
	e.about = text
	return e
}

// Takes says of which type the body is.
func (e Endpoint[T]) Takes(media string) Endpoint[T] {
	e.media = media
	return e
}

// Echoing accepts the read-only fields of resource in an update, if they are unchanged:
// see [Echoes].
func (e Endpoint[T]) Echoing(resource any) Endpoint[T] {
	e.echoes = reflect.TypeOf(resource)
	return e
}

// By asks a right of callers beyond the scope. A caller without it learns that,
// whatever else is wrong with the request.
func (e Endpoint[T]) By(right func(T, *http.Request) error) Endpoint[T] {
	serve := e.serve
	e.serve = func(t T, c *call) http.Handler {
		h := serve(t, c)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := right(t, r); err != nil {
				httpx.WriteError(w, r, err)
				return
			}
			h.ServeHTTP(w, r)
		})
	}
	return e
}

// Read and Write lift a method into an endpoint. Write hands it the body, which has the
// members of an In.
func Read[T, Out any](fn func(T, context.Context, *http.Request) (Out, error)) Endpoint[T] {
	e := Endpoint[T]{shape{out: reflect.TypeFor[Out]()}, func(t T, c *call) http.Handler {
		return httpx.Handle(func(ctx context.Context, r *http.Request, _ httpx.None) (Out, error) {
			out, err := fn(t, ctx, r)
			c.noteRefusal(err)
			made(ctx, out)
			return out, err
		})
	}}
	if list, ok := reflect.TypeAssert[interface{ parameters() []string }](reflect.Zero(e.out)); ok {
		return e.Asks(list.parameters()...).Together() // with the other mistakes of its query
	}
	return e
}

// Write is Read for a request with a body.
func Write[In, T, Out any](fn func(T, context.Context, *http.Request, map[string]any) (Out, error)) Endpoint[T] {
	return Endpoint[T]{shape{in: reflect.TypeFor[In](), out: reflect.TypeFor[Out]()}, func(t T, c *call) http.Handler {
		return httpx.Handle(func(ctx context.Context, r *http.Request, _ httpx.None) (out Out, err error) {
			body, err := ReadBody(r)
			if err != nil {
				return out, err
			}
			strange := c.strangers(c.Route, body)
			if CreateIfNotExist.In(r.URL.Query()) { // the body counts only if there is none
				ctx = context.WithValue(ctx, strangersKey{}, strange)
			} else if err := strange.Err(); err != nil {
				return out, err
			}
			out, err = fn(t, ctx, r, body)
			c.noteRefusal(err)
			made(ctx, out)
			return out, err
		})
	}}
}

// Offer is Write for what may answer with an address besides, in a header.
func Offer[In, T, Out any](header string, fn func(T, context.Context, *http.Request, map[string]any) (Out, string, error)) Endpoint[T] {
	e := Endpoint[T]{shape: shape{in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](), headers: []string{header}}}
	e.serve = func(t T, c *call) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			Write[In](func(t T, ctx context.Context, r *http.Request, body map[string]any) (Out, error) {
				out, address, err := fn(t, ctx, r, body)
				if err == nil && address != "" {
					w.Header().Set(header, address)
				}
				return out, err
			}).serve(t, c).ServeHTTP(w, r)
		})
	}
	return e
}

// Stream lifts a method that writes lines of JSON, each of which is a Line. It returns an
// error as long as nothing is answered.
func Stream[Line, T any](fn func(T, http.ResponseWriter, *http.Request) error) Endpoint[T] {
	return Endpoint[T]{shape{out: reflect.TypeFor[Line](), gives: NDJSONType}, func(t T, _ *call) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := fn(t, w, r); err != nil {
				httpx.WriteError(w, r, err)
			}
		})
	}}
}

// Events is Stream for server-sent events, the data of each of which is a Message.
func Events[Message, T any](fn func(T, http.ResponseWriter, *http.Request) error) Endpoint[T] {
	e := Stream[Message](fn)
	e.gives = EventsType
	return e
}

// Download lifts a method that sends a tar. It returns an error as long as nothing is
// answered.
func Download[T any](fn func(T, http.ResponseWriter, *http.Request) error) Endpoint[T] {
	return Endpoint[T]{shape{out: reflect.TypeFor[[]byte](), gives: TarType}, func(t T, _ *call) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := fn(t, w, r); err != nil {
				httpx.WriteError(w, r, err)
			}
		})
	}}
}

// Plain lifts a method that serves by itself. Its answer is an out, or with nil a page; query
// and params are names of parameters, the latter in a body that is JSON or a form.
func Plain[T any](fn func(T, http.ResponseWriter, *http.Request), out reflect.Type, query, params []string) Endpoint[T] {
	return Endpoint[T]{shape{out: out, query: query, params: params, gathers: true}, func(t T, _ *call) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fn(t, w, r) })
	}}
}
