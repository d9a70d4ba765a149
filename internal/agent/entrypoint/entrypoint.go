// Package entrypoint runs the program that the image of a sandbox names, checks its
// health, and tells the host how it is.
package entrypoint

import (
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/child"
	"github.com/dozehq/doze/internal/agent/command"
	"github.com/dozehq/doze/internal/agent/process"
	"github.com/dozehq/doze/internal/agent/system"
	"github.com/dozehq/doze/internal/agentapi"
)

// failed is the status of a program that could not be started, as of a process.
const failed = "failed"

// Entrypoint is the process of the image of a sandbox. It is a process like all others,
// in the table of those. What is here follows it.
type Entrypoint struct {
	processes *process.Table
	start     child.Launcher
	gone      chan struct{} // closed by Close
	tasks     sync.WaitGroup

	mu      sync.Mutex
	told    bool             // guarded by mu: the host has said what the image wants
	check   *check           // guarded by mu; nil without one
	process *process.Process // guarded by mu: the last one; nil if none began
	message string           // guarded by mu: why none began
	change  int64            // guarded by mu
	at      time.Time        // guarded by mu: of the change
	changed chan struct{}    // guarded by mu: closed with the next one
	closed  bool             // guarded by mu
}

// New returns what runs nothing until the host says so.
func New(processes *process.Table, start child.Launcher) *Entrypoint {
	return &Entrypoint{processes: processes, start: start, gone: make(chan struct{}), changed: make(chan struct{})}
}

// Close ends the checks. The table ends the process.
func (e *Entrypoint) Close() {
	e.mu.Lock()
	if !e.closed {
		close(e.gone)
	}
	e.closed = true
	e.mu.Unlock()
	e.tasks.Wait()
}

// Begin runs the program of the image, unless it is to wait. The host calls it once a
// fresh machine is somebody's. A second call does nothing: a copy of the machine has the program in its
// memory.
func (e *Entrypoint) Begin(_ string, in agentapi.Image) (struct{}, error) {
	e.mu.Lock()
	again := e.told
	e.told = true
	if in.Health != nil && !again {
		e.check = newCheck(in.Health, e.start)
	}
	e.mu.Unlock()
	if again {
		return struct{}{}, nil
	}
	if len(in.Program) == 0 {
		e.follow(nil)
		return struct{}{}, nil
	}
	c := command.ForImage(command.Image{Argv: in.Program, StopSignal: syscall.Signal(in.StopSignal)})
	e.processes.SetImage(c, e.follow)
	if in.Waits {
		return struct{}{}, nil
	}
	if _, err := e.processes.Start(c); err != nil {
		e.note(func() { e.message = doze.Public(err).Message })
	}
	return struct{}{}, nil
}

// Await answers how the process is, once that is not as it was in the answer with the
// change in the query. The host asks for it.
func (e *Entrypoint) Await(r *http.Request, _ string) (agentapi.ImageState, error) {
	after, err := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64)
	if err != nil {
		return agentapi.ImageState{}, doze.Errorf(doze.Invalid, "after must be a change")
	}
	for {
		e.mu.Lock()
		change, changed := e.change, e.changed
		e.mu.Unlock()
		if change != after {
			return e.state(), nil
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return e.state(), nil
		}
	}
}

// state is how the process is now.
func (e *Entrypoint) state() agentapi.ImageState {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := agentapi.ImageState{Change: e.change, Message: e.message}
	if !e.at.IsZero() {
		s.At = e.at.UnixMilli()
	}
	switch {
	case e.process != nil:
		i := e.process.Brief()
		s.Status, s.ExitCode, s.Restarts = string(i.Status), i.ExitCode, i.RestartCount
	case e.message != "":
		s.Status = failed
	}
	if e.check != nil {
		s.Health, s.Output = e.check.health.status, e.check.last.output
	}
	return s
}

// note makes a change, and tells those that wait for one.
func (e *Entrypoint) note(do func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	do()
	e.change++
	e.at = time.Now()
	close(e.changed)
	e.changed = make(chan struct{})
}

// Health is how the last check went; nil if nothing is checked.
func (e *Entrypoint) Health() *system.Check {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.check == nil {
		return nil
	}
	return e.check.report()
}

// follow follows a process of the image from its start to its end: what callers start again
// is another one. Without one, as for an image that has a check alone, it follows the
// sandbox.
func (e *Entrypoint) follow(p *process.Process) {
	e.mu.Lock()
	closed := e.closed
	if !closed {
		e.tasks.Add(1) // under mu, so that Close waits for it
	}
	e.mu.Unlock()
	if closed {
		return
	}
	go func() { // Close waits for it
		defer e.tasks.Done()
		e.watch(p)
	}()
}

// watch checks the health of a process for as long as there is one.
func (e *Entrypoint) watch(p *process.Process) {
	var over, again <-chan struct{}
	if p != nil {
		over, again = p.Done(), p.Attempts()
	}
	stop := make(chan struct{})
	defer close(stop) // the check under way
	e.note(func() { e.begin(p) })
	next := newTurn(e.pause())
	defer next.Stop()
	results := make(chan result, 1) // of the check under way
	checking, stale, waited := false, false, false
	for {
		select {
		case <-e.gone:
			return
		case <-over:
			e.note(func() {
				if e.check != nil && e.process == p { // a caller may have started another one already
					e.check.end()
				}
			})
			return
		case <-again:
			e.note(func() { e.begin(p) })
			if stale = checking; !checking {
				next.in(e.pause())
			}
		case <-next.C:
			if waited = !waited && next.slept(time.Now()); waited { // what woke the sandbox comes first
				next.in(wakeDelay)
				continue
			}
			checking = true // only what is checked has a pause that ends
			e.tasks.Go(func() { results <- e.check.run(stop) })
		case r := <-results:
			if !stale {
				e.judge(r)
			}
			checking, stale = false, false
			next.in(e.pause())
		}
	}
}

// begin takes a fresh start of the process in. Preconditions: mu is held.
func (e *Entrypoint) begin(p *process.Process) {
	e.process, e.message = p, ""
	if e.check != nil {
		e.check.begin(time.Now())
	}
}

// pause is the time until the next check.
func (e *Entrypoint) pause() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.check == nil {
		return never
	}
	return e.check.health.pause(time.Now())
}

// judge takes the result of a check in. Only a new state is a change: the host need not
// hear of each check.
func (e *Entrypoint) judge(r result) {
	e.mu.Lock()
	changed := e.check.take(r)
	e.mu.Unlock()
	if changed {
		e.note(func() {})
	}
}
