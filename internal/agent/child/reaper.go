// Package child starts the processes of a sandbox and collects them. Nothing else
// in the agent forks, waits or signals.
package child

import (
	"context"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"github.com/dozehq/doze/internal/agent/spawn"
)

// Child is a process that the agent started. It leads its own process group.
type Child struct {
	PID    int
	Exited chan struct{}
	Status syscall.WaitStatus // valid once exited is closed
}

// Reaper starts children and collects them: nobody else in this process may
// fork or wait. A pid that it has not collected yet cannot be reused, so as
// long as it signals under the same lock, a signal never hits a stranger.
type Reaper struct {
	Init bool
	died chan os.Signal

	// reaping is held for reading while a pid must stay what it is, and for
	// writing while pids are given back.
	reaping sync.RWMutex
	mu      sync.Mutex
	alive   map[int]*Child // guarded by mu
}

// New returns a reaper. As the first process it collects orphans, too.
func New(init bool) *Reaper {
	r := &Reaper{Init: init, died: make(chan os.Signal, 1), alive: map[int]*Child{}}
	signal.Notify(r.died, syscall.SIGCHLD)
	return r
}

// Run collects children until ctx ends.
func (r *Reaper) Run(ctx context.Context) {
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

// collect reaps all dead children. Several deaths may share one SIGCHLD.
func (r *Reaper) collect() {
	r.reaping.Lock()
	defer r.reaping.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.Init {
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
func (r *Reaper) wait(pid int) bool {
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
			c.Status = status
			close(c.Exited)
		}
		return true
	}
}

// Start runs file. Its error is the one of fork, of a step before exec, or of
// exec itself.
func (r *Reaper) Start(file string, argv []string, attr spawn.Attr) (*Child, error) {
	r.reaping.RLock()
	defer r.reaping.RUnlock()
	pid, err := spawn.Start(file, argv, attr)
	if err != nil {
		return nil, err
	}
	c := &Child{PID: pid, Exited: make(chan struct{})}
	r.mu.Lock()
	r.alive[pid] = c
	r.mu.Unlock()
	// Best effort: a kernel without the file has no such killer either.
	_ = SetOOMScore(strconv.Itoa(pid), childOOMScore)
	return c, nil
}

// Signal sends sig to the process group of c. It reports false when c is gone.
func (r *Reaper) Signal(c *Child, sig syscall.Signal) bool {
	r.reaping.RLock()
	defer r.reaping.RUnlock()
	select {
	case <-c.Exited:
		return false
	default:
		return syscall.Kill(-c.PID, sig) == nil
	}
}
