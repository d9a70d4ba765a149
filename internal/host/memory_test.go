package host

import (
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/swap"
)

func TestReadyProcesses(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		ready  int
		memory int64
		want   int
	}{
		"a number wins":     {7, 24 << 30, 7},
		"none are wanted":   {0, 24 << 30, 0},
		"a part of 24 GB":   {ReadyAuto, 24 << 30, 22},
		"a part of 256 GB":  {ReadyAuto, 256 << 30, 238},
		"one on small ones": {ReadyAuto, 512 << 20, 1},
	} {
		c := Memory{Ready: tc.ready}
		if got := c.readyProcesses(tc.memory); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

// TestMemoryWithSwap: sandboxes, the reserve and compressed memory fit the host
// together.
func TestMemoryWithSwap(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		host               doze.Megabytes
		reserve, sandboxes int64
		zram, left, before int64 // MB
	}{
		"usual":            {4096, 512, 0, 1024, 3584 - 520, 3584},
		"small":            {1024, 768, 0, 256, 512 - 130, 512},
		"a number":         {4096, 512, 3000, 584, 3000, 3000},
		"all of it":        {4096, 512, 3584, 0, 3584, 3584},
		"more than it has": {4096, 512, 8192, 4096 - 512 - 8192, 8192, 8192},
	} {
		c := Memory{ReserveMB: tc.reserve, SandboxMB: tc.sandboxes}
		zram := c.zramMax(tc.host)
		if zram != tc.zram<<20 {
			t.Errorf("%s: %d MB to spare", name, zram>>20)
		}
		plan := swap.Decide(swap.Choice{Kind: swap.Zram}, swap.Facts{Memory: tc.host.Bytes(), ZramMax: zram})
		if got := c.sandboxMemory(tc.host, 0) >> 20; got != tc.before {
			t.Errorf("%s: without compressed memory it is %d MB", name, got)
		}
		if got := c.sandboxMemory(tc.host, plan.Held()) >> 20; got != tc.left {
			t.Errorf("%s: with %+v it is %d MB", name, plan, got)
		}
	}
}
