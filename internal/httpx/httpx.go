// Package httpx turns typed functions into HTTP handlers and typed errors
// into HTTP responses, and back. It is the only package that writes an error
// body or picks a status code.
package httpx

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"strconv"

	"github.com/dozehq/doze"
)

// maxBody bounds every request body we decode.
const maxBody = 8 << 20

// None is the input or output of a call that has none.
type None struct{}

// Empty is the output of a call that is answered by 204, without a body.
type Empty struct{}

// Handle adapts fn. The body, if any, is decoded into In; path values stay on
// the request, where fn reads them with r.PathValue.
func Handle[In, Out any](fn func(ctx context.Context, r *http.Request, in In) (Out, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		in, err := decode[In](w, r)
		if err != nil {
			WriteError(w, r, err)
			return
		}
		out, err := fn(r.Context(), r, in)
		if err != nil {
			WriteError(w, r, err)
			return
		}
		if _, empty := any(out).(Empty); empty {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		WriteJSON(w, http.StatusOK, out)
	})
}

func decode[In any](w http.ResponseWriter, r *http.Request) (in In, err error) {
	if _, none := any(in).(None); none {
		return in, nil
	}
	err = json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&in)
	if err != nil {
		return in, doze.Wrap(err, doze.Invalid, "the body must be a JSON object")
	}
	return in, nil
}

// Body makes the error body of one of the two public APIs.
type Body func(*doze.Error) any

// ControlBody is {error, code, message} (spec section 7), with the error's own
// name and fields where it has them.
func ControlBody(e *doze.Error) any {
	b := map[string]any{}
	maps.Copy(b, e.Fields)
	b["error"], b["code"], b["message"] = e.Kind.String(), e.Kind.Status(), e.Message
	if e.Name != "" {
		b["error"] = e.Name
	}
	return b
}

// SandboxBody is {error} (spec 4.2).
func SandboxBody(e *doze.Error) any { return map[string]string{"error": e.Message} }

// SandboxHeaders sets what every answer of the sandbox API has: a page of any
// origin may read it, and no cache keeps it.
func SandboxHeaders(h http.Header) {
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Allow-Methods", "GET, POST, PUT, DELETE, HEAD, OPTIONS")
	h.Set("Access-Control-Allow-Headers", "Content-Type, Authorization")
	h.Set("Cache-Control", "no-cache, no-store, must-revalidate")
	h.Set("Pragma", "no-cache")
	h.Set("Expires", "0")
	h.Set("X-Content-Type-Options", "nosniff")
}

// WriteError reports err in the form of the control API.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	WriteErrorAs(w, r, Denied(w, err), ControlBody)
}

// A Warden is a [http.ResponseWriter] that bounds how often a source fails to show
// a good credential.
type Warden interface {
	// Deny counts one more failure. It returns what the caller is told instead,
	// or nil.
	Deny() error
}

// Denied is the error that a caller gets for err: another one if it is that of a
// missing or wrong credential, and its source had too many. A good credential is
// never concerned.
func Denied(w http.ResponseWriter, err error) error {
	if doze.Public(err).Kind != doze.Unauthenticated {
		return err
	}
	for {
		if warden, ok := w.(Warden); ok {
			return cmp.Or(warden.Deny(), err)
		}
		inner, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return err
		}
		w = inner.Unwrap()
	}
}

// A Failure is a [http.ResponseWriter] that wants to know by which name an error
// is answered.
type Failure interface{ Fails(name string) }

// Fails tells the writers below w by which name an error is answered.
func Fails(w http.ResponseWriter, name string) {
	for {
		if f, ok := w.(Failure); ok {
			f.Fails(name)
		}
		inner, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return
		}
		w = inner.Unwrap()
	}
}

// severity is how errors of ours are logged. One that is no defect is a warning:
// a server in a sandbox may be broken, and a limit may be reached.
var severity = map[doze.Kind]slog.Level{
	doze.Internal: slog.LevelError, doze.Unavailable: slog.LevelWarn, doze.Timeout: slog.LevelWarn,
}

// WriteErrorAs reports err to the caller in the form of body and, when it is
// ours, to the log. The answer says how long it is: who reads it whole need not
// wait for what the handler does after that.
func WriteErrorAs(w http.ResponseWriter, r *http.Request, err error, body Body) {
	e := doze.Public(err)
	if level, ours := severity[e.Kind]; ours {
		slog.Log(r.Context(), level, "request failed", "route", r.Pattern, "kind", e.Kind, "err", err)
	}
	Fails(w, cmp.Or(e.Name, e.Kind.String()))
	var text bytes.Buffer
	_ = json.NewEncoder(&text).Encode(body(e)) // names and texts always can be
	if e.Definitive() {
		w.Header().Set("X-Should-Retry", "false") // some clients repeat any 429
	}
	w.Header().Set("Content-Type", JSONType)
	w.Header().Set("Content-Length", strconv.Itoa(text.Len()))
	w.WriteHeader(e.Kind.Status())
	_, _ = w.Write(text.Bytes()) // the caller went away: nobody is left to tell
}

// ReadError is the inverse of WriteError, for our own clients. It returns nil
// for a successful response.
func ReadError(resp *http.Response) error {
	if resp.StatusCode < http.StatusBadRequest {
		return nil
	}
	var b struct{ Error, Message string }
	err := json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(&b)
	if err != nil || b.Error == "" {
		return doze.Wrap(errors.Join(err, errors.New(resp.Status)), doze.Unavailable, "the server sent an unexpected answer")
	}
	return &doze.Error{Kind: kindOf(b.Error, resp.StatusCode), Name: b.Error, Message: cmp.Or(b.Message, b.Error)}
}

// kindOf finds the kind of an error body: by its name, or by the status if the
// name is a finer one.
func kindOf(name string, status int) doze.Kind {
	if k := doze.ParseKind(name); k != doze.Internal {
		return k
	}
	return doze.KindOfStatus(status)
}

// JSONType is the type of every body in JSON. JSON is in UTF-8 without saying so,
// but the public API says it.
const JSONType = "application/json; charset=utf-8"

// WriteJSON writes v with status.
func WriteJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", JSONType)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the caller went away: nobody is left to tell
}
