package edge

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func addresses(tb testing.TB, domain string) Addresses {
	tb.Helper()
	a, err := NewAddresses([]string{"eu-1"}, domain, "https://doze.example.com:8443/")
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

func TestNewAddressesWantsAURLAndARegion(t *testing.T) {
	for _, in := range [][2]string{{"", "http://a"}, {"eu", "a:80"}, {"eu", "ftp://a"}, {"eu", "http://"}, {"eu", "http://%zz"}} {
		if _, err := NewAddresses(in[:1], "", in[1]); err == nil {
			t.Errorf("%q is taken", in)
		}
	}
}

func TestURL(t *testing.T) {
	long := strings.Repeat("n", 49)
	cases := map[string]struct{ domain, workspace, name, want string }{
		"host":           {"doze.test", "acme", "web", "https://sbx-web-acme.eu-1.doze.test:8443"},
		"no domain":      {"", "acme", "web", "https://doze.example.com:8443/run/acme/sandboxes/web"},
		"63 bytes fit":   {"doze.test", strings.Repeat("w", 9), long, "https://sbx-" + long + "-wwwwwwwww.eu-1.doze.test:8443"},
		"64 bytes don't": {"doze.test", strings.Repeat("w", 10), long, "https://doze.example.com:8443/run/wwwwwwwwww/sandboxes/" + long},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := addresses(t, c.domain).URL(c.workspace, c.name); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestRegionsAreOnePlace: hosts of each region are served, and addresses have the first.
func TestRegionsAreOnePlace(t *testing.T) {
	a, err := NewAddresses([]string{"us-1", "EU-1"}, "doze.test", "https://doze.example.com")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := a.URL("b", "a"), "https://sbx-a-b.us-1.doze.test"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got, want := a.PreviewURL("p"), "https://p.us-1.preview.doze.test"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for region, served := range map[string]bool{"us-1": true, "eu-1": true, "asia-1": false} {
		for _, domain := range []string{"doze.test", "localhost"} {
			if _, ok := a.label("sbx-a-b." + region + "." + domain); ok != served {
				t.Errorf("a sandbox in %s of %s: %v", region, domain, ok)
			}
			if _, ok := a.previewOf("p." + region + ".preview." + domain); ok != served {
				t.Errorf("a preview in %s of %s: %v", region, domain, ok)
			}
		}
	}
}

func TestMatches(t *testing.T) {
	cases := map[string]struct {
		host, path string
		want       bool
	}{
		"host":               {"sbx-a-b.eu-1.doze.test", "/v0/sandboxes", true},
		"host with port":     {"sbx-a-b.eu-1.doze.test:8443", "/", true},
		"capitals and dot":   {"SBX-A-b.EU-1.Doze.Test.", "/", true},
		"localhost":          {"sbx-a-b.eu-1.localhost:80", "/", true},
		"path":               {"doze.example.com", "/run/b/sandboxes/a", true},
		"bad path below run": {"doze.example.com", "/run/x", true},
		"control":            {"doze.example.com", "/v0/sandboxes", false},
		"other region":       {"sbx-a-b.us-1.doze.test", "/v0/sandboxes", true}, // and is refused
		"other domain":       {"sbx-a-b.eu-1.doze.test.evil.test", "/", true},
		"no domain":          {"sbx-a-b", "/health", true},
		"of another, port":   {"SBX-A-b.example.com.:80", "/", true},
		"IPv4":               {"192.0.2.1:80", "/v0/sandboxes", false},
		"IPv6":               {"[2001:db8::1]:80", "/v0/sandboxes", false},
		"localhost host":     {"localhost:7080", "/health", false},
		"operator's name":    {"api.example.org", "/v0/sandboxes", false},
		"two labels":         {"x.sbx-a-b.eu-1.doze.test", "/", false},
		"no prefix":          {"a-b.eu-1.doze.test", "/", false},
		"nothing":            {"sbx-.eu-1.doze.test", "/", true},
		"encoded run":        {"doze.example.com", "/%72un/b/sandboxes/a", false},
		"run inside":         {"doze.example.com", "//run/b/sandboxes/a", false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest(http.MethodGet, "http://x"+c.path, nil)
			r.Host, r.RequestURI = c.host, c.path
			if got := addresses(t, "doze.test").Matches(r); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestTheListenersOwnNameMayLookLikeASandboxs(t *testing.T) {
	a, err := NewAddresses([]string{"eu-1"}, "doze.test", "https://SBX-prod.example.com:8443")
	if err != nil {
		t.Fatal(err)
	}
	for host, want := range map[string]bool{"sbx-prod.example.com:8443": false, "sbx-prod.example.com": false, "sbx-prod.example.org": true} {
		r := httptest.NewRequest(http.MethodGet, "http://x/v0/sandboxes", nil)
		r.Host = host
		if a.Matches(r) != want {
			t.Errorf("%s: a sandbox's is %t", host, !want)
		}
	}
}

func TestLocateReadsHyphensByTheCallersWorkspace(t *testing.T) {
	cases := map[string]struct {
		host, path, workspace string
		want                  place
		ok                    bool
	}{
		"long workspace":  {"sbx-a-b-c.eu-1.localhost", "/x", "b-c", place{"a", "/x"}, true},
		"short workspace": {"sbx-a-b-c.eu-1.localhost", "/x", "c", place{"a-b", "/x"}, true},
		"another":         {"sbx-a-b-c.eu-1.localhost", "/x", "d", place{"", "/x"}, false},
		"no name left":    {"sbx-b-c.eu-1.localhost", "/x", "sbx-b-c", place{}, false},
		"no workspace":    {"sbx-a-.eu-1.localhost", "/x", "", place{}, false},
		"path":            {"x", "/run/b-c/sandboxes/a/%2Fetc//p?q", "b-c", place{"a", "/%2Fetc//p"}, true},
		"path, no rest":   {"x", "/run/b-c/sandboxes/a", "b-c", place{"a", "/"}, true},
		"path, other":     {"x", "/run/b-c/sandboxes/a/", "c", place{}, false},
		"path, malformed": {"x", "/run/b-c/a", "b-c", place{}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			r := &http.Request{Host: c.host, RequestURI: c.path, URL: &url.URL{}}
			got, ok := addresses(t, "").locate(r, c.workspace)
			if ok != c.ok {
				t.Fatalf("ok = %v", ok)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(place{})); ok && diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPrivatePathsInAllSpellings(t *testing.T) {
	for _, p := range []string{
		"/doze", "/doze/", "/doze/freeze", "//doze/x", "/./doze/x", "/%2Fdoze/x", "/%2fdoze", "/%64oze/", "/DoZe/x",
		"/%2564oze/x", "/x/../doze/y", "/x/..%2fdoze/y", "/doze/../filesystem/a", `/%5Cdoze/x`, "/doze;a=b/x", "/doze%20/x", "%2e/doze",
	} {
		if !isPrivate(p) {
			t.Errorf("%s passes", p)
		}
	}
	for _, p := range []string{"/", "", "/health", "/filesystem/doze/x", "/filesystem/%2Fdoze", "/dozer", "/process/doze", "/%zz"} {
		if isPrivate(p) {
			t.Errorf("%s is refused", p)
		}
	}
}

func FuzzHost(f *testing.F) {
	for _, s := range []string{"sbx-a-b-c.eu-1.doze.test:80", "[::1]:80", "sbx-.eu-1.localhost", "SBX-a-c.EU-1.localhost."} {
		f.Add(s, "c")
	}
	f.Fuzz(func(t *testing.T, host, workspace string) {
		a := addresses(t, "doze.test")
		at, ok := a.locate(&http.Request{Host: host, RequestURI: "/x", URL: &url.URL{}}, workspace)
		if !ok {
			return
		}
		if label, _ := a.label(host); label != at.sandbox+"-"+workspace || at.sandbox == "" || workspace == "" {
			t.Errorf("%q for %q became %q", host, workspace, at.sandbox)
		}
	})
}

func FuzzPath(f *testing.F) {
	for _, s := range []string{"/run/b/sandboxes/a/%2Fetc//p?q", "/run/b/sandboxes/a", "/port/80/x", "/tcp/5432", "//x", "/a\x7f#?", "/%", "/port/08/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		workspace, sandbox, rest, ok := splitRun(s)
		if joined := "/run/" + workspace + "/sandboxes/" + sandbox + rest; ok && joined != s && joined != s+"/" {
			t.Errorf("%q became %q", s, joined)
		}
		if port, rest, ok, err := splitPort(s, portPrefix); ok && err == nil && (port == 0 || rest[0] != '/') {
			t.Errorf("%q: port %d, rest %q", s, port, rest)
		}
		path, query, _ := strings.Cut(s, "?")
		if strings.HasPrefix(path, "/") && !strings.HasPrefix(path, "//") {
			want := path
			if query != "" {
				want += "?" + query
				query = "?" + query
			}
			if got := exactly(path, query).RequestURI(); got != want {
				t.Errorf("%q is sent as %q", want, got)
			}
		}
		if decoded, err := url.PathUnescape(path); err == nil && strings.HasPrefix(strings.ToLower(decoded), "/doze/") && !isPrivate(path) {
			t.Errorf("%q passes", path)
		}
	})
}

func TestTokensAreTakenOut(t *testing.T) {
	cases := map[string]struct{ in, token, rest string }{
		"alone":     {"?token=a%2Bb", "a+b", ""},
		"first":     {"?token=a&cols=80", "a", "?cols=80"},
		"twice":     {"?x=%zz&token=a&y&token=b", "a", "?x=%zz&y"},
		"encoded":   {"?%74Oken=a&x", "a", "?x"},
		"not there": {"?tokens=a", "", "?tokens=a"},
		"empty":     {"?", "", "?"},
		"none":      {"", "", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tokenOf(c.in); got != c.token {
				t.Errorf("token %q", got)
			}
			if got := withoutToken(c.in); got != c.rest {
				t.Errorf("rest %q", got)
			}
		})
	}
}
