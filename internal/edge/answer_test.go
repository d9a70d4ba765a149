package edge

import (
	"io"
	"maps"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// lasting are the fields of answers that a browser keeps beyond the answer, or
// obeys for more than its address: whoever learns of another one adds it here,
// and then to the rules.
var lasting = []string{
	"Accept-CH", "Alt-Svc", "Clear-Site-Data", "Critical-CH", "Expect-CT", "NEL", "Origin-Agent-Cluster", "Public-Key-Pins",
	"Public-Key-Pins-Report-Only", "Report-To", "Sec-Session-Registration", "Secure-Session-Challenge", "Secure-Session-Registration",
	"Service-Worker-Allowed", "Set-Cookie", "Set-Cookie2", "Set-Login", "Strict-Transport-Security", "Use-As-Dictionary", "WWW-Authenticate",
}

func TestRulesAreComplete(t *testing.T) {
	t.Parallel()
	for _, name := range lasting {
		if r, ok := rules[http.CanonicalHeaderKey(name)]; !ok || r.fate == passes {
			t.Errorf("%s passes", name)
		}
	}
	for name, r := range rules {
		if name != http.CanonicalHeaderKey(name) {
			t.Errorf("%s is looked for and never found: it must be %s", name, http.CanonicalHeaderKey(name))
		}
		if r.why == "" {
			t.Errorf("%s has no reason", name)
		}
		if r.fate != passes && !slices.ContainsFunc(lasting, func(l string) bool { return http.CanonicalHeaderKey(l) == name }) {
			t.Errorf("%s is not in the list of the test", name)
		}
	}
}

// place of an answer, and what passes there.
var answerPlaces = map[string]struct {
	host, path, key string
	shared          bool
	policy, cookie  string
}{
	"preview by host":       {"open" + previewDomain, "/x", "", false, "", "a=b; Path=/"},
	"preview by path":       {"", "/preview/open/x", "", true, apart, "a=b; Path=/preview/open/"},
	"sandbox by host":       {host, "/x", "acme", true, inert, "a=b; Path=/"},
	"sandbox's port":        {host, "/port/3000/x", "acme", true, inert, "a=b; Path=/port/3000/"},
	"sandbox by path":       {"doze.example.com", "/run/acme/sandboxes/web/x", "acme", true, inert, "a=b; Path=/run/acme/sandboxes/web/"},
	"sandbox's port, path":  {"doze.example.com", "/run/acme/sandboxes/web/port/3000", "acme", true, inert, "a=b; Path=/run/acme/sandboxes/web/port/3000/"},
	"preview with no slash": {"", "/preview/open", "", true, apart, "a=b; Path=/preview/open/"},
}

// TestAnswersReachNobodyElse: what a browser would keep of an answer for others
// does not pass, in the answer, ahead of it, or behind it, however it is sent.
func TestAnswersReachNobodyElse(t *testing.T) {
	t.Parallel()
	sent := slices.DeleteFunc(slices.Sorted(maps.Keys(rules)), func(name string) bool { return rules[name].fate == confined })
	set := func(h http.Header) {
		for _, name := range sent {
			h.Set(name, "sent")
		}
		h.Add("Set-Cookie", "a=b; Path=/")
		h.Add("Set-Cookie", "parent=1; Domain=localhost")
		h.Add("Set-Cookie", "doze_preview=1")
		h.Set("X-Doze-State-Age", "0")
	}
	backend := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", strings.Join(sent[:len(sent)/2], ",")) // the others come without notice
		set(w.Header())
		w.WriteHeader(http.StatusEarlyHints)
		io.WriteString(w, "body")
		w.(http.Flusher).Flush()
		for i, name := range sent {
			if i >= len(sent)/2 {
				name = http.TrailerPrefix + name
			}
			w.Header().Set(name, "sent")
		}
		w.Header().Set(http.TrailerPrefix+"Set-Cookie", "parent=1; Domain=localhost")
		w.Header().Set(http.TrailerPrefix+"X-Doze-State-Age", "0")
		w.Header().Set(http.TrailerPrefix+"X-Sum", "good")
	})
	h2c := new(http.Protocols)
	h2c.SetUnencryptedHTTP2(true)
	for name, at := range answerPlaces {
		for proto, tr := range map[string]*http.Transport{"HTTP/1.1": {DisableKeepAlives: true}, "HTTP/2": {Protocols: h2c}} {
			t.Run(name+", "+proto, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, backend)
				t.Cleanup(tr.CloseIdleConnections)
				addr := w.addr
				if at.host == "" {
					addr = w.second
				}
				var interim []http.Header
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, h textproto.MIMEHeader) error {
					interim = append(interim, http.Header(h).Clone())
					return nil
				}})
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+at.path, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Host = at.host
				if at.key != "" {
					r.Header.Set("Authorization", "Bearer "+at.key)
				}
				resp, err := tr.RoundTrip(r)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				if got := text(t, resp); got != "body" || len(interim) != 1 || resp.Trailer.Get("X-Sum") != "good" {
					t.Fatalf("%d %q, %d interim answers, trailer %v", resp.StatusCode, got, len(interim), resp.Trailer)
				}
				for where, h := range map[string]http.Header{"answer": resp.Header, "interim": interim[0], "trailer": resp.Trailer} {
					for _, name := range sent {
						want := rules[name].fate == passes || rules[name].fate == alone && !at.shared
						if got := slices.Contains(h[name], "sent"); got != want {
							t.Errorf("%s in the %s: %t, want %t: it %s", name, where, got, want, rules[name].why)
						}
					}
					if got := h["X-Doze-State-Age"]; got != nil {
						t.Errorf("the age of the state in the %s is a tenant's: %q", where, got)
					}
					want := []string{at.cookie}
					if where == "trailer" {
						want = nil
					}
					if diff := cmp.Diff(want, h["Set-Cookie"]); diff != "" {
						t.Errorf("cookies in the %s: %s", where, diff)
					}
				}
				if got := resp.Header["Content-Security-Policy"]; at.policy != "" && !slices.Contains(got, at.policy) || at.policy == "" && len(got) != 1 {
					t.Errorf("policies %q", got)
				}
			})
		}
	}
}

// TestStateAge: the first answer to a credential after a setback says how old the
// state is, in place of what the sandbox says.
func TestStateAge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Doze-State-Age", "1")
	}))
	var asked []string
	told := false
	w.stateAge = func(uid string) (time.Duration, bool) {
		asked = append(asked, uid)
		defer func() { told = true }()
		return 90*time.Second + time.Millisecond, !told
	}
	for _, step := range []struct {
		host, key string
		want      []string
	}{
		{"open" + previewDomain, "", nil}, // a visitor uses up nothing
		{host, "acme", []string{"91"}},
		{host, "acme", nil},
	} {
		if got := w.do(t, http.MethodGet, step.host, "/x", step.key, nil).Header["X-Doze-State-Age"]; !slices.Equal(got, step.want) {
			t.Errorf("%s: %q, want %q", step.host, got, step.want)
		}
	}
	if want := []string{"u-acme-web", "u-acme-web"}; !slices.Equal(asked, want) {
		t.Errorf("it asked about %q, want %q", asked, want)
	}
}

// TestHeadersOfAPreviewAreATenants: who may set them is no operator.
func TestHeadersOfAPreviewAreATenants(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echo)
	p, ok := w.previews.Find("cors", time.Now())
	if !ok {
		t.Fatal("there is no preview")
	}
	p.ResponseHeaders = map[string]string{
		"Access-Control-Allow-Origin": "*", "clear-site-data": `"*"`, "Set-Cookie": "a=b; Domain=localhost", "Content-Security-Policy": "default-src *", "X-Blaxel-Source": "platform",
	}
	w.previews.Put(p)
	for _, host := range []string{"cors" + previewDomain, ""} {
		path := map[bool]string{true: "/preview/cors/", false: "/"}[host == ""]
		for method, header := range map[string][]string{
			http.MethodGet: {previewHeader, "good"}, http.MethodOptions: {"Origin", "https://app.test", "Access-Control-Request-Method", "PUT"},
		} {
			h := w.do(t, method, host, path, "", nil, header...).Header
			if h.Get("Access-Control-Allow-Origin") != "*" || h.Get("Clear-Site-Data") != "" || h.Get("Set-Cookie") != "" || h.Get("X-Blaxel-Source") != "" {
				t.Errorf("%s %q: %v", method, host, h)
			}
			if host == "" && !slices.Contains(h["Content-Security-Policy"], apart) {
				t.Errorf("%s by path has the policies %q", method, h["Content-Security-Policy"])
			}
		}
	}
}

func TestCookiesStayWithTheirTenant(t *testing.T) {
	t.Parallel()
	byHost := origin{host: "x.preview.test"}
	byPath := origin{host: "127.0.0.1", prefix: "/preview/x", shared: true}
	for name, tt := range map[string]struct {
		at       origin
		in, want string // the empty one is dropped
	}{
		"as it is":               {byHost, "a=b;  path=/x; HttpOnly", "a=b;  path=/x; HttpOnly"},
		"own host":               {byHost, "a=b; Domain=.X.preview.test", "a=b; Domain=.X.preview.test"},
		"no domain":              {byHost, "a=b; Domain=", "a=b; Domain="},
		"parent":                 {byHost, "a=b; domain = preview.test ; Path=/", ""},
		"dot":                    {byHost, "a=b; Domain=.", ""},
		"the last one counts":    {byHost, "a=b; Domain=x.preview.test; Domain=test", ""},
		"tab":                    {byHost, "a=b;\tDomain\t=\ttest", ""},
		"ours":                   {byHost, "__Host-doze_preview=1", ""},
		"path":                   {byPath, "a=b; Path=/; Secure", "a=b; Secure; Path=/preview/x/"},
		"below":                  {byPath, "a=b; Path=/app", "a=b; Path=/preview/x/app"},
		"knows its place":        {byPath, "a=b; Path=/preview/x/app", "a=b; Path=/preview/x/app"},
		"another's":              {byPath, "a=b; Path=/preview/y/", "a=b; Path=/preview/x/preview/y/"},
		"begins like it":         {byPath, "a=b; Path=/preview/xy", "a=b; Path=/preview/x/preview/xy"},
		"no path":                {byPath, "a=b", "a=b; Path=/preview/x/"},
		"two paths":              {byPath, "a=b; Path=/preview/x/; path=/", "a=b; Path=/preview/x/"},
		"own host, by path":      {byPath, "a=b; Domain=127.0.0.1", "a=b; Domain=127.0.0.1; Path=/preview/x/"},
		"relative":               {byPath, "a=b; Path=../y", "a=b; Path=/preview/x/../y"},
		"a value with a path":    {byPath, `a="/; Path=/y"`, `a="/; Path=/preview/x/y"`},
		"attribute without name": {byPath, "a=b; =x", "a=b; =x; Path=/preview/x/"},
	} {
		if got, ok := tt.at.cookie(tt.in); got != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: %q, %t; want %q", name, got, ok, tt.want)
		}
	}
}

// FuzzCookie reads what is left of a cookie as a browser does (RFC 6265, 5.2): it
// is the tenant's alone, whatever the tenant wrote.
func FuzzCookie(f *testing.F) {
	for _, seed := range []string{"a=b", "a=b; Path=/; Domain=test", "a=b;Path =/;path", ";;Domain=.x.preview.test;", "doze_a=1", "a=\"; Path=/\""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		for _, o := range []origin{{host: "x.preview.test"}, {host: "127.0.0.1", prefix: "/preview/x", shared: true}} {
			out, ok := o.cookie(line)
			if !ok {
				continue
			}
			parts := strings.Split(out, ";")
			domain, path := "", ""
			for _, part := range parts[1:] {
				name, value, _ := strings.Cut(part, "=")
				name, value = strings.Trim(name, " \t"), strings.Trim(value, " \t")
				switch strings.ToLower(name) {
				case "domain":
					domain = strings.ToLower(strings.TrimPrefix(value, "."))
				case "path":
					path = value
				}
			}
			if domain != "" && strings.HasSuffix(o.host, domain) && domain != o.host {
				t.Errorf("%q is for %s", out, domain)
			}
			if o.prefix != "" && !strings.HasPrefix(path, o.prefix+"/") {
				t.Errorf("%q is for the path %q", out, path)
			}
		}
	})
}

// TestPasswordsAreForOnePreview: a browser sends one again to whoever names its
// realm on the same origin.
func TestPasswordsAreForOnePreview(t *testing.T) {
	t.Parallel()
	o := origin{prefix: "/preview/x", shared: true, policy: apart}
	own := []string{`Basic realm="/preview/x", charset="UTF-8"`}
	for in, want := range map[string][]string{
		`Basic realm="all"`: own, `Bearer realm="x"`: {`Bearer realm="x"`}, `Bearer x="y", bASIC realm="all"`: own, "Digest realm=x": nil, "Negotiate": nil,
		"Bearer, Negotiate": nil,
	} {
		if diff := cmp.Diff(want, o.challenges([]string{in})); diff != "" {
			t.Errorf("%s: %s", in, diff)
		}
	}
}

// TestNobodyIsShownATenantsAnswer: on an origin that is ours, too, a browser gets
// nothing that it would show or run, and no sandbox is woken for that.
func TestNobodyIsShownATenantsAnswer(t *testing.T) {
	t.Parallel()
	const runs, shows, reads = "Service-Worker: script", "Sec-Fetch-Dest: document", "Sec-Fetch-Dest: empty"
	for _, tt := range []struct {
		place, header string
		status        int
	}{
		{"sandbox by path", "", 200},
		{"sandbox by path", reads, 200},
		{"sandbox by path", "Sec-Fetch-Dest: websocket", 200},
		{"sandbox by path", shows, 403},
		{"sandbox by path", runs, 403},
		{"sandbox by path", "Sec-Fetch-Dest: serviceworker", 403},
		{"sandbox by path", "Sec-Fetch-Dest: iframe", 403},
		{"sandbox by path", "Sec-Fetch-Dest: SCRIPT", 403},
		{"sandbox by path", "Sec-Fetch-Dest: new", 403},
		{"sandbox's port, path", shows, 403},
		{"sandbox by host", shows, 403},
		{"sandbox by host", runs, 403},
		{"sandbox's port", runs, 403},
		{"preview by path", shows, 200},
		{"preview by path", "Sec-Fetch-Dest: script", 200},
		{"preview by path", runs, 403},
		{"preview by path", "Sec-Fetch-Dest: serviceworker", 403},
		{"preview by host", shows, 200},
		{"preview by host", runs, 200},
	} {
		w := newWorld(t, echo)
		at := answerPlaces[tt.place]
		var header []string
		if name, value, ok := strings.Cut(tt.header, ": "); ok {
			header = []string{name, value}
		}
		resp := w.do(t, http.MethodGet, at.host, at.path, at.key, nil, header...)
		if resp.StatusCode != tt.status || (w.gate.wakes.Load() > 0) != (tt.status == 200) {
			t.Errorf("%s, %s: %d, %d wakes", tt.place, tt.header, resp.StatusCode, w.gate.wakes.Load())
		}
		if tt.status == http.StatusForbidden && platformError(t, resp)["code"] != forbidden {
			t.Errorf("%s, %s: %v", tt.place, tt.header, resp.Header)
		}
	}
}

// TestPreviewsByPathHaveTheirOwnListener: and nothing else is there.
func TestPreviewsByPathHaveTheirOwnListener(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echo)
	for _, tt := range []struct {
		second     bool
		host, path string
		status     int
		says       string
	}{
		{false, "doze.example.com:8443", "/preview/open/", 404, "use https://"},
		{false, "doze.example.com:8443", "/preview/open", 404, "use https://"},
		{false, "doze.example.com:8443", "/preview/none/x", 404, "use https://"},
		{false, "doze.example.com:8443", "/preview/", 404, "use https://"},
		{false, "doze.example.com:8443", "/preview", 404, "use https://"},
		{false, "127.0.0.1:80", "/preview/open/?bl_preview_token=x", 404, "use https://"},
		{false, "open" + previewDomain, "/preview/closed/", 200, ""}, // a path of its program
		{false, "www.preview.shop.example", "/preview/closed/", 200, ""},
		{true, "127.0.0.1:80", "/preview/open/", 200, ""},
		{true, "doze.example.com", "/preview/open/", 200, ""},
		{true, "open" + previewDomain, "/x", 200, ""},
		{true, "127.0.0.1:80", "/v0/sandboxes", 404, "only previews"},
		{true, "127.0.0.1:80", "/health", 404, "only previews"},
		{true, "127.0.0.1:80", "/run/acme/sandboxes/web/health", 404, "only previews"},
		{true, "127.0.0.1:80", "/", 404, "only previews"},
		{true, host, "/health", 404, "only previews"},
		{true, host, "/preview/open/", 404, "only previews"},
	} {
		w.gate.wakes.Store(0)
		addr := map[bool]string{true: w.second, false: w.addr}[tt.second]
		if r := (&http.Request{Host: tt.host, RequestURI: tt.path, URL: &url.URL{}}); !tt.second && !w.Matches(r) {
			t.Errorf("%s %s is somebody else's", tt.host, tt.path)
		}
		resp := w.doAt(t, addr, http.MethodGet, tt.host, tt.path, "acme", nil)
		b := text(t, resp)
		if resp.StatusCode != tt.status || !strings.Contains(b, tt.says) || (w.gate.wakes.Load() > 0) != (tt.status == 200) {
			t.Errorf("second %t, %s %s: %d, %d wakes: %s", tt.second, tt.host, tt.path, resp.StatusCode, w.gate.wakes.Load(), b)
		}
	}
}

// TestTheListenersOwnNameIsNoPreviews: also where it looks like one, by the
// domain of the platform or of a tenant.
func TestTheListenersOwnNameIsNoPreviews(t *testing.T) {
	t.Parallel()
	for _, own := range []string{"www.preview.shop.example", "open" + previewDomain} {
		a, err := NewAddresses([]string{"eu-1"}, "", "https://"+own)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, echo)
		e := New(Config{Addresses: a, Previews: w.previews, Directory: w.directory, Gate: w.gate, Authenticate: w.login})
		if e.Matches(&http.Request{Host: own, RequestURI: "/v0/sandboxes", URL: &url.URL{}}) {
			t.Errorf("%s is that of a preview", own)
		}
	}
}

// TestPreviewsHaveAnotherOrigin: an operator cannot choose ours for them.
func TestPreviewsHaveAnotherOrigin(t *testing.T) {
	t.Parallel()
	for public, cases := range map[string]map[string]bool{
		"https://doze.test":    {"https://doze.test": false, "https://DOZE.test:443/": false, "https://doze.test:8443": true, "http://doze.test:443": true, "https://previews.test": true, "doze.test": false, "https://doze.test:1/x": false},
		"http://127.0.0.1:80/": {"http://127.0.0.1": false, "http://127.0.0.1:81": true},
	} {
		a, err := NewAddresses([]string{"eu-1"}, "", public)
		if err != nil {
			t.Fatal(err)
		}
		for at, good := range cases {
			b, err := a.WithPreviews(at)
			if (err == nil) != good {
				t.Errorf("%s next to %s: %v", at, public, err)
			}
			if want := strings.TrimSuffix(at, "/") + "/preview/x"; good && b.PreviewURL("x") != want {
				t.Errorf("%s, want %s", b.PreviewURL("x"), want)
			}
		}
	}
}
