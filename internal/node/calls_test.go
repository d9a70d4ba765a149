package node_test

import (
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// The calls of control that a node of the same process never fails, as tests ask
// them.

func (p *process) done(err error) {
	p.h.t.Helper()
	if err != nil {
		p.h.t.Error(err)
	}
}

// Status returns what is known of a sandbox, or false.
func (p *process) Status(uid string) (fleet.Status, bool) {
	p.h.t.Helper()
	all, err := p.Statuses(p.h.t.Context(), []string{uid})
	p.done(err)
	st, ok := all[uid]
	return st, ok
}

func (p *process) DriveMounts(uid string) []fleet.DriveMount {
	p.h.t.Helper()
	all, err := p.Node.DriveMounts(p.h.t.Context(), uid)
	p.done(err)
	return all
}

func (p *process) DriveUsers(drive string) []string {
	p.h.t.Helper()
	all, err := p.Node.DriveUsers(p.h.t.Context(), drive)
	p.done(err)
	return all
}

func (p *process) SetGrace(uid string, grace time.Duration) {
	p.h.t.Helper()
	p.done(p.Node.SetGrace(p.h.t.Context(), uid, grace))
}

func (p *process) SetLimits(workspace string, l doze.Limits) {
	p.h.t.Helper()
	p.done(p.Node.SetLimits(p.h.t.Context(), workspace, l))
}

func (p *process) Awake(workspace string) (int, doze.Megabytes) {
	p.h.t.Helper()
	now, err := p.Node.Awake(p.h.t.Context(), workspace)
	p.done(err)
	return now.Sandboxes, now.Memory
}

func (p *process) Traces(uid string) []doze.Trace {
	p.h.t.Helper()
	all, err := p.Node.Traces(p.h.t.Context(), uid)
	p.done(err)
	return all
}

func (p *process) Consult(uid string) {
	p.h.t.Helper()
	p.done(p.Node.Consult(p.h.t.Context(), uid))
}

func (p *process) Retire(uid string, since time.Time) bool {
	p.h.t.Helper()
	ok, err := p.Node.Retire(p.h.t.Context(), uid, since)
	p.done(err)
	return ok
}

func (p *process) Reinstate(uid string) {
	p.h.t.Helper()
	p.done(p.Node.Reinstate(p.h.t.Context(), uid))
}

func (p *process) Claim(o fleet.Order, instead string) error {
	return p.Node.Claim(p.h.t.Context(), o, instead)
}
