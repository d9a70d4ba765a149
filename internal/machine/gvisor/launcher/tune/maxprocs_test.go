package tune

import (
	"runtime"
	"testing"
)

// TestProcessors: a guest that runs has no more than it needs, and one that starts or is saved
// waits for nobody.
func TestProcessors(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ guest, host, calm, busy int }{
		"as many as the host":   {2, 2, 3, 4},
		"more than the host":    {8, 2, 3, 10},
		"fewer than the host":   {2, 64, 3, 4},
		"one, on a small host":  {1, 1, 2, 3},
		"a large guest on more": {16, 64, 17, 18},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := processors(true, tt.guest, tt.host); got != tt.calm {
				t.Errorf("a guest that runs has %d, want %d", got, tt.calm)
			}
			if got := processors(false, tt.guest, tt.host); got != tt.busy {
				t.Errorf("one that starts has %d, want %d", got, tt.busy)
			}
		})
	}
}

func TestGuestProcessors(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string]int{"--cpu-num=7": 7, "--cpu-num=": runtime.NumCPU(), "--cpu-num=-1": runtime.NumCPU(), "boot": runtime.NumCPU()} {
		if got := guestProcessors([]string{"runsc-sandbox", arg}); got != want {
			t.Errorf("%s: %d, want %d", arg, got, want)
		}
	}
}
