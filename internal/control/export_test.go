package control

import (
	"context"

	"github.com/dozehq/doze"
)

// NeedsMachine reports whether a change needs a fresh machine.
func NeedsMachine(was, now doze.Runtime) bool { return needsMachine(was, now) }

// Restored is what a snapshot of a runtime makes of an empty one.
func Restored(was doze.Runtime) (now doze.Runtime) {
	setMachine(&now, machineOf(doze.SandboxSpec{Runtime: was}))
	return now
}

// Unfinished is what the reconcile loop has found to do, by the turn that it
// needs.
func (s *Server) Unfinished(ctx context.Context) (map[string]func(context.Context) error, error) {
	work, err := s.unfinished(ctx)
	todo := map[string]func(context.Context) error{}
	for turn, c := range work {
		todo[turn] = c.do
	}
	return todo, err
}
