package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// heldMax bounds an answer that waits for its line: those of routes that need
	// no credential are pages and tokens.
	heldMax = 1 << 20
	// requestIDHeader names the request in answers, in the log and in the audit log.
	requestIDHeader = "X-Request-Id"
)

// actionOf is the name of what a row of the table does: the words of its path
// that are no values, and what is done. Where the last word is a verb itself, as
// in /snapshots/{snapshot}/fork, nothing is added.
func actionOf(rt *Route, all []Route) string {
	segments := strings.Split(rt.Pattern[1:], "/")
	words := slices.DeleteFunc(slices.Clone(segments), func(s string) bool { return strings.HasPrefix(s, "{") })
	has := func(method, below string) bool {
		return slices.ContainsFunc(all, func(o Route) bool {
			return (method == "" || o.Method == method) && (o.Pattern == rt.Pattern+below || below != "" && strings.HasPrefix(o.Pattern, rt.Pattern+below))
		})
	}
	isWord := !strings.HasPrefix(segments[len(segments)-1], "{") && len(segments) > 1
	isVerb := isWord && !has(http.MethodGet, "") && (rt.Method != http.MethodPost || !has("", "/{"))
	switch {
	case rt.Method == http.MethodGet:
		words = append(words, "read")
	case rt.Method == http.MethodPut:
		words = append(words, "update")
	case isVerb && (rt.Method == http.MethodPost || rt.Method == http.MethodDelete):
	case rt.Method == http.MethodPost:
		words = append(words, "create")
	case rt.Method == http.MethodDelete && len(segments) == 1:
		words = append(words, "clean") // of the whole collection
	case rt.Method == http.MethodDelete:
		words = append(words, "delete")
	}
	return strings.Join(words, ".")
}

// audits reports whether a request that its caller may make has a line, written
// before it is served: each that may change something, and those that reveal a
// credential.
func (rt *Route) audits(r *http.Request) bool {
	return rt.Method != http.MethodGet || rt.reveals || slices.Contains(rt.query, flags[ShowSecrets]) && ShowSecrets.In(r.URL.Query())
}

// entryOf begins the line of a request, with what is known before anybody has
// looked at it.
func entryOf(r *http.Request) *audit.Entry {
	return &audit.Entry{AuditLine: doze.AuditLine{
		Time: doze.Time{Time: time.Now()}, Source: sourceOf(r), Method: r.Method, RequestID: rand.Text(),
		ClientRequestID: r.Header.Get(requestIDHeader), Action: "unknown",
	}}
}

func sourceOf(r *http.Request) string {
	if a := httpx.Source(r); a.IsValid() {
		return a.String()
	}
	return ""
}

// note fills in what the table says of a request.
func (rt *Route) note(e *audit.Entry, r *http.Request) {
	e.Action, e.Route = rt.Action, Prefix+rt.Pattern
	var kinds, names []string
	segments := strings.Split(rt.Pattern[1:], "/")
	for i, s := range segments {
		name, isValue := strings.CutPrefix(s, "{")
		switch {
		case isValue:
			names = append(names, r.PathValue(strings.TrimSuffix(name, "}")))
		case i == 0 || i+1 < len(segments) || rt.collects || rt.Method == http.MethodGet:
			kinds = append(kinds, s)
		}
	}
	e.Object = doze.AuditObject{Kind: strings.Join(kinds, "/"), Name: strings.Join(names, "/")}
}

// place says who sends a request.
func place(e *audit.Entry, c access.Caller) {
	e.Actor, e.Workspace = doze.AuditActor{Sub: c.Sub, Type: c.SubType, Key: c.Key}, c.Workspace
}

// journaled writes the line of a request before h serves it. Without one on disk,
// nothing is served. An answer waits for nothing: its outcome is written soon.
func (s *Server) journaled(rt *Route, h http.Handler) http.Handler {
	if rt.Scope == "" {
		return h // see attended
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !rt.audits(r) {
			h.ServeHTTP(w, r)
			return
		}
		e := audit.Of(r.Context())
		if w := r.PathValue("workspace"); w != "" && Caller(r.Context()).Roles[w] != "" {
			e.Workspace = w // what happens to a workspace is the business of its admins
		}
		if rt.in != nil && rt.collects {
			if err := nameIn(e, r); err != nil {
				httpx.WriteError(w, r, err)
				return
			}
		}
		if err := s.Audit.Begin(r.Context(), e); err != nil {
			httpx.WriteError(w, r, err)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// nameIn adds the name that a body gives to what it makes. The handler reads the
// same bytes.
func nameIn(e *audit.Entry, r *http.Request) error {
	if err := checkLength(r); err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(r.Body, bodyMax+1))
	if err != nil {
		return errBody(err)
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(b), r.Body), r.Body}
	named(e, nameOf(b))
	return nil
}

// nameOf is the name, or the address, in a body; empty if there is none. Members
// are read as decode reads them: in their exact case, the last of two.
func nameOf(body []byte) string {
	var tree, metadata map[string]json.RawMessage
	if json.Unmarshal(body, &tree) != nil {
		return ""
	}
	_ = json.Unmarshal(tree["metadata"], &metadata) // without it there is no name in it
	for _, v := range []json.RawMessage{metadata["name"], tree["name"], tree["id"], tree["email"], tree["client_name"], tree["targetName"], tree["targetWorkspace"]} {
		var name string
		if json.Unmarshal(v, &name) == nil && name != "" {
			return name
		}
	}
	return ""
}

// named adds the name of what is made in a collection.
func named(e *audit.Entry, name string) {
	switch {
	case name == "":
	case e.Object.Name == "":
		e.Object.Name = name
	default:
		e.Object.Name += "/" + name
	}
}

// made notes the id of what an answer is about, where the platform chose it.
func made(ctx context.Context, out any) {
	e := audit.Of(ctx)
	v := reflect.Indirect(reflect.ValueOf(out))
	if !e.Begun || v.Kind() != reflect.Struct {
		return
	}
	if m := v.FieldByName("Metadata"); e.Object.Name == "" && m.IsValid() {
		if name := m.FieldByName("Name"); name.IsValid() && name.Kind() == reflect.String && name.String() != "" {
			e.Detail = "name " + name.String()
			return
		}
	}
	for _, field := range []string{"ID", "ClientID", "Sub"} {
		if f := v.FieldByName(field); f.IsValid() && f.Kind() == reflect.String && f.String() != "" && !strings.Contains(e.Object.Name, f.String()) {
			e.Detail = "id " + f.String()
			return
		}
	}
}

// attended serves a row of the table that needs no credential. Only the handler learns
// the caller, and whether the call is allowed: the answer waits for the line.
func (s *Server) attended(rt *Route, h http.Handler) http.Handler {
	if rt.Scope != "" || rt.Method == http.MethodGet {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		held := &holder{ResponseWriter: w, status: http.StatusOK}
		h.ServeHTTP(held, r)
		e := audit.Of(r.Context())
		if held.status < http.StatusBadRequest {
			e.Outcome, e.Status = doze.AuditDone, held.status
			if err := s.Audit.Write(context.WithoutCancel(r.Context()), e.AuditLine, audit.Change); err != nil {
				httpx.WriteError(w, r, err)
				return
			}
			e.Begun, e.Outcome = false, doze.AuditDone
		}
		held.release()
	})
}

// notYet are errors that every device gets while its user thinks.
var notYet = []string{"authorization_pending", "slow_down"}

// close writes what became of a request, if that is not written yet.
func (s *Server) close(e *audit.Entry, r *http.Request, open bool, rec *recorder) {
	e.Status = rec.status
	e.Error = rec.name
	switch {
	case rec.status < http.StatusBadRequest:
		if e.Outcome == doze.AuditDone {
			return // attended wrote it
		}
		e.Outcome = doze.AuditDone
	case rec.status == http.StatusUnauthorized || rec.status == http.StatusForbidden:
		e.Outcome = doze.AuditDenied
	default:
		e.Outcome = doze.AuditFailed
	}
	from := httpx.SourceNetwork(httpx.Source(r))
	switch {
	case e.Begun:
		s.Audit.Settle(e)
	case e.Outcome == doze.AuditDenied && e.Actor.Sub != "":
		s.Audit.Tell(e.AuditLine, from, audit.Denial)
	case e.Outcome == doze.AuditDenied, e.Outcome == doze.AuditFailed && open && r.Method != http.MethodGet && r.Method != http.MethodHead:
		if !slices.Contains(notYet, e.Error) {
			s.Audit.Tell(e.AuditLine, from, audit.Stranger)
		}
	}
}

// Turned records that the edge denied a request. A 404 for a foreign sandbox counts
// as denied. The name of the sandbox is empty if it is unknown.
func (s *Server) Turned(r *http.Request, id string, c access.Caller, sandbox string, err error) {
	public := doze.Public(err)
	switch public.Kind {
	case doze.Unauthenticated, doze.Forbidden, doze.NotFound:
	default:
		return
	}
	e := entryOf(r)
	place(e, c)
	e.RequestID, e.Action, e.Status, e.Outcome = id, "sandboxes.connect", public.Kind.Status(), doze.AuditDenied
	e.Error = public.Kind.String()
	if public.Name != "" {
		e.Error = public.Name
	}
	e.Object = doze.AuditObject{Kind: "host", Name: r.Host}
	if sandbox != "" {
		e.Object = doze.AuditObject{Kind: "sandboxes", Name: sandbox}
	}
	class := audit.Denial
	if c.Sub == "" {
		class = audit.Stranger
	}
	s.Audit.Tell(e.AuditLine, httpx.SourceNetwork(httpx.Source(r)), class)
}

// holder keeps an answer back.
type holder struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

// Unwrap lets an error find who notes it.
func (h *holder) Unwrap() http.ResponseWriter { return h.ResponseWriter }

func (h *holder) WriteHeader(status int) { h.status = status }

var errHeld = errors.New("the answer is too large to wait")

func (h *holder) Write(b []byte) (int, error) {
	if h.body.Len()+len(b) > heldMax {
		return 0, errHeld
	}
	return h.body.Write(b)
}

func (h *holder) release() {
	h.ResponseWriter.WriteHeader(h.status)
	_, _ = h.ResponseWriter.Write(h.body.Bytes()) // the caller went away: nobody is left to tell
}
