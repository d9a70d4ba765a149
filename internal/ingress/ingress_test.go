package ingress_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
	"github.com/dozehq/doze/internal/ingress"
)

// api answers as the control API does: 401 without a key, before it looks at the
// body; with one, what the body has.
func api(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") == "" {
		httpx.WriteError(w, r, doze.Errorf(doze.Unauthenticated, "send a key"))
		return
	}
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		httpx.WriteError(w, r, err)
		return
	}
	httpx.WriteJSON(w, http.StatusOK, n)
}

// server is one that is wired as in dozed.
type server struct {
	*ingress.Ingress

	at     string // port
	client *http.Client
}

// start serves h.
func start(t *testing.T, l ingress.Limits, h http.HandlerFunc, secure bool) *server {
	t.Helper()
	in, err := ingress.New(l)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(raw.Addr().String())
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &server{Ingress: in, at: port, client: &http.Client{}}
	var config *tls.Config
	if secure {
		protocols.SetHTTP2(true)
		cert := httptest.NewUnstartedServer(nil)
		cert.StartTLS()
		config = &tls.Config{Certificates: cert.TLS.Certificates, MinVersion: tls.VersionTLS12}
		cert.Close()
	}
	hs := &http.Server{Handler: h, Protocols: &protocols, TLSConfig: config}
	in.Configure(hs)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = hs.Serve(in.Listen(raw, config, nil))
	}()
	t.Cleanup(func() {
		_ = hs.Close()
		<-ended
		s.client.CloseIdleConnections()
	})
	return s
}

// dial connects from a loopback address: each is a source of its own.
func (s *server) dial(t *testing.T, from string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 10 * time.Second}
	c, err := d.DialContext(t.Context(), "tcp", "127.0.0.1:"+s.at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// answer reads one answer of HTTP/1, which must come soon.
func answer(t *testing.T, c net.Conn) *http.Response {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// transports are the protocols that dozed speaks.
var transports = map[string]struct{ secure, two bool }{
	"HTTP/1": {}, "HTTP/2": {two: true}, "HTTP/1 in TLS": {secure: true}, "HTTP/2 in TLS": {true, true},
}

// by is a client of s, and the beginning of its addresses.
func (s *server) by(secure, two bool) (*http.Client, string) {
	var protocols http.Protocols
	protocols.SetHTTP1(!two)
	protocols.SetHTTP2(two && secure)
	protocols.SetUnencryptedHTTP2(two && !secure)
	tr := &http.Transport{
		Protocols: &protocols, ExpectContinueTimeout: time.Minute,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	s.client.Transport = tr
	scheme := "http"
	if secure {
		scheme = "https"
	}
	return s.client, scheme + "://127.0.0.1:" + s.at
}

// TestEarlyAnswer: a client that is refused is told so before it has sent the
// body, and can use the connection on when it sends it then.
func TestEarlyAnswer(t *testing.T) {
	for name, transport := range transports {
		for kind, expect := range map[string]string{"": "", ", 100-continue": "100-continue"} {
			t.Run(name+kind, func(t *testing.T) {
				s := start(t, ingress.Limits{BodyIdle: time.Hour}, api, transport.secure)
				client, base := s.by(transport.secure, transport.two)
				for length, n := range map[string]int64{"short": 10, "long": 1 << 30, "unknown": -1} {
					body, w := io.Pipe() // nothing comes
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/x", body)
					if err != nil {
						t.Fatal(err)
					}
					r.ContentLength = n
					if expect != "" {
						r.Header.Set("Expect", expect)
					}
					resp, err := client.Do(r)
					if err != nil {
						t.Errorf("%s body: %v", length, err)
					} else if resp.StatusCode != http.StatusUnauthorized {
						t.Errorf("%s body: %s", length, resp.Status)
					}
					if resp != nil {
						_ = resp.Body.Close()
					}
					_ = w.Close()
					cancel()
				}
			})
		}
	}
}

// TestConnectionIsReused: a small body that comes after the refusal does not cost
// the connection, and what is no longer awaited does.
func TestConnectionIsReused(t *testing.T) {
	s := start(t, ingress.Limits{}, api, false)
	c := s.dial(t, "127.0.0.1")
	in := bufio.NewReader(c)
	for range 3 {
		if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != http.StatusUnauthorized {
			t.Fatalf("%+v, %v", resp, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if _, err := io.WriteString(c, "12345"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, in); err != nil {
		t.Errorf("the connection stays although the body does not come: %v", err)
	}
}

// TestBodyIdle: a body may take as long as it likes, if it does not pause for
// longer than the idle time.
func TestBodyIdle(t *testing.T) {
	const idle = 500 * time.Millisecond
	for name, transport := range transports {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, ingress.Limits{BodyIdle: idle}, api, transport.secure)
			client, base := s.by(transport.secure, transport.two)
			for kind, steady := range map[string]bool{"steady": true, "stopped": false} {
				body, w := io.Pipe()
				go func() {
					for range 20 { // twice the idle time, at least
						_, _ = w.Write([]byte("x"))
						time.Sleep(idle / 8)
					}
					if steady {
						_ = w.Close()
					}
				}()
				defer w.Close()
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base, body)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "key")
				resp, err := client.Do(r)
				got := ""
				if err == nil {
					text, _ := io.ReadAll(resp.Body)
					_ = resp.Body.Close()
					got = resp.Status + " " + string(text)
				}
				if steady && got != "200 OK 20\n" {
					t.Errorf("%s: %s, %v", kind, got, err)
				}
				if !steady && !strings.Contains(got, "the body stalled for 500ms") {
					t.Errorf("%s: %s, %v", kind, got, err)
				}
			}
			if n := s.Counts().Requests["body_idle"]; n != 1 {
				t.Errorf("%d bodies are counted as idle, want 1", n)
			}
		})
	}
}

// TestBlockedWrite: a client that takes nothing of an answer loses it; one that
// waits for a quiet answer does not.
func TestBlockedWrite(t *testing.T) {
	const stall = 300 * time.Millisecond
	for name, transport := range transports {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan error, 1)
			s := start(t, ingress.Limits{WriteStall: stall}, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/quiet" {
					for range 3 {
						_, _ = io.WriteString(w, "event\n")
						_ = http.NewResponseController(w).Flush()
						time.Sleep(2 * stall)
					}
					return
				}
				var err error
				for range 1 << 10 {
					if _, err = w.Write(make([]byte, 1<<20)); err != nil {
						break
					}
				}
				ended <- err
			}, transport.secure)
			client, base := s.by(transport.secure, transport.two)
			get := func(path string) *http.Response {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				resp, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				return resp
			}
			quiet := get("/quiet")
			defer quiet.Body.Close()
			if text, err := io.ReadAll(quiet.Body); err != nil || string(text) != strings.Repeat("event\n", 3) {
				t.Errorf("%q, %v", text, err)
			}
			loud := get("/loud")
			defer loud.Body.Close()
			select {
			case err := <-ended:
				if err == nil {
					t.Error("a gigabyte went to nobody")
				}
			case <-time.After(20 * time.Second):
				t.Error("the answer still waits for its reader")
			}
		})
	}
}

// TestHeaders: a header is refused for its size and for its fields, by each
// protocol, and the client can read why.
func TestHeaders(t *testing.T) {
	for name, transport := range transports {
		t.Run(name, func(t *testing.T) {
			s := start(t, ingress.Limits{}, func(http.ResponseWriter, *http.Request) {}, transport.secure)
			client, base := s.by(transport.secure, transport.two)
			for what, tt := range map[string]struct {
				fields, size int
				status       int
			}{
				"usual":          {50, 100, 200},
				"large":          {3, 16 << 10, 200},
				"too large":      {10, 16 << 10, 431},
				"too many":       {300, 1, 431},
				"far too many":   {8000, 1, 431},
				"all they allow": {240, 200, 200},
			} {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base, nil)
				if err != nil {
					t.Fatal(err)
				}
				for i := range tt.fields {
					r.Header.Set(fmt.Sprintf("A%d", i), strings.Repeat("x", tt.size))
				}
				resp, err := client.Do(r)
				if err != nil && transport.two && tt.status != http.StatusOK && (strings.Contains(err.Error(), "header") || strings.Contains(err.Error(), "GOAWAY")) {
					continue // the client knows the limit of the server, or is cut off amid the header
				}
				if err != nil {
					t.Errorf("%s: %v", what, err)
					continue
				}
				_ = resp.Body.Close()
				if resp.StatusCode != tt.status {
					t.Errorf("%s: %s, want %d", what, resp.Status, tt.status)
				}
			}
		})
	}
}

// TestSilentConnections end by themselves, whatever they are silent in.
func TestSilentConnections(t *testing.T) {
	const header = 300 * time.Millisecond
	for name, tt := range map[string]struct {
		secure bool
		say    string
	}{
		"nothing":                     {false, ""},
		"half a header":               {false, "GET / HTTP/1.1\r\nHost"},
		"the preface of HTTP/2":       {false, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
		"preface and settings":        {false, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"},
		"nothing, in TLS":             {true, ""},
		"half a greeting, in TLS":     {true, "\x16\x03\x01\x02\x00\x01\x00"},
		"a second header, after one ": {false, "GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, ingress.Limits{Header: header}, func(http.ResponseWriter, *http.Request) {}, tt.secure)
			c := s.dial(t, "127.0.0.1")
			if _, err := io.WriteString(c, tt.say); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
				t.Errorf("it stays open: %v", err)
			}
		})
	}
}

// TestPlainToTLS: a browser that speaks plain HTTP to TLS is told so.
func TestPlainToTLS(t *testing.T) {
	s := start(t, ingress.Limits{}, func(http.ResponseWriter, *http.Request) {}, true)
	c := s.dial(t, "127.0.0.1")
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if resp := answer(t, c); resp.StatusCode != http.StatusBadRequest {
		t.Error(resp.Status)
	}
}

// TestRequestInTLS: a handler sees that the request came in TLS.
func TestRequestInTLS(t *testing.T) {
	for name, transport := range transports {
		s := start(t, ingress.Limits{}, func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprintf(w, "%v %d", r.TLS != nil && r.TLS.HandshakeComplete, r.ProtoMajor)
		}, transport.secure)
		client, base := s.by(transport.secure, transport.two)
		resp, err := client.Get(base)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		version := 1
		if transport.two {
			version = 2
		}
		if want := fmt.Sprintf("%v %d", transport.secure, version); string(text) != want {
			t.Errorf("%s: %s, want %s", name, text, want)
		}
	}
}

// TestConnectionLimits: what one source has too many of costs nobody else, and
// it is told so; the room of all goes to those who have little.
func TestConnectionLimits(t *testing.T) {
	s := start(t, ingress.Limits{Connections: 8, PerSource: 5}, api, false)
	ask := func(c net.Conn) *http.Response {
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: key\r\n\r\n")
		return answer(t, c)
	}
	own := s.dial(t, "127.0.0.9")
	if resp := ask(own); resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	for range 5 {
		ask(s.dial(t, "127.0.0.2"))
	}
	resp := ask(s.dial(t, "127.0.0.2"))
	text, _ := io.ReadAll(resp.Body)
	var said struct {
		Error, Message string
		Code           int
	}
	if err := json.Unmarshal(text, &said); err != nil || said.Code != 503 || said.Error != "unavailable" || !strings.Contains(said.Message, "close some") {
		t.Errorf("%s, %v", text, err)
	}
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("%s, %v", resp.Status, resp.Header)
	}
	for i := range 5 { // 11 would be open
		if resp := ask(s.dial(t, fmt.Sprintf("127.0.1.%d", i+1))); resp.StatusCode != http.StatusOK {
			t.Errorf("source %d: %s", i, resp.Status)
		}
	}
	if resp := ask(own); resp.StatusCode != http.StatusOK {
		t.Errorf("whoever has one connection lost it: %s", resp.Status)
	}
	if n := s.Counts(); n.Open > 8 || n.Refused["source"] != 1 || n.Refused["evicted"] == 0 {
		t.Errorf("%+v", n)
	}
}

// TestRates: a source that asks too often is told when to come back, and others
// are not concerned.
func TestRates(t *testing.T) {
	rate := func(text string) ingress.Rate {
		r, err := ingress.ParseRate(text)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for name, tt := range map[string]struct {
		limits ingress.Limits
		key    string
		policy string
	}{
		"requests": {ingress.Limits{Requests: rate("0.01:3")}, "Authorization: key\r\n", `"source"`},
		"failures": {ingress.Limits{Failures: rate("0.01:3")}, "", `"failures"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, tt.limits, api, false)
			ask := func(from string) *http.Response {
				c := s.dial(t, from)
				_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n"+tt.key+"\r\n")
				return answer(t, c)
			}
			for range 3 {
				if resp := ask("127.0.0.2"); resp.StatusCode == http.StatusTooManyRequests {
					t.Fatal(resp.Status)
				}
			}
			resp := ask("127.0.0.2")
			text, _ := io.ReadAll(resp.Body)
			if resp.StatusCode != http.StatusTooManyRequests || !strings.Contains(string(text), doze.NameRateLimited) {
				t.Errorf("%s %s", resp.Status, text)
			}
			for _, field := range []string{"Retry-After", "Ratelimit", "Ratelimit-Policy", "Ratelimit-Limit", "Ratelimit-Remaining", "Ratelimit-Reset"} {
				if resp.Header.Get(field) == "" {
					t.Errorf("%s is missing", field)
				}
			}
			if !strings.HasPrefix(resp.Header.Get("Ratelimit-Policy"), tt.policy) {
				t.Errorf("policy %s", resp.Header.Get("Ratelimit-Policy"))
			}
			if resp := ask("127.0.0.3"); resp.StatusCode == http.StatusTooManyRequests {
				t.Error("another source is concerned")
			}
			c := s.dial(t, "127.0.0.2")
			_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: key\r\n\r\n")
			if resp := answer(t, c); tt.key == "" && resp.StatusCode != http.StatusOK {
				t.Errorf("with a good key: %s", resp.Status)
			}
		})
	}
}

// TestDeaf: a client that goes on whatever it is told loses its connection, and
// gets another one only after a moment.
func TestDeaf(t *testing.T) {
	rare, err := ingress.ParseRate("0.01:1")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, ingress.Limits{Requests: rare}, api, false)
	c := s.dial(t, "127.0.0.2")
	go func() { _, _ = io.WriteString(c, strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 3000)) }() // ends with the connection
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
	text, err := io.ReadAll(c)
	if n := strings.Count(string(text), "HTTP/1.1 "); n > 1001 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d answers, %v", n, err)
	}
	ask := func(from string) int {
		c := s.dial(t, from)
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return 0
		}
		return resp.StatusCode
	}
	if got := ask("127.0.0.2"); got != 0 {
		t.Errorf("it is connected again, and told %d", got)
	}
	if got := ask("127.0.0.3"); got != http.StatusUnauthorized {
		t.Errorf("another source is told %d", got)
	}
	for deadline := time.Now().Add(10 * time.Second); ask("127.0.0.2") == 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it is never connected again")
		}
	}
}

// TestStrangers: a server in a sandbox may ask its visitors for a password as
// often as it likes.
func TestStrangers(t *testing.T) {
	rare, err := ingress.ParseRate("0.01:1")
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, ingress.Limits{Failures: rare}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, false)
	for range 3 {
		c := s.dial(t, "127.0.0.2")
		_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		if resp := answer(t, c); resp.StatusCode != http.StatusUnauthorized {
			t.Fatal(resp.Status)
		}
	}
}

// TestHijack: a tunnel is nobody's body and no slow answer.
func TestHijack(t *testing.T) {
	s := start(t, ingress.Limits{BodyIdle: 50 * time.Millisecond, Header: 50 * time.Millisecond}, func(w http.ResponseWriter, _ *http.Request) {
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
			_, _ = io.Copy(c, rw)
		}()
	}, false)
	c := s.dial(t, "127.0.0.1")
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	in := bufio.NewReader(c)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(resp, err)
	}
	_ = resp.Body.Close()
	for range 3 {
		time.Sleep(200 * time.Millisecond)
		text := strings.Repeat("\n", 1000)
		_, _ = io.WriteString(c, text)
		back := make([]byte, len(text))
		if _, err := io.ReadFull(in, back); err != nil || string(back) != text {
			t.Fatal(err)
		}
	}
	_ = c.Close()
	if err := settle(func() error {
		if n := s.Counts().Open; n != 0 {
			return fmt.Errorf("%d connections are open", n)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// settle waits until check has nothing to say, for as long as what an attack
// took may take to be given back.
func settle(check func() error) (err error) {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = check(); err == nil {
			return nil
		}
	}
	return err
}

// files is how many descriptors this process has.
func files(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// memory is what the heap and the stacks of this process take.
func memory() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse + m.StackInuse
}

// TestHeaderFlood: 200 sockets of many sources send a megabyte of tiny headers
// each, and no end.
func TestHeaderFlood(t *testing.T) {
	const (
		sockets = 200
		limit   = 150 << 20 // with the clients, which are in this process, too
	)
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			s := start(t, ingress.Limits{}, api, secure)
			var flood bytes.Buffer
			flood.WriteString("GET / HTTP/1.1\r\n")
			for i := 0; flood.Len() < 1<<20; i++ {
				fmt.Fprintf(&flood, "%x:\n", i)
			}
			runtime.GC()
			var senders sync.WaitGroup
			for i := range sockets {
				c := s.dial(t, fmt.Sprintf("127.0.2.%d", i%50+1))
				if secure {
					c = tls.Client(c, &tls.Config{InsecureSkipVerify: true})
				}
				senders.Go(func() {
					_ = c.SetWriteDeadline(time.Now().Add(10 * time.Second))
					_, _ = c.Write(flood.Bytes()) // all send the same memory, which counts too
				})
			}
			most := uint64(0)
			sent := make(chan struct{})
			go func() { senders.Wait(); close(sent) }()
			for done := false; !done; {
				select {
				case <-sent:
					done = true
				case <-time.After(20 * time.Millisecond):
				}
				most = max(most, memory())
			}
			t.Logf("%d MB at most", most>>20)
			if most > limit {
				t.Errorf("%d MB, want at most %d", most>>20, limit>>20)
			}
			if err := settle(func() error {
				if n := s.Counts(); n.Requests["fields"] != sockets || n.Open > 0 {
					return fmt.Errorf("%+v, want %d refused for their fields, and none open", n, sockets)
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBodyFlood: sockets of many sources promise a body that never comes, with a
// key and without one. Another client does not notice, and all that they took is
// given back.
func TestBodyFlood(t *testing.T) {
	const sockets, sources, room = 3000, 300, 1500
	s := start(t, ingress.Limits{Connections: room, BodyIdle: time.Minute}, api, false)
	victim := func(reuse bool, n int) (took []time.Duration, failed int) {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: !reuse}, Timeout: 5 * time.Second}
		defer client.CloseIdleConnections()
		for range n {
			began := time.Now()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1:"+s.at, strings.NewReader("hello"))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "key")
			resp, err := client.Do(r)
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			if err != nil || resp.StatusCode != http.StatusOK {
				failed++
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took, failed
	}
	p99 := func(took []time.Duration) time.Duration { return took[len(took)*99/100] }
	calm, _ := victim(false, 300)
	runtime.GC()
	filesBefore, goroutinesBefore, memoryBefore := files(t), runtime.NumGoroutine(), memory()

	var attack []net.Conn
	var early atomic.Int64
	var reading sync.WaitGroup
	for i := range sockets {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 3+byte(i%sources>>8), byte(i%sources))}, Timeout: 10 * time.Second}
		c, err := d.DialContext(t.Context(), "tcp", "127.0.0.1:"+s.at)
		if err != nil {
			continue // refused
		}
		attack = append(attack, c)
		key := "Authorization: key\r\n"
		if i%2 == 0 {
			key = ""
		}
		_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: x\r\n"+key+"Content-Length: 100000\r\n\r\n")
		if i%2 == 0 {
			reading.Go(func() {
				_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
				if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil && resp.StatusCode == http.StatusUnauthorized {
					early.Add(1)
				}
			})
		}
	}
	for name, reuse := range map[string]bool{"one connection": true, "many connections": false} {
		took, failed := victim(reuse, 300)
		t.Logf("%s: p50 %v, p99 %v, in calm %v; %d failed", name, took[len(took)/2], p99(took), p99(calm), failed)
		if most := max(100*time.Millisecond, 20*p99(calm)); p99(took) > most {
			t.Errorf("%s: p99 %v, want at most %v", name, p99(took), most)
		}
		if failed > 0 {
			t.Errorf("%s: %d requests failed", name, failed)
		}
	}
	reading.Wait()
	t.Logf("%d of %d without a key were told so; %+v", early.Load(), sockets/2, s.Counts())
	if early.Load() < sockets/4 {
		t.Errorf("%d of %d without a key were told so", early.Load(), sockets/2)
	}
	for _, c := range attack {
		_ = c.Close()
	}
	if err := settle(func() error {
		runtime.GC()
		f, g, m := files(t), runtime.NumGoroutine(), memory()
		if f > filesBefore+5 || g > goroutinesBefore+5 || m > memoryBefore+16<<20 || s.Counts().Open > 0 {
			return fmt.Errorf("%d descriptors, %d goroutines, %d KB; before: %d, %d, %d; %d open", f, g, m>>10, filesBefore, goroutinesBefore, memoryBefore>>10, s.Counts().Open)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
