package contract_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	invalid "github.com/pb33f/libopenapi-validator/errors"

	"github.com/dozehq/doze/internal/agent"
	"github.com/dozehq/doze/internal/agent/description"
	"github.com/dozehq/doze/internal/openapi"
	"github.com/dozehq/doze/internal/plane"
)

// TestDescriptionTellsTheTruth holds the description of the API against the
// specification of OpenAPI, and every recorded exchange against the description.
func TestDescriptionTellsTheTruth(t *testing.T) {
	t.Parallel()
	v := describe(t, plane.Describe().Description())
	if ok, all := v.ValidateDocument(); !ok {
		t.Fatalf("it is no OpenAPI document: %v", problems(all))
	}
	routes := plane.Describe()
	d := routes.Description()
	for _, tr := range load(t) {
		t.Run(tr.name, func(t *testing.T) {
			for _, e := range tr.exchanges {
				path, _, _ := strings.Cut(e.target, "?")
				rt, ok := routes.RouteOf(e.method, "/v0"+path)
				if !ok || e.method == http.MethodHead {
					continue // it shows that there is none, or is for a sandbox
				}
				r, w := e.request(t), e.response(t)
				where := tr.name + ": " + e.title + ": " + e.method + " " + e.target
				described := d.Paths[rt.Pattern][strings.ToLower(rt.Method)].Responses
				_, listed := described[strconv.Itoa(w.StatusCode)]
				_, page := described["default"].Content["text/html"]
				if !listed && !page && !rare[w.StatusCode] {
					t.Errorf("%s: the status %d is not described", where, w.StatusCode)
				}
				if ok, all := v.ValidateHttpResponse(r, w); !ok {
					t.Errorf("%s: the answer is not as described: %v", where, problems(all))
				}
				if w.StatusCode >= http.StatusBadRequest {
					continue // a mistake may be of any form
				}
				if ok, all := v.ValidateHttpRequest(r); !ok {
					t.Errorf("%s: the request is not as described: %v", where, problems(all))
				}
			}
		})
	}
}

// TestDescriptionInsideTellsTheTruth does the same for the API inside a sandbox.
func TestDescriptionInsideTellsTheTruth(t *testing.T) {
	t.Parallel()
	d := description.Describe()
	d.Servers = []openapi.Server{{URL: "http://doze.test"}} // in the place of that of a sandbox
	v := describe(t, d)
	if ok, all := v.ValidateDocument(); !ok {
		t.Fatalf("it is no OpenAPI document: %v", problems(all))
	}
	checked := 0
	for _, tr := range load(t) {
		if !tr.inside() {
			continue
		}
		for _, e := range tr.exchanges {
			pattern, target := placeInside(e)
			o := d.Paths[pattern][strings.ToLower(e.method)]
			if o == nil {
				continue // it shows that there is none
			}
			checked++
			r, w := e.requestTo(t, "http://doze.test"+target), e.response(t)
			where := tr.name + ": " + e.title + ": " + e.method + " " + e.target
			if _, listed := o.Responses[strconv.Itoa(w.StatusCode)]; !listed && !rare[w.StatusCode] {
				t.Errorf("%s: the status %d is not described", where, w.StatusCode)
			}
			for _, w := range inside(e, w) {
				if ok, all := v.ValidateHttpResponse(r, w); !ok {
					t.Errorf("%s: the answer is not as described: %v", where, problems(all))
				}
			}
			if w.StatusCode >= http.StatusBadRequest || r.Header.Get("Upgrade") != "" {
				continue // a mistake may be of any form
			}
			if o.Body != nil && o.Body.Content["application/json"].Schema == nil && e.header["Content-Type"] == nil {
				r.Header.Set("Content-Type", "application/octet-stream")
			}
			if o.Body != nil && !o.Body.Required && !json.Valid([]byte(e.body)) {
				continue // what makes no sense there is not read
			}
			if ok, all := v.ValidateHttpRequest(r); !ok {
				t.Errorf("%s: the request is not as described: %v", where, problems(all))
			}
		}
	}
	if checked == 0 {
		t.Error("no exchange was compared")
	}
}

// TestExamplesAreAsDescribed holds the examples of the API inside a sandbox against its
// schemas.
func TestExamplesAreAsDescribed(t *testing.T) {
	t.Parallel()
	d := description.Describe()
	d.Servers = []openapi.Server{{URL: "http://doze.test"}}
	v := describe(t, d)
	for pattern, operations := range d.Paths {
		target := variable.ReplaceAllString(pattern, "1")
		for method, o := range operations {
			where, query := o.ID, ""
			for _, p := range o.Parameters {
				if p.Required && p.In == "query" {
					query = "?" + p.Name + "=1"
				}
			}
			asks := func(body io.Reader, form string) *http.Request {
				r, err := http.NewRequestWithContext(t.Context(), strings.ToUpper(method), "http://doze.test"+target+query, body)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "Bearer x")
				r.Header.Set("Content-Type", form)
				return r
			}
			if o.Body != nil && o.Body.Content["application/json"].Schema != nil {
				example := o.Body.Content["application/json"].Example
				text, err := json.Marshal(example)
				if err != nil || example == nil {
					t.Errorf("%s has no example of a body: %v", where, err)
				}
				if ok, all := v.ValidateHttpRequest(asks(bytes.NewReader(text), "application/json")); !ok {
					t.Errorf("%s: the example of a body is not as described: %v", where, problems(all))
				}
			}
			for status, answer := range o.Responses {
				media, ok := answer.Content["application/json"]
				if !ok || media.Schema.Format == "binary" || o.ID == "describeSandboxApi" {
					continue // bytes of a file, or all of this
				}
				text, err := json.Marshal(media.Example)
				if err != nil || media.Example == nil {
					t.Errorf("%s has no example of its answer: %v", where, err)
				}
				code, _ := strconv.Atoi(status)
				w := &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text))}
				if ok, all := v.ValidateHttpResponse(asks(http.NoBody, "application/json"), w); !ok {
					t.Errorf("%s: the example of its answer is not as described: %v", where, problems(all))
				}
			}
		}
	}
}

// variable is one in a path.
var variable = regexp.MustCompile(`\{\w+\}`)

// inside returns what of an answer in a sandbox is to be as described: each line of
// a stream, and nothing of an answer of a tenant or of one of which the transcript has
// a part.
func inside(e *exchange, w *http.Response) []*http.Response {
	cut := slices.ContainsFunc(e.notes, func(n note) bool { return n.verb == "lines" })
	switch form := w.Header.Get("Content-Type"); {
	case strings.Contains(form, "ndjson"):
		var lines []*http.Response
		for all := json.NewDecoder(w.Body); ; {
			var line json.RawMessage
			if err := all.Decode(&line); err != nil {
				return lines
			}
			one := *w
			one.Body = io.NopCloser(bytes.NewReader(line))
			lines = append(lines, &one)
		}
	case strings.HasPrefix(e.target, "{box}/port/") && w.Header.Get("X-Blaxel-Source") == "", cut && form == "":
		return nil
	}
	return []*http.Response{w}
}

// placeInside returns the described path of an exchange with a sandbox, and a target
// that a validator takes for it: one segment in the place of each variable. The
// pattern is empty for what no sandbox serves.
func placeInside(e *exchange) (pattern, target string) {
	path, query, _ := strings.Cut(strings.TrimPrefix(e.target, "{box}"), "?")
	path = words.ReplaceAllString(path, "x")
	switch rt, ok := agent.RouteOf(e.method, path); {
	case ok:
		pattern = rt.Pattern
	case strings.HasPrefix(path, "/drives/mount/"):
		pattern = "/drives/mount/{mountPath...}"
	case strings.HasPrefix(path, "/drives/mount"):
		pattern = "/drives/mount"
	case strings.HasPrefix(path, "/port/"):
		pattern = "/port/{port}/{path...}"
	}
	target = strings.NewReplacer("{id}", "x", "{path...}", "x", "{mountPath...}", "x", "{port}", "3000").Replace(pattern)
	if query != "" {
		target += "?" + words.ReplaceAllString(query, "x")
	}
	return strings.ReplaceAll(pattern, "...}", "}"), target
}

// rare are the statuses of what can happen to any call: they are described in
// one.
var rare = map[int]bool{
	http.StatusUnprocessableEntity: true, http.StatusTooManyRequests: true, http.StatusInternalServerError: true,
	http.StatusNotImplemented: true, http.StatusServiceUnavailable: true, http.StatusGatewayTimeout: true,
}

// describe returns what checks exchanges against the description.
func describe(t *testing.T, document openapi.Document) validator.Validator {
	t.Helper()
	text, err := json.Marshal(document)
	if err != nil {
		t.Fatal(err)
	}
	d, err := libopenapi.NewDocument(text)
	if err != nil {
		t.Fatal(err)
	}
	v, all := validator.NewValidator(d, config.WithFormatAssertions())
	if err := errors.Join(all...); err != nil {
		t.Fatal(err)
	}
	return v
}

func problems(all []*invalid.ValidationError) error {
	var errs []error
	for _, e := range all {
		errs = append(errs, e)
		for _, s := range e.SchemaValidationErrors {
			errs = append(errs, s)
		}
	}
	return errors.Join(errs...)
}

// request is the request of an exchange, with something in the place of words.
func (e *exchange) request(t *testing.T) *http.Request {
	t.Helper()
	return e.requestTo(t, "http://doze.test/v0"+words.ReplaceAllString(e.target, "x"))
}

// requestTo is [exchange.request] to an address.
func (e *exchange) requestTo(t *testing.T, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), e.method, url, strings.NewReader(e.body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = e.header.Clone()
	if e.header["Authorization"] == nil {
		r.Header.Set("Authorization", "Bearer x")
	}
	if e.body != "" && r.Header.Get("Content-Type") == "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

// response is the answer of an exchange, with something in the place of what
// differs from run to run.
func (e *exchange) response(t *testing.T) *http.Response {
	t.Helper()
	head, body, _ := strings.Cut(e.answer, "\n\n")
	body = strings.NewReplacer(`"{time}"`, `"2026-01-31T12:00:00.000Z"`, ": {number}", ": 1").Replace(body)
	w := &http.Response{StatusCode: e.status(), Header: http.Header{}, Body: io.NopCloser(bytes.NewReader([]byte(body)))}
	for _, line := range strings.Split(head, "\n")[1:] {
		name, value, _ := strings.Cut(line, ": ")
		w.Header.Set(name, value)
	}
	if json.Valid([]byte(body)) && w.Header.Get("Content-Type") == "" {
		w.Header.Set("Content-Type", "application/json")
	}
	return w
}
