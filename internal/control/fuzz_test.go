package control_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/dozehq/doze/internal/plane/planetest"
)

var bodies = []string{
	``, `null`, `{}`, `[]`, `{"metadata":{"name":"a"}}`,
	`{"metadata":{"labels":{"a":null}},"spec":{"enabled":null,"lifecycle":{"expirationPolicies":[null,{"type":"date"}]}}}`,
	`{"spec":{"runtime":{"memory":1e400,"ports":[{"target":-0}],"envs":[{"name":"A","valueFrom":{}}],"image":"a@sha256:b"}}}`,
	`{"spec":{"network":{"proxy":{"routing":[{"secrets":7}]}},"volumes":[{"sizeMb":"1"}]}}`,
}

// FuzzBodies sends bodies to create and update: each is answered, and none is
// our fault.
func FuzzBodies(f *testing.F) {
	for _, b := range bodies {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, body string) {
		planetest.InBubble(t, func(p *planetest.Platform) {
			t := p.T
			p.Create(planetest.Named("fuzz"))
			for _, call := range [][2]string{{"POST", "/sandboxes"}, {"PUT", "/sandboxes/fuzz"}, {"POST", "/api_keys"}} {
				w := p.Do(call[0], call[1], body)
				if w.Code == 500 || w.Code == 0 {
					t.Fatalf("%v: %d %s", call, w.Code, w.Body)
				}
				if w.Code != 200 {
					planetest.CheckError(t, w)
				}
			}
			synctest.Wait()
		})
	})
}

// FuzzRequests sends paths and queries: each is answered without a redirect.
func FuzzRequests(f *testing.F) {
	f.Add("/sandboxes", "cursor=eyJ1IjoiYSIsIm0iOjF9&limit=2")
	f.Add("/sandboxes/by-external-id/%2e%2e", "")
	f.Add("//sandboxes/%zz", "q=%00%ff&sort=name:asc&status=,")
	f.Add("/workspaces/main", "workspace=main")
	f.Fuzz(func(t *testing.T, path, query string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.URL.Path, r.URL.RawPath, r.URL.RawQuery = "/v0"+path, "", query
		if strings.Contains(path, "%") {
			r.URL.RawPath = r.URL.Path
		}
		p := planetest.Start(t, false)
		defer p.Stop()
		r.Header.Set("Authorization", "Bearer "+p.Key)
		r.Header.Set("Blaxel-Version", "2026-04-28")
		w := httptest.NewRecorder()
		p.HTTP.ServeHTTP(w, r)
		if w.Code >= 500 || w.Code/100 == 3 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	})
}
