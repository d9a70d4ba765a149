package buildapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// wire has a value of each shape, with each member set.
func wire() map[string]any {
	at := time.Date(2026, 11, 25, 10, 0, 0, 123, time.UTC)
	return map[string]any{
		"status":  Status{Version: 1, Builds: 2, CacheBytes: 3, DiskBytes: 4, DiskFree: 5},
		"context": Context{Files: 1, Bytes: 2, Args: []string{"A"}, Registries: []string{"ghcr.io"}},
		"plan":    Plan{Dockerfile: "d/Dockerfile", Target: "final", Args: map[string]string{"A": "b"}},
		"planned": Planned{Images: []string{"debian:12"}},
		"build": Build{
			ID: "b1", Context: "c1", Dockerfile: "Dockerfile", Target: "final", Args: map[string]string{"A": "b"}, Secrets: map[string]string{"s": "v"},
			NoCache: true, Names: map[string]string{"debian:12": "sha256:00"}, Logins: map[string]Login{"ghcr.io": {User: "u", Password: "p"}},
			Labels: map[string]string{"l": "v"}, CacheBytes: 1,
		},
		"event": Event{
			At: at, Step: 1, Steps: 2, Stage: "s", Name: "RUN x", Line: 3, Vertex: "v", State: StateDone, Stream: Stdout, Text: "t",
			Took: time.Second, Progress: &Progress{Current: 1, Total: 2},
		},
		"result":  Event{At: at, Result: &Result{Digest: "sha256:00", Config: "sha256:01", Layers: 2, Bytes: 3}},
		"failure": Event{At: at, Failure: &Failure{Reason: FailedStep, Step: 1, Steps: 2, Stage: "s", Name: "RUN x", Line: 3, Message: "m", Tail: []string{"t"}, Code: 4}},
		"prune":   Prune{Bytes: 1, Age: time.Second, All: true},
		"pruned":  Pruned{Bytes: 1},
		"mistake": Mistake{Error: "e"},
	}
}

// TestWire: a node and a builder of different releases speak with each other, so no name of a
// member changes.
func TestWire(t *testing.T) {
	t.Parallel()
	const golden = "testdata/v1.json"
	got, err := json.MarshalIndent(wire(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("the wire format differs from %s (-update rewrites it): %s", golden, diff)
	}
	var back Event
	raw, _ := json.Marshal(wire()["event"])
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wire()["event"], back); diff != "" {
		t.Error(diff)
	}
}

func TestValidID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]bool{
		"b-1": true, "sha256:00ff": true, "a_b.c": true, "": false, ".": false, "..": false, "../x": false, "a/b": false, "-x": false,
		"a b": false, "a\x00": false, strings.Repeat("a", idMax): true, strings.Repeat("a", idMax+1): false,
	} {
		if got := ValidID(id); got != want {
			t.Errorf("ValidID(%q) = %v", id, got)
		}
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	many := map[string]string{}
	for i := range ArgsMax + 1 {
		many[fmt.Sprint("n", i)] = ""
	}
	good := func(change func(*Build)) *Build {
		b := &Build{ID: "b", Context: "c", Args: map[string]string{"A": "b"}, Names: map[string]string{"x": "sha256:00"}}
		change(b)
		return b
	}
	for name, c := range map[string]struct {
		build *Build
		want  string // in the error; empty for none
	}{
		"good":         {good(func(*Build) {}), ""},
		"id":           {good(func(b *Build) { b.ID = "../x" }), "id"},
		"context":      {good(func(b *Build) { b.Context = "" }), "context"},
		"digest":       {good(func(b *Build) { b.Names["x"] = "/" }), "names"},
		"many args":    {good(func(b *Build) { b.Args = many }), "args"},
		"many secrets": {good(func(b *Build) { b.Secrets = many }), "secrets"},
		"large value":  {good(func(b *Build) { b.Args["A"] = strings.Repeat("x", ArgBytesMax+1) }), "args.A"},
		"no name":      {good(func(b *Build) { b.Args[""] = "x" }), "name"},
	} {
		err := c.build.Check()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error about %q", name, err, c.want)
		}
	}
}

// guest answers like a builder: what a row says.
func guest(t *testing.T, status int, body string) Client {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer t" {
			t.Errorf("%s %s has no token", r.Method, r.URL)
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return Client{Token: "t", Transport: to(s.Listener.Addr().String())}
}

// to is a transport that sends every request to one address.
type to string

func (a to) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Host = string(a)
	return http.DefaultTransport.RoundTrip(r)
}

// TestClientTrustsNobody: each answer that is no answer is an error, and none fills the memory.
func TestClientTrustsNobody(t *testing.T) {
	t.Parallel()
	large := `{"error":"` + strings.Repeat("x", 2*answerMax) + `"}`
	for name, c := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"a mistake":       {400, `{"error":"zip slip"}`, "400: zip slip"},
		"no JSON":         {500, `<html>`, "500: Internal Server Error"},
		"control bytes":   {400, `{"error":"a\u001b]52;c;x\u0007b"}`, "400: ab"},
		"a large mistake": {400, large, "400: Bad Request"},
		"a large answer":  {200, large, "more than"},
		"half an answer":  {200, `{"version":`, "unexpected end"},
		"another type":    {200, `[]`, "cannot unmarshal"},
	} {
		_, err := guest(t, c.status, c.body).Status(t.Context())
		if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 3*excerpt {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if has, err := guest(t, 404, "").HasImage(t.Context(), "sha256:00"); has || err != nil {
		t.Errorf("an image that is missing: %v, %v", has, err)
	}
	if has, err := guest(t, 200, "").HasImage(t.Context(), "sha256:00"); !has || err != nil {
		t.Errorf("an image that is there: %v, %v", has, err)
	}
	images, _ := json.Marshal(Planned{Images: make([]string, ImagesMax+1)})
	if _, err := guest(t, 200, string(images)).Plan(t.Context(), "c", Plan{}); err == nil {
		t.Error("a plan of too many images is no error")
	}
}

func TestBuildEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(Event{Text: "one"})
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	t.Cleanup(s.Close)
	ctx, cancel := context.WithCancelCause(t.Context())
	mine := errors.New("mine")
	_, err := Client{Transport: to(s.Listener.Addr().String())}.Build(ctx, Build{ID: "b"}, func(Event) { cancel(mine) })
	if !errors.Is(err, mine) {
		t.Errorf("got %v, want the cause", err)
	}
}

func TestReadEvents(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", LineMax+10)
	for name, c := range map[string]struct {
		in   string
		want []Event
		end  string // in the error
	}{
		"a result": {`{"text":"a"}` + "\n" + `{"result":{"digest":"d","layers":2}}` + "\n" + `{"text":"late"}` + "\n", []Event{{Text: "a"}}, ""},
		"a failure": {
			`{"failure":{"reason":"step","line":3,"message":"broke\u001b[2J"}}` + "\n", nil, "broke",
		},
		"a heartbeat":     {`{"at":"2026-01-01T00:00:00Z"}` + "\n" + `{"result":{}}` + "\n", nil, ""},
		"an empty line":   {`{"stream":"stderr"}` + "\n" + `{"result":{}}` + "\n", []Event{{Stream: Stderr}}, ""},
		"cut":             {`{"text":"a"}` + "\n" + `{"result":{}}`, []Event{{Text: "a"}}, ErrTruncated.Error()},
		"nothing":         {"", nil, ErrTruncated.Error()},
		"no JSON":         {"{\n", nil, "read an event"},
		"a long line":     {`{"text":"` + long + `"}` + "\n" + `{"result":{}}` + "\n", []Event{{Text: long[:LineMax]}}, ""},
		"too long":        {`{"text":"` + strings.Repeat("x", eventBytesMax) + `"}` + "\n", nil, "an event of more than"},
		"unknown words":   {`{"state":"flying","stream":"x","text":"a"}` + "\n" + `{"result":{}}` + "\n", []Event{{Stream: Stdout, Text: "a"}}, ""},
		"odd numbers":     {`{"step":-1,"line":99999999999,"took":-5,"text":"a"}` + "\n" + `{"result":{}}` + "\n", []Event{{Line: stepMax, Text: "a"}}, ""},
		"control bytes":   {`{"text":"a\u0007\u001b]0;x\u0007\u001b[31mred\u001b[0m\u009bb\tc"}` + "\n" + `{"result":{}}` + "\n", []Event{{Text: "a\x1b[31mred\x1b[0mb\tc"}}, ""},
		"an odd time":     {`{"at":"0001-01-01T00:00:00Z","text":"a"}` + "\n" + `{"result":{}}` + "\n", []Event{{Text: "a"}}, ""},
		"negative amount": {`{"progress":{"current":-1,"total":-2}}` + "\n" + `{"result":{}}` + "\n", []Event{{Progress: &Progress{}}}, ""},
	} {
		var got []Event
		_, err := ReadEvents(strings.NewReader(c.in), func(e Event) {
			e.At = time.Time{}
			got = append(got, e)
		})
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if (err == nil) != (c.end == "") || err != nil && !strings.Contains(err.Error(), c.end) {
			t.Errorf("%s: %v, want %q", name, err, c.end)
		}
	}
}

// TestEventsHaveAnEnd: a builder that writes for ever is stopped.
func TestEventsHaveAnEnd(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]string{
		"many events": `{}` + "\n",
		"much text":   `{"text":"` + strings.Repeat("x", LineMax) + `"}` + "\n",
	} {
		read := 0
		_, err := ReadEvents(&endless{line: []byte(line), read: &read}, func(Event) {})
		if err == nil || !strings.Contains(err.Error(), "more than") {
			t.Errorf("%s: %v", name, err)
		}
		if most := outputBytesMax*2 + eventsMax*3; read > most {
			t.Errorf("%s: read %d bytes, more than %d", name, read, most)
		}
	}
}

// endless repeats a line.
type endless struct {
	line, rest []byte
	read       *int
}

func (e *endless) Read(p []byte) (int, error) {
	if len(e.rest) == 0 {
		e.rest = e.line
	}
	n := copy(p, e.rest)
	e.rest = e.rest[n:]
	*e.read += n
	return n, nil
}

func FuzzReadEvents(f *testing.F) {
	for _, v := range wire() {
		raw, _ := json.Marshal(v)
		f.Add(append(raw, '\n'))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		result, err := ReadEvents(bytes.NewReader(raw), func(e Event) {
			checkText(t, e.Text, LineMax)
			checkText(t, e.Name, nameMax)
			if e.Step < 0 || e.Line < 0 || e.Line > stepMax || e.Took < 0 {
				t.Errorf("out of range: %+v", e)
			}
			if _, err := json.Marshal(e); err != nil {
				t.Errorf("cannot be passed on: %v", err)
			}
		})
		if failed, ok := errors.AsType[*FailedError](err); ok {
			checkText(t, failed.Failure.Message, messageMax)
			if len(failed.Failure.Tail) > TailMax || failed.Failure.Code < 0 || failed.Failure.Code > 255 {
				t.Errorf("out of range: %+v", failed.Failure)
			}
		}
		if result.Layers < 0 || result.Bytes < 0 {
			t.Errorf("out of range: %+v", result)
		}
	})
}

// colors finds what a terminal takes for a change of color.
var colors = regexp.MustCompile(`\x1b\[[0-9;:]*m`)

// checkText: a text is valid, short, and changes nothing on a terminal but colors.
func checkText(t *testing.T, s string, most int) {
	t.Helper()
	if !utf8.ValidString(s) || len(s) > most {
		t.Errorf("%q is not valid, or has more than %d bytes", s, most)
	}
	for _, r := range colors.ReplaceAllString(s, "") {
		if r < ' ' && r != '\t' && r != '\n' || 0x7f <= r && r < 0xa0 {
			t.Errorf("%q has the control character %q", s, r)
		}
	}
}

// TestFailureIsBounded: a node believes no failure that is longer than its bound.
func TestFailureIsBounded(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", LineMax)
	f := Failure{Reason: FailedStep, Message: strings.Repeat("m", 2*messageMax)}
	for range TailMax - 1 {
		f.Tail = append(f.Tail, long)
	}
	f.Tail = append(f.Tail, "the last")
	raw, err := json.Marshal(Event{Failure: &f})
	if err != nil {
		t.Fatal(err)
	}
	_, err = ReadEvents(bytes.NewReader(append(raw, '\n')), func(Event) {})
	failed, ok := errors.AsType[*FailedError](err)
	if !ok {
		t.Fatal(err)
	}
	n := len(failed.Failure.Message)
	for _, line := range failed.Failure.Tail {
		n += len(line)
	}
	if n > FailureMax || len(failed.Failure.Tail) < 2 || failed.Failure.Tail[len(failed.Failure.Tail)-1] != "the last" {
		t.Errorf("%d bytes, %d lines", n, len(failed.Failure.Tail))
	}
}
