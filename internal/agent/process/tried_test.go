package process

import (
	"testing"
	"time"

	"github.com/dozehq/doze/internal/agent/command"
)

// TestTried: the process of an image waits twice as long after each failure in a row, and
// begins anew once it ran for a while. Others wait as long as ever.
func TestTried(t *testing.T) {
	t.Parallel()
	image := command.ForImage(command.Image{Argv: []string{"false"}})
	p := &Process{Spec: image, startedAt: time.Now()}
	for i, want := range []float64{1, 2, 4, 8, 16, 32, 60, 60, 60, 60} {
		n, pause := p.tried()
		if n != i || pause.Seconds() != want || !p.Restarts(n) {
			t.Errorf("after %d failures it has tried %d times and waits %v, want %vs", i, n, pause, want)
		}
		p.failures++
	}
	if n, _ := p.tried(); p.Restarts(n) {
		t.Errorf("it starts again after %d failures in a row", n)
	}
	p.startedAt = time.Now().Add(-steady)
	if n, pause := p.tried(); n != 0 || pause != restartDelay {
		t.Errorf("after a minute it has tried %d times and waits %v", n, pause)
	}
	p = &Process{restarted: 7, failures: 7}
	if n, pause := p.tried(); n != 7 || pause != restartDelay {
		t.Errorf("another process has tried %d times and waits %v", n, pause)
	}
}
