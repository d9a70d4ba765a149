package front

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
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
