package node

import (
	"context"
	"sync"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// ledger is what is awake of each workspace, and how much of that may be. It is
// in memory alone: a wake asks it, and waits for nothing.
//
// A sandbox counts from the moment at which its machine is about to run, until
// it stands still or is gone. Sandboxes that are paused do not count, nor do the
// machines of the platform itself.
type ledger struct {
	mu     sync.Mutex
	limits map[string]doze.Limits // guarded by mu; by workspace, the empty one has the defaults
	awake  map[string]*awake      // guarded by mu; by workspace
}

// awake is what is awake of one workspace.
type awake struct {
	machines map[string]doze.Megabytes // by UID
	memory   doze.Megabytes            // of all of them
}

func newLedger() *ledger {
	return &ledger{limits: map[string]doze.Limits{}, awake: map[string]*awake{}}
}

func (l *ledger) setLimits(workspace string, limits doze.Limits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if workspace != "" && len(limits) == 0 {
		delete(l.limits, workspace)
		return
	}
	l.limits[workspace] = limits
}

// enter counts a sandbox that is about to run, unless its workspace may not
// have more awake. One that counts already is let in. The sandbox instead,
// which may be empty, is taken for asleep.
func (l *ledger) enter(o *fleet.Order, instead string) error {
	if hidden(o.UID) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.of(o.Workspace)
	if _, counts := a.machines[o.UID]; counts {
		return nil
	}
	n, memory := int64(len(a.machines)), a.memory
	if m, counts := a.machines[instead]; counts {
		n, memory = n-1, memory-m
	}
	own, defaults := l.limits[o.Workspace], l.limits[""]
	if most := own.Of(doze.QuotaSandboxesAwake, defaults); n+1 > most {
		l.tidy(o.Workspace)
		return doze.QuotaExceeded(doze.QuotaSandboxesAwake, n, most)
	}
	if most := own.Of(doze.QuotaMemoryAwake, defaults); int64(memory+o.Memory) > most {
		l.tidy(o.Workspace)
		return doze.QuotaExceeded(doze.QuotaMemoryAwake, int64(memory), most)
	}
	a.put(o)
	return nil
}

// note counts a sandbox that runs, whatever its workspace may have: it was
// adopted, or has to run for what somebody wants to save of it.
func (l *ledger) note(o *fleet.Order) {
	if hidden(o.UID) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(o.Workspace).put(o)
}

// leave counts a sandbox no more. One that does not count is no error.
func (l *ledger) leave(workspace, uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.awake[workspace]; a != nil {
		a.memory -= a.machines[uid]
		delete(a.machines, uid)
		l.tidy(workspace)
	}
}

// forget is leave for a sandbox of which only the UID is known.
func (l *ledger) forget(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for workspace, a := range l.awake {
		if m, counts := a.machines[uid]; counts {
			a.memory -= m
			delete(a.machines, uid)
			l.tidy(workspace)
		}
	}
}

// used returns what counts of a workspace.
func (l *ledger) used(workspace string) (int, doze.Megabytes) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.awake[workspace]; a != nil {
		return len(a.machines), a.memory
	}
	return 0, 0
}

// all returns what counts of each workspace that has something awake.
func (l *ledger) all() map[string]fleet.Awake {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string]fleet.Awake, len(l.awake))
	for workspace, a := range l.awake {
		all[workspace] = fleet.Awake{Sandboxes: len(a.machines), Memory: a.memory}
	}
	return all
}

// of returns what is awake of a workspace. Preconditions: mu is held.
func (l *ledger) of(workspace string) *awake {
	a := l.awake[workspace]
	if a == nil {
		a = &awake{machines: map[string]doze.Megabytes{}}
		l.awake[workspace] = a
	}
	return a
}

// tidy forgets a workspace of which nothing is awake. Preconditions: mu is held.
func (l *ledger) tidy(workspace string) {
	if len(l.awake[workspace].machines) == 0 {
		delete(l.awake, workspace)
	}
}

func (a *awake) put(o *fleet.Order) {
	a.memory += o.Memory - a.machines[o.UID]
	a.machines[o.UID] = o.Memory
}

// settle brings the ledger up to date with the phase of a sandbox. One that is
// about to be disabled, or to end, counts as it did: its machine may run until
// then. The caller holds what guards the phase.
func (l *ledger) settle(o *fleet.Order, p doze.Phase) {
	switch p {
	case doze.Disabling, doze.Deleting:
	case doze.Starting, doze.Running, doze.Suspending, doze.Waking, doze.Archiving, doze.Unarchiving:
		l.note(o)
	case doze.Pending, doze.Uploading, doze.Building, doze.Standby, doze.Disabled, doze.Archived, doze.Terminated, doze.Failed:
		l.leave(o.Workspace, o.UID)
	}
}

// SetLimits implements [fleet.Node].
func (n *Node) SetLimits(_ context.Context, workspace string, l doze.Limits) error {
	n.ledger.setLimits(workspace, l)
	return nil
}

// Claim implements [fleet.Node].
func (n *Node) Claim(_ context.Context, o fleet.Order, instead string) error {
	return n.enter(&o, instead)
}

// enter is that of the ledger; a refusal is counted.
func (n *Node) enter(o *fleet.Order, instead string) error {
	err := n.ledger.enter(o, instead)
	if err != nil {
		quota, _ := doze.Public(err).Fields["quota"].(string)
		n.Refused(quota)
	}
	return err
}

// Awake implements [fleet.Node].
func (n *Node) Awake(_ context.Context, workspace string) (fleet.Awake, error) {
	sandboxes, memory := n.ledger.used(workspace)
	return fleet.Awake{Sandboxes: sandboxes, Memory: memory}, nil
}
