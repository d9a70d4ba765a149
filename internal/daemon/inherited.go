package daemon

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// firstInherited is the descriptor of the first socket of [Inherited].
const firstInherited = 3

// Inherited returns the listening socket that systemd made for this process, or
// nil: see sd_listen_fds(3). It fails if there are several.
func Inherited() (*os.File, error) {
	pid, err := strconv.Atoi(os.Getenv("LISTEN_PID")) //nolint:forbidigo // this is the place
	if err != nil || pid != os.Getpid() {
		return nil, nil //nolint:nilnil,nilerr // it was meant for somebody else, or for nobody
	}
	if n := os.Getenv("LISTEN_FDS"); n != "1" { //nolint:forbidigo // as above
		return nil, fmt.Errorf("LISTEN_FDS is %q: give one socket, with one ListenStream= in the socket unit", n)
	}
	unix.CloseOnExec(firstInherited)
	return os.NewFile(firstInherited, "inherited"), nil
}
