package main

import "testing"

func TestReadyProcesses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ready  int
		memory int64
		want   int
	}{
		"a number wins":     {7, 24 << 30, 7},
		"none are wanted":   {0, 24 << 30, 0},
		"a part of 24 GB":   {readyAuto, 24 << 30, 22},
		"a part of 256 GB":  {readyAuto, 256 << 30, 238},
		"one on small ones": {readyAuto, 512 << 20, 1},
	} {
		c := config{Ready: tc.ready}
		if got := c.readyProcesses(tc.memory); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}
