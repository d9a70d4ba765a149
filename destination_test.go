package doze_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// destinations are those of a routing rule, with a secret or without.
func destinations(t *testing.T, secrets bool, all ...string) doze.Destinations {
	t.Helper()
	target := doze.ProxyTarget{Destinations: all}
	if secrets {
		target.Secrets = doze.Hide(map[string]string{"key": "hunter2"})
	}
	d, err := target.ParseDestinations()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDestinationAddresses: which connections a rule is about.
func TestDestinationAddresses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		all     []string
		secrets bool
		to      doze.Address
		want    bool
	}{
		"by https":                     {[]string{"a.test"}, true, doze.Address{Host: "a.test", Port: 443}, true},
		"another host":                 {[]string{"a.test"}, true, doze.Address{Host: "b.test", Port: 443}, false},
		"another port":                 {[]string{"a.test"}, true, doze.Address{Host: "a.test", Port: 8443}, false},
		"its port":                     {[]string{"a.test:8443"}, true, doze.Address{Host: "a.test", Port: 8443}, true},
		"its port only":                {[]string{"a.test:8443"}, true, doze.Address{Host: "a.test", Port: 443}, false},
		"TLS at port 80":               {[]string{"a.test"}, false, doze.Address{Host: "a.test", Port: 80}, false},
		"in clear":                     {[]string{"a.test"}, false, doze.Address{Host: "a.test", Port: 80, Plain: true}, true},
		"in clear at 443":              {[]string{"a.test"}, false, doze.Address{Host: "a.test", Port: 443, Plain: true}, false},
		"in clear, a port":             {[]string{"a.test:8080"}, false, doze.Address{Host: "a.test", Port: 8080, Plain: true}, true},
		"in clear, a secret":           {[]string{"a.test", "a.test:80"}, true, doze.Address{Host: "a.test", Port: 80, Plain: true}, false},
		"a secret by http":             {[]string{"http://a.test"}, true, doze.Address{Host: "a.test", Port: 80, Plain: true}, true},
		"http only":                    {[]string{"http://a.test"}, true, doze.Address{Host: "a.test", Port: 443}, false},
		"http at a port":               {[]string{"HTTP://a.test:8080"}, true, doze.Address{Host: "a.test", Port: 8080, Plain: true}, true},
		"https only":                   {[]string{"https://a.test"}, false, doze.Address{Host: "a.test", Port: 80, Plain: true}, false},
		"everything":                   {[]string{"*"}, true, doze.Address{Host: "a.test", Port: 443}, true},
		"an exception":                 {[]string{"!b.a.test", "*.a.test"}, true, doze.Address{Host: "b.a.test", Port: 443}, false},
		"an exception for all ports":   {[]string{"*.a.test:8443", "!b.a.test"}, true, doze.Address{Host: "b.a.test", Port: 8443}, false},
		"an exception for a port":      {[]string{"*.a.test", "!b.a.test:8443"}, true, doze.Address{Host: "b.a.test", Port: 443}, true},
		"an exception for http":        {[]string{"*.a.test", "!http://b.a.test"}, false, doze.Address{Host: "b.a.test", Port: 443}, true},
		"an exception for a path":      {[]string{"a.test", "!a.test/admin"}, true, doze.Address{Host: "a.test", Port: 443}, true},
		"an exception of a method":     {[]string{"a.test", "!GET:a.test"}, true, doze.Address{Host: "a.test", Port: 443}, true},
		"a method and a path":          {[]string{"POST:a.test/v1"}, true, doze.Address{Host: "a.test", Port: 443}, true},
		"a wildcard is not the apex":   {[]string{"*.a.test/v1"}, true, doze.Address{Host: "a.test", Port: 443}, false},
		"a name that is like a method": {[]string{"get:443"}, true, doze.Address{Host: "get", Port: 443}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := destinations(t, tt.secrets, tt.all...)
			if got := all.Reach(tt.to); got != tt.want {
				t.Errorf("%v reach %+v: %v", tt.all, tt.to, got)
			}
		})
	}
}

// TestDestinationRequests: which requests to a host a rule is about.
func TestDestinationRequests(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		all                []string
		covered, uncovered []string
	}{
		"all":          {[]string{"a.test"}, []string{"GET /", "BREW /../x", "OPTIONS *"}, nil},
		"a slash":      {[]string{"a.test/"}, []string{"GET /", "GET /../x"}, nil},
		"methods":      {[]string{"GET,HEAD:a.test"}, []string{"GET /", "HEAD /x"}, []string{"POST /", "get /"}},
		"with colons":  {[]string{"GET:POST:a.test/v1"}, []string{"GET /v1", "POST /v1"}, []string{"PUT /v1"}},
		"with METHOD":  {[]string{"METHOD:GET:a.test"}, []string{"GET /"}, []string{"POST /"}},
		"two entries":  {[]string{"GET:a.test", "a.test/v1"}, []string{"GET /", "POST /v1"}, []string{"POST /"}},
		"another host": {[]string{"b.test", "GET:a.test"}, []string{"GET /"}, []string{"POST /"}},
		"a path": {
			[]string{"a.test/v1/x"},
			[]string{"GET /v1/x", "GET /v1/x/", "GET /v1/x/y", "GET /v1/x/a%2Fb", "GET /v1/x//y", "GET /v1/%78"},
			[]string{
				"GET /", "GET /v1", "GET /v1/xy", "GET /V1/x", "GET //v1/x", "GET /v1//x", "GET /v1%2Fx", "GET /v1/x/../x", "GET /v1/x/%2e%2E/%2fx", "GET /v1/x/%252e%252e/x",
				"GET /v1/x/..;/y", "GET /v1;/x/y", "GET /v1/x/..%5cy", "GET /v1/x/%25252e./x", "GET /v1\\x", "OPTIONS *", "GET ",
			},
		},
		"any segment":  {[]string{"a.test/v1/*/x"}, []string{"GET /v1/a/x", "GET /v1/b/x/c"}, []string{"GET /v1/x", "GET /v1//x", "GET /v1/a/b/x", "GET /v1/../x"}},
		"below a path": {[]string{"a.test/v1/*"}, []string{"GET /v1/a", "GET /v1/a/b"}, []string{"GET /v1", "GET /v1/"}},
		"an exception": {
			[]string{"!a.test/v1/admin", "a.test"},
			[]string{"GET /", "GET /v1", "GET /v1/administer"},
			[]string{"GET /v1/admin", "GET /v1/ADMIN/x", "GET /v1//admin", "GET /v1/%61dmin", "GET /v1%2fadmin", "GET /v1/x/../y", "GET /v1;x/admin", "GET \\v1\\admin", "GET /v1/admin%3b"},
		},
		"an exception of a method": {[]string{"a.test", "!DELETE,PUT:a.test/x"}, []string{"GET /x", "DELETE /y"}, []string{"DELETE /x", "PUT /x/y"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := destinations(t, true, tt.all...)
			for want, requests := range map[bool][]string{true: tt.covered, false: tt.uncovered} {
				for _, r := range requests {
					method, path, _ := strings.Cut(r, " ")
					if got := all.Cover(doze.Address{Host: "a.test", Port: 443}, method, path); got != want {
						t.Errorf("%v cover %s: %v", tt.all, r, got)
					}
				}
			}
		})
	}
}

func TestDestinationMistakes(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		"", "!", "!!a.test", "GET:", "get:a.test", "BREW:a.test", "GET:BREW:a.test", "GET,:a.test", "[GET:]a.test", "[METHOD:GET]a.test/v1", "ftp://a.test", "://a.test",
		"https://", "https://GET:a.test", "a.test/..", "a.test/./x", "a.test/x//y", "a.test/%2f", "a.test/x?y", "a.test/x#y", "a.test/x;y", "a.test/a*", "a.test/ü", "a.test:0/x",
		"10.0.0.1/x", "10.0.0.0/8", "user@a.test/x", "a.test/" + strings.Repeat("x", doze.DestinationPathMax), " a.test", "a.test/ x",
	} {
		if d, err := doze.ParseDestination(s); err == nil {
			t.Errorf("%q is read as %s", s, d)
		}
	}
}

// FuzzDestination: what is read is read again from its own form; and however a
// path is written, nothing that a server may take for an exception is covered.
func FuzzDestination(f *testing.F) {
	for _, s := range []string{"!GET,POST:https://*.a.test:8443/v1/*/x/", "METHOD:PUT:a.test", "get:443", "*"} {
		f.Add(s, "/v1/%2e%2E/x", "v1")
	}
	f.Fuzz(func(t *testing.T, entry, path, segment string) {
		d, err := doze.ParseDestination(entry)
		if err != nil {
			return
		}
		again, err := doze.ParseDestination(d.String())
		if err != nil || again.String() != d.String() {
			t.Errorf("%q is read as %s, and that as %s, %v", entry, d, again, err)
		}
		scope, err := doze.ParseDestination("a.test/" + segment)
		if err != nil || strings.Contains(segment, "*") {
			return
		}
		to := doze.Address{Host: "a.test", Port: 443}
		only, but := destinations(t, true, scope.String()), destinations(t, true, "a.test", "!"+scope.String())
		if only.Cover(to, "GET", path) && but.Cover(to, "GET", path) {
			t.Errorf("%q is below %s, and is not", path, scope)
		}
		if scope.String() != "a.test" && only.Cover(to, "GET", path) {
			first := strings.Split(strings.TrimPrefix(path, "/"), "/")
			if slices.Contains(first, "..") || slices.Contains(first, ".") {
				t.Errorf("%q is below %s", path, scope)
			}
		}
	})
}
