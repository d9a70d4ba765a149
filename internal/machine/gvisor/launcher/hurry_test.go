package launcher

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestTurn has a thread work in pieces of 10 ms beside machines that wake.
func TestTurn(t *testing.T) {
	t.Parallel()
	const piece = 10 * time.Millisecond
	for name, tc := range map[string]struct {
		wakes      func(h *hurry)
		least, end time.Duration // of ten pieces
	}{
		"nobody wakes": {func(*hurry) {}, 10 * piece, 10 * piece},
		"one wakes, and is asked": {func(h *hurry) {
			leave := h.enter()
			time.Sleep(2 * piece)
			leave()
		}, 10*piece + hurryAfter, 12*piece + hurryAfter + hurryLook},
		"somebody always wakes": {func(h *hurry) { h.enter() }, (9*hurryShare + 9) * piece, 10*(hurryShare+1)*piece + hurryLook},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var h hurry
				turn := h.turn()
				began := time.Now()
				go tc.wakes(&h) // ends by itself
				for range 10 {
					time.Sleep(piece)
					turn.wait(nil)
				}
				if took := time.Since(began); took < tc.least || took > tc.end {
					t.Errorf("the work took %v, want %v to %v", took, tc.least, tc.end)
				}
			})
		})
	}
}

// TestTurnStops ends the wait of a copy that is told to stop.
func TestTurnStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var h hurry
		turn, stop := h.turn(), make(chan struct{})
		defer h.enter()()
		time.Sleep(time.Second)
		began := time.Now()
		time.AfterFunc(hurryLook/2, func() { close(stop) })
		turn.wait(stop)
		if took := time.Since(began); took != hurryLook/2 {
			t.Errorf("it waited for %v", took)
		}
	})
}
