package launcher

import (
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"doze/internal/launcher/tune"
)

// calmAfter is when a guest is taken to be past its start or its wake: the
// collection of the engine's heap must not be in the way of what it was woken
// for.
const calmAfter = time.Second

// stir is stirred for who does not hold mu.
func (s *sandbox) stir() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stirred()
}

// stirred tells the engine, a little later, that its guest runs. Preconditions:
// mu is held.
func (s *sandbox) stirred() {
	if s.calm == nil {
		s.calm = time.AfterFunc(calmAfter, func() { s.tell(tune.HeapAwake) })
		return
	}
	s.calm.Reset(calmAfter)
}

// still tells the engine that its guest stands still for long. It is called when
// a checkpoint is written: that took memory, which the engine gives back before
// the rest may go to swap. Preconditions: mu is held.
func (s *sandbox) still() {
	if s.calm != nil {
		s.calm.Stop()
	}
	s.tell(tune.HeapAsleep)
}

// tell sends the engine a signal, if it is one that waits for it: it would end
// any other process.
func (s *sandbox) tell(sig unix.Signal) {
	pid := int(s.pid.Load())
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it is gone
	}
	defer func() { _ = unix.Close(fd) }()
	if s.over() || !catches(pid, sig) {
		return
	}
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil {
		slog.Warn("tell an engine about its heap", "sandbox", s.id, "err", err)
	}
}

// catches reports whether a process has a handler for a signal.
func catches(pid int, sig unix.Signal) bool {
	status, err := os.ReadFile(proc(pid, "status"))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(status)) {
		if mask, ok := strings.CutPrefix(line, "SigCgt:"); ok {
			caught, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64)
			return err == nil && caught&(1<<(sig-1)) != 0
		}
	}
	return false
}
