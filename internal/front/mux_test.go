package front

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// path answers with its name and the path that it got.
type path string

func (p path) Matches(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/run/") }

func (p path) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = w.Write([]byte(string(p) + " " + r.URL.Path))
}

func TestMux(t *testing.T) {
	t.Parallel()
	m := Mux{Edge: path("edge"), API: path("api"), Metrics: path("metrics"), Version: "v1"}
	for target, want := range map[string]string{
		"/run/main/sandboxes/a/": "edge /run/main/sandboxes/a/",
		"/v0":                    "api /v0",
		"/v0/sandboxes":          "api /v0/sandboxes",
		"/openapi.json":          "api /v0/openapi.json",
		"/docs":                  "api /docs",
		"/docs/viewer.js":        "api /docs/viewer.js",
		"/v2/":                   "api /v2/",
		"/v2/main/app/tags/list": "api /v2/main/app/tags/list",
		"/v2x":                   "the API is below /v0",
		"/console/app.x.js":      "api /console/app.x.js",
		"/consolex":              "the API is below /v0",
		"/docsx":                 "the API is below /v0",
		"/metrics":               "metrics /metrics",
		"/health":                `"version":"v1"`,
		"/v0x":                   "the API is below /v0",
		"/":                      "the API is below /v0",
	} {
		w := httptest.NewRecorder()
		m.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", target, w.Code, w.Body)
		}
	}
	browser := httptest.NewRequest(http.MethodGet, "/", nil)
	browser.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	w := httptest.NewRecorder()
	if m.ServeHTTP(w, browser); w.Body.String() != "api /" {
		t.Errorf("a browser gets %d %s", w.Code, w.Body)
	}
	browser.Method = http.MethodPost
	w = httptest.NewRecorder()
	if m.ServeHTTP(w, browser); w.Code != http.StatusNotFound || w.Header().Get("Vary") != "Accept" {
		t.Errorf("a form that is sent to the root: %d %v", w.Code, w.Header())
	}
}
