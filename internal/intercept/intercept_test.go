package intercept_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/intercept"
)

const (
	host   = "api.example.com"
	secret = "canary-7f3a9c51d2"
	// patience is what a busy machine may take for anything.
	patience = time.Minute
)

// world is a destination, and a sandbox whose connections are intercepted. All of
// it talks over TLS and the loopback device.
type world struct {
	t        *testing.T
	internet *intercept.Authorities // who signs for destinations
	own      *intercept.Authorities
	server   *httptest.Server
	address  string // where the sandbox believes the destination to be
	session  intercept.Session
	cancel   context.CancelFunc
}

// begin starts a world around a destination. Change may change the session, and
// the server before it starts.
func begin(t *testing.T, destination http.HandlerFunc, change func(*world)) *world {
	t.Helper()
	w := &world{t: t, internet: authorities(t, "internet"), own: authorities(t, "own")}
	ctx, cancel := context.WithCancel(t.Context())
	w.cancel = cancel
	w.server = httptest.NewUnstartedServer(destination)
	w.server.EnableHTTP2 = true
	w.server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	w.server.TLS = &tls.Config{Certificates: []tls.Certificate{*w.leaf(host)}}
	w.session = intercept.Session{
		Authority: "sandbox", To: doze.Address{Host: host, Port: 443},
		Dial: func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", w.server.Listener.Addr().String())
		},
		Decide: func() (*intercept.Injection, bool) { return nil, true },
	}
	if change != nil {
		change(w)
	}
	w.server.StartTLS()
	i := intercept.New(w.own, w.pool(w.internet))
	redirected, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.address = redirected.Addr().String()
	ended := make(chan error, 2)
	go func() { ended <- i.Run(ctx) }()
	go func() {
		var served sync.WaitGroup
		for {
			conn, err := redirected.Accept()
			if err != nil {
				served.Wait()
				ended <- nil
				return
			}
			served.Go(func() { _ = i.Serve(ctx, conn, w.session) })
		}
	}()
	t.Cleanup(func() {
		cancel()
		redirected.Close()
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		w.server.CloseClientConnections()
		w.server.Close()
	})
	return w
}

func authorities(t *testing.T, seed string) *intercept.Authorities {
	t.Helper()
	a, err := intercept.NewAuthorities([]byte(seed))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (w *world) leaf(host string) *tls.Certificate {
	w.t.Helper()
	leaf, err := w.internet.Leaf("sandbox", host, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	return leaf
}

func (w *world) pool(a *intercept.Authorities) *x509.CertPool {
	w.t.Helper()
	pem, err := a.Certificate("sandbox")
	if err != nil {
		w.t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return pool
}

// inject makes the rules of the session inject this.
func (w *world) inject(targets ...doze.ProxyTarget) {
	w.t.Helper()
	rules, err := intercept.Compile(targets, intercept.Defaults{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.session.Decide = func() (*intercept.Injection, bool) { return rules.For(w.session.To), true }
}

// bearer is a rule with a secret in a header and in the body.
func bearer() doze.ProxyTarget {
	return doze.ProxyTarget{
		Destinations: []string{"*.example.com"},
		Headers:      map[string]string{"authorization": "Bearer {{SECRET:key}}", "X-Trace": "{{FUNC:uuid}}"},
		Body:         map[string]string{"api_key": "{{SECRET:key}}"},
		Secrets:      doze.Hide(map[string]string{"key": secret}),
	}
}

// headersOnly is bearer, for bodies of all kinds.
func headersOnly() doze.ProxyTarget {
	t := bearer()
	t.Body = nil
	return t
}

// client is an HTTP client in the sandbox.
func (w *world) client(http2 bool) *http.Client {
	t := &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: w.pool(w.own)}, ForceAttemptHTTP2: http2,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", w.address)
		},
	}
	w.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: patience, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// do sends a request and returns the answer with all of its body.
func (w *world) do(c *http.Client, r *http.Request) (*http.Response, string) {
	w.t.Helper()
	resp, err := c.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp, string(body)
}

func (w *world) request(method, path, body string) *http.Request {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, "https://"+host+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	return r
}

// got is what a destination got.
type got struct {
	*http.Request
	body string
}

// record keeps what it got, and answers with all of it: the worst that a
// destination can do.
func record(into *atomic.Pointer[got]) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		into.Store(&got{r, string(body)})
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		w.Header().Set("Trailer", "X-Late")
		fmt.Fprintf(w, "%v %s", r.Header, body)
		w.Header().Set("X-Late", r.Header.Get("Authorization"))
	}
}

func TestInjection(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		guest, destination bool // speak HTTP/2
	}{
		"HTTP/1.1 to HTTP/1.1": {false, false}, "HTTP/1.1 to HTTP/2": {false, true},
		"HTTP/2 to HTTP/1.1": {true, false}, "HTTP/2 to HTTP/2": {true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var saw atomic.Pointer[got]
			w := begin(t, record(&saw), func(w *world) {
				w.server.EnableHTTP2 = tt.destination
				w.inject(bearer())
			})
			r := w.request(http.MethodPost, "/v1", `{"model":"x"}`)
			r.Header["AUTHORIZATION"] = []string{"guest 1"}
			r.Header["authorization"] = []string{"guest 2", "guest 3"}
			r.Header["x_trace"] = []string{"guest 4"}
			resp, body := w.do(w.client(tt.guest), r)
			sent := saw.Load()
			if resp.StatusCode != http.StatusOK || sent.ProtoAtLeast(2, 0) != tt.destination || resp.ProtoAtLeast(2, 0) != tt.guest {
				t.Fatalf("%s: %s by %s, sent by %s", resp.Status, body, resp.Proto, sent.Proto)
			}
			if d := cmp.Diff([]string{"Bearer " + secret}, sent.Header["Authorization"]); d != "" {
				t.Error(d)
			}
			if strings.Contains(fmt.Sprint(sent.Header), "guest") {
				t.Errorf("what the sandbox sent of the same name is there: %v", sent.Header)
			}
			if want := `{"api_key":"` + secret + `","model":"x"}`; sent.body != want || sent.ContentLength != int64(len(want)) {
				t.Errorf("the body is %s, of %d bytes", sent.body, sent.ContentLength)
			}
			if id := sent.Header.Get("X-Trace"); len(id) != 36 || resp.Header.Get("X-Blaxel-Func-X-Trace") != id {
				t.Errorf("the function returned %q, and the sandbox is told %q", id, resp.Header.Get("X-Blaxel-Func-X-Trace"))
			}
			if len(sent.Header.Get("X-Blaxel-Request-Id")) != 36 {
				t.Errorf("the request has the id %q", sent.Header.Get("X-Blaxel-Request-Id"))
			}
			if seen := fmt.Sprint(body, resp.Header, resp.Trailer); strings.Contains(seen, secret) || !strings.Contains(seen, "model") {
				t.Errorf("the sandbox sees %s", seen)
			}
		})
	}
}

// TestTrailers: what is set is in no trailer either, announced or not.
func TestTrailers(t *testing.T) {
	t.Parallel()
	for _, guest := range []bool{false, true} {
		for _, destination := range []bool{false, true} {
			t.Run(fmt.Sprintf("HTTP/2 %v to %v", guest, destination), func(t *testing.T) {
				t.Parallel()
				var saw atomic.Pointer[got]
				w := begin(t, record(&saw), func(w *world) {
					w.server.EnableHTTP2 = destination
					w.inject(headersOnly())
				})
				r := w.request(http.MethodPost, "/", "")
				r.Header.Del("Content-Type")
				r.Body, r.ContentLength = io.NopCloser(iotest.OneByteReader(strings.NewReader("content"))), -1
				r.Trailer = http.Header{"X-Trace": {"mine"}, "X_trace": {"mine"}, "X-Sum": {"sum"}}
				if !guest { // HTTP/2 has none with such names
					r.Trailer.Set("Authorization", "mine")
				}
				w.do(w.client(guest), r)
				if d := cmp.Diff(http.Header{"X-Sum": {"sum"}}, saw.Load().Trailer); d != "" {
					t.Errorf("the trailer: %s", d)
				}
			})
		}
	}
}

// TestEcho: of what functions returned the sandbox hears what was sent.
func TestEcho(t *testing.T) {
	t.Parallel()
	var saw atomic.Pointer[got]
	w := begin(t, record(&saw), func(w *world) {
		w.inject(doze.ProxyTarget{
			Destinations: []string{"*"}, Headers: map[string]string{"X-H": "{{FUNC:uuid}}"}, Body: map[string]string{"n": "{{FUNC:uuid}}"},
		})
	})
	for _, tt := range []struct {
		method, body string
		echoed       bool
	}{{http.MethodGet, "", false}, {http.MethodPost, `{}`, true}, {http.MethodPost, `{"n":1}`, false}, {http.MethodPost, ``, false}} {
		resp, _ := w.do(w.client(true), w.request(tt.method, "/", tt.body))
		n := resp.Header.Get("X-Blaxel-Func-N")
		if (n != "") != tt.echoed || !strings.Contains(saw.Load().body, n) || resp.Header.Get("X-Blaxel-Func-X-H") != saw.Load().Header.Get("X-H") {
			t.Errorf("%s %s: %v of %s", tt.method, tt.body, resp.Header, saw.Load().body)
		}
	}
}

func TestBodies(t *testing.T) {
	t.Parallel()
	const plain = `{"a":12345678901234567890}`
	with := `{"api_key":"` + secret + `","a":12345678901234567890}`
	for name, tt := range map[string]struct {
		body, contentType, encoding string
		chunked                     bool
		status                      int
		want                        string
	}{
		"an object":              {body: plain, want: with},
		"chunked":                {body: plain, chunked: true, want: with},
		"with gzip":              {body: gzipped(plain), encoding: "gzip", want: with},
		"twice":                  {body: gzipped(gzipped(plain)), encoding: "gzip, GZIP", want: with},
		"of another JSON":        {body: plain, contentType: "application/vnd.api+json; charset=utf-8", want: with},
		"an empty object":        {body: " { } ", want: `{"api_key":"` + secret + `" } `},
		"a member that is there": {body: `{"api_key":"mine"}`, want: `{"api_key":"mine"}`},
		"all is there, in gzip":  {body: gzipped(`{"api_key":1}`), encoding: "gzip", want: gzipped(`{"api_key":1}`)},
		"without a type":         {body: plain, contentType: "-", want: with},
		"an empty type":          {body: plain, contentType: "", want: with},
		"a broken type":          {body: plain, contentType: "application/json;;=", want: with},
		"a type that is a lie":   {body: plain, contentType: "multipart/form-data; boundary=a", want: with},
		"two types":              {body: plain, contentType: "text/plain\napplication/json", want: with},
		"JSON of another kind":   {body: plain, contentType: "text/json", want: with},
		"a form with JSON in it": {body: plain, contentType: "application/x-www-form-urlencoded", want: with},
		"nothing, chunked":       {chunked: true},
		"an array":               {body: `[1]`, status: http.StatusBadRequest},
		"an array with gzip":     {body: gzipped(`[1]`), encoding: "gzip", status: http.StatusBadRequest},
		"a string":               {body: `"{}"`, status: http.StatusBadRequest},
		"a form":                 {body: `a=b`, contentType: "application/x-www-form-urlencoded", status: http.StatusBadRequest},
		"another form":           {body: "--a\r\n\r\nb\r\n--a--", contentType: "multipart/form-data; boundary=a", status: http.StatusBadRequest},
		"text without a type":    {body: `a`, contentType: "-", status: http.StatusBadRequest},
		"spaces":                 {body: ` `, status: http.StatusBadRequest},
		"UTF-16":                 {body: "{\x00}\x00", contentType: "application/json; charset=utf-16le", status: http.StatusBadRequest},
		"with a mark":            {body: "\ufeff{}", status: http.StatusBadRequest},
		"gzip that is not said":  {body: gzipped(plain), status: http.StatusBadRequest},
		"encodings in two lines": {body: gzipped(plain), encoding: "gzip\nidentity", want: with},
		"nothing":                {},
		"broken JSON":            {body: `{"a":`, status: http.StatusBadRequest},
		"two objects":            {body: `{}{}`, status: http.StatusBadRequest},
		"broken gzip":            {body: plain, encoding: "gzip", status: http.StatusBadRequest},
		"cut gzip":               {body: gzipped(plain)[:20], encoding: "gzip", status: http.StatusBadRequest},
		"an unknown encoding":    {body: plain, encoding: "br", status: http.StatusBadRequest},
		"too large":              {body: `"` + strings.Repeat("a", 1<<20) + `"`, status: http.StatusRequestEntityTooLarge},
		"too large inside":       {body: gzipped(`"` + strings.Repeat("a", 1<<20) + `"`), encoding: "gzip", status: http.StatusRequestEntityTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var saw atomic.Pointer[got]
			w := begin(t, record(&saw), func(w *world) { w.inject(bearer()) })
			r := w.request(http.MethodPost, "/", tt.body)
			if tt.contentType != "" {
				r.Header["Content-Type"] = strings.Split(tt.contentType, "\n")
			}
			if tt.contentType == "-" {
				r.Header.Del("Content-Type")
			}
			if tt.encoding != "" {
				r.Header["Content-Encoding"] = strings.Split(tt.encoding, "\n")
			}
			if tt.chunked {
				r.Body, r.ContentLength = io.NopCloser(strings.NewReader(tt.body)), -1
			}
			resp, answer := w.do(w.client(true), r)
			if tt.status != 0 {
				if resp.StatusCode != tt.status || saw.Load() != nil {
					t.Errorf("%s: %s, and it was sent: %v", resp.Status, answer, saw.Load() != nil)
				}
				return
			}
			if resp.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s", resp.Status, answer)
			}
			if sent := saw.Load(); sent.body != tt.want || sent.ContentLength != int64(len(tt.want)) {
				t.Errorf("%q was sent, of %d bytes", sent.body, sent.ContentLength)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*http.Request)
		status int // 0: it is sent
	}{
		"as it should be":           {func(*http.Request) {}, 0},
		"the host in another form":  {func(r *http.Request) { r.Host = "API.Example.com." }, 0},
		"with the port":             {func(r *http.Request) { r.Host = host + ":443" }, 0},
		"another host":              {func(r *http.Request) { r.Host = "evil.example.com" }, http.StatusForbidden},
		"an address":                {func(r *http.Request) { r.Host = "169.254.169.254" }, http.StatusForbidden},
		"another port":              {func(r *http.Request) { r.Host = host + ":22" }, http.StatusForbidden},
		"TRACE":                     {func(r *http.Request) { r.Method = http.MethodTrace }, http.StatusNotImplemented},
		"a reference in a header":   {func(r *http.Request) { r.Header.Set("X-Key", "{{SECRET:key}}") }, 0},
		"a reference in the query":  {func(r *http.Request) { r.URL.RawQuery = url.Values{"key": {"{{SECRET:key}}"}}.Encode() }, 0},
		"a reference in the path":   {func(r *http.Request) { r.URL.Path = "/{{SECRET:key}}" }, 0},
		"a host that is forbidden":  {func(r *http.Request) { r.Header.Set("X-Test", "forbidden") }, http.StatusForbidden},
		"what is no reference ever": {func(r *http.Request) { r.Header.Set("X-Template", "{{name}}") }, 0},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, HTTP/2 %v", name, http2), func(t *testing.T) {
				t.Parallel()
				var saw atomic.Pointer[got]
				w := begin(t, record(&saw), func(w *world) {
					w.inject(bearer())
					if strings.Contains(name, "forbidden") {
						w.session.Decide = func() (*intercept.Injection, bool) { return nil, false }
					}
				})
				r := w.request(http.MethodGet, "/", "")
				tt.change(r)
				resp, body := w.do(w.client(http2), r)
				sent := saw.Load()
				if tt.status == 0 {
					if sent == nil || sent.Host != host || resp.StatusCode != http.StatusOK {
						t.Errorf("%s: %s, sent: %v", resp.Status, body, sent)
					}
					return
				}
				// The server of the standard library refuses some of it before us.
				if resp.StatusCode != tt.status && resp.StatusCode != http.StatusBadRequest || sent != nil {
					t.Errorf("%s: %s, and it was sent: %v", resp.Status, body, sent != nil)
				}
				if (resp.Header.Get("Proxy-Error") == "firewall_blocked") != (resp.StatusCode == http.StatusForbidden) {
					t.Errorf("the header says %q of %s", resp.Header.Get("Proxy-Error"), resp.Status)
				}
			})
		}
	}
}

// TestPaths sends paths byte for byte to the host that was decided.
func TestPaths(t *testing.T) {
	t.Parallel()
	var saw atomic.Pointer[got]
	w := begin(t, record(&saw), func(w *world) { w.inject(bearer()) })
	for line, want := range map[string]string{
		"/":                                      "/",
		"//evil.example/x":                       "//evil.example/x",
		"/a//b/../c":                             "/a//b/../c",
		"/%2fa%2Fb":                              "/%2fa%2Fb",
		`/\evil.example`:                         "/%5Cevil.example",
		`/a%2fb\`:                                "/a%2fb%5C",
		`/pub/..%2fadmin"x`:                      "/pub/..%2fadmin%22x",
		"/?a=1;b=2&c=%zz":                        "/?a=1;b=2&c=%zz",
		"https://" + host + "//evil.example/?x=": "//evil.example/?x=",
	} {
		conn := w.handshake("http/1.1")
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", line, host)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		resp.Body.Close()
		conn.Close()
		if sent := saw.Load(); resp.StatusCode != http.StatusOK || sent.RequestURI != want || sent.Host != host {
			t.Errorf("%s: %s, sent as %s to %s", line, resp.Status, sent.RequestURI, sent.Host)
		}
	}
	conn := w.handshake("http/1.1")
	defer conn.Close()
	fmt.Fprintf(conn, "GET https://evil.example.com/ HTTP/1.1\r\nHost: %s\r\n\r\n", host)
	if resp, err := http.ReadResponse(bufio.NewReader(conn), nil); err != nil || resp.StatusCode != http.StatusForbidden {
		t.Errorf("a request that names another host in its line: %v, %v", resp, err)
	}
}

// TestAnswersThatHide: a destination that sends the secret back, in a way that
// leaves nothing to search for, gets no answer through, or asked for the whole.
func TestAnswersThatHide(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		method string
		answer func(http.ResponseWriter, *http.Request)
		status int
	}{
		"compressed, without a body": {http.MethodHead, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
		}, http.StatusOK},
		"in parts, as asked for": {http.MethodGet, func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "key.txt", time.Time{}, strings.NewReader(r.Header.Get("Authorization")))
		}, http.StatusOK},
		"in parts, as it likes": {http.MethodGet, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-11/1000")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, r.Header.Get("Authorization")[:12])
		}, http.StatusServiceUnavailable},
		"as the name of a header": {http.MethodGet, func(w http.ResponseWriter, r *http.Request) {
			key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			w.Header().Set("Trailer", "X-"+key)
			w.Header().Set(key, "1")
			w.Header().Set("X-%63"+key[1:], "1")
			_, _ = io.WriteString(w, "body")
			w.Header().Set("X-"+key, "1")
		}, http.StatusOK},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, HTTP/2 %v", name, http2), func(t *testing.T) {
				t.Parallel()
				w := begin(t, tt.answer, func(w *world) {
					w.server.EnableHTTP2 = http2
					w.inject(bearer())
				})
				r := w.request(tt.method, "/", "")
				r.Header.Set("Range", "bytes=7-14")
				r.Header.Set("If-Range", `"x"`)
				resp, body := w.do(w.client(http2), r)
				if resp.StatusCode != tt.status {
					t.Errorf("%s: %s", resp.Status, body)
				}
				seen := strings.ToLower(fmt.Sprint(resp.Header, resp.Trailer, body))
				if strings.Contains(seen, secret[:8]) || strings.Contains(seen, secret[4:]) {
					t.Errorf("the sandbox sees %s", seen)
				}
			})
		}
	}
}

// TestReferences: what a sandbox refers to itself is resolved if the rule says so, and
// else is sent as it is.
func TestReferences(t *testing.T) {
	t.Parallel()
	const odd = "a\"/&+ ü" // that everything escapes
	yes := true
	all := map[string]string{"key": secret, "odd": odd, "pem": "a\nb"}
	resolving := doze.ProxyTarget{Destinations: []string{"*.example.com/v1", "api.example.com/bot"}, Secrets: doze.Hide(all), GuestReferences: &yes}
	withMembers := resolving
	withMembers.Body = map[string]string{"n": "{{SECRET:odd}}"}
	silent := headersOnly()
	silent.Secrets = doze.Hide(all)
	long := `{"a":"` + strings.Repeat("a", 1<<20) + `","k":"{{SECRET:key}}"}`
	type sent struct{ target, header, body string }
	for name, tt := range map[string]struct {
		rule                  doze.ProxyTarget
		encoding, contentType string
		chunked               bool
		is, becomes           sent
		status                int
	}{
		"verbatim": {
			rule: silent, is: sent{"/v1/{{SECRET:key}}?k={{SECRET:key}}&l=%7B%7BSECRET%3Akey%7D%7D", "{{SECRET:key}}", `{"k":"{{SECRET:key}}"}`},
			becomes: sent{"/v1/%7B%7BSECRET:key%7D%7D?k={{SECRET:key}}&l=%7B%7BSECRET%3Akey%7D%7D", "{{SECRET:key}}", `{"k":"{{SECRET:key}}"}`},
		},
		"resolved": {
			rule: resolving, is: sent{"/bot/%7B%7BSECRET:odd%7D%7D/send?k={{SECRET:odd}}&l=%7b%7BSECRET%3akey%7d%7D", "Bearer {{SECRET:key}}, {{SECRET:odd}}", `{"k":"{{SECRET:odd}}","l":"?{{SECRET:key}}"}`},
			becomes: sent{"/bot/a%22%2F&+%20%C3%BC/send?k=a%22%2F%26%2B+%C3%BC&l=" + secret, "Bearer " + secret + ", " + odd, `{"k":"a\"/\u0026+ ü","l":"?` + secret + `"}`},
		},
		"another path":      {rule: resolving, is: sent{"/v2?{{SECRET:key}}", "{{SECRET:key}}", `{{SECRET:key}}`}, becomes: sent{"/v2?{{SECRET:key}}", "{{SECRET:key}}", `{{SECRET:key}}`}},
		"an unknown secret": {rule: resolving, is: sent{"/v1", "{{SECRET:other}}", `{{SECRET:other}}`}, becomes: sent{"/v1", "{{SECRET:other}}", `{{SECRET:other}}`}},
		"a form": {
			rule: resolving, contentType: "application/x-www-form-urlencoded; charset=utf-8",
			is: sent{"/v1", "", "a={{SECRET:odd}}&b=%7B%7BSECRET%3Aodd%7D%7D"}, becomes: sent{"/v1", "", "a=a%22%2F%26%2B+%C3%BC&b=a%22%2F%26%2B+%C3%BC"},
		},
		"text":              {rule: resolving, contentType: "text/xml", is: sent{"/v1", "", "<a>{{SECRET:odd}}</a>"}, becomes: sent{"/v1", "", "<a>" + odd + "</a>"}},
		"compressed":        {rule: resolving, encoding: "gzip", is: sent{"/v1", "", gzipped(`{"k":"{{SECRET:key}}"}`)}, becomes: sent{"/v1", "", `{"k":"` + secret + `"}`}},
		"compressed, none":  {rule: resolving, encoding: "gzip", is: sent{"/v1", "", gzipped(`{}`)}, becomes: sent{"/v1", "", gzipped(`{}`)}},
		"no such encoding":  {rule: resolving, encoding: "br", is: sent{"/v1", "", `{{SECRET:key}}`}, becomes: sent{"/v1", "", `{{SECRET:key}}`}},
		"members":           {rule: withMembers, is: sent{"/v1", "", `{"k":"{{SECRET:key}}"}`}, becomes: sent{"/v1", "", `{"n":"a\"/\u0026+ ü","k":"` + secret + `"}`}},
		"long":              {rule: resolving, is: sent{"/v1", "", long}, becomes: sent{"/v1", "", long}},
		"of unknown length": {rule: resolving, chunked: true, is: sent{"/v1", "", `{{SECRET:key}}`}, becomes: sent{"/v1", "", `{{SECRET:key}}`}},
		"two lines":         {rule: resolving, is: sent{"/v1", "{{SECRET:pem}}", ""}, status: http.StatusBadRequest},
	} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, HTTP/2 %v", name, http2), func(t *testing.T) {
				t.Parallel()
				var saw atomic.Pointer[got]
				w := begin(t, record(&saw), func(w *world) {
					w.server.EnableHTTP2 = http2
					w.inject(tt.rule)
				})
				r := w.request(http.MethodPost, tt.is.target, tt.is.body)
				r.Header.Set("X-Key", tt.is.header)
				if tt.encoding != "" {
					r.Header.Set("Content-Encoding", tt.encoding)
				}
				if tt.contentType != "" {
					r.Header.Set("Content-Type", tt.contentType)
				}
				if tt.chunked {
					r.Body, r.ContentLength = io.NopCloser(strings.NewReader(tt.is.body)), -1
				}
				resp, answer := w.do(w.client(http2), r)
				if tt.status != 0 {
					if resp.StatusCode != tt.status || saw.Load() != nil || !strings.Contains(answer, "line breaks") {
						t.Errorf("%s: %s", resp.Status, answer)
					}
					return
				}
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("%s: %s", resp.Status, answer)
				}
				it := saw.Load()
				if d := cmp.Diff(tt.becomes, sent{it.RequestURI, it.Header.Get("X-Key"), it.body}, cmp.AllowUnexported(sent{})); d != "" {
					t.Error(d)
				}
				if seen := fmt.Sprint(answer, resp.Header, resp.Trailer); strings.Contains(seen, secret) {
					t.Errorf("the sandbox sees %s", seen)
				}
			})
		}
	}
}

// TestUnmasked: answers have the secret, and are asked for as the sandbox does, if the
// rule or the platform says so. No error or log line has it in any case.
func TestUnmasked(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	for name, tt := range map[string]struct {
		option   *bool
		defaults intercept.Defaults
		masked   bool
	}{
		"the default":        {nil, intercept.Defaults{}, true},
		"of the platform":    {nil, intercept.Defaults{Unmasked: true}, false},
		"the rule masks":     {&yes, intercept.Defaults{Unmasked: true}, true},
		"the rule does not":  {&no, intercept.Defaults{}, false},
		"both say the same":  {&no, intercept.Defaults{Unmasked: true}, false},
		"both say the other": {&yes, intercept.Defaults{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begin(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Asked", r.Header.Get("Accept-Encoding")+" "+r.Header.Get("Range"))
				if r.URL.Path == "/part" {
					w.WriteHeader(http.StatusPartialContent)
				}
				_, _ = io.WriteString(w, r.Header.Get("Authorization"))
			}, func(w *world) {
				rule := headersOnly()
				rule.MaskResponses = tt.option
				rules, err := intercept.Compile([]doze.ProxyTarget{rule}, tt.defaults)
				if err != nil {
					t.Fatal(err)
				}
				w.session.Decide = func() (*intercept.Injection, bool) { return rules.For(w.session.To), true }
			})
			r := w.request(http.MethodGet, "/part", "")
			r.Header.Set("Accept-Encoding", "br")
			r.Header.Set("Range", "bytes=0-9")
			resp, body := w.do(w.client(true), r)
			want, asked := "Bearer "+secret, "br bytes=0-9"
			if tt.masked {
				asked = ""
				if resp.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("a part is %s", resp.Status)
				}
				want = "Bearer " + strings.Repeat("*", len(secret))
				resp, body = w.do(w.client(true), w.request(http.MethodGet, "/", ""))
			}
			if body != want || asked != "" && resp.Header.Get("X-Asked") != asked {
				t.Errorf("%q, asked for %q", body, resp.Header.Get("X-Asked"))
			}
		})
	}
}

// TestMaskedEverywhere: a secret is masked in the answer to a request that did not
// get it: the destination may have it from another one.
func TestMaskedEverywhere(t *testing.T) {
	t.Parallel()
	var learned atomic.Pointer[string]
	w := begin(t, func(w http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("Authorization"); key != "" {
			learned.Store(&key)
			return
		}
		_, _ = io.WriteString(w, *learned.Load())
	}, func(w *world) {
		rule := headersOnly()
		rule.Destinations = []string{"POST:api.example.com/login"}
		w.inject(rule)
	})
	w.do(w.client(true), w.request(http.MethodPost, "/login", ""))
	if _, body := w.do(w.client(true), w.request(http.MethodGet, "/", "")); body != "Bearer "+strings.Repeat("*", len(secret)) {
		t.Errorf("the sandbox sees %q", body)
	}
}

// TestScope: only requests that a destination covers are changed. No odd spelling of a
// path makes it more.
func TestScope(t *testing.T) {
	t.Parallel()
	for request, injected := range map[string]bool{
		"GET /v1": true, "GET /v1/a%2Fb?c": true, "POST /v1": false, "GET /": false, "GET /v10": false, "GET /v1/admin": false,
		"GET /v1/Admin/": false, "GET /v1/%61dmin": false, "GET /v1//admin": false, "GET /v1/a/../b": false, "GET /v1/%2e%2e/v1": false,
		"GET /v1;a": false, "GET //v1": false, "GET /%76%31": true, "GET /v1\\..\\admin": false,
	} {
		for _, http2 := range []bool{false, true} {
			if http2 && strings.Contains(request, " //") {
				continue // the client sends none
			}
			t.Run(fmt.Sprintf("%s, HTTP/2 %v", request, http2), func(t *testing.T) {
				t.Parallel()
				var saw atomic.Pointer[got]
				w := begin(t, record(&saw), func(w *world) {
					rule := headersOnly()
					rule.Destinations = []string{"GET,HEAD:https://*.example.com/v1", "!*.example.com/v1/admin", "!other.example.com"}
					w.inject(rule)
				})
				method, target, _ := strings.Cut(request, " ")
				r := w.request(method, "/", "")
				path, query, _ := strings.Cut(target, "?")
				r.URL.Opaque, r.URL.RawQuery = "//"+host+path, query // as it is
				if http2 {
					r.URL.Opaque = path // which is what :path becomes
				}
				resp, body := w.do(w.client(http2), r)
				if resp.StatusCode != http.StatusOK {
					t.Fatalf("%s: %s", resp.Status, body)
				}
				if got := saw.Load().Header.Get("Authorization"); (got != "") != injected {
					t.Errorf("%s got %q", saw.Load().RequestURI, got)
				}
			})
		}
	}
}

// TestInClear: a request in clear gets what one over TLS gets, from a rule without
// secrets or one that names http.
func TestInClear(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*doze.ProxyTarget)
		want   string // the header; empty is none
		masked bool
	}{
		"a secret":         {func(*doze.ProxyTarget) {}, "", false},
		"a secret by http": {func(r *doze.ProxyTarget) { r.Destinations = []string{"http://*.example.com"} }, "Bearer " + secret, true},
		"http and a path":  {func(r *doze.ProxyTarget) { r.Destinations = []string{"http://api.example.com/v1"} }, "Bearer " + secret, true},
		"https":            {func(r *doze.ProxyTarget) { r.Destinations = []string{"https://api.example.com"} }, "", false},
		"no secret": {func(r *doze.ProxyTarget) {
			r.Headers = map[string]string{"Authorization": "public"}
			r.Body, r.Secrets = map[string]string{"n": "1"}, doze.WriteOnly[map[string]string]{}
		}, "public", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rule := bearer()
			tt.change(&rule)
			rules, err := intercept.Compile([]doze.ProxyTarget{rule}, intercept.Defaults{})
			if err != nil {
				t.Fatal(err)
			}
			var saw atomic.Pointer[got]
			destination := httptest.NewServer(record(&saw))
			defer destination.Close()
			by := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				if address != host+":80" {
					t.Errorf("it dials %s", address)
				}
				return new(net.Dialer).DialContext(ctx, network, destination.Listener.Addr().String())
			}}
			defer by.CloseIdleConnections()
			to := doze.Address{Host: host, Port: 80, Plain: true}
			session := intercept.Session{To: to, Decide: func() (*intercept.Injection, bool) { return rules.For(to), true }}
			w := httptest.NewRecorder()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+host+"/v1/x", strings.NewReader(`{"a":1}`))
			intercept.Serve(w, r, session, by)
			if w.Code != http.StatusOK || saw.Load().Header.Get("Authorization") != tt.want || saw.Load().Host != host {
				t.Errorf("%d, and the header is %q", w.Code, saw.Load().Header.Get("Authorization"))
			}
			members := `{"api_key":"` + secret + `","a":1}`
			switch tt.want {
			case "":
				members = `{"a":1}`
			case "public":
				members = `{"n":"1","a":1}`
			}
			if saw.Load().body != members {
				t.Errorf("the body is %s", saw.Load().body)
			}
			if strings.Contains(fmt.Sprint(w.Body, w.Header()), secret) {
				t.Errorf("the sandbox sees %s", w.Body)
			}
		})
	}
}

// TestNotSentInClear: the sender of a request in clear learns why it was not sent.
func TestNotSentInClear(t *testing.T) {
	t.Parallel()
	to := doze.Address{Host: host, Port: 80, Plain: true}
	for name, tt := range map[string]struct {
		err    error
		status int
	}{
		"not allowed": {doze.Errorf(doze.Forbidden, "that is a private address"), http.StatusForbidden},
		"not reached": {io.ErrUnexpectedEOF, http.StatusServiceUnavailable},
	} {
		session := intercept.Session{To: to, Decide: func() (*intercept.Injection, bool) { return nil, true }}
		w := httptest.NewRecorder()
		intercept.Serve(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+"/", http.NoBody), session, failing{tt.err})
		if w.Code != tt.status {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

// failing sends nothing.
type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

// handshake connects from the sandbox.
func (w *world) handshake(protocols ...string) *tls.Conn {
	w.t.Helper()
	d := tls.Dialer{Config: &tls.Config{RootCAs: w.pool(w.own), ServerName: host, NextProtos: protocols}}
	conn, err := d.DialContext(w.t.Context(), "tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn.(*tls.Conn)
}

func TestHandshakeForAnotherHost(t *testing.T) {
	t.Parallel()
	w := begin(t, http.NotFound, nil)
	w.handshake().Close()
	for _, name := range []string{"evil.example.com", ""} {
		config := &tls.Config{InsecureSkipVerify: true, ServerName: name}
		conn, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", w.address)
		if err == nil {
			conn.Close()
			t.Errorf("a handshake for %q works", name)
		}
	}
}

func TestDestinationMustProveItself(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*world){
		"another name":      func(w *world) { w.server.TLS.Certificates[0] = *w.leaf("evil.example.com") },
		"another authority": func(w *world) { w.internet = authorities(t, "nobody") },
		"our own authority": func(w *world) {
			w.internet = authorities(t, "own")
			w.server.TLS.Certificates[0] = *w.leaf(host)
			w.internet = authorities(t, "internet")
		},
		"expired": func(w *world) {
			leaf, err := authorities(t, "internet").Leaf("sandbox", host, time.Now().Add(-365*24*time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			w.server.TLS.Certificates[0] = *leaf
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var saw atomic.Pointer[got]
			w := begin(t, record(&saw), func(w *world) {
				w.inject(bearer())
				change(w)
			})
			resp, body := w.do(w.client(true), w.request(http.MethodGet, "/", ""))
			if resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, "certificate") || saw.Load() != nil {
				t.Errorf("%s: %s, and it was sent: %v", resp.Status, body, saw.Load() != nil)
			}
		})
	}
}

// TestDialSaysNo: the error of who dials is what the sandbox gets.
func TestDialSaysNo(t *testing.T) {
	t.Parallel()
	w := begin(t, http.NotFound, func(w *world) {
		w.session.Dial = func(context.Context) (net.Conn, error) {
			return nil, doze.Errorf(doze.Forbidden, "that is a private address")
		}
	})
	resp, body := w.do(w.client(false), w.request(http.MethodGet, "/", ""))
	if resp.StatusCode != http.StatusForbidden || resp.Header.Get("Proxy-Error") == "" || !strings.Contains(body, "private") {
		t.Errorf("%s: %s", resp.Status, body)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	w := begin(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Redirect(w, r, "https://evil.example.com/?k="+r.Header.Get("Authorization"), http.StatusFound)
	}, func(w *world) { w.inject(bearer()) })
	resp, _ := w.do(w.client(true), w.request(http.MethodGet, "/", ""))
	where := resp.Header.Get("Location")
	if resp.StatusCode != http.StatusFound || asked.Load() != 1 || strings.Contains(where, secret) || !strings.Contains(where, "evil.example.com") {
		t.Errorf("%s to %s after %d requests", resp.Status, where, asked.Load())
	}
}

// TestStreams: what either side sends arrives before the other one answers.
func TestStreams(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("HTTP/2 %v", http2), func(t *testing.T) {
			t.Parallel()
			w := begin(t, func(w http.ResponseWriter, r *http.Request) {
				control := http.NewResponseController(w)
				_ = control.EnableFullDuplex()
				w.Header().Set("Link", r.Header.Get("Authorization"))
				w.WriteHeader(http.StatusEarlyHints)
				w.Header().Set("Trailer", "X-Sum")
				in := bufio.NewReader(r.Body)
				for {
					line, err := in.ReadString('\n')
					if err != nil {
						break
					}
					_, _ = io.WriteString(w, "echo "+line)
					_ = control.Flush()
				}
				w.Header().Set("X-Sum", r.Trailer.Get("X-Mine"))
			}, func(w *world) {
				w.server.EnableHTTP2 = http2
				w.inject(headersOnly())
			})
			body, input := io.Pipe()
			r := w.request(http.MethodPost, "/", "")
			r.Body, r.ContentLength = body, -1
			r.Trailer = http.Header{"X-Mine": nil}
			hints := make(chan string, 1)
			r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
					hints <- fmt.Sprint(code, h)
					return nil
				},
			}))
			go func() { _, _ = io.WriteString(input, "0\n") }()
			resp, err := w.client(http2).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if hint := <-hints; !strings.HasPrefix(hint, "103") || strings.Contains(hint, secret) || !strings.Contains(hint, "Bearer") {
				t.Errorf("the hint is %s", hint)
			}
			out := bufio.NewReader(resp.Body)
			for n := range 3 {
				if line, err := out.ReadString('\n'); line != fmt.Sprintf("echo %d\n", n) {
					t.Fatalf("%q, %v", line, err)
				}
				fmt.Fprintf(input, "%d\n", n+1)
			}
			r.Trailer.Set("X-Mine", "sum")
			input.Close()
			if _, err := io.Copy(io.Discard, out); err != nil || resp.Trailer.Get("X-Sum") != "sum" {
				t.Errorf("the trailer is %v, %v", resp.Trailer, err)
			}
		})
	}
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	w := begin(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" || r.Header.Get("Authorization") != "Bearer "+secret {
			http.NotFound(w, r)
			return
		}
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		_, _ = io.Copy(conn, rw)
	}, func(w *world) { w.inject(bearer()) })
	conn := w.handshake("http/1.1")
	defer conn.Close()
	fmt.Fprintf(conn, "GET /socket HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", host)
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp, err)
	}
	for _, line := range []string{"one\n", "two\n"} {
		_, _ = io.WriteString(conn, line)
		if back, err := in.ReadString('\n'); back != line {
			t.Fatalf("%q, %v", back, err)
		}
	}
	w.cancel()
	if _, err := in.ReadByte(); err == nil {
		t.Error("the socket outlives its session")
	}
}

// TestUpgrades: no protocol that an answer changes to brings a secret back.
func TestUpgrades(t *testing.T) {
	t.Parallel()
	frame := func(head, text string) string { return head + string(rune(len(text))) + text }
	long := strings.Repeat("x", 200) + secret
	for name, tt := range map[string]struct {
		asked, got string // protocols
		sent, want string // the answer, and what the sandbox sees of it
	}{
		"a WebSocket": {
			"websocket", "websocket",
			frame("\x81", "it is "+secret) + frame("\x81", secret[:4]) + "\x81\x7e\x00" + string([]byte{byte(len(long))}) + long + "\x81\x7f\x00\x00\x00\x00\x00\x00\x00\x02ok" + "\x88\x00",
			frame("\x81", "it is "+strings.Repeat("*", len(secret))) + frame("\x81", secret[:4]) + "\x81\x7e\x00" + string([]byte{byte(len(long))}) + strings.Repeat("x", 200) + strings.Repeat("*", len(secret)) + "\x81\x7f\x00\x00\x00\x00\x00\x00\x00\x02ok" + "\x88\x00",
		},
		"what is none":       {"websocket", "websocket", "raw " + secret, "raw " + strings.Repeat("*", len(secret))},
		"masked":             {"websocket", "websocket", frame("\x81\x80"[:1], "ok") + "\x81\x92\x00\x00\x00\x00" + secret, frame("\x81", "ok")},
		"something else":     {"foo", "", "", "404"},
		"not asked for":      {"foo", "foo", "raw " + secret, "503"},
		"another one":        {"websocket", "foo", "raw " + secret, "503"},
		"frames of its kind": {"websocket", "websocket\r\nSec-WebSocket-Extensions: permessage-deflate", "", "503"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := begin(t, func(w http.ResponseWriter, r *http.Request) {
				if got := r.Header.Get("Upgrade"); tt.asked != "websocket" && got != "" || r.Header.Get("Sec-Websocket-Extensions") != "" {
					t.Errorf("it is asked for %q, %v", got, r.Header)
				}
				if tt.got == "" {
					http.NotFound(w, r)
					return
				}
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+tt.got+"\r\n\r\n"+tt.sent)
			}, func(w *world) {
				w.server.EnableHTTP2 = false
				w.inject(bearer())
			})
			conn := w.handshake("http/1.1")
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			fmt.Fprintf(conn, "GET /socket HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: %s\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n", host, tt.asked)
			in := bufio.NewReader(conn)
			resp, err := http.ReadResponse(in, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			got := strconv.Itoa(resp.StatusCode)
			if resp.StatusCode == http.StatusSwitchingProtocols {
				b, _ := io.ReadAll(in)
				got = string(b)
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestSessionEnds closes both connections of a session in the midst of an answer.
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	gone := make(chan struct{})
	w := begin(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "begun\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		close(gone)
	}, nil)
	resp, err := w.client(true).Do(w.request(http.MethodGet, "/", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	if line, err := in.ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	w.cancel()
	if rest, err := io.ReadAll(in); err == nil {
		t.Errorf("the answer ended well, with %q", rest)
	}
	select {
	case <-gone:
	case <-time.After(patience):
		t.Error("the destination goes on")
	}
}

// TestRulesChange: the next request of a connection has the rules of now.
func TestRulesChange(t *testing.T) {
	t.Parallel()
	var saw atomic.Pointer[got]
	var rules atomic.Pointer[intercept.Rules]
	w := begin(t, record(&saw), func(w *world) {
		w.session.Decide = func() (*intercept.Injection, bool) { return rules.Load().For(w.session.To), true }
	})
	c := w.client(true)
	for _, key := range []string{"first-secret", "second-secret", ""} {
		var targets []doze.ProxyTarget
		want := "guest"
		if key != "" {
			rule := bearer()
			rule.Secrets = doze.Hide(map[string]string{"key": key})
			targets, want = append(targets, rule), "Bearer "+key
		}
		compiled, err := intercept.Compile(targets, intercept.Defaults{})
		if err != nil {
			t.Fatal(err)
		}
		rules.Store(&compiled)
		r := w.request(http.MethodGet, "/", "")
		r.Header.Set("Authorization", "guest")
		w.do(c, r)
		if sent := saw.Load().Header.Get("Authorization"); sent != want {
			t.Errorf("with the secret %q, %q was sent", key, sent)
		}
	}
}

// TestNothingIsLogged searches all that is logged for secrets; it is not
// parallel, for there is one log.
func TestNothingIsLogged(t *testing.T) {
	was := slog.Default()
	var log bytes.Buffer
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer slog.SetDefault(was)
	for name, answer := range map[string]string{
		"nonsense": "HTTP/1.1 nonsense %s\r\n\r\n",
		"status":   "HTTP/1.1 %s\r\n\r\n",
		"no HTTP":  "%s\r\n\r\n",
		"header":   "HTTP/1.1 200 OK\r\n%s\r\n\r\n",
		"trailer":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n0\r\n%s\r\n\r\n",
		"length":   "HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			w := begin(t, func(w http.ResponseWriter, r *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err == nil {
					_, _ = fmt.Fprintf(conn, answer, r.Header.Get("Authorization"))
					conn.Close()
				}
			}, func(w *world) {
				w.server.EnableHTTP2 = false
				w.inject(bearer())
			})
			resp, err := w.client(false).Do(w.request(http.MethodGet, "/", ""))
			if err != nil {
				return // it is broken off
			}
			defer resp.Body.Close()
			if body, _ := io.ReadAll(resp.Body); strings.Contains(fmt.Sprint(resp.Header, string(body)), secret) {
				t.Errorf("%s: %s", resp.Status, body)
			}
		})
	}
	if !strings.Contains(log.String(), "could not be sent on") {
		t.Errorf("the failure is not in the log: %s", log.String())
	}
	if strings.Contains(log.String(), secret) {
		t.Errorf("the log has the secret: %s", log.String())
	}
}
