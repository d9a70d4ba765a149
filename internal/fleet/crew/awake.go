package crew

import (
	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// Nodes say with each renewal what is awake of each workspace. With what was placed since, control
// knows nearly enough to keep the quotas. It asks nodes where a limit is near.

const (
	// Nodes are asked if less is left of a limit than the part nearPart of it and nearLeast more.
	// So many sandboxes may wake between two renewals.
	nearPart  = 8
	nearLeast = 16
)

// Limit takes note of limits of a workspace, or of the defaults, that nodes hear of otherwise.
func (c *Crew) Limit(workspace string, l doze.Limits) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limits[workspace] = l
}

// far takes note that the machine of an order is claimed, and reports whether its workspace is far
// from its limits. If it is not, or a node has not said what it has, the nodes have to be asked.
func (c *Crew) far(o *fleet.Order) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := claim{words: 1} // of a second call: its node counts the memory
	if was := c.claimed.all[o.UID]; was != nil {
		p = *was
	}
	p.memory, p.workspace = o.Memory, o.Workspace
	c.claimed.put(o.UID, c.of(Machine, o.UID), p)
	now := c.claimed.of[o.Workspace] // some of them count twice, which errs to the safe side
	for _, m := range c.members {
		if m.Load.Workspaces == nil {
			return false
		}
		one := m.Load.Workspaces[o.Workspace]
		now.Sandboxes += one.Sandboxes
		now.Memory += one.Memory
	}
	own, defaults := c.limits[o.Workspace], c.limits[""]
	left := func(quota string, used int64, least int64) bool {
		most := own.Of(quota, defaults)
		return most-used >= most/nearPart+least
	}
	return left(doze.QuotaSandboxesAwake, int64(now.Sandboxes), nearLeast) &&
		left(doze.QuotaMemoryAwake, int64(now.Memory), nearLeast*int64(max(o.Memory, 1)))
}

// sane reports whether what a node says of workspaces can be: sums of it are to stay sums.
func sane(all map[string]fleet.Awake) bool {
	for _, one := range all {
		if one.Sandboxes < 0 || one.Memory < 0 || int64(one.Sandboxes) > doze.QuotaLimitMax || int64(one.Memory) > doze.QuotaLimitMax {
			return false
		}
	}
	return len(all) <= fleet.WorkspacesMax
}

// claimedOn are the nodes on which machines of a workspace were placed of late.
func (c *Crew) claimedOn(workspace string) map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	on := map[string]bool{}
	for _, p := range c.claimed.all {
		if p.workspace == workspace {
			on[p.node] = true
		}
	}
	return on
}
