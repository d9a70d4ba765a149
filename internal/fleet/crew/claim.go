package crew

import (
	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// arrivalBusy is how many processors a machine counts for that comes from elsewhere, until its
// node says what it has. Where processors are busy anyway, memory alone would spread nothing.
const arrivalBusy = 0.2

// wordsMost is how often a node speaks until nothing is claimed for a machine any more. What it
// says first may be from before it had the machine.
const wordsMost = 2

// claim is what a machine takes that its node may not count yet. Its memory counts until the node
// speaks again, and its part of the quotas until the node spoke once more.
type claim struct {
	memory    doze.Megabytes
	workspace string // empty: it counts for no quota
	counted   bool   // the machine was made, or will not be: the next word of the node counts
	arrives   bool   // the machine comes from elsewhere, which takes processors
	node      string
	words     int // that its node spoke since it was counted
}

// claims are those of all machines, with their sums: a create costs as much with thousands of
// others under way as it does alone.
type claims struct {
	all map[string]*claim      // by machine
	on  map[string]*share      // by node
	of  map[string]fleet.Awake // by workspace
}

// share is what is claimed on a node.
type share struct {
	machines map[string]*claim
	memory   doze.Megabytes
	busy     float64
}

func newClaims() claims {
	return claims{all: map[string]*claim{}, on: map[string]*share{}, of: map[string]fleet.Awake{}}
}

// put claims something for a machine on a node, instead of what was claimed before.
func (c *claims) put(machine, node string, p claim) {
	c.drop(machine)
	p.node = node
	s := c.on[node]
	if s == nil {
		s = &share{machines: map[string]*claim{}}
		c.on[node] = s
	}
	c.all[machine], s.machines[machine] = &p, &p
	c.add(&p, 1)
	c.owe(&p, 1)
}

// drop takes a claim back. A machine without one is no error.
func (c *claims) drop(machine string) {
	p := c.all[machine]
	if p == nil {
		return
	}
	c.add(p, -1)
	c.owe(p, -1)
	delete(c.all, machine)
	delete(c.on[p.node].machines, machine)
	if len(c.on[p.node].machines) == 0 {
		delete(c.on, p.node)
	}
}

// move has what is claimed for a machine count on another node.
func (c *claims) move(machine, node string) {
	if p := c.all[machine]; p != nil && p.node != node {
		c.put(machine, node, *p)
	}
}

// hear takes note that a node said what it has.
func (c *claims) hear(node string) {
	s := c.on[node]
	if s == nil {
		return
	}
	for machine, p := range s.machines {
		if !p.counted {
			continue
		}
		c.add(p, -1)
		p.words++
		if p.words >= wordsMost {
			c.drop(machine)
		}
	}
}

// add counts the memory of a claim, unless its node spoke since.
func (c *claims) add(p *claim, sign int) {
	if p.words > 0 {
		return
	}
	s := c.on[p.node]
	s.memory += p.memory * doze.Megabytes(sign)
	if p.arrives {
		s.busy += arrivalBusy * float64(sign)
	}
}

// owe counts a claim for the quotas of its workspace.
func (c *claims) owe(p *claim, sign int) {
	if p.workspace == "" {
		return
	}
	a := c.of[p.workspace]
	a.Sandboxes += sign
	a.Memory += p.memory * doze.Megabytes(sign)
	if c.of[p.workspace] = a; a.Sandboxes == 0 {
		delete(c.of, p.workspace)
	}
}
