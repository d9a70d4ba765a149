package edge

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
)

// TestIdleMax looks at the 15 minutes themselves, in virtual time.
func TestIdleMax(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		socket  bool
		traffic time.Duration // for which something goes through it
		lasts   time.Duration // 0: for ever
		after   time.Duration // how long we look
	}{
		"a request":      {after: 24 * time.Hour},
		"a silent one":   {socket: true, after: idleMax + recheck, lasts: idleMax},
		"a busy one":     {socket: true, traffic: 2 * time.Hour, after: 2 * time.Hour},
		"busy, then not": {socket: true, traffic: time.Hour, after: time.Hour + idleMax + recheck, lasts: time.Hour + idleMax},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				all := newStreams()
				var running sync.WaitGroup
				running.Go(func() { all.run(ctx) })
				open, cut := context.WithCancelCause(ctx)
				s := &stream{
					valid: func() bool { return true }, cut: cut, idle: new(idleTimer), idleMax: idleMax,
					control: http.NewResponseController(httptest.NewRecorder()),
				}
				near, far := net.Pipe()
				if tt.socket {
					conn := s.idle.start(near, false)
					running.Go(func() {
						for b := make([]byte, 1); ; {
							if _, err := conn.Read(b); err != nil {
								return
							}
						}
					})
				}
				done, err := all.add(s)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				for time.Since(began) < tt.traffic {
					time.Sleep(time.Minute)
					if _, err := far.Write([]byte("x")); err != nil {
						t.Fatal(err)
					}
				}
				if tt.lasts > 0 {
					time.Sleep(tt.lasts - recheck - time.Since(began))
					synctest.Wait()
					if open.Err() != nil {
						t.Errorf("cut before its time: %v", context.Cause(open))
					}
				}
				time.Sleep(tt.after + recheck - time.Since(began))
				synctest.Wait()
				if cut := errors.Is(context.Cause(open), errIdle); cut != (tt.lasts > 0) {
					t.Errorf("cut off: %v", cut)
				}
				done()
				stop()
				_ = far.Close()
				running.Wait()
			})
		})
	}
}

// TestAnIdleWebSocketIsCutOff holds no sandbox awake.
func TestAnIdleWebSocketIsCutOff(t *testing.T) {
	t.Parallel()
	overEach(t, "terminal", func(m medium) {
		t := m.t
		w := m.newWorld(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c, err := websocket.Accept(w, r, nil); err == nil {
				_, _, _ = c.Read(r.Context())
				_ = c.CloseNow()
			}
		}))
		if !m.pipes {
			w.idleMax = 5 * time.Second // in which a busy machine opens it
		}
		c, began := w.socket(t, host, "/terminal/ws?token=acme"), time.Now()
		if _, _, err := c.Read(t.Context()); err == nil {
			t.Error("it is open")
		}
		w.gate.awaitHeld(t, 0)
		m.within(began, w.idleMax+recheck)
	})
}
