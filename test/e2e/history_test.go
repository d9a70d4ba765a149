package e2e_test

import (
	"strings"
	"testing"

	"github.com/dozehq/doze/client"
)

// TestHistory: what a real sandbox did is in the history that an operator reads, within
// two steps.
func TestHistory(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "300ms", "--save-after", "100ms", "--disk-after", "300ms")
	// sum is what a series counted so far, and whether it has a value at all.
	sum := func(name string) (n float64, known bool) {
		t.Helper()
		h, err := c.History(t.Context(), client.HistoryFilter{Series: []string{name}})
		if err != nil {
			t.Fatal(err)
		}
		for _, series := range h.Series {
			for _, v := range series.Values {
				if v != nil {
					n, known = n+*v, true
				}
			}
		}
		return n, known
	}
	until(t, "the first step is on record", func() bool { // nobody knows its counts
		_, known := sum("creates")
		return known
	})
	_, agent := create(t, c, named("history", 512))
	await(t, p, "disk")
	sh(t, agent, "true")
	until(t, "the create and the wake are on record", func() bool {
		creates, _ := sum("creates")
		wakes, _ := sum("wakes")
		return creates >= 1 && wakes >= 1
	})
	if status, text := get(t, p, p.Address+"/v0/platform/history?series=nonsense"); status != 400 || !strings.Contains(text, "creates") {
		t.Errorf("an unknown series: %d %s", status, text)
	}
}
