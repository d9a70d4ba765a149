package mtls_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
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

// TestFailoverReads: what only reads is asked again if its answer is lost, once. What changes
// something is not.
func TestFailoverReads(t *testing.T) {
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		_ = control.Serve(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if n := asked.Add(1); r.URL.Path == "/never" || n == 1 {
				panic(http.ErrAbortHandler)
			}
		}))
	})
	t.Cleanup(func() { cancel(); run.Wait() })
	base := "https://" + l.Addr().String()
	to, err := edge.TransportTo(mtls.Control, []string{base})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		method, path string
		asked        int64
		fails        bool
	}{
		{http.MethodGet, "/", 2, false},
		{http.MethodGet, "/never", 2, true},
		{http.MethodPost, "/", 1, true},
		{http.MethodDelete, "/", 1, true},
	} {
		asked.Store(0)
		r, err := http.NewRequestWithContext(t.Context(), tt.method, base+tt.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := to.RoundTrip(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		if (err != nil) != tt.fails || asked.Load() != tt.asked {
			t.Errorf("%s %s: %v after it was asked %d times, want %d", tt.method, tt.path, err, asked.Load(), tt.asked)
		}
	}
}

// TestFailoverUnderLoad: no request fails while one peer stops and the other one begins, again
// and again. Each has a body that its caller can give once.
func TestFailoverUnderLoad(t *testing.T) {
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
	var bases, addresses []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addresses, bases = append(addresses, l.Addr().String()), append(bases, "https://"+l.Addr().String())
		_ = l.Close()
	}
	to, err := edge.TransportTo(mtls.Control, bases)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: to, Timeout: time.Minute}
	var callers sync.WaitGroup
	done := make(chan struct{})
	for caller := range 8 {
		callers.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				want := fmt.Sprintf("%d/%d", caller, n)
				r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPost, bases[0]+"/x", io.NopCloser(strings.NewReader(want)))
				if err != nil {
					t.Error(err)
					return
				}
				r.ContentLength = int64(len(want))
				resp, err := client.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				raw, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || string(raw) != want {
					t.Errorf("it is %q: %v, want %q", raw, err, want)
					return
				}
			}
		})
	}
	var answered atomic.Int64
	for i := range 10 {
		l, err := net.Listen("tcp", addresses[i%2])
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		enough, some := make(chan struct{}), answered.Load()+200
		var once sync.Once
		var run sync.WaitGroup
		run.Go(func() {
			_ = control.Serve(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(w, r.Body)
				if answered.Add(1) == some {
					once.Do(func() { close(enough) })
				}
			}))
		})
		if i == 9 { // which all can end with
			close(done)
			callers.Wait()
		} else {
			<-enough
		}
		cancel()
		run.Wait()
	}
}
