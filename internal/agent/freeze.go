package agent

// freeze starts no process from now on and returns the commands of those that
// run.
func (t *table) freeze() []command {
	t.mu.Lock()
	t.frozen = true
	t.mu.Unlock()
	commands := []command{}
	for _, p := range t.list() {
		if c, runs := p.runs(); runs {
			commands = append(commands, c)
		}
	}
	return commands
}

func (t *table) thaw() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.frozen = false
}
