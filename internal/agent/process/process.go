// Package process runs commands, remembers them for a while, and answers the calls
// about them. One goroutine decides the fate of each.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/child"
	"github.com/dozehq/doze/internal/agent/command"
	"github.com/dozehq/doze/internal/agent/output"
	"github.com/dozehq/doze/internal/agent/pump"
)

const (
	// restartDelay keeps a command that fails at once from spinning. For the process of
	// an image it doubles with each failure in a row, up to restartDelayMax.
	restartDelay    = time.Second
	restartDelayMax = time.Minute
	doublingsMax    = 6
	// steady is how long the process of an image runs until its failures before do not
	// count any more.
	steady = time.Minute
)

// Status is how a process looks from outside.
type Status string

const (
	running   Status = "running"
	completed Status = "completed"
	failed    Status = "failed"
	Stopped   Status = "stopped"
	Killed    Status = "killed"
)

// outcome decides what an exit means. asked is how the caller wanted the
// process to end, if so.
func outcome(exit syscall.WaitStatus, asked Status) (s Status, code int) {
	code = exit.ExitStatus() // -1 after a signal
	switch {
	case code == 0:
		return completed, 0
	case asked != "":
		return asked, code
	}
	return failed, code
}

// timeForm is how the API writes the times of a process, in UTC.
const timeForm = "Mon, 02 Jan 2006 15:04:05 GMT"

// Info describes a process in answers. All members are always present.
type Info struct {
	PID              string  `json:"pid"` // of the first start
	Name             string  `json:"name"`
	Command          string  `json:"command"`
	WorkingDir       string  `json:"workingDir"`
	Status           Status  `json:"status"`
	StartedAt        string  `json:"startedAt"`
	CompletedAt      *string `json:"completedAt"`
	ExitCode         int     `json:"exitCode"`
	Logs             *string `json:"logs"` // stdout, then stderr
	Stdout           string  `json:"stdout"`
	Stderr           string  `json:"stderr"`
	RestartOnFailure bool    `json:"restartOnFailure"`
	MaxRestarts      int     `json:"maxRestarts"`
	RestartCount     int     `json:"restartCount"`
	KeepAlive        bool    `json:"keepAlive"`
	Stdin            bool    `json:"stdin"`
	Signal           int     `json:"signal"` // that ended it; 0 for none
}

// Process is a command that runs or did. One goroutine, in [Process.live],
// decides what happens to it.
type Process struct {
	command.Spec
	pid   int // of the first start; it may be somebody else's by now
	out   *output.Output
	start *child.Launcher
	done  chan struct{} // closed when it is over and its output is complete
	halt  chan struct{} // closed when it must not restart; nil if it never does
	ended atomic.Int64  // unix nanoseconds; 0 while it runs
	late  atomic.Bool   // its lifetime was over before it

	attempts  chan struct{}  // of the process of an image: holds a token after it started again
	stdinTurn chan struct{}  // holds a token while nobody writes to stdin; nil without one
	pumps     sync.WaitGroup // the ones of all attempts

	mu          sync.Mutex
	now         *attempt     // guarded by mu; nil between and after attempts
	status      Status       // guarded by mu
	asked       Status       // guarded by mu: stopped or killed, if a caller wanted that
	code        int          // guarded by mu: of the last attempt, once it is over
	signal      int          // guarded by mu: that ended that; 0 for none
	startedAt   time.Time    // guarded by mu
	completedAt time.Time    // guarded by mu
	restarted   int          // guarded by mu
	failures    int          // guarded by mu: in a row
	awake       bool         // guarded by mu: the sandbox must not sleep
	stdinClosed bool         // guarded by mu
	carrying    []*pump.Pump // guarded by mu: of all attempts
	group       int          // guarded by mu: pid of the last attempt
}

// newProcess starts c.
func newProcess(c command.Spec, out *output.Output, start *child.Launcher) (*Process, error) {
	p := &Process{Spec: c, out: out, start: start, done: make(chan struct{}), awake: c.KeepAlive}
	if c.RestartOnFailure {
		p.halt = make(chan struct{})
	}
	if c.Image != nil {
		p.attempts = make(chan struct{}, 1)
	}
	if c.Stdin {
		p.stdinTurn = make(chan struct{}, 1)
		p.stdinTurn <- struct{}{}
	}
	a, err := try(start, &p.Spec, out)
	if err != nil {
		return nil, err
	}
	p.pid = a.PID
	p.begin(a)
	return p, nil
}

// begin takes a new attempt in.
func (p *Process) begin(a *attempt) {
	for _, pump := range a.pumps {
		p.pumps.Go(pump.Run)
	}
	p.mu.Lock()
	p.carrying = append(slices.DeleteFunc(p.carrying, (*pump.Pump).Over), a.pumps[:]...)
	p.mu.Unlock()
	if life := p.Lifetime(); life > 0 {
		a.deadline = time.AfterFunc(life, func() {
			p.late.Store(true)
			_ = p.finish(syscall.SIGKILL, Killed) // it may have just ended
		})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.group, p.startedAt, p.completedAt = a, a.PID, time.Now(), time.Time{}
	switch {
	case p.asked != "": // while it started again
		p.start.Children.Signal(a.Child, syscall.SIGKILL)
	case p.stdinClosed && a.stdin != nil:
		_ = a.stdin.Close() // its end is all that the child shall see
	default:
		p.status = running
	}
}

// live follows the process from its first start to its end. It calls over once
// the process is over, though children that it left behind may still write.
func (p *Process) live(over func()) {
	for {
		p.mu.Lock()
		a := p.now
		p.mu.Unlock()
		<-a.Exited
		for _, pump := range a.pumps {
			pump.Drain()
		}
		if !p.again(a) {
			break
		}
	}
	p.mu.Lock()
	p.ended.Store(time.Now().UnixNano())
	p.Env = nil // it may be large, and nobody starts the process again
	p.mu.Unlock()
	p.hint()
	p.out.End()
	over() // a caller that waited for the end may use the name again
	close(p.done)
	p.pumps.Wait() // children that it left behind
	p.out.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.carrying = nil
}

// again ends an attempt and begins the next one, if there is to be one.
func (p *Process) again(a *attempt) bool {
	if a.deadline != nil {
		a.deadline.Stop()
	}
	p.mu.Lock()
	s, code := outcome(a.Status, p.asked)
	p.now = nil
	if a.stdin != nil {
		_ = a.stdin.Close() // nobody reads it any more
	}
	n := p.restarted + 1
	tried, pause := p.tried()
	if s != failed || !p.Restarts(tried) {
		p.over(s, a.Status)
		p.mu.Unlock()
		return false
	}
	p.failures++
	p.mu.Unlock()

	most := strconv.Itoa(p.MaxRestarts)
	if p.MaxRestarts < 0 {
		most = "unlimited"
	}
	p.out.Write(output.Stdout, fmt.Appendf(nil, "\n[Process failed with exit code %d. Attempting restart %d/%s...]\n", code, tried+1, most))
	delay := time.NewTimer(pause)
	defer delay.Stop()
	select {
	case <-delay.C:
	case <-p.halt:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.over(p.asked, a.Status)
		return false
	}
	next, err := try(p.start, &p.Spec, p.out)
	if err != nil {
		p.out.Write(output.Stderr, []byte(doze.Public(err).Message+"\n"))
		p.mu.Lock()
		defer p.mu.Unlock()
		p.over(cmp.Or(p.asked, failed), a.Status)
		return false
	}
	p.mu.Lock()
	p.restarted = n
	p.mu.Unlock()
	p.begin(next)
	select {
	case p.attempts <- struct{}{}: // never of those whose channel is nil
	default:
	}
	return true
}

// tried returns how many restarts count, and the pause before the next one.
// Preconditions: mu is held.
func (p *Process) tried() (n int, pause time.Duration) {
	if p.Image == nil {
		return p.restarted, restartDelay
	}
	if time.Since(p.startedAt) >= steady {
		p.failures = 0
	}
	return p.failures, min(restartDelay<<min(p.failures, doublingsMax), restartDelayMax)
}

// over notes the end, and how the last attempt ended: until then nobody is told a
// code. Preconditions: mu is held.
func (p *Process) over(s Status, last syscall.WaitStatus) {
	p.status, p.awake, p.completedAt = s, false, time.Now()
	p.code = last.ExitStatus()
	if last.Signaled() {
		p.signal = int(last.Signal())
	}
}

// How attached readers learn of a stop and of a kill. It is no output of the
// process and not kept.
var endings = map[Status]string{
	Stopped: "\n[Process is being gracefully terminated]\n",
	Killed:  "\n[Process is being forcefully killed]\n",
}

// finish signals the whole process group and keeps the process from starting
// again. It is NotFound when the process is over.
func (p *Process) finish(sig syscall.Signal, s Status) error {
	p.mu.Lock()
	select {
	case <-p.done:
		p.mu.Unlock()
		return doze.Errorf(doze.NotFound, "process is not running any more")
	default:
	}
	if !p.completedAt.IsZero() && p.now == nil {
		p.mu.Unlock()
		return doze.Errorf(doze.NotFound, "process is not running any more")
	}
	if p.asked == "" && p.halt != nil {
		close(p.halt)
	}
	heard := p.asked == s || p.asked == Killed
	if !heard { // a stop does not take a kill back
		p.asked, p.status = s, s
	}
	p.awake = false
	a := p.now
	p.mu.Unlock()

	if !heard {
		p.out.Notice(endings[s])
	}
	if a != nil && !p.start.Children.Signal(a.Child, sig) {
		return doze.Errorf(doze.NotFound, "process is not running any more")
	}
	return nil
}

// abandon stops reading what children of the process still write, so that
// nothing waits for them.
func (p *Process) abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pump := range p.carrying {
		pump.Close()
	}
}

// Done is closed when the process is over and will not start again.
func (p *Process) Done() <-chan struct{} { return p.done }

// Attempts has a token after each time that the process of an image started again.
func (p *Process) Attempts() <-chan struct{} { return p.attempts }

// runs returns what the process was started with, unless it is over.
func (p *Process) runs() (c command.Spec, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Spec, p.ended.Load() == 0
}

// Await returns when the process is over. It is Unprocessable when the patience of
// the caller was, which ctx has, too; 0 is without an end. A process that lives for
// as long may end first.
func (p *Process) Await(ctx context.Context, patience time.Duration) error {
	select {
	case <-p.done:
		if !p.late.Load() || patience == 0 {
			return nil
		}
	case <-ctx.Done():
	}
	return p.timedOut("", patience)
}

// timedOut is the answer to a caller that has waited for it, or for something of it,
// as long as the caller wanted. It says what becomes of the process.
func (p *Process) timedOut(what string, waited time.Duration) error {
	then := "it goes on as " + p.Name
	if life := p.Lifetime(); life > 0 && life <= waited {
		then = "with keepAlive, it is killed then; see the logs of " + p.Name
	}
	return doze.Errorf(doze.Unprocessable, "process timed out%s after %d seconds; %s", what, int64(waited.Seconds()), then)
}

// text is how many bytes the caller chose of what is remembered.
func (p *Process) text() int { return len(p.Command) + len(p.Name) + len(p.WorkingDir) }

// leader returns the pid of the last attempt.
func (p *Process) leader() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.group
}

// Info describes the process with at most limit bytes of each stream.
func (p *Process) Info(limit int64) Info {
	i := p.Brief()
	i.Stdout, i.Stderr = p.out.Text(output.Stdout, limit), p.out.Text(output.Stderr, limit)
	logs := i.Stdout + i.Stderr
	i.Logs = &logs
	return i
}

// Brief describes the process without its output.
func (p *Process) Brief() Info {
	p.mu.Lock()
	defer p.mu.Unlock()
	completedAt := ""
	if !p.completedAt.IsZero() {
		completedAt = p.completedAt.UTC().Format(timeForm)
	}
	return Info{
		PID:              strconv.Itoa(p.pid),
		Name:             p.Name,
		Command:          p.Command,
		WorkingDir:       p.WorkingDir,
		Status:           p.status,
		StartedAt:        p.startedAt.UTC().Format(timeForm),
		CompletedAt:      &completedAt,
		ExitCode:         p.code,
		RestartOnFailure: p.RestartOnFailure,
		MaxRestarts:      p.MaxRestarts,
		RestartCount:     p.restarted,
		KeepAlive:        p.awake,
		Stdin:            p.Stdin,
		Signal:           p.signal,
	}
}

var errNoStdin = doze.Errorf(doze.Conflict, "the process was started without stdin; start it with \"stdin\": true")

// stdinStall is how long a process may leave what we write to it unread.
const stdinStall = 10 * time.Second

// writeInput writes b to the process, in one piece with respect to other writers.
// It is a Conflict when there is nobody to write to, and Unavailable when the
// process does not read; left is how many bytes were not written.
func (p *Process) writeInput(cancelled <-chan struct{}, b []byte) (left int, err error) {
	if !p.Stdin {
		return len(b), errNoStdin
	}
	select {
	case <-p.stdinTurn:
	case <-cancelled:
		return len(b), doze.Errorf(doze.Unavailable, "the caller went away")
	case <-p.done:
		return len(b), doze.Errorf(doze.Conflict, "the stdin of the process is closed")
	}
	defer func() { p.stdinTurn <- struct{}{} }()
	p.mu.Lock()
	a, closed := p.now, p.stdinClosed
	p.mu.Unlock()
	if closed || a == nil {
		return len(b), doze.Errorf(doze.Conflict, "the stdin of the process is closed")
	}
	for len(b) > 0 {
		_ = a.stdin.SetWriteDeadline(time.Now().Add(stdinStall)) // the write reports what is wrong
		n, err := a.stdin.Write(b[:min(len(b), pump.ChunkMax)])
		b = b[n:]
		switch {
		case n > 0:
		case errors.Is(err, os.ErrDeadlineExceeded):
			return len(b), doze.Wrap(err, doze.Unavailable, "the process stopped reading; %d bytes were not written", len(b))
		case errors.Is(err, syscall.EPIPE), errors.Is(err, os.ErrClosed):
			return len(b), doze.Wrap(err, doze.Conflict, "the process closed its stdin; %d bytes were not written", len(b))
		case err != nil:
			return len(b), doze.Wrap(err, doze.Internal, "write to stdin: %v", err)
		}
	}
	return 0, nil
}

// closeInput gives the process the end of its input. Closing twice is fine.
func (p *Process) closeInput() error {
	if !p.Stdin {
		return errNoStdin
	}
	<-p.stdinTurn // what was written before comes before the end
	defer func() { p.stdinTurn <- struct{}{} }()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil && !p.stdinClosed {
		_ = p.now.stdin.Close() // the process may have closed its end first
	}
	p.stdinClosed = true
	return nil
}
