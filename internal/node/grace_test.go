package node_test

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
)

// TestDeleteGrantsGrace looks at how long a delete takes, and whether the agent
// was asked to stop.
func TestDeleteGrantsGrace(t *testing.T) {
	for name, c := range map[string]struct {
		grace, needs time.Duration // of the processes; below 0: the agent never answers
		sleep        string        // the tier it has gone to
		asked        bool
		took         time.Duration
	}{
		"none":         {0, time.Second, "", false, 0},
		"enough":       {time.Minute, 10 * time.Second, "", true, 10 * time.Second},
		"longer":       {2 * pauseAfter, 2*pauseAfter - time.Second, "", true, 2*pauseAfter - time.Second},
		"too short":    {5 * time.Second, 10 * time.Second, "", true, 5 * time.Second},
		"a hung agent": {5 * time.Second, -1, "", true, 5 * time.Second},
		"paused":       {time.Minute, time.Second, "paused", false, 0},
		"on disk":      {time.Minute, time.Second, "disk", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t)
				var asked atomic.Bool
				rest := h.Handler
				h.Handler = func(mc machine.Config, port uint16) http.Handler {
					return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if port != doze.AgentPort || r.URL.Path != "/doze/stop" {
							rest(mc, port).ServeHTTP(w, r)
							return
						}
						asked.Store(true)
						end := time.NewTimer(c.needs)
						defer end.Stop()
						if c.needs < 0 {
							end.Stop()
						}
						select {
						case <-end.C:
						case <-r.Context().Done():
						}
					})
				}
				p := h.start()
				o := order("a")
				o.Grace = time.Millisecond
				if err := p.Create(t.Context(), o); err != nil {
					t.Fatal(err)
				}
				p.SetGrace("a", c.grace)
				p.SetGrace("nobody", c.grace)
				if c.sleep != "" {
					p.sleep(c.sleep)
				}
				began := time.Now()
				if err := p.Delete(t.Context(), "a"); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took != c.took || asked.Load() != c.asked {
					t.Errorf("it took %v, asked %t", took, asked.Load())
				}
				h.empty("a")
			})
		})
	}
}

// TestGraceEndsWithItsCaller: a node that stops does not wait.
func TestGraceEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t)
		p := h.start()
		o := order("a")
		o.Grace = time.Hour
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		h.set(func() { h.deaf = true })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := p.Delete(ctx, "a"); err == nil || time.Since(began) != time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		if err := p.Delete(t.Context(), "a"); err != nil || time.Since(began) != time.Second {
			t.Errorf("once more, after %v: %v", time.Since(began), err)
		}
		h.empty("a")
	})
}
