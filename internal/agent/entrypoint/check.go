package entrypoint

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/child"
	"github.com/dozehq/doze/internal/agent/command"
	"github.com/dozehq/doze/internal/agent/pump"
	"github.com/dozehq/doze/internal/agent/spawn"
	"github.com/dozehq/doze/internal/agent/system"
	"github.com/dozehq/doze/internal/agentapi"
)

// What an image does not say of its check. These are the defaults of Docker.
const (
	interval      = 30 * time.Second
	timeout       = 30 * time.Second
	startInterval = 5 * time.Second
	retries       = 3
)

const (
	// shortestInterval bounds how often a check may run, whatever the image says.
	shortestInterval = time.Second
	// sleepSlack is how much longer than its timeout a failed check may take. One that
	// took longer was asleep with its sandbox, and says nothing.
	sleepSlack = time.Second
	// wakeDelay is how long a check waits that was due while the sandbox slept.
	wakeDelay = time.Second
	// outputMax is what is remembered of the output of a check: the end.
	outputMax = 1 << 10
	// never is a pause without an end.
	never = time.Duration(1<<63 - 1)
)

// The states of a process that is checked.
const (
	starting  = "starting"
	healthy   = "healthy"
	unhealthy = "unhealthy"
)

// health judges results. It runs nothing.
type health struct {
	interval, timeout, startPeriod, startInterval time.Duration
	retries                                       int

	status   string    // empty while nothing is checked
	failures int       // in a row
	began    time.Time // the process
}

func newHealth(in *agentapi.HealthCheck) health {
	or := func(millis int64, otherwise time.Duration) time.Duration {
		if millis <= 0 {
			return otherwise
		}
		return time.Duration(millis) * time.Millisecond
	}
	h := health{
		interval: max(or(in.IntervalMillis, interval), shortestInterval), timeout: or(in.TimeoutMillis, timeout),
		startPeriod: or(in.StartPeriodMillis, 0), startInterval: max(or(in.StartIntervalMillis, startInterval), shortestInterval),
		retries: in.Retries,
	}
	if h.retries <= 0 {
		h.retries = retries
	}
	return h
}

// begin takes note of a fresh start of the process.
func (h *health) begin(now time.Time) { h.status, h.failures, h.began = starting, 0, now }

// early reports whether failures do not count yet.
func (h *health) early(now time.Time) bool {
	return h.status == starting && now.Sub(h.began) < h.startPeriod
}

// take judges the result of a check, and reports whether the status is another one.
func (h *health) take(ok bool, now time.Time) (changed bool) {
	was := h.status
	switch {
	case ok:
		h.status, h.failures = healthy, 0
	case h.early(now):
	default:
		if h.failures++; h.failures >= h.retries {
			h.status = unhealthy
		}
	}
	return h.status != was
}

// pause is the time until the next check.
func (h *health) pause(now time.Time) time.Duration {
	switch {
	case h.status == "":
		return never
	case h.early(now):
		return h.startInterval
	}
	return h.interval
}

// A turn is when the next check is due.
type turn struct {
	*time.Timer

	at time.Time
}

func newTurn(pause time.Duration) *turn {
	return &turn{time.NewTimer(pause), time.Now().Add(pause)}
}

// in has the next check after a pause.
func (t *turn) in(pause time.Duration) {
	t.Reset(pause)
	t.at = time.Now().Add(pause)
}

// slept reports whether the check was due long ago: the sandbox slept meanwhile.
func (t *turn) slept(now time.Time) bool { return now.Sub(t.at) > sleepSlack }

// A result is what came of one check.
type result struct {
	ok     bool
	void   bool // it says nothing
	code   int
	output string
	at     time.Time // of its end
}

// check is the health check of an image.
type check struct {
	test  []string
	start child.Launcher

	health health // guarded by mu of the entry point
	last   result // guarded by mu of the entry point
}

func newCheck(in *agentapi.HealthCheck, start child.Launcher) *check {
	return &check{test: in.Test, start: start, health: newHealth(in)}
}

// take judges a result. Preconditions: mu of the entry point is held.
func (c *check) take(r result) (changed bool) {
	if r.void {
		return false
	}
	c.last = r
	return c.health.take(r.ok, r.at)
}

// begin takes note of a fresh start of the process. Preconditions: mu of the entry point is
// held.
func (c *check) begin(now time.Time) {
	c.last = result{}
	c.health.begin(now)
}

// end takes note that the process is over: there is nothing to check. Preconditions: mu of
// the entry point is held.
func (c *check) end() { c.health.status, c.last = "", result{} }

// report is what the agent says of the health. Preconditions: mu of the entry point is
// held.
func (c *check) report() *system.Check {
	if c.health.status == "" {
		return nil
	}
	out := &system.Check{Status: c.health.status, Failures: c.health.failures, ExitCode: c.last.code, Output: c.last.output}
	out.At = doze.Time{Time: c.last.at}
	return out
}

// errOver is why a check ended early: there is nothing to check any more.
var errOver = doze.Errorf(doze.Unavailable, "the process of the image is over")

// run checks once, unless stop is closed before its end.
func (c *check) run(stop <-chan struct{}) (r result) {
	began := time.Now()
	said := &tail{}
	status, err := c.try(stop, said)
	r.at = time.Now()
	r.output = said.text()
	if err != nil {
		r.code, r.output = -1, mergeLines(r.output, doze.Public(err).Message)
	} else {
		r.code = status.ExitStatus() // -1 after a signal
		r.ok = r.code == 0
	}
	r.void = errors.Is(err, errOver) || !r.ok && r.at.Sub(began) > c.health.timeout+sleepSlack
	return r
}

// try runs the program of the check, as the user of the image, to its end.
func (c *check) try(stop <-chan struct{}, said *tail) (status syscall.WaitStatus, err error) {
	as, err := c.start.User.Credential()
	if err != nil {
		return status, err
	}
	call, err := c.invocation()
	if err != nil {
		return status, err
	}
	out, fd, err := pump.New(said.write)
	if err != nil {
		return status, err
	}
	defer out.Close()
	null, err := syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		_ = syscall.Close(fd)
		return status, err
	}
	p, err := c.start.Children.Start(call.File, call.Argv, spawn.Attr{Dir: c.start.Dir, Env: call.Env, Files: [3]int{null, fd, fd}, As: as})
	_, _ = syscall.Close(null), syscall.Close(fd) // the child has its own
	if err != nil {
		return status, doze.Wrap(err, doze.Unprocessable, "could not execute the health check with %s: %v", call.File, err)
	}
	var pumping sync.WaitGroup
	pumping.Go(out.Run)
	late := time.NewTimer(c.health.timeout)
	defer late.Stop()
	select {
	case <-p.Exited:
	case <-late.C:
		err = doze.Errorf(doze.Timeout, "the health check took longer than %v", c.health.timeout)
	case <-stop:
		err = errOver
	}
	c.start.Children.Signal(p, syscall.SIGKILL) // and what is left of its group, unless it is over
	<-p.Exited
	out.Drain()
	out.Close()
	pumping.Wait()
	return p.Status, err
}

// testShell begins a test that is a line for a shell. Others are a program.
const testShell = "CMD-SHELL"

// invocation is how the test runs: a program, or a line for a shell.
func (c *check) invocation() (command.Invocation, error) {
	env := c.start.Vars.List()
	if len(c.test) < 2 {
		return command.Invocation{}, doze.Errorf(doze.Unprocessable, "the image has a health check without a command")
	}
	if c.test[0] != testShell {
		return command.Program(c.test[1:], c.start.Dir, env)
	}
	shell := env.Look("/bin/sh")
	if shell == "" {
		shell = env.Shell("bash", "sh")
	}
	if shell == "" {
		return command.Invocation{}, doze.Errorf(doze.Unprocessable, "the health check needs a shell, and the image has none")
	}
	return command.Invocation{File: shell, Argv: []string{shell, "-c", c.test[1]}, Env: env}, nil
}

// mergeLines puts what we say below what the check wrote.
func mergeLines(said, ours string) string {
	if said == "" {
		return ours
	}
	return fmt.Sprintf("%s\n%s", strings.TrimRight(said, "\n"), ours)
}

// tail has the end of what a check writes.
type tail struct {
	mu   sync.Mutex
	last []byte // guarded by mu
}

func (t *tail) write(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(b) - outputMax; n > 0 {
		b = b[n:]
	}
	if n := len(t.last) + len(b) - outputMax; n > 0 {
		t.last = t.last[:copy(t.last, t.last[n:])]
	}
	t.last = append(t.last, b...)
}

// text is what was written, as text.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.ToValidUTF8(string(t.last), "\uFFFD")
}
