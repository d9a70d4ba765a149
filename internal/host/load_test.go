package host

import "testing"

// TestRunnable reads what the kernel says of threads that run or wait for a processor.
func TestRunnable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"0.20 0.18 0.12 1/80 11206\n":     1,
		"218.02 90.1 33.7 214/4711 99999": 214,
		"":                                0, "0.20 0.18 0.12": 0, "0.20 0.18 0.12 x/80 1": 0,
	} {
		if got := runnable([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
