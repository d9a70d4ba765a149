package idle_test

import (
	"testing"
	"time"

	"github.com/dozehq/doze/internal/node/idle"
)

func TestComputes(t *testing.T) {
	load := idle.Load{Share: 0.2, Max: time.Hour}
	at := func(after, cpu time.Duration) idle.Sample { return idle.Sample{At: start.Add(after), CPU: cpu} }
	for name, tt := range map[string]struct {
		load     idle.Load
		from, to idle.Sample
		want     bool
	}{
		"a loop":                      {load, at(time.Second, 0), at(11*time.Second, 10*time.Second), true},
		"at the threshold":            {load, at(time.Second, time.Minute), at(11*time.Second, time.Minute+2*time.Second), true},
		"just below":                  {load, at(time.Second, time.Minute), at(11*time.Second, time.Minute+2*time.Second-1), false},
		"nothing":                     {load, at(time.Second, time.Minute), at(11*time.Second, time.Minute), false},
		"switched off":                {idle.Load{Max: time.Hour}, at(time.Second, 0), at(11*time.Second, 10*time.Second), false},
		"for too long":                {load, at(time.Hour-10*time.Second, 0), at(time.Hour, 10*time.Second), false},
		"not too long yet":            {load, at(time.Hour-11*time.Second, 0), at(time.Hour-time.Second, 10*time.Second), true},
		"used since the first look":   {load, at(0, 0), at(10*time.Second, 10*time.Second), false},
		"no look before":              {load, idle.Sample{}, at(10*time.Second, 10*time.Second), false},
		"no time between":             {load, at(time.Second, 0), at(time.Second, time.Second), false},
		"its processes began anew":    {load, at(time.Second, time.Hour), at(11*time.Second, 3*time.Second), true},
		"they began anew and do less": {load, at(time.Second, time.Hour), at(11*time.Second, time.Second), false},
		"a loop in a small one":       {load.Of(0.125), at(time.Second, 0), at(11*time.Second, 1250*time.Millisecond), true},
		"little in a small one":       {load.Of(0.125), at(time.Second, 0), at(11*time.Second, 600*time.Millisecond), false},
		"little in a large one":       {load.Of(2), at(time.Second, 0), at(11*time.Second, 1900*time.Millisecond), false},
		"switched off in a small one": {idle.Load{Max: time.Hour}.Of(0.125), at(time.Second, 0), at(11*time.Second, 10*time.Second), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.load.Computes(tt.from, tt.to, start); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}
