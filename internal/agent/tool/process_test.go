package tool

import (
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
)

// TestNoHit: a search that found nothing says whether it saw all.
func TestNoHit(t *testing.T) {
	t.Parallel()
	for incomplete, want := range map[bool]struct {
		kind doze.Kind
		text string
	}{
		true:  {doze.TooLarge, "there is more: search for less"},
		false: {doze.NotFound, `nothing matches "x" in /w`},
	} {
		if got := doze.Public(noHit("x", "/w", incomplete)); got.Kind != want.kind || !strings.Contains(got.Message, want.text) {
			t.Errorf("incomplete %v: %v", incomplete, got)
		}
	}
}

func TestToolPatience(t *testing.T) {
	t.Parallel()
	seconds := func(n int64) *int64 { return &n }
	yes := true
	for name, test := range map[string]struct {
		in     toolExecuteIn
		wait   time.Duration
		capped bool
		life   time.Duration
	}{
		"default":    {toolExecuteIn{}, 30 * time.Second, false, 0},
		"short":      {toolExecuteIn{Timeout: seconds(5)}, 5 * time.Second, false, 0},
		"the most":   {toolExecuteIn{Timeout: seconds(58)}, 58 * time.Second, false, 0},
		"too long":   {toolExecuteIn{Timeout: seconds(59)}, 58 * time.Second, true, 0},
		"no end":     {toolExecuteIn{Timeout: seconds(0)}, 58 * time.Second, true, 0},
		"keep alive": {toolExecuteIn{KeepAlive: &yes}, 58 * time.Second, true, 600 * time.Second},
		"and short":  {toolExecuteIn{KeepAlive: &yes, Timeout: seconds(5)}, 5 * time.Second, false, 5 * time.Second},
	} {
		c := test.in.command()
		if wait, capped := toolPatience(c); wait != test.wait || capped != test.capped || c.Lifetime() != test.life {
			t.Errorf("%s: %v, %v, lives %v", name, wait, capped, c.Lifetime())
		}
	}
}
