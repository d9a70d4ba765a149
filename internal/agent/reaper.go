package agent

import (
	"context"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"github.com/dozehq/doze/internal/agent/spawn"
)

// child is a process that the agent started. It leads its own process group.
type child struct {
	pid    int
	exited chan struct{}
	status syscall.WaitStatus // valid once exited is closed
}

// reaper starts children and collects them: nobody else in this process may
// fork or wait. A pid that it has not collected yet cannot be reused, so as
// long as it signals under the same lock, a signal never hits a stranger.
type reaper struct {
	init bool
	died chan os.Signal

	// reaping is held for reading while a pid must stay what it is, and for
	// writing while pids are given back.
	reaping sync.RWMutex
	mu      sync.Mutex
	alive   map[int]*child // guarded by mu
}

func newReaper(init bool) *reaper {
	r := &reaper{init: init, died: make(chan os.Signal, 1), alive: map[int]*child{}}
	signal.Notify(r.died, syscall.SIGCHLD)
	return r
}

// run collects children until ctx ends.
func (r *reaper) run(ctx context.Context) {
	defer signal.Stop(r.died)
	for {
		r.collect()
		select {
		case <-r.died:
		case <-ctx.Done():
			return
		}
	}
}

// collect reaps whoever is dead. Several deaths may share one SIGCHLD.
func (r *reaper) collect() {
	r.reaping.Lock()
	defer r.reaping.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.init {
		// Other children of this process belong to somebody else.
		for pid := range r.alive {
			r.wait(pid)
		}
		return
	}
	for r.wait(-1) {
		// an orphan is collected and forgotten
	}
}

// wait reaps one child, if it is dead. Preconditions: reaping and mu are held.
func (r *reaper) wait(pid int) bool {
	var status syscall.WaitStatus
	for {
		got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || got <= 0 {
			return false
		}
		if c := r.alive[got]; c != nil {
			delete(r.alive, got)
			c.status = status
			close(c.exited)
		}
		return true
	}
}

// start runs file. Its error is the one of fork, of a step before exec, or of
// exec itself.
func (r *reaper) start(file string, argv []string, attr spawn.Attr) (*child, error) {
	r.reaping.RLock()
	defer r.reaping.RUnlock()
	pid, err := spawn.Start(file, argv, attr)
	if err != nil {
		return nil, err
	}
	c := &child{pid: pid, exited: make(chan struct{})}
	r.mu.Lock()
	r.alive[pid] = c
	r.mu.Unlock()
	// Best effort: a kernel without the file has no such killer either.
	_ = setOOMScore(strconv.Itoa(pid), childOOMScore)
	return c, nil
}

// signal sends sig to the process group of c. It reports false when c is gone.
func (r *reaper) signal(c *child, sig syscall.Signal) bool {
	r.reaping.RLock()
	defer r.reaping.RUnlock()
	select {
	case <-c.exited:
		return false
	default:
		return syscall.Kill(-c.pid, sig) == nil
	}
}
