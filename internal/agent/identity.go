package agent

import (
	"net/http"

	"github.com/dozehq/doze/internal/agent/drive"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/httpx"
)

// identity is which sandbox this agent belongs to.
type identity struct {
	root    string // empty means that there is none
	power   power
	names   *names
	vars    *variables
	who     workload
	drives  *drive.Set
	renewed func() // called when it is that of another sandbox
}

// newIdentity returns the identity of an agent with the power of the first
// process, or without. It calls renewed whenever it has changed.
func newIdentity(root string, first bool, names *names, vars *variables, who workload, drives *drive.Set, renewed func()) *identity {
	return &identity{root: root, power: power{held: first}, names: names, vars: vars, who: who, drives: drives, renewed: renewed}
}

// become makes this the agent of another sandbox. The host says so to every
// agent before anybody else can ask it something, and again in a copy of a
// sandbox: what runs there goes on with what it knows, and what is started from
// now on inherits nothing of the one that was copied.
func (d *identity) become(w http.ResponseWriter, r *http.Request, _ string) error {
	b, err := body(w, r, bound{variablesMax, "leave out what is not needed"})
	if err != nil {
		return err
	}
	in, err := parse[agentapi.Identity](b)
	if err != nil {
		return err
	}
	if in.Trust != "" && d.root != "" {
		if err := trust(d.root, in.Trust); err != nil {
			return err
		}
	}
	if err := d.power.spend(in.Hostname); err != nil {
		return err
	}
	d.drives.Abandon() // they are those of the sandbox that was copied
	host := environ(in.Env)
	d.names.change(hostname(), host)
	d.vars.replace(host.inherited(d.who.home()))
	d.renewed()
	httpx.WriteJSON(w, http.StatusOK, agentapi.Identified{Hostname: hostname()})
	return nil
}
