package launcher

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

func TestServe(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	if err := os.WriteFile(socket, nil, 0o600); err != nil { // left by a launcher that died
		t.Fatal(err)
	}
	l := &Launcher{machines: map[string]*sandbox{}}
	l.ceiling = hostproc.NewCeiling(l.groups, l.member)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- l.Serve(ctx, socket) }()
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
			for range 1000 {
				var d net.Dialer
				if conn, err = d.DialContext(ctx, "unix", socket); err == nil {
					break
				}
				time.Sleep(time.Millisecond)
			}
			return conn, err
		},
	}}
	for name, tc := range map[string]struct {
		method, path, body string
		status             int
		failure            gvisor.Failure
	}{
		"version":      {"GET", gvisor.PathVersion, "", 200, gvisor.Failure{}},
		"machines":     {"GET", gvisor.PathMachines, "", 200, gvisor.Failure{}},
		"gone":         {"POST", gvisor.PathPause, `{"id":"a"}`, 500, gvisor.Failure{Error: "a: no such machine", Gone: true}},
		"kill nothing": {"POST", gvisor.PathKill, `{"id":"a"}`, 200, gvisor.Failure{}},
		"no JSON":      {"POST", gvisor.PathResume, `{`, 500, gvisor.Failure{Error: "decode: unexpected EOF"}},
		"too large":    {"POST", gvisor.PathBoot, `"` + strings.Repeat("x", requestMax) + `"`, 500, gvisor.Failure{Error: "decode: http: request body too large"}},
		"no path":      {"POST", "/x", "", 404, gvisor.Failure{}},
		"wrong method": {"GET", gvisor.PathKill, "", 405, gvisor.Failure{}},
	} {
		req, err := http.NewRequestWithContext(t.Context(), tc.method, "http://launcher"+tc.path, strings.NewReader(tc.body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(name, err)
		}
		raw, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(name, err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != tc.status {
			t.Errorf("%s: status %d, want %d: %s", name, resp.StatusCode, tc.status, raw)
		}
		if tc.status != 500 {
			continue
		}
		var f gvisor.Failure
		if err := json.Unmarshal(raw, &f); err != nil || f != tc.failure {
			t.Errorf("%s: %+v, %v, want %+v", name, f, err, tc.failure)
		}
	}
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others may use the socket: %v, %v", info, err)
	}
	client.CloseIdleConnections()
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestMachines(t *testing.T) {
	t.Parallel()
	l := &Launcher{machines: map[string]*sandbox{}}
	for id, state := range map[string]string{"a": gvisor.StateRunning, "b": gvisor.StatePaused, "new": ""} {
		s := l.newSandbox(id)
		s.state.Store(state)
		l.machines[id] = s
	}
	a, b := gvisor.Found{ID: "a", State: gvisor.StateRunning}, gvisor.Found{ID: "b", State: gvisor.StatePaused}
	for query, want := range map[string][]gvisor.Found{
		"": {a, b}, "?id=": {a, b}, "?id=a": {a}, "?id=b": {b}, "?id=new": {}, "?id=c": {},
	} {
		w := httptest.NewRecorder()
		l.handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, gvisor.PathMachines+query, nil))
		var got []gvisor.Found
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(got, func(a, b gvisor.Found) int { return strings.Compare(a.ID, b.ID) })
		if !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", query, got, want)
		}
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f events
		f.send(gvisor.Event{ID: "nobody listens"})
		quick, stop := f.listen()
		slow, stopSlow := f.listen()
		for range eventsMax + 1 {
			f.send(gvisor.Event{ID: "a"})
			if e := <-quick; e.ID != "a" {
				t.Fatalf("event %+v", e)
			}
		}
		n := 0
		for range slow { // it is closed: who comes back finds out for itself
			n++
		}
		if n != eventsMax {
			t.Errorf("a slow listener got %d events before it was cut off, want %d", n, eventsMax)
		}
		stop()
		stopSlow()
		if _, ok := <-quick; ok {
			t.Error("a listener that left gets events")
		}
	})
}

func TestUnversioned(t *testing.T) {
	t.Parallel()
	// The test's binary has no engine version, as a plain go build has none.
	if _, err := Open(t.Context(), Options{Run: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "engine version") {
		t.Errorf("%v, want that it refuses", err)
	}
}
