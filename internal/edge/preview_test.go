package edge

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

func hashed(tokens ...string) map[fleet.TokenHash]time.Time {
	all := map[fleet.TokenHash]time.Time{}
	for _, t := range tokens {
		all[fleet.HashToken(t)] = time.Time{}
	}
	return all
}

// testPreviews lead to the sandbox "web" of "acme".
func testPreviews() []fleet.Preview {
	late := hashed("good")
	late[fleet.HashToken("late")] = time.Now().Add(-time.Minute)
	return []fleet.Preview{
		{ID: "1", Label: "open", Workspace: "acme", Sandbox: "web", Port: 3000, Public: true},
		{ID: "2", Label: "closed", Workspace: "acme", Sandbox: "web", Port: 3000, Tokens: late},
		{ID: "3", Label: "api", Workspace: "acme", Sandbox: "web", Port: doze.ControlPort, Tokens: hashed("good")},
		{ID: "4", Label: "over", Workspace: "acme", Sandbox: "web", Port: 3000, Public: true, Expires: time.Now()},
		{ID: "5", Label: "off", Workspace: "acme", Sandbox: "off", Port: 3000, Public: true},
		{ID: "dead", Label: "dead", Workspace: "acme", Sandbox: "dead", Port: 3000, Public: true},
		{ID: "6", Label: "gone", Workspace: "acme", Sandbox: "none", Port: 3000, Public: true},
		{ID: "8", Label: "www.preview.shop.example", Domain: "shop.example", Workspace: "acme", Sandbox: "web", Port: 3000, Public: true},
		{ID: "10", Label: "theirs.preview.shop.example", Domain: "shop.example", Workspace: "corp", Sandbox: "web", Port: 3000, Public: true},
		{
			ID: "7", Label: "cors", Workspace: "acme", Sandbox: "web", Port: 3000, Tokens: hashed("good"),
			RequestHeaders:  map[string]string{"X-From": "preview", "Authorization": "Basic cHJldmlldw=="},
			ResponseHeaders: map[string]string{"Access-Control-Allow-Origin": "https://app.test", "X-Frame-Options": "DENY"},
		},
	}
}

const previewDomain = ".eu-1.preview.localhost"

// echo answers what the program in the sandbox saw.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	_ = json.NewEncoder(w).Encode(map[string]any{"uri": r.RequestURI, "header": r.Header})
})

type seen struct {
	URI    string      `json:"uri"`
	Header http.Header `json:"header"`
}

func echoed(t *testing.T, resp *http.Response) (s seen) {
	t.Helper()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s", resp.StatusCode, text(t, resp))
	}
	if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestPreviewsLetInWhoMay: what is refused wakes nothing.
func TestPreviewsLetInWhoMay(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		host, path string
		header     []string
		status     int
		code       string
		to         string // what was reached
	}{
		"public":                {"open" + previewDomain, "/", nil, 200, "", "u-acme-web:3000"},
		"public by path":        {"", "/preview/open/x", nil, 200, "", "u-acme-web:3000"},
		"token in the header":   {"closed" + previewDomain, "/", []string{previewHeader, "good"}, 200, "", "u-acme-web:3000"},
		"token in the query":    {"closed" + previewDomain, "/?bl_preview_token=good", nil, 200, "", "u-acme-web:3000"},
		"token in our cookie":   {"closed" + previewDomain, "/", []string{"Cookie", "doze_preview=good"}, 200, "", "u-acme-web:3000"},
		"custom domain":         {"WWW.preview.shop.example:443", "/x", nil, 200, "", "u-acme-web:3000"},
		"no token":              {"closed" + previewDomain, "/", nil, 401, authRequired, ""},
		"wrong token":           {"closed" + previewDomain, "/", []string{previewHeader, "bad"}, 401, authFailed, ""},
		"expired token":         {"closed" + previewDomain, "/", []string{previewHeader, "late"}, 401, authFailed, ""},
		"another's token":       {"cors" + previewDomain, "/", []string{previewHeader, "late"}, 401, authFailed, ""},
		"key of the platform":   {"closed" + previewDomain, "/", []string{"Authorization", "Bearer acme"}, 401, authRequired, ""},
		"unknown":               {"nothing" + previewDomain, "/", nil, 404, routeNotFound, ""},
		"over":                  {"over" + previewDomain, "/", nil, 404, routeNotFound, ""},
		"without its sandbox":   {"gone" + previewDomain, "/", nil, 404, routeNotFound, ""},
		"of a failed one":       {"dead" + previewDomain, "/", nil, 409, workloadFailed, ""},
		"of a disabled one":     {"off" + previewDomain, "/", nil, 503, workloadDisabled, ""},
		"the API":               {"api" + previewDomain, "/process", []string{previewHeader, "good"}, 200, "", "u-acme-web:8080"},
		"the API, another port": {"api" + previewDomain, "/port/9000/x", []string{previewHeader, "good"}, 200, "", "u-acme-web:9000"},
		"the API, privately":    {"api" + previewDomain, "/doze/keepalive", []string{previewHeader, "good"}, 404, routeNotFound, ""},
		"another port":          {"open" + previewDomain, "/port/8080/process", nil, 200, "", "u-acme-web:3000"},
		"a header chooses none": {"open" + previewDomain, "/", []string{"X-Forwarded-Host", "api" + previewDomain, "X-Forwarded-Port", "22"}, 200, "", "u-acme-web:3000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, echo)
			resp := w.do(t, http.MethodGet, tt.host, tt.path, "", nil, tt.header...)
			if tt.code == workloadDisabled {
				tt.status = errDisabled.Kind.Status()
			}
			if resp.StatusCode != tt.status {
				t.Fatalf("status %d %s, want %d", resp.StatusCode, text(t, resp), tt.status)
			}
			if tt.code != "" {
				if got := platformError(t, resp)["code"]; got != tt.code {
					t.Errorf("code %v, want %s", got, tt.code)
				}
				if n := w.gate.wakes.Load(); n != 0 {
					t.Errorf("it woke %d sandboxes", n)
				}
				return
			}
			w.gate.mu.Lock()
			defer w.gate.mu.Unlock()
			if diff := cmp.Diff([]string{tt.to}, w.gate.seen); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestPreviewsTellNoSecrets: no token of ours reaches the program, and what is
// the program's own does.
func TestPreviewsTellNoSecrets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echo)
	got := echoed(t, w.do(t, http.MethodGet, "closed"+previewDomain, "//a/%2e%2e?x=1&bl_preview_token=good&y=%zz", "", nil,
		"Cookie", "mine=1; doze_preview=good", "Authorization", "Basic bWluZTptaW5l", "X-Blaxel-Authorization", "Bearer acme"))
	if got.URI != "//a/%2e%2e?x=1&y=%zz" {
		t.Errorf("it was asked for %s", got.URI)
	}
	all, _ := json.Marshal(got)
	if strings.Contains(string(all), "good") || strings.Contains(string(all), "acme") {
		t.Errorf("a credential got through: %s", all)
	}
	if got.Header.Get("Authorization") != "Basic bWluZTptaW5l" || got.Header.Get("Cookie") != "mine=1" {
		t.Errorf("what is its own did not: %v", got.Header)
	}
	for _, credential := range []string{"Bearer acme", "Bearer dz_old_key"} {
		got := echoed(t, w.do(t, http.MethodGet, "open"+previewDomain, "/", "", nil, "Authorization", credential))
		if got.Header.Get("Authorization") != "" || got.Header.Get("X-Blaxel-Subject-Id") != "" {
			t.Errorf("%s got through: %v", credential, got.Header)
		}
	}
}

// TestCustomDomainsAreMatchedByHost: others are not ours.
func TestCustomDomainsAreMatchedByHost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echo)
	for host, ours := range map[string]bool{
		"www.preview.shop.example": true, "ww2.preview.shop.example": true, "shop.example": false, "www.preview.other.example": false,
		"open" + previewDomain: true, "open.us-1.preview.localhost": false,
	} {
		if got := w.Matches(&http.Request{Host: host, RequestURI: "/", URL: &url.URL{Path: "/"}}); got != ours {
			t.Errorf("%s is ours: %t", host, got)
		}
	}
}

// TestDomains: who may serve on a domain, and what serves names that no preview
// has.
func TestDomains(t *testing.T) {
	t.Parallel()
	own := fleet.Domain{Name: "shop.example", Workspace: "acme"}
	with := func(change func(*fleet.Domain)) fleet.Domain {
		d := own
		change(&d)
		return d
	}
	for name, tt := range map[string]struct {
		domain fleet.Domain
		label  string
		status int
		missed string
	}{
		"own":                        {own, "www", 200, ""},
		"no preview":                 {own, "ww2", 404, ""},
		"not shared":                 {own, "theirs", 404, ""},
		"shared":                     {with(func(d *fleet.Domain) { d.Shared = []string{"corp"} }), "theirs", 200, ""},
		"shared with another":        {with(func(d *fleet.Domain) { d.Shared = []string{"cor"} }), "theirs", 404, ""},
		"shared with all":            {with(func(d *fleet.Domain) { d.Shared = []string{doze.DomainEverybody} }), "theirs", 200, ""},
		"fallback":                   {with(func(d *fleet.Domain) { d.Fallback = "www" }), "ww2", 200, "ww2"},
		"fallback of a foreign name": {with(func(d *fleet.Domain) { d.Fallback = "www" }), "theirs", 200, "theirs"},
		"fallback not needed":        {with(func(d *fleet.Domain) { d.Fallback = "www" }), "www", 200, ""},
		"fallback that is not there": {with(func(d *fleet.Domain) { d.Fallback = "gone" }), "ww2", 404, ""},
		"two labels":                 {with(func(d *fleet.Domain) { d.Fallback = "www" }), "a.b", 404, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, echo)
			w.previews.PutDomain(tt.domain)
			resp := w.do(t, http.MethodGet, tt.label+".preview.shop.example", "/a//b?c", "", nil, "X-Blaxel-Fallback", "forged", "X-Blaxel-Domain", "forged")
			if resp.StatusCode != tt.status {
				t.Fatalf("status %d: %s", resp.StatusCode, text(t, resp))
			}
			if tt.status != http.StatusOK {
				if platformError(t, resp)["code"] != routeNotFound || w.gate.wakes.Load() != 0 {
					t.Error("it is not simply absent")
				}
				return
			}
			want := map[string]string{"X-Blaxel-Fallback": "", "X-Blaxel-Preview": "", "X-Blaxel-Domain": ""}
			if tt.missed != "" {
				want = map[string]string{"X-Blaxel-Fallback": "true", "X-Blaxel-Preview": tt.missed, "X-Blaxel-Domain": "shop.example"}
			}
			saw := echoed(t, resp)
			got := map[string]string{}
			for name := range want {
				got[name] = saw.Header.Get(name)
			}
			if diff := cmp.Diff(want, got); diff != "" || saw.URI != "/a//b?c" {
				t.Errorf("%s %s", saw.URI, diff)
			}
		})
	}
}

func TestPreviewHeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echo)
	const from = "cors" + previewDomain
	resp := w.do(t, http.MethodOptions, from, "/", "", nil, "Origin", "https://app.test", "Access-Control-Request-Method", "PUT")
	if resp.StatusCode != http.StatusNoContent || resp.Header.Get("Access-Control-Allow-Origin") != "https://app.test" || w.gate.wakes.Load() != 0 {
		t.Errorf("a preflight: %d, %v", resp.StatusCode, resp.Header)
	}
	resp = w.do(t, http.MethodGet, from, "/", "", nil, previewHeader, "good", "X-From", "a client")
	if resp.Header.Get("X-Frame-Options") != "DENY" {
		t.Errorf("%v", resp.Header)
	}
	if got := echoed(t, resp); got.Header.Get("X-From") != "preview" || got.Header.Get("Authorization") != "Basic cHJldmlldw==" {
		t.Errorf("%v", got.Header)
	}
}

// TestLinksWithTokensAreSwapped: a person's browser keeps the token in a cookie
// instead of its address bar.
func TestLinksWithTokensAreSwapped(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ host, path, to, cookie string }{
		"host":        {"closed" + previewDomain, "/a/b?x=1&bl_preview_token=good", "/a/b?x=1", "/"},
		"path":        {"", "/preview/closed/a?bl_preview_token=good", "/preview/closed/a", "/preview/closed/"},
		"two slashes": {"closed" + previewDomain, "//evil.test/?bl_preview_token=good", "/.//evil.test/", "/"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, echo)
			resp := w.do(t, http.MethodGet, tt.host, tt.path, "", nil, "Accept", "text/html,*/*")
			c := resp.Cookies()
			if resp.StatusCode != http.StatusFound || resp.Header.Get("Location") != tt.to || w.gate.wakes.Load() != 0 {
				t.Fatalf("%d to %s", resp.StatusCode, resp.Header.Get("Location"))
			}
			if len(c) != 1 || !c[0].HttpOnly || c[0].SameSite != http.SameSiteLaxMode || c[0].Path != tt.cookie || c[0].Domain != "" || c[0].MaxAge != 0 {
				t.Errorf("cookie %+v", c)
			}
			resp = w.do(t, http.MethodGet, tt.host, tt.to, "", nil, "Accept", "text/html", "Cookie", c[0].Name+"="+c[0].Value)
			echoed(t, resp)
		})
	}
	w := newWorld(t, echo)
	if resp := w.do(t, http.MethodGet, "closed"+previewDomain, "/?bl_preview_token=bad", "", nil, "Accept", "text/html"); resp.StatusCode != http.StatusUnauthorized || len(resp.Cookies()) != 0 {
		t.Errorf("a wrong token: %d %v", resp.StatusCode, resp.Cookies())
	}
}

// TestAdviceOfPreviewsNamesTheirTokens: an API key does not open a preview.
func TestAdviceOfPreviewsNamesTheirTokens(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echo)
	for path, code := range map[string]string{"/": authRequired, "/?bl_preview_token=bad": authFailed} {
		got := platformError(t, w.do(t, http.MethodGet, "closed"+previewDomain, path, "", nil))
		action, ok := got["action"].(string)
		if !ok || got["code"] != code || !strings.Contains(action, "token of the preview") || strings.Contains(action, "API key") {
			t.Errorf("%s: %v", path, got)
		}
	}
}

// TestPreviewsEndWithTheirTokens: also what is open.
func TestPreviewsEndWithTheirTokens(t *testing.T) {
	t.Parallel()
	quiet := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			c, err := websocket.Accept(w, r, nil)
			if err == nil {
				defer func() { _ = c.CloseNow() }()
				_, _, _ = c.Read(r.Context())
			}
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	for name, end := range map[string]func(*world){
		"deleted token":   func(w *world) { p := testPreviews()[1]; p.Tokens = nil; w.previews.Put(p) },
		"deleted preview": func(w *world) { w.previews.Drop("closed", "2") },
		"made again":      func(w *world) { p := testPreviews()[1]; p.ID = "9"; w.previews.Put(p) },
		"lost domain": func(w *world) {
			p := testPreviews()[1]
			p.Domain = "gone.example"
			w.previews.Put(p)
		},
		"made private": func(w *world) {
			p := testPreviews()[0]
			p.Public = false
			w.previews.Put(p)
			w.previews.Drop("closed", "2")
		},
	} {
		overEach(t, name, func(m medium) {
			t := m.t
			w := m.newWorld(quiet)
			stream := w.do(t, http.MethodGet, "closed"+previewDomain, "/", "", nil, previewHeader, "good")
			public := w.do(t, http.MethodGet, "open"+previewDomain, "/", "", nil)
			w.socket(t, "closed"+previewDomain, "/?bl_preview_token=good")
			w.gate.awaitHeld(t, 3)
			end(w)
			w.Recheck()
			began := time.Now()
			_, _ = io.Copy(io.Discard, stream.Body)
			if name == "made private" {
				_, _ = io.Copy(io.Discard, public.Body)
				w.gate.awaitHeld(t, 0)
			} else {
				w.gate.awaitHeld(t, 1) // the public one
			}
			m.within(began, time.Second)
		})
	}
}

// TestPreviewsLastForATime: busy or idle; who has a key of the platform may stay.
// In a bubble these are the 15 minutes themselves.
func TestPreviewsLastForATime(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		backend func(medium) http.HandlerFunc
		socket  bool
		status  int // of the answer
	}{
		"idle stream": {func(medium) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			}
		}, false, http.StatusOK},
		"busy stream": {func(m medium) http.HandlerFunc {
			return func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for err := error(nil); err == nil; time.Sleep(m.beat) {
					_, err = io.WriteString(w, "data: x\n\n")
					_ = http.NewResponseController(w).Flush()
				}
			}
		}, false, http.StatusOK},
		"no answer": {func(medium) http.HandlerFunc {
			return func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
		}, false, http.StatusGatewayTimeout},
		"idle socket": {func(medium) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				if c, err := websocket.Accept(w, r, nil); err == nil {
					_, _, _ = c.Read(r.Context())
					_ = c.CloseNow()
				}
			}
		}, true, 0},
		"busy socket": {func(m medium) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				c, err := websocket.Accept(w, r, nil)
				for ; err == nil; time.Sleep(m.beat) {
					err = c.Write(r.Context(), websocket.MessageText, []byte("x"))
				}
			}
		}, true, 0},
	} {
		overEach(t, name, func(m medium) {
			t := m.t
			w := m.newWorld(tt.backend(m))
			switch {
			case m.pipes:
			case tt.status == http.StatusGatewayTimeout:
				w.ageMax = time.Millisecond // and at most until the next look
			default:
				w.ageMax = 5 * time.Second // in which a busy machine begins to answer
			}
			if tt.status == http.StatusOK {
				w.do(t, http.MethodGet, host, "/", "acme", nil)
			}
			began := time.Now()
			if tt.socket {
				c := w.socket(t, "open"+previewDomain, "/")
				for err := error(nil); err == nil; {
					_, _, err = c.Read(t.Context())
				}
			} else {
				resp := w.do(t, http.MethodGet, "open"+previewDomain, "/", "", nil)
				if resp.StatusCode != tt.status {
					t.Errorf("status %d", resp.StatusCode)
				}
				if tt.status != http.StatusOK {
					if e := platformError(t, resp); e["code"] != workloadTimeout {
						t.Errorf("%v", e)
					}
				}
				_, _ = io.Copy(io.Discard, resp.Body)
			}
			if took := time.Since(began); took < w.ageMax {
				t.Errorf("it lasted for %v, not for %v", took, w.ageMax)
			}
			left := 0
			if tt.status == http.StatusOK {
				left = 1 // that of the key
			}
			w.gate.awaitHeld(t, left)
			m.within(began, w.ageMax+recheck+lastWords)
		})
	}
}

// TestAgeMax looks at the 15 minutes themselves, in virtual time.
func TestAgeMax(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		all := newStreams()
		var running sync.WaitGroup
		running.Go(func() { all.run(ctx) })
		old, cut := context.WithCancelCause(ctx)
		done, err := all.add(&stream{
			valid: func() bool { return true }, until: time.Now().Add(ageMax), cut: cut, idle: new(idleTimer), idleMax: idleMax,
			control: http.NewResponseController(httptest.NewRecorder()),
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(15*time.Minute - recheck)
		synctest.Wait()
		if old.Err() != nil {
			t.Errorf("cut before its time: %v", context.Cause(old))
		}
		time.Sleep(2 * recheck)
		synctest.Wait()
		if !errors.Is(context.Cause(old), errTooOld) {
			t.Errorf("after its time: %v", context.Cause(old))
		}
		done()
		stop()
		running.Wait()
	})
}

// FuzzPreviewAddress reads any address: what it finds is what it was asked for,
// byte for byte.
func FuzzPreviewAddress(f *testing.F) {
	f.Add("open.eu-1.preview.localhost:80", "/a?b")
	f.Add("x", "/preview/open//a/%2f")
	f.Add("a.b.eu-1.preview.localhost", "/preview/")
	f.Add("sbx-a-b.eu-1.localhost", "/preview/x")
	a, err := NewAddresses([]string{"eu-1"}, "", "http://127.0.0.1")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, host, uri string) {
		r := &http.Request{Host: host, RequestURI: uri, URL: &url.URL{Path: "/"}, Header: http.Header{}}
		at, ok := a.previewLabel(r)
		if !ok {
			return
		}
		path, _ := target(r)
		if at.label == "" || strings.ContainsAny(at.label, "/") || !strings.HasPrefix(at.path, "/") || at.prefix+at.path != path && at.prefix+at.path != path+"/" {
			t.Errorf("%q %q is %+v", host, uri, at)
		}
	})
}
