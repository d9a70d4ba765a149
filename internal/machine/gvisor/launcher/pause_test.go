package launcher

import "testing"

func TestReadStacks(t *testing.T) {
	t.Parallel()
	const (
		running = "goroutine 90 [select]:\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).block(0x1)\n\tx.go:1\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).run(0x1, 0x1)\n\tx.go:2"
		halted  = "goroutine 91 [sync.Cond.Wait]:\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).doStop(0x1)\n\tx.go:1\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).run(0x1, 0x2)\n\tx.go:2"
		other   = "goroutine 1 [running]:\nmain.main()\n\tx.go:1"
		pausing = "goroutine 7 [semacquire]:\ngvisor.dev/gvisor/runsc/boot.(*containerManager).Pause(0x1, 0x0, 0x0)\n\tx.go:1"
	)
	for name, tc := range map[string]struct {
		stacks       string
		busy, halted bool
	}{
		"all stand still": {halted + "\n\n" + other + "\n\n" + halted, false, true},
		"one runs":        {halted + "\n\n" + running, false, false},
		"a pause goes on": {running + "\n\n" + pausing, true, false},
		"almost paused":   {halted + "\n\n" + pausing, true, true},
	} {
		if busy, halted := readStacks(tc.stacks); busy != tc.busy || halted != tc.halted {
			t.Errorf("%s: busy %v, halted %v", name, busy, halted)
		}
	}
}
