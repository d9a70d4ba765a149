package process

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/child"
	"github.com/dozehq/doze/internal/agent/command"
	"github.com/dozehq/doze/internal/agent/memory"
	"github.com/dozehq/doze/internal/agent/output"
)

const (
	// finishedMax, finishedText and finishedAge bound what is remembered of
	// processes that are over. Their text is their commands, of which each may
	// have what the kernel takes.
	finishedMax  = 1000
	finishedText = 2 << 20
	finishedAge  = 24 * time.Hour
	// runningMax is below what the kernel allows, so that the agent can always
	// answer.
	runningMax = 4096
	// budgetShare of the memory may be output, at least budgetMin.
	budgetShare = 10 // percent
	budgetMin   = 16 << 20
)

// Table is all processes that run or did.
type Table struct {
	start  child.Launcher
	dir    string
	budget *output.Budget
	feed   output.Feed // what the host collects
	tasks  sync.WaitGroup
	image  atomic.Pointer[command.Spec] // the process of the image; nil without one
	begun  func(*Process)               // told of each start of that; set before the first

	mu     sync.Mutex
	all    []*Process      // guarded by mu, in the order of their start
	names  map[string]bool // guarded by mu: taken by a process that runs
	serial uint64          // guarded by mu: keys the files of output
	closed bool            // guarded by mu
	frozen bool            // guarded by mu: for an archive
}

// New returns an empty table, whose processes keep their output in dir.
func New(start child.Launcher, dir string) *Table {
	t := &Table{
		start: start,
		dir:   dir,
		names: map[string]bool{},
	}
	t.budget = output.NewBudget(max(budgetMin, memory.Total()/100*budgetShare), t.forgetOutput)
	return t
}

// SetImage makes c the process of the image, which callers may start again. It does not
// start it. begun is called for each start, and must not wait.
func (t *Table) SetImage(c command.Spec, begun func(*Process)) {
	t.begun = begun
	t.image.Store(&c)
}

// Start starts a process. The name belongs to it from here on until it ends.
func (t *Table) Start(c command.Spec) (*Process, error) {
	t.prune(time.Now())
	t.mu.Lock()
	switch {
	case t.closed:
		t.mu.Unlock()
		return nil, doze.Errorf(doze.Unavailable, "the sandbox is stopping")
	case t.frozen:
		t.mu.Unlock()
		return nil, doze.Errorf(doze.Conflict, "the sandbox is frozen for an archive; POST /archive/resume ends that")
	case t.names[c.Name]:
		t.mu.Unlock()
		return nil, doze.Errorf(doze.Invalid, "process with name '%s' already exists and is running", c.Name)
	case len(t.names) >= runningMax:
		t.mu.Unlock()
		return nil, doze.Errorf(doze.Unprocessable, "%d processes are running, which is the most; stop some", runningMax)
	}
	t.names[c.Name] = true
	t.serial++
	out := output.New(c.Name, filepath.Join(t.dir, strconv.FormatUint(t.serial, 10)), t.budget, &t.feed)
	t.tasks.Add(1) // under mu, so that close waits for it
	t.mu.Unlock()

	p, err := newProcess(c, out, &t.start)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		delete(t.names, c.Name)
		t.tasks.Done()
		return nil, err
	}
	t.all = append(t.all, p)
	go func() { // ends with the process; close waits for it
		defer t.tasks.Done()
		p.live(func() {
			t.mu.Lock()
			defer t.mu.Unlock()
			delete(t.names, c.Name)
		})
	}()
	if t.closed || t.frozen {
		_ = p.finish(p.StopSignal(), Stopped) // it ended in time
	}
	if p.Image != nil {
		t.begun(p)
	}
	return p, nil
}

// prune forgets processes that ended long ago, and the oldest of too many.
func (t *Table) prune(now time.Time) {
	t.mu.Lock()
	var dropped []*Process
	over, text := 0, 0
	for _, p := range t.all {
		if p.ended.Load() != 0 {
			over++
			text += p.text()
		}
	}
	t.all = slices.DeleteFunc(t.all, func(p *Process) bool {
		ended := p.ended.Load()
		if ended == 0 || over < finishedMax && text <= finishedText && now.UnixNano()-ended < int64(finishedAge) {
			return false
		}
		over--
		text -= p.text()
		dropped = append(dropped, p)
		return true
	})
	t.mu.Unlock()
	for _, p := range dropped {
		p.out.Drop()
	}
}

// forgetOutput gives up the output of the process that ended first. It reports
// false when no process has any to give up.
func (t *Table) forgetOutput() bool {
	for _, p := range t.List() {
		if p.ended.Load() != 0 && p.out.Buffered() {
			p.out.Drop()
			return true
		}
	}
	return false
}

// List returns all processes, the oldest first.
func (t *Table) List() []*Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.all)
}

// Find returns the newest process of an identifier: a pid if it is a number,
// else a name.
func (t *Table) Find(id string) (*Process, error) {
	pid, err := strconv.Atoi(id)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range slices.Backward(t.all) {
		if err == nil && p.pid == pid || err != nil && p.Name == id {
			return p, nil
		}
	}
	return nil, doze.Errorf(doze.NotFound, "process not found")
}

// LastKeepAlive counts the processes that must not be put to sleep, and returns when
// the last one that had to be awake ended.
func (t *Table) LastKeepAlive() (n int, last time.Time) {
	for _, p := range t.List() {
		p.mu.Lock()
		switch {
		case p.awake:
			n++
		case p.KeepAlive && p.completedAt.After(last):
			last = p.completedAt
		}
		p.mu.Unlock()
	}
	return n, last
}

// Stop asks the process of an identifier, and its group, to end.
func (t *Table) Stop(id string) error {
	p, err := t.Find(id)
	if err != nil {
		return err
	}
	return p.finish(p.StopSignal(), Stopped)
}

// Kill ends the process of an identifier, and its group, at once.
func (t *Table) Kill(id string) error {
	p, err := t.Find(id)
	if err != nil {
		return err
	}
	return p.finish(syscall.SIGKILL, Killed)
}

// Shut starts no process any more.
func (t *Table) Shut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// ask tells every process to stop, and returns the names of those that run.
func (t *Table) ask() (names []string) {
	for _, p := range t.List() {
		if p.finish(p.StopSignal(), Stopped) == nil { // else it is over
			names = append(names, p.Name)
		}
	}
	return names
}

// Await waits for the end of all processes. When ctx ends, it kills those that
// are left.
func (t *Table) Await(ctx context.Context) {
	for _, p := range t.List() {
		select {
		case <-p.done:
		case <-ctx.Done():
			_ = p.finish(syscall.SIGKILL, Killed) // NotFound: it is over
			<-p.done
		}
	}
}

// Close stops every process and starts no other. When ctx ends, it kills those
// that are left. It returns when all are gone.
func (t *Table) Close(ctx context.Context) {
	t.Shut()
	t.ask()
	t.Await(ctx)
	for _, p := range t.List() {
		p.abandon()
	}
	t.tasks.Wait()
}

// Describe describes all processes, the newest first, with at most limit bytes of
// output together.
func (t *Table) Describe(limit int64) []Info {
	t.prune(time.Now())
	all := []Info{}
	left := limit
	for _, p := range slices.Backward(t.List()) {
		i := p.Info(min(output.TailMax, left/4)) // each byte is there twice
		left -= 2 * int64(len(*i.Logs))
		left = max(left, 0)
		if *i.CompletedAt == "" {
			i.CompletedAt = nil
		}
		all = append(all, i)
	}
	return all
}
