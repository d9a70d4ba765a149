package daemon

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// ForbidDumps has the kernel make no core dump of this process, whatever its limit
// is and wherever dumps go: the memory may hold secrets. The Go runtime prints none
// of them when it reports a fault. Programs that this process starts may leave dumps.
func ForbidDumps() error {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid core dumps: %w", err)
	}
	return nil
}
