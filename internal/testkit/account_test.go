package testkit

import (
	"testing"
	"time"
)

// TestUsage: the time of processors is read from cpu.stat, whose other lines
// depend on the kernel, and a file without it is a mistake.
func TestUsage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stat string
		want time.Duration
		bad  bool
	}{
		"usual":     {stat: "usage_usec 31270\nuser_usec 18920\nsystem_usec 12350\n", want: 31270 * time.Microsecond},
		"not first": {stat: "core_sched.force_idle_usec 7\nusage_usec 2\n", want: 2 * time.Microsecond},
		"none":      {stat: "user_usec 18920\n", bad: true},
		"no number": {stat: "usage_usec x\n", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := usage(c.stat)
			if got != c.want || (err != nil) != c.bad {
				t.Errorf("usage is %v, %v", got, err)
			}
		})
	}
}
