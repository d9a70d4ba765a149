package agent

import (
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/httpx"
)

// become makes this the agent of another sandbox. The host says so to every
// agent before anybody else can ask it something, and again in a copy of a
// sandbox: what runs there goes on with what it knows, and what is started from
// now on inherits nothing of the one that was copied.
func (a *Agent) become(w http.ResponseWriter, r *http.Request, _ string) error {
	b, err := body(w, r, bound{variablesMax, "leave out what is not needed"})
	if err != nil {
		return err
	}
	in, err := parse[agentapi.Identity](b)
	if err != nil {
		return err
	}
	if in.Trust != "" && a.root != "" {
		if err := trust(a.root, in.Trust); err != nil {
			return err
		}
	}
	if err := a.power.spend(in.Hostname); err != nil {
		return err
	}
	a.drives.Abandon() // they are those of the sandbox that was copied
	host := environ(in.Env)
	a.names.change(hostname(), host)
	a.vars.replace(inherited(host, a.who))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.started, a.wakes, a.woken = time.Now(), 0, time.Time{}
	httpx.WriteJSON(w, http.StatusOK, agentapi.Identified{Hostname: hostname()})
	return nil
}

// names are what the files in etc say of this sandbox.
type names struct {
	root string // empty means that there are none

	mu           sync.Mutex
	host, resolv string // guarded by mu: what is, or would be, in them
}

func newNames(root string, env environ) *names {
	if root == "" {
		return &names{}
	}
	return &names{root: root, host: hostname(), resolv: nameservers(root, env)}
}

// change makes the files say what is true now, as far as they say what was. What
// somebody else wrote into them stays.
func (n *names) change(host string, env environ) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.root == "" {
		return
	}
	resolv := nameservers(n.root, env)
	etc := filepath.Join(n.root, "etc")
	for name, was := range map[string][2]string{
		"hostname":    {n.host + "\n", host + "\n"},
		"hosts":       {selfLine(n.host), selfLine(host)},
		"resolv.conf": {n.resolv, resolv},
	} {
		replaceIn(filepath.Join(etc, name), was[0], was[1])
	}
	n.host, n.resolv = host, resolv
}

// hostname is the sandbox's own name.
func hostname() string {
	if host, err := os.Hostname(); err == nil && host != "" {
		return host
	}
	return "sandbox"
}
