package node_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
)

// TestDepartAmidStreams: a sandbox that is to move is asked all the time, while somebody has streams
// to it. Requests wait for no stream that somebody keeps open.
func TestDepartAmidStreams(t *testing.T) {
	const (
		every = 100 * time.Millisecond // between requests
		short = 50 * time.Millisecond  // what a request takes
	)
	tests := map[string]struct {
		streams [][2]time.Duration // when each begins, and how long it takes
		departs time.Duration      // at the latest; 0 if it stays
		waits   time.Duration      // of a request, at most
	}{
		"nobody has a stream":        {departs: 100 * time.Millisecond, waits: 100 * time.Millisecond},
		"a stream ends":              {streams: [][2]time.Duration{{0, 20 * time.Second}}, departs: 21 * time.Second, waits: time.Second},
		"a stream begins meanwhile":  {streams: [][2]time.Duration{{0, 10 * time.Second}, {8 * time.Second, 10 * time.Second}}, departs: 19 * time.Second, waits: time.Second},
		"a stream stays":             {streams: [][2]time.Duration{{0, time.Hour}}, waits: time.Second},
		"one stream follows another": {streams: follow(4*time.Second, 3*time.Second, time.Hour), departs: 35 * time.Second, waits: 4 * time.Second},
		"a new stream stays":         {streams: slices.Concat(follow(4*time.Second, 3*time.Second, 25*time.Second), [][2]time.Duration{{25 * time.Second, time.Hour}}), waits: 10*time.Second + every},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				t := h.t
				p := h.has("a")
				p.hello("a")
				ctx := t.Context()
				var tasks sync.WaitGroup
				over := make(chan struct{})
				use := func(took time.Duration) (waited time.Duration, moved bool) {
					began := time.Now()
					release, err := p.Hold(ctx, "a")
					if err != nil {
						return 0, true
					}
					waited = time.Since(began)
					time.Sleep(took)
					release()
					return waited, false
				}
				for _, s := range tt.streams {
					tasks.Go(func() {
						select {
						case <-time.After(s[0]):
							use(s[1])
						case <-over:
						}
					})
				}
				tasks.Go(func() {
					for {
						waited, moved := use(short)
						if moved {
							return
						}
						if waited > tt.waits {
							t.Errorf("a request waited for %v, want at most %v", waited, tt.waits)
						}
						select {
						case <-time.After(every):
						case <-over:
							return
						}
					}
				})
				time.Sleep(short / 2)
				began := time.Now()
				_, _, done, err := p.CopyDeparting(ctx, "a")
				took := time.Since(began)
				close(over)
				if stays := tt.departs == 0; stays != (err != nil && doze.Public(err).Kind == doze.Conflict) || !stays && (err != nil || took > tt.departs) {
					t.Errorf("it departs after %v: %v, want after %v", took, err, tt.departs)
				}
				if err == nil {
					p.done(done())
					p.done(p.Leave(ctx, "a"))
				}
				tasks.Wait()
			})
		})
	}
}

// follow are streams each of which begins before the one before ends.
func follow(takes, every, until time.Duration) (all [][2]time.Duration) {
	for at := time.Duration(0); at < until; at += every {
		all = append(all, [2]time.Duration{at, takes})
	}
	return all
}

// TestDepartedOverRestart: a process that begins after a sandbox departed lets nobody wake it, until
// control says that it stays. Another node may have it.
func TestDepartedOverRestart(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		p.hello("a")
		_, _, done, err := p.CopyDeparting(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		p.done(done())
		for range 2 {
			p.stop()
			p = h.start()
			if leaving := p.Leaving(); !slices.Equal(leaving, []string{"a"}) {
				t.Fatalf("%v leave", leaving)
			}
			bounded, cancel := context.WithTimeout(t.Context(), time.Second)
			if release, err := p.Hold(bounded, "a"); err == nil {
				release()
				t.Error("it let a request in")
			}
			cancel()
		}
		p.done(p.Return(t.Context(), "a"))
		p.hello("a")
		p.stop()
		p = h.start()
		p.hello("a")
		if leaving := p.Leaving(); len(leaving) > 0 {
			t.Errorf("%v leave", leaving)
		}
	})
}
