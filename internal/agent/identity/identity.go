// Package identity makes an agent that of one sandbox: it gets its name, its boot
// id, its authorities and its variables.
package identity

import (
	"net/http"

	"github.com/dozehq/doze/internal/agent/account"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/drive"
	"github.com/dozehq/doze/internal/agent/environ"
	"github.com/dozehq/doze/internal/agent/etc"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/httpx"
)

// Identity is which sandbox this agent belongs to.
type Identity struct {
	root    string // empty means that there is none
	power   power
	names   *etc.Names
	vars    *environ.Variables
	who     account.User
	drives  *drive.Set
	renewed func() // called when it is that of another sandbox
}

// Power says what an agent has of the power of the first process, and what becomes of
// it.
type Power struct {
	First bool // it has that power, until it knows whose agent it is
	// Stays says that it does not give it up: what it starts mounts file systems and
	// makes namespaces, for the steps of Dockerfiles or for containers. Only the host says
	// it, in the environment that the first process begins with.
	Stays bool
}

// New returns the identity of an agent with some power. It calls renewed whenever it
// has changed.
func New(root string, p Power, names *etc.Names, vars *environ.Variables, who account.User, drives *drive.Set, renewed func()) *Identity {
	return &Identity{root: root, power: power{held: p.First, stays: p.Stays}, names: names, vars: vars, who: who, drives: drives, renewed: renewed}
}

// SetVariables replaces the variables of the platform for processes that start from
// now on. The host calls it after the network rules have changed.
func (d *Identity) SetVariables(w http.ResponseWriter, r *http.Request, _ string) error {
	b, err := body.Read(w, r, body.Bound{Bytes: environ.Max, Advice: "leave out what is not needed"})
	if err != nil {
		return err
	}
	in, err := body.Parse[agentapi.Variables](b)
	if err != nil {
		return err
	}
	d.vars.SetPlatform(in.Env)
	httpx.WriteJSON(w, http.StatusOK, struct{}{})
	return nil
}

// Become makes this the agent of another sandbox. The host calls it on every agent
// before any other request, and again in a copy of a sandbox. Running processes of the
// copy keep their environment. New processes inherit nothing of the copied sandbox.
func (d *Identity) Become(w http.ResponseWriter, r *http.Request, _ string) error {
	b, err := body.Read(w, r, body.Bound{Bytes: environ.Max, Advice: "leave out what is not needed"})
	if err != nil {
		return err
	}
	in, err := body.Parse[agentapi.Identity](b)
	if err != nil {
		return err
	}
	if in.Trust != "" && d.root != "" {
		if err := etc.Trust(d.root, in.Trust); err != nil {
			return err
		}
	}
	if err := d.power.spend(in.Hostname); err != nil {
		return err
	}
	d.drives.Abandon() // they are those of the sandbox that was copied
	host := environ.List(in.Env)
	d.names.Change(etc.Hostname(), host)
	d.vars.Replace(host.Inherited(d.who.Home()), in.Platform...)
	d.renewed()
	httpx.WriteJSON(w, http.StatusOK, agentapi.Identified{Hostname: etc.Hostname()})
	return nil
}
