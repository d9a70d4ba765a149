package e2e_test

import (
	"math"
	"strconv"
	"testing"
	"time"
)

// TestMemorySurvives walks a sandbox with 200 MB of touched, random memory
// down to disk, kills the daemon the hard way, and compares every byte after
// the wake.
func TestMemorySurvives(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "500ms", "--save-after", "200ms", "--disk-after", "1s")
	sb, agent := create(t, c, named("memory", 4096))
	url := hold(t, p, sb, agent, 200, 2)
	before, pid := sum(t, p, url+"/bytes"), sh(t, agent, "cat /proc/sys/kernel/random/uuid >/root/written; cat /root/written")
	_, random := get(t, p, url+"/random")

	for _, life := range []struct {
		tier string
		end  func() error // nil: the daemon stays
	}{
		{"paused", nil},
		{"disk", nil},
		{"paused", p.Kill},
		{"disk", p.Kill},
		{"disk", p.Stop},
		{"disk", p.Reboot},
	} {
		_, last := get(t, p, url+"/count")
		await(t, p, life.tier)
		if life.end != nil {
			if err := life.end(); err != nil {
				t.Fatal(err)
			}
			if err := p.Restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		asleep := time.Now()
		_, next := get(t, p, url+"/count")
		t.Logf("woke from %s in %v", life.tier, time.Since(asleep).Round(time.Millisecond))
		if was, is := number(t, last), number(t, next); is != was+1 {
			t.Errorf("%s: the counter went from %v to %v", life.tier, was, is)
		}
		_, clock := get(t, p, url+"/time")
		if off := math.Abs(number(t, clock) - float64(time.Now().UnixMilli())/1000); off > 0.5 {
			t.Errorf("%s: the clock is %.3f s off", life.tier, off)
		}
		if after := sum(t, p, url+"/bytes"); after != before {
			t.Errorf("%s: memory is %s and was %s", life.tier, after, before)
		}
		if _, file := get(t, p, url+"/file"); file != "still open" {
			t.Errorf("%s: the open file has %q", life.tier, file)
		}
		if again := sh(t, agent, "cat /root/written"); again != pid {
			t.Errorf("%s: the written file has %q, and had %q", life.tier, again, pid)
		}
		if _, now := get(t, p, url+"/random"); now == random {
			t.Errorf("%s: random numbers repeat", life.tier)
		}
	}
	if _, fired := get(t, p, url+"/fired"); fired == "[]" {
		t.Error("the timer that was due meanwhile has not fired")
	}
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return n
}
