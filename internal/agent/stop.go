package agent

import (
	"context"
	"net/http"
	"os"
	"syscall"
	"time"

	"doze/internal/agent/proc"
)

// strayPoll is how often the end of processes that nobody collects for us, or
// that are others' children, is looked for.
const strayPoll = 20 * time.Millisecond

// stop is called by the host before it ends the sandbox. It asks everything to
// end, starts nothing any more, and answers when all is gone. The host waits as
// long as it likes to: when it hangs up, what is left is killed.
func (a *Agent) stop(r *http.Request, _ string) (struct{}, error) {
	a.processes.ask()
	if a.children.init { // then the others are all of this sandbox
		_ = syscall.Kill(-1, syscall.SIGTERM) // ESRCH: there are none
	}
	a.terminals.close() // an interactive shell does not mind SIGTERM
	if a.children.init {
		awaitStrays(r.Context()) // before their output is closed: it would end them
	}
	a.processes.close(r.Context())
	return struct{}{}, nil
}

// awaitStrays waits until this process is the only one, or until ctx ends.
func awaitStrays(ctx context.Context) {
	poll := time.NewTicker(strayPoll)
	defer poll.Stop()
	for {
		others := 0
		for _, t := range proc.Root.Tasks() {
			if t.PID != os.Getpid() {
				others++
			}
		}
		if others == 0 {
			return
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return
		}
	}
}
