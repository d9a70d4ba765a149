package reference_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"

	"github.com/dozehq/doze/internal/openapi"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/reference"
)

// TestJoin: the joined description has every call of both APIs, and is an OpenAPI
// document.
func TestJoin(t *testing.T) {
	t.Parallel()
	control := plane.Describe().Description()
	d, err := reference.Join(control, "/v0")
	if err != nil {
		t.Fatal(err)
	}
	for path := range control.Paths {
		if d.Paths["/v0"+path] == nil {
			t.Errorf("the call %s is missing", path)
		}
	}
	for _, path := range []string{"/", "/process/{id}/logs/stream", "/filesystem/{path}", "/drives/mount"} {
		operations := d.Paths["/run/{workspace}/sandboxes/{sandbox}"+path]
		for _, o := range operations {
			if len(o.Parameters) < 2 || o.Parameters[0].Name != "workspace" || o.Parameters[1].Name != "sandbox" {
				t.Errorf("%s does not say which sandbox: %v", o.ID, o.Parameters)
			}
		}
		if operations == nil {
			t.Errorf("the call %s of a sandbox is missing", path)
		}
	}
	if o := d.Paths["/run/{workspace}/sandboxes/{sandbox}/process"]["post"]; !slices.Equal(o.Tags, []string{"Inside: processes"}) {
		t.Errorf("the group of a call inside is %q", o.Tags)
	}
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	document, err := libopenapi.NewDocument(text)
	if err != nil {
		t.Fatal(err)
	}
	v, problems := validator.NewValidator(document)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if ok, wrong := v.ValidateDocument(); !ok {
		t.Errorf("it is no OpenAPI document: %v", wrong)
	}
}

func TestPage(t *testing.T) {
	t.Parallel()
	page := reference.New(func() openapi.Document { return plane.Describe().Description() }, "/v0")
	get := func(method, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		return w
	}
	for path, want := range map[string]struct {
		status     int
		kind, body string
	}{
		"/docs":              {200, "text/html; charset=utf-8", "<rapi-doc"},
		"/docs/":             {200, "text/html; charset=utf-8", "<rapi-doc"},
		"/docs/viewer.js":    {200, "text/javascript; charset=utf-8", "RapiDoc 9.3.8"},
		"/docs/openapi.json": {200, "application/json; charset=utf-8", `"startProcess"`},
		"/docs/none":         {404, "application/json; charset=utf-8", "/docs"},
	} {
		w := get(http.MethodGet, path)
		if w.Code != want.status || w.Header().Get("Content-Type") != want.kind || !strings.Contains(w.Body.String(), want.body) {
			t.Errorf("%s: %d with %v", path, w.Code, w.Header())
		}
		if w.Code == http.StatusOK && w.Header().Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: a browser may guess what it is", path)
		}
	}
	if policy := get(http.MethodGet, "/docs").Header().Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; script-src 'self';") {
		t.Errorf("the page may load %q", policy)
	}
	if w := get(http.MethodPost, "/docs"); w.Code != http.StatusNotFound || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d with %v", w.Code, w.Header())
	}
}
