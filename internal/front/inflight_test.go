package front

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze/internal/ingress"
)

// TestInflight waits for requests of several ages.
func TestInflight(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		takes []time.Duration // each begins a second after the one before
		age   time.Duration
		want  time.Duration // that waiting takes, from the begin of the last
		err   error
	}{
		"none":               {},
		"all":                {takes: []time.Duration{9 * time.Second, 3 * time.Second}, want: 8 * time.Second},
		"only old ones":      {takes: []time.Duration{4 * time.Second, time.Minute}, age: time.Second, want: time.Minute},
		"none is old":        {takes: []time.Duration{time.Minute}, age: time.Second},
		"it takes too long":  {takes: []time.Duration{2 * time.Hour}, want: time.Hour, err: context.DeadlineExceeded},
		"a panic is the end": {takes: []time.Duration{0}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newInflight()
				for i, d := range tt.takes {
					if i > 0 {
						time.Sleep(time.Second)
					}
					h := f.over(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
						time.Sleep(d)
						panic(http.ErrAbortHandler)
					}), func(*http.Request) bool { return false })
					go func() {
						defer func() { _ = recover() }()
						h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
					}()
					synctest.Wait()
				}
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				err := f.wait(ctx, tt.age)
				if took := time.Since(began); !errors.Is(err, tt.err) || took != tt.want {
					t.Errorf("%v after %v, want %v after %v", err, took, tt.err, tt.want)
				}
				time.Sleep(3 * time.Hour) // for those that are left
			})
		})
	}
}

// TestLasting: nobody waits for a request that lasts, and it ends when it has to.
func TestLasting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, ended := newInflight(), false
		h := f.over(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			ended = true
		}), func(r *http.Request) bool { return r.URL.Path == "/lasts" })
		go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/lasts", nil))
		synctest.Wait()
		if err := f.wait(t.Context(), 0); err != nil || ended {
			t.Fatalf("%v, ended: %v", err, ended)
		}
		f.endLasting()
		synctest.Wait()
		if !ended {
			t.Error("it does not end")
		}
	})
}

// TestLeave: an edge that stops waits for the requests under way, within its time, and has each
// answer be the last one of its connection.
func TestLeave(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		linger, takes, want time.Duration
		replaced            bool
		close               string
	}{
		"nothing is under way":   {linger: time.Minute, want: leaveWait, close: "close"},
		"a request is under way": {linger: time.Minute, takes: 20 * time.Second, want: 20 * time.Second, close: "close"},
		"it takes too long":      {linger: time.Minute, takes: time.Hour, want: time.Minute, close: "close"},
		"nobody waits":           {takes: 20 * time.Second},
		"it is replaced":         {linger: time.Minute, takes: 20 * time.Second, replaced: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				in, err := ingress.New(ingress.Limits{})
				if err != nil {
					t.Fatal(err)
				}
				f := &Front{requests: newInflight(), linger: tt.linger, ingress: in, idle: IdleDefault}
				h := f.requests.over(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/long" {
						time.Sleep(tt.takes)
					}
				}), func(*http.Request) bool { return false })
				ask := func(path, upgrade string) string {
					w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, nil)
					r.Header.Set("Upgrade", upgrade)
					h.ServeHTTP(w, r)
					return w.Header().Get("Connection")
				}
				go ask("/long", "")
				synctest.Wait()
				ctx, stop := context.WithCancel(t.Context())
				stop()
				began, left := time.Now(), make(chan error)
				go func() { left <- f.leave(ctx, func() bool { return tt.replaced }) }()
				synctest.Wait()
				if tt.close != "" {
					if plain, upgraded := ask("/", ""), ask("/", "websocket"); plain != tt.close || upgraded != "" {
						t.Errorf("Connection: %q, and %q of a WebSocket", plain, upgraded)
					}
				}
				if err := <-left; err != nil || time.Since(began) != tt.want {
					t.Errorf("%v after %v, want nothing after %v", err, time.Since(began), tt.want)
				}
				time.Sleep(2 * time.Hour) // for the one that is left
			})
		})
	}
}
