// Package clock notices when somebody sets the clock of the host. Timers of Go
// count the time that passes and do not notice.
package clock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// Watch calls stepped after each step of the clock until ctx ends. It costs
// one file descriptor and no time in between.
func Watch(ctx context.Context, stepped func()) error {
	// Non-blocking, so that the file waits in the poller of the runtime.
	fd, err := unix.TimerfdCreate(unix.CLOCK_REALTIME, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch the clock: %w", err)
	}
	f := os.NewFile(uintptr(fd), "timerfd")
	defer context.AfterFunc(ctx, func() { _ = f.Close() })()
	for {
		// A moment that never comes; setting the clock cancels it.
		never := &unix.ItimerSpec{Value: unix.Timespec{Sec: math.MaxInt32 << 8}}
		if err := unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME|unix.TFD_TIMER_CANCEL_ON_SET, never, nil); err != nil && ctx.Err() == nil {
			return errors.Join(fmt.Errorf("watch the clock: %w", err), f.Close())
		}
		_, err := f.Read(make([]byte, 8))
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, unix.ECANCELED):
			stepped()
		case err != nil:
			return errors.Join(fmt.Errorf("watch the clock: %w", err), f.Close())
		}
	}
}
