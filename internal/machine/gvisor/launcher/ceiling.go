package launcher

import (
	"context"

	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

// Limit bounds what all machines of all launchers with our parent of cgroups
// take together, from now on.
func (l *Launcher) Limit(_ context.Context, c gvisor.Ceiling) error { return l.ceiling.Set(c.Memory) }

// member returns a machine of ours, and not one of another launcher.
func (l *Launcher) member(id string) (hostproc.Member, bool) {
	s, err := l.machine(id)
	if err != nil {
		return nil, false
	}
	return s, true
}

var _ hostproc.Member = (*sandbox)(nil)

// Running implements [hostproc.Member].
func (s *sandbox) Running() bool { return s.now() == gvisor.StateRunning }

// Evict implements [hostproc.Member].
func (s *sandbox) Evict(why string) {
	s.reason.CompareAndSwap(nil, &why)
	s.shoot()
}

// Stand implements [hostproc.Member].
func (s *sandbox) Stand(to hostproc.Standing) {
	if hostproc.Standing(s.standing.Swap(int32(to))) == to { //nolint:gosec // G115: there are three
		return
	}
	s.score(to)
}

// score tells the kernel how to treat the processes of the machine.
func (s *sandbox) score(to hostproc.Standing) {
	if g, engine := s.group.Load(), int(s.pid.Load()); g != nil && engine != 0 {
		g.Stand(engine, to)
	}
}
