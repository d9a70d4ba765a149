package child

import (
	"strconv"
	"syscall"
)

// SetOOMScore writes without [os.File], which would make eight system calls of
// three.
func SetOOMScore(pid string, score int) error {
	fd, err := syscall.Open("/proc/"+pid+"/oom_score_adj", syscall.O_WRONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_, err = syscall.Write(fd, []byte(strconv.Itoa(score)))
	_ = syscall.Close(fd) // nothing is buffered
	return err
}

// childOOMScore makes a command, not the agent, the first victim when memory
// runs out.
const childOOMScore = 500
