// Package early does the work of gVisor's smallest process without gVisor.
//
// Every sandbox starts a process that waits for one byte and then takes a mount
// away (`runsc umount`). It is the same binary, and to initialise the packages
// of gVisor takes longer than all that it does. Go initialises packages that are
// ready in the order of their paths: this one imports next to nothing, and its
// path is before gVisor's. So the work is done, and the process over, before the
// first package of gVisor is initialised.
package early

import (
	"os"
	"strings"
	"syscall"
)

const (
	syncFlag = "--sync-fd="
	// failed is what gVisor's commands end with when they fail.
	failed = 128
)

func init() { //nolint:gochecknoinits // that it runs before the others' is what it is for
	if dir, ok := umounts(os.Args); ok {
		os.Exit(umount(dir)) //nolint:forbidigo // this process has no other main
	}
}

// syncFile is the descriptor that gVisor gives the process.
const syncFile = 3

// umounts reports which directory a process with these arguments is to unmount.
func umounts(args []string) (dir string, ok bool) {
	if len(args) != 4 || args[1] != "umount" || args[2] != syncFlag+"3" || !strings.HasPrefix(args[3], "/") {
		return "", false // or it is for gVisor
	}
	return args[3], true
}

// umount waits for a byte, which says that the mount is not needed any more.
func umount(dir string) (code int) {
	for {
		n, err := syscall.Read(syncFile, make([]byte, 1))
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n != 1 {
			return failed // the engine has ended
		}
		break
	}
	if syscall.Unmount(dir, syscall.MNT_DETACH) != nil {
		return failed
	}
	return 0
}
