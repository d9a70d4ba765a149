package fleet

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// TestCallsAreComplete: every method of the contract has its row.
func TestCallsAreComplete(t *testing.T) {
	t.Parallel()
	complete(t, reflect.TypeFor[Node](), append(slices.Collect(maps.Keys(calls)), streams...))
	complete(t, reflect.TypeFor[Control](), slices.Collect(maps.Keys(controlCalls)))
}

// complete fails unless each method of a contract has its row, and can fail.
func complete(t *testing.T, contract reflect.Type, rows []string) {
	t.Helper()
	known := map[string]bool{}
	for _, name := range rows {
		known[name] = true
	}
	for m := range contract.Methods() {
		if !known[m.Name] {
			t.Errorf("%s has no row", m.Name)
		}
		delete(known, m.Name)
		if m.Type.NumIn() == 0 || m.Type.In(0) != reflect.TypeFor[context.Context]() || m.Type.Out(m.Type.NumOut()-1) != reflect.TypeFor[error]() {
			t.Errorf("%s takes no context, or returns no error: a call between roles can always fail", m.Name)
		}
	}
	for name := range known {
		t.Errorf("the row %s is of no method", name)
	}
}

// deaf is a node whose every call returns one error.
type deaf struct {
	Node

	err error
}

func (d deaf) Delete(context.Context, string) error { return d.err }

// TestWhoIsAway: an error says which role cannot be reached, or gave no answer of ours.
func TestWhoIsAway(t *testing.T) {
	t.Parallel()
	away := httptest.NewServer(http.NotFoundHandler())
	away.Close()
	strange := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }))
	defer strange.Close()
	for base, want := range map[string]string{away.URL: "control cannot be reached: try again", strange.URL: "control answers 502"} {
		if _, err := NewControlClient(base, nil).Renew(t.Context(), Renewal{}); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "node") {
			t.Errorf("it is %v, want %s", err, want)
		}
	}
	if err := NewClient(away.URL, nil).Delete(t.Context(), "a"); doze.Public(err).Message != "the node of the sandbox cannot be reached: try again" {
		t.Errorf("a node that is away: %v", err)
	}
}

// TestErrorsOverTheWire: what a node returns keeps its kind, name, fields and
// identity; what the way does is told apart from it.
func TestErrorsOverTheWire(t *testing.T) {
	t.Parallel()
	over := func(err error) error {
		mux := http.NewServeMux()
		NewServer(deaf{err: err}, nil).Register(mux)
		s := httptest.NewServer(mux)
		defer s.Close()
		return NewClient(s.URL, nil).Delete(t.Context(), "a")
	}
	if err := over(nil); err != nil {
		t.Error(err)
	}
	for kind := doze.Internal; kind <= doze.TooLarge; kind++ {
		sent := &doze.Error{Kind: kind, Name: "SOME_NAME", Message: "what is wrong", Fields: map[string]any{"quota": "memory"}}
		got := doze.Public(over(sent))
		if got.Kind != kind || got.Name != sent.Name || got.Message != sent.Message || got.Fields["quota"] != "memory" {
			t.Errorf("%s arrives as %+v", kind, got)
		}
	}
	if err := over(errors.New("a secret of the node")); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("an error that is not public arrives as %v", err)
	}
	if err := over(ErrStopping); !errors.Is(err, ErrStopping) {
		t.Errorf("that the node stops arrives as %v", err)
	}

	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		_, _ = io.WriteString(w, "<html>")
	}))
	if err := NewClient(s.URL, nil).Delete(t.Context(), "a"); err == nil || errors.Is(err, ErrUnreachable) {
		t.Errorf("somebody else answers, and it is %v", err)
	}
	s.Close()
	err := NewClient(s.URL, nil).Delete(t.Context(), "a")
	if !errors.Is(err, ErrUnreachable) || doze.Public(err).Kind != doze.Unavailable || strings.Contains(doze.Public(err).Message, "127.0.0.1") {
		t.Errorf("nobody answers, and it is %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	mine := errors.New("the caller had enough")
	cancel(mine)
	if err := NewClient(s.URL, nil).Delete(ctx, "a"); !errors.Is(err, mine) || errors.Is(err, ErrUnreachable) {
		t.Errorf("the caller gives up, and it is %v", err)
	}
}

// FuzzServer: no body of a call brings the server down, or makes a call that the
// node does not have.
func FuzzServer(f *testing.F) {
	f.Add("Delete", []byte(`{"UID":"a"}`))
	f.Add("Nothing", []byte(`{`))
	f.Add("Delete", []byte(`{"Network":{"Sealed":[null]},"Order":{"Network":{}}}`))
	mux := http.NewServeMux()
	NewServer(deaf{}, nil).Register(mux)
	f.Fuzz(func(t *testing.T, call string, body []byte) {
		if call != "Delete" && calls[call] != nil {
			return // this node has no others
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, Prefix+"Delete", strings.NewReader(string(body)))
		r.SetPathValue("call", call)
		(&Server{node: deaf{}}).serve(w, r)
		if w.Code != http.StatusOK && w.Code != http.StatusBadRequest && w.Code != http.StatusNotImplemented {
			t.Errorf("%q is answered %d", call, w.Code)
		}
	})
}
