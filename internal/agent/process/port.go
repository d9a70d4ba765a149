package process

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/proc"
)

// portsPoll is how often /proc is searched while a call waits for ports. There
// is no event for a socket that begins to listen.
const portsPoll = 100 * time.Millisecond

// AwaitPorts returns when every port that p was to serve is served on an address that
// can be reached from outside. The server may be p, a descendant or a member of its
// process group. The error is Unprocessable if p or ctx ends first.
func (p *Process) AwaitPorts(ctx context.Context) error {
	if len(p.WaitForPorts) == 0 {
		return nil
	}
	tick := time.NewTicker(portsPoll)
	defer tick.Stop()
	for {
		family, over := p.family()
		if serves(family, p.WaitForPorts) {
			return nil
		}
		if over && len(family) == 0 {
			return doze.Errorf(doze.Unprocessable, "the process ended before it served its ports; see the logs of %s", p.Name)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return p.timedOut(" waiting for ports", p.Patience())
		}
	}
}

// family returns the processes that p consists of, and whether p is over: then
// they are those that it left behind.
func (p *Process) family() (family map[int]proc.Task, over bool) {
	select {
	case <-p.done:
		over = true
	default:
	}
	return proc.Family(p.leader(), !over, proc.Root.Tasks()), over
}

// Family returns the processes that belong to a pid. If we started that process and
// restarted it, they belong to the new one. over means that there will be no others.
func (t *Table) Family(pid int) (family map[int]proc.Task, over bool) {
	if p, err := t.Find(strconv.Itoa(pid)); err == nil {
		return p.family()
	}
	family = proc.Family(pid, true, proc.Root.Tasks())
	return family, len(family) == 0
}

// Alive reports whether the process with a pid goes on, without a search for
// those that belong to it.
func (t *Table) Alive(pid int) bool {
	if p, err := t.Find(strconv.Itoa(pid)); err == nil {
		return p.ended.Load() == 0
	}
	_, ok := proc.Root.Task(pid)
	return ok
}

// serves reports whether the family has sockets for all ports.
func serves(family map[int]proc.Task, ports []int) bool {
	all, err := proc.Root.Sockets()
	if err != nil {
		return false
	}
	all = slices.DeleteFunc(all, func(s proc.Socket) bool { return !s.Serves() || !s.Reachable() })
	open := func(sockets []proc.Socket) map[int]bool {
		ports := map[int]bool{}
		for _, s := range sockets {
			ports[int(s.Local.Port())] = true
		}
		return ports
	}
	missing := func(open map[int]bool) bool {
		return slices.ContainsFunc(ports, func(port int) bool { return !open[port] })
	}
	if missing(open(all)) {
		return false // without a search through all descriptors
	}
	var own []proc.Socket
	for _, sockets := range proc.Root.Owned(family, all) {
		own = append(own, sockets...)
	}
	return !missing(open(own))
}
