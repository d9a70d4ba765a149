package agent

import (
	"net/http"
	"time"

	"github.com/dozehq/doze/internal/agent/loopback"
	"github.com/dozehq/doze/internal/agent/netstate"
	"github.com/dozehq/doze/internal/agent/route"
	"github.com/dozehq/doze/internal/agent/system"
	"github.com/dozehq/doze/internal/agentapi"
)

// state counts what must not be put to sleep: processes that want that, and
// an export, calls about drives. It also says what must not be saved alone, see
// netstate. The host asks before it suspends the sandbox, and before it ends it
// for being unused.
func (a *Agent) state(*http.Request, string) (agentapi.State, error) {
	n, last := a.processes.LastKeepAlive()
	if a.archives.Running() {
		n++
	}
	if a.drives.Busy() {
		n++
	}
	s := agentapi.State{KeepAlive: n, Blockers: netstate.Read().Since(a.born)}
	if !last.IsZero() {
		ago := time.Since(last).Milliseconds()
		s.KeptAgo = &ago
	}
	return s, nil
}

// health says how the agent is, and the process of the image, if that is checked.
func (a *Agent) health(r *http.Request, arg string) (system.Health, error) {
	h, err := a.system.Health(r, arg)
	h.HealthCheck = a.entry.Health()
	return h, err
}

// stop is called by the host before it ends the sandbox. It asks everything to
// end, starts nothing any more, and answers when all is gone. The host waits as
// long as it likes to: when it hangs up, what is left is killed.
func (a *Agent) stop(r *http.Request, _ string) (struct{}, error) {
	a.processes.Shut()
	a.processes.Dismiss(r.Context(), a.terminals.Close)
	a.processes.Close(r.Context())
	return struct{}{}, nil
}

// connectLoopback serves [agentapi.ConnectLoopback]. A builder does not: a step could
// listen in the place of the builder's program.
func (a *Agent) connectLoopback(w http.ResponseWriter, r *http.Request, port string) error {
	if a.outside {
		return route.NoRoute(r)
	}
	return loopback.Connect(w, r, port)
}
