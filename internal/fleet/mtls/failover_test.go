package mtls_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/fleet/mtls"
)

// TestFailover: requests go to whichever of two peers takes connections, with their bodies.
func TestFailover(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := mtls.Make(dir); err != nil {
		t.Fatal(err)
	}
	control, err := mtls.Open(dir, mtls.Control)
	if err != nil {
		t.Fatal(err)
	}
	edge, err := mtls.Open(dir, mtls.Edge)
	if err != nil {
		t.Fatal(err)
	}
	var addresses, bases []string
	for range 2 { // that nobody listens on now
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addresses, bases = append(addresses, l.Addr().String()), append(bases, "https://"+l.Addr().String())
		_ = l.Close()
	}
	serve := func(name, address string) (stop func()) {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() {
			_ = control.Serve(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				raw, _ := io.ReadAll(r.Body)
				_, _ = io.WriteString(w, name+" "+string(raw))
			}))
		})
		return func() { cancel(); run.Wait() }
	}
	to, err := edge.TransportTo(mtls.Control, bases)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: to, Timeout: time.Minute}
	ask := func(want string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, bases[0]+"/x", io.NopCloser(strings.NewReader("body"))) // without GetBody
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if raw, err := io.ReadAll(resp.Body); err != nil || string(raw) != want+" body" {
			t.Errorf("it is %q: %v, want %q", raw, err, want)
		}
	}
	stop := serve("second", addresses[1])
	ask("second")
	ask("second")
	stop()
	stop = serve("first", addresses[0])
	ask("first")
	stop()
	go func() {
		time.Sleep(300 * time.Millisecond)
		stop = serve("late", addresses[1])
	}()
	ask("late") // none takes connections for a moment
	stop()
}
