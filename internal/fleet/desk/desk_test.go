package desk_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/desk"
	"github.com/dozehq/doze/internal/httpx"
)

// world is control, with an edge at its desk.
type world struct {
	*testing.T

	c        *desk.Client
	feed     *fleet.Feed
	tickets  *access.Tickets
	files    files
	follower *fleet.Follower
	edge     *httptest.Server // that passes everything on
	control  *httptest.Server

	mu     sync.Mutex
	known  map[string]string // guarded by mu; what the edge has heard
	denied []string          // guarded by mu
	seen   []desk.Seen       // guarded by mu
}

// files are a [desk.Files] in memory.
type files map[string][]byte

func (f files) PutCertificateFile(_ context.Context, key string, value []byte, _ time.Time) error {
	f[key] = value
	return nil
}

func (f files) CertificateFile(_ context.Context, key string) ([]byte, error) {
	if value, ok := f[key]; ok {
		return value, nil
	}
	return nil, doze.Errorf(doze.NotFound, "there is no file %s", key)
}

func (f files) EachCertificateFile(_ context.Context, path string, tell func(string, int64, time.Time)) error {
	for key, value := range f {
		if strings.HasPrefix(key, path) {
			tell(key, int64(len(value)), time.Unix(1, 0))
		}
	}
	return nil
}

func (f files) DeleteCertificateFiles(_ context.Context, path string) error {
	for key := range f {
		if strings.HasPrefix(key, path) {
			delete(f, key)
		}
	}
	return nil
}

// api answers with what it got, and changes something.
func (w *world) api(rw http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		httpx.WriteError(rw, r, err)
		return
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Doze-") {
			w.Errorf("the API sees the header %s", name)
		}
	}
	w.feed.Tell("routes", "made", string(body))
	rw.Header().Set("X-Own", "1")
	rw.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(rw, "%s %s host=%s from=%s forwarded=%q auth=%q body=%d", r.Method, r.RequestURI, r.Host, r.RemoteAddr, r.Header.Get("X-Forwarded-For"), r.Header.Get("Authorization"), len(body))
}

func open(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, feed: fleet.NewFeed(), tickets: access.NewTickets(), files: files{}, known: map[string]string{}}
	w.control = httptest.NewUnstartedServer(desk.Control{
		API:     http.HandlerFunc(w.api),
		Metrics: http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, "of control") }),
		Mounts: func(rw http.ResponseWriter, r *http.Request, upstream fleet.Upstream, path string) {
			_, _ = fmt.Fprint(rw, r.Method, " ", upstream.UID, " ", path)
		},
		Denied: func(r *http.Request, id string, c access.Caller, upstream fleet.Upstream, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.denied = append(w.denied, fmt.Sprint(id, " ", r.Method, " ", r.Host, " ", r.RemoteAddr, " ", r.Header.Get("X-Request-Id"), " ", c.Sub, " ", upstream.Name, " ", doze.Public(err).Kind, " ", doze.Public(err).Name))
		},
		Seen: func(s desk.Seen) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.seen = append(w.seen, s)
		},
		Tickets: w.tickets, Files: w.files, Feed: w.feed,
	}.Handler())
	w.control.EnableHTTP2 = true
	w.control.StartTLS()
	t.Cleanup(func() { w.control.CloseClientConnections(); w.control.Close() })
	transport := w.control.Client().Transport
	w.follower = fleet.NewFollower(w.control.URL, transport, map[string]fleet.Apply{"routes": func(key string, value json.RawMessage) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.known[key] = string(value)
		return nil
	}})
	var err error
	w.c, err = desk.NewClient(desk.Options{
		URL: w.control.URL, Transport: transport, Edge: "e", Follower: w.follower,
		Seen: func(time.Time) (map[string]time.Time, map[string]int64) {
			return map[string]time.Time{"k": time.Unix(5, 0)}, map[string]int64{"main": 2}
		},
		Metrics: func(others []byte) ([]byte, error) { return append(others, " and of the edge"...), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.edge = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/metrics":
			w.c.Metrics().ServeHTTP(rw, r)
		case strings.HasPrefix(r.URL.Path, "/mounts"):
			w.c.Mounts(rw, r, fleet.Upstream{UID: "u"}, "/drives/mount//a%2Fb/..")
		default:
			w.c.API().ServeHTTP(rw, r)
		}
	}))
	t.Cleanup(w.edge.Close)
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = w.follower.Run(ctx) })
	run.Go(func() { _ = w.c.Run(ctx) })
	t.Cleanup(func() { cancel(); run.Wait() })
	return w
}

func (w *world) ask(method, uri, body string) (int, string, http.Header) {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), method, w.edge.URL+uri, strings.NewReader(body))
	if err != nil {
		w.Fatal(err)
	}
	r.Host = "doze.test"
	r.Header.Set("Authorization", "Bearer x")
	r.Header.Set("X-Forwarded-For", "192.0.2.7")
	r.Header.Set("Doze-Pass", "metrics") // which is for an edge to say
	r.Header.Set("Doze-Remote", "203.0.113.9:1")
	r.Header.Set("Doze-Route", "{}")
	resp, err := w.edge.Client().Do(r)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		w.Fatal(err)
	}
	return resp.StatusCode, string(raw), resp.Header
}

// TestAPI: control gets a call as its caller sent it, and the edge knows what it
// changed before the caller has the answer.
func TestAPI(t *testing.T) {
	t.Parallel()
	w := open(t)
	for i := range 50 {
		body := fmt.Sprint("body ", i)
		status, got, header := w.ask(http.MethodPost, "/v0/a//b%2Fc/../d?x=1;y&z=%zz", body)
		want := `POST /v0/a//b%2Fc/../d?x=1;y&z=%zz host=doze.test from=127.0.0.1:`
		if status != http.StatusCreated || !strings.HasPrefix(got, want) || !strings.HasSuffix(got, fmt.Sprintf(`forwarded="192.0.2.7" auth="Bearer x" body=%d`, len(body))) {
			t.Fatalf("%d %s, want %s", status, got, want)
		}
		if header.Get("X-Own") != "1" || header.Get("Doze-Mark") != "" {
			t.Errorf("the answer has the header %v", header)
		}
		w.mu.Lock()
		if known := w.known["made"]; known != fmt.Sprintf("%q", body) {
			t.Errorf("after the answer to %q, the edge knows %s", body, known)
		}
		w.mu.Unlock()
	}
	if status, got, _ := w.ask(http.MethodGet, "/metrics", ""); status != http.StatusOK || got != "of control and of the edge" {
		t.Errorf("metrics are %d %q", status, got)
	}
	if _, got, _ := w.ask(http.MethodDelete, "/mounts", ""); got != "DELETE u /drives/mount//a%2Fb/.." {
		t.Errorf("a question for mounts arrives as %q", got)
	}
}

func TestControlIsAway(t *testing.T) {
	t.Parallel()
	w := open(t)
	w.control.CloseClientConnections()
	w.control.Close()
	status, got, _ := w.ask(http.MethodGet, "/v0/sandboxes", "")
	if status != http.StatusServiceUnavailable || !strings.Contains(got, "try again") {
		t.Errorf("%d %s", status, got)
	}
	if _, err := w.c.Redeem(t.Context(), "x", time.Now()); doze.Public(err).Kind != doze.Unavailable {
		t.Error(err)
	}
}

func TestTickets(t *testing.T) {
	t.Parallel()
	w := open(t)
	pass := access.Pass{Sub: "ann", Credential: "secret", Workspace: "main", Sandbox: "a"}
	ticket, until, err := w.c.Issue(t.Context(), pass, time.Time{})
	if err != nil || until.Before(time.Now()) {
		t.Fatal(until, err)
	}
	if got, err := w.c.Redeem(t.Context(), ticket, time.Time{}); err != nil || got != pass {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := w.c.Redeem(t.Context(), ticket, time.Time{}); doze.Public(err).Kind != doze.Unauthenticated {
		t.Errorf("a second time: %v", err)
	}
	lease, err := w.c.Lease(t.Context(), pass, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := w.c.Renew(t.Context(), lease, time.Time{}); err != nil || got != pass {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	w := open(t)
	value := bytes.Repeat([]byte{0, 255}, 10_000)
	if err := w.c.PutCertificateFile(t.Context(), "a/b", value, time.Now()); err != nil {
		t.Fatal(err)
	}
	got, err := w.c.CertificateFile(t.Context(), "a/b")
	if err != nil || sha256.Sum256(got) != sha256.Sum256(value) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	n := 0
	err = w.c.EachCertificateFile(t.Context(), "a", func(key string, size int64, modified time.Time) {
		n++
		if key != "a/b" || size != int64(len(value)) || !modified.Equal(time.Unix(1, 0)) {
			t.Errorf("%s %d %v", key, size, modified)
		}
	})
	if err != nil || n != 1 {
		t.Errorf("%d files, %v", n, err)
	}
	if err := w.c.DeleteCertificateFiles(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.CertificateFile(t.Context(), "a/b"); doze.Public(err).Kind != doze.NotFound {
		t.Error(err)
	}
}

// TestTold: what an edge has seen and refused comes to control within seconds.
func TestTold(t *testing.T) {
	t.Parallel()
	w := open(t)
	r := httptest.NewRequest(http.MethodPut, "http://a.test/x", nil)
	r.Header.Set("X-Request-Id", "mine")
	w.c.Denied(r, "id", access.Caller{Sub: "ann"}, fleet.Upstream{Name: "web"}, &doze.Error{Kind: doze.Forbidden, Name: "NAME", Message: "no"})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		w.mu.Lock()
		denied, seen := fmt.Sprint(w.denied), len(w.seen)
		w.mu.Unlock()
		if denied == "[id PUT a.test 192.0.2.1:1234 mine ann web forbidden NAME]" && seen > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s, %d", denied, seen)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.seen[0]; s.Edge != "e" || s.Open["main"] != 2 || !s.Keys["k"].Equal(time.Unix(5, 0)) {
		t.Errorf("%+v", s)
	}
}

// FuzzCalls sends control what an edge never would.
func FuzzCalls(f *testing.F) {
	f.Add("desk/tickets", `{"Method":"Redeem","Text":"x"}`)
	f.Add("desk/files", `{"Method":"List"}`)
	f.Add("desk/denied", `[{"Status":403}]`)
	f.Add("desk/seen", `{"Keys":{"a":"2020-01-01T00:00:00Z"}}`)
	f.Fuzz(func(t *testing.T, call, body string) {
		h := desk.Control{
			Tickets: access.NewTickets(), Files: files{}, Feed: fleet.NewFeed(), Seen: func(desk.Seen) {},
			Denied: func(r *http.Request, _ string, _ access.Caller, _ fleet.Upstream, err error) {
				if r.Header == nil || err == nil {
					t.Error("a denial of nothing")
				}
			},
		}.Handler()
		for _, known := range []string{"desk/tickets", "desk/files", "desk/denied", "desk/seen"} {
			if call != known {
				continue
			}
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/fleet/v1/"+call, strings.NewReader(body)))
			if rec.Code == http.StatusInternalServerError {
				t.Errorf("%s %q is answered %d: %s", call, body, rec.Code, rec.Body)
			}
		}
	})
}
