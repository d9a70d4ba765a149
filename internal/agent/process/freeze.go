package process

import (
	"github.com/dozehq/doze/internal/agent/command"
)

// Freeze starts no process from now on and returns the commands of those that
// run.
func (t *Table) Freeze() []command.Spec {
	t.mu.Lock()
	t.frozen = true
	t.mu.Unlock()
	commands := []command.Spec{}
	for _, p := range t.List() {
		if c, runs := p.runs(); runs {
			commands = append(commands, c)
		}
	}
	return commands
}

// Thaw lets processes start again.
func (t *Table) Thaw() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frozen = false
}
