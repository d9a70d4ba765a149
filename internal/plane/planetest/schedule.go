package planetest

import (
	"github.com/dozehq/doze"
)

// Schedules is the path of those of the sandbox "a".
const Schedules = "/sandboxes/a/schedules"

// Plan makes a schedule of the sandbox "a".
func (p *Platform) Plan(body string) doze.Schedule {
	p.T.Helper()
	return Want[doze.Schedule](p, 200, "POST", Schedules, body)
}

// Started returns what was started since the last look.
func (p *Platform) Started() []Started {
	n := p.Node
	n.Mu.Lock()
	defer n.Mu.Unlock()
	all := n.starts
	n.starts = nil
	return all
}
