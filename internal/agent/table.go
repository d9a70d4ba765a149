package agent

import (
	"context"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/dozehq/doze"
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

// table is all processes that run or did.
type table struct {
	start  launcher
	dir    string
	budget *budget
	tasks  sync.WaitGroup

	mu     sync.Mutex
	all    []*process      // guarded by mu, in the order of their start
	names  map[string]bool // guarded by mu: taken by a process that runs
	serial uint64          // guarded by mu: keys the files of output
	closed bool            // guarded by mu
	frozen bool            // guarded by mu: for an archive
}

func newTable(start launcher, dir string) *table {
	t := &table{
		start: start,
		dir:   dir,
		names: map[string]bool{},
	}
	t.budget = newBudget(max(budgetMin, memory()/100*budgetShare), t.forgetOutput)
	return t
}

// run starts a process. The name belongs to it from here on until it ends.
func (t *table) run(c command) (*process, error) {
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
	out := newOutput(filepath.Join(t.dir, strconv.FormatUint(t.serial, 10)), t.budget)
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
		_ = p.finish(syscall.SIGTERM, stopped) // it ended in time
	}
	return p, nil
}

// prune forgets processes that ended long ago, and the oldest of too many.
func (t *table) prune(now time.Time) {
	t.mu.Lock()
	var dropped []*process
	over, text := 0, 0
	for _, p := range t.all {
		if p.ended.Load() != 0 {
			over++
			text += p.text()
		}
	}
	t.all = slices.DeleteFunc(t.all, func(p *process) bool {
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
		p.out.drop()
	}
}

// forgetOutput gives up the output of the process that ended first. It reports
// false when no process has any to give up.
func (t *table) forgetOutput() bool {
	for _, p := range t.list() {
		if p.ended.Load() != 0 && p.out.kept() {
			p.out.drop()
			return true
		}
	}
	return false
}

// list returns all processes, the oldest first.
func (t *table) list() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.all)
}

// find returns the newest process of an identifier: a pid if it is a number,
// else a name.
func (t *table) find(id string) (*process, error) {
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

// keptAlive counts the processes that must not be put to sleep, and returns when
// the last one that had to be awake ended.
func (t *table) keptAlive() (n int, last time.Time) {
	for _, p := range t.list() {
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

// stop asks the process of an identifier, and its group, to end.
func (t *table) stop(id string) error { return t.finish(id, syscall.SIGTERM, stopped) }

// kill ends the process of an identifier, and its group, at once.
func (t *table) kill(id string) error { return t.finish(id, syscall.SIGKILL, killed) }

func (t *table) finish(id string, sig syscall.Signal, s status) error {
	p, err := t.find(id)
	if err != nil {
		return err
	}
	return p.finish(sig, s)
}

// shut starts no process any more.
func (t *table) shut() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
}

// ask tells every process to stop, and returns the names of those that run.
func (t *table) ask() (names []string) {
	for _, p := range t.list() {
		if p.finish(syscall.SIGTERM, stopped) == nil { // else it is over
			names = append(names, p.Name)
		}
	}
	return names
}

// await waits for the end of all processes. When ctx ends, it kills those that
// are left.
func (t *table) await(ctx context.Context) {
	for _, p := range t.list() {
		select {
		case <-p.done:
		case <-ctx.Done():
			_ = p.finish(syscall.SIGKILL, killed) // NotFound: it is over
			<-p.done
		}
	}
}

// close stops every process and starts no other. When ctx ends, it kills those
// that are left. It returns when all are gone.
func (t *table) close(ctx context.Context) {
	t.shut()
	t.ask()
	t.await(ctx)
	for _, p := range t.list() {
		p.abandon()
	}
	t.tasks.Wait()
}
