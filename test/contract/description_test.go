package contract_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/pb33f/libopenapi-validator/config"
	invalid "github.com/pb33f/libopenapi-validator/errors"

	"github.com/dozehq/doze/internal/plane"
)

// TestDescriptionTellsTheTruth holds the description of the API against the
// specification of OpenAPI, and every recorded exchange against the description.
func TestDescriptionTellsTheTruth(t *testing.T) {
	t.Parallel()
	v := describe(t)
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

// rare are the statuses of what can happen to any call: they are described in
// one.
var rare = map[int]bool{
	http.StatusUnprocessableEntity: true, http.StatusTooManyRequests: true, http.StatusInternalServerError: true,
	http.StatusNotImplemented: true, http.StatusServiceUnavailable: true, http.StatusGatewayTimeout: true,
}

// describe returns what checks exchanges against the description.
func describe(t *testing.T) validator.Validator {
	t.Helper()
	text, err := json.Marshal(plane.Describe().Description())
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
	r, err := http.NewRequestWithContext(t.Context(), e.method, "http://doze.test/v0"+words.ReplaceAllString(e.target, "x"), strings.NewReader(e.body))
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
