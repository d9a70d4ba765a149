// Package checkup tells operators what the doctor finds amiss with the host of this
// process. It looks only when somebody asks, and at most once a minute.
package checkup

import (
	"context"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/doctor"
)

const (
	rest    = time.Minute     // between two looks
	waitMax = 5 * time.Second // that a caller waits for a look
)

// Checkup is the last look at a host. It is made by New.
type Checkup struct {
	name      string // of the host
	sandboxes bool   // this process runs them
	examine   func() []doctor.Finding

	mu      sync.Mutex
	last    doze.Checkup  // with the zero moment before the first look
	next    time.Time     // before it, last is told again
	running chan struct{} // closed at the end of a look; nil without one
}

// New makes a checkup of a host. It does not look yet.
func New(name string, sandboxes bool, examine func() []doctor.Finding) *Checkup {
	return &Checkup{name: name, sandboxes: sandboxes, examine: examine}
}

// Read returns what the last look found, or has a new one made. Callers share it. If a disk
// hangs, the look does too: callers get the one before, and no other look begins.
func (c *Checkup) Read(ctx context.Context) (doze.Checkup, error) {
	c.mu.Lock()
	if time.Now().Before(c.next) {
		defer c.mu.Unlock()
		return c.last, nil
	}
	if c.running == nil {
		c.running = make(chan struct{})
		go c.look()
	}
	running := c.running
	c.mu.Unlock()

	late := time.NewTimer(waitMax)
	defer late.Stop()
	select {
	case <-running:
	case <-late.C:
	case <-ctx.Done():
		return doze.Checkup{}, context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.CheckedAt.IsZero() {
		return doze.Checkup{}, doze.Errorf(doze.Unavailable, "the host did not answer within %v: run dozed doctor on it, and look at its disks", waitMax)
	}
	return c.last, nil
}

// look looks at the host. Nobody waits for its end when the process stops: it writes nothing,
// and a disk that hangs would hold the process up.
func (c *Checkup) look() {
	at := time.Now()
	found := told(c.examine())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = doze.Checkup{Host: c.name, Sandboxes: c.sandboxes, CheckedAt: doze.Time{Time: at}, Findings: found}
	c.next = time.Now().Add(rest)
	close(c.running)
	c.running = nil
}

// told are findings in the words of the API, without those that are fine.
func told(found []doctor.Finding) []doze.Finding {
	all := []doze.Finding{}
	severities := map[doctor.Verdict]string{doctor.Advice: doze.SeverityWarning, doctor.Missing: doze.SeverityError}
	for _, f := range found {
		if s := severities[f.Verdict]; s != "" {
			all = append(all, doze.Finding{Name: f.Check, Severity: s, Found: f.Text, Remedy: f.Remedy})
		}
	}
	return all
}
