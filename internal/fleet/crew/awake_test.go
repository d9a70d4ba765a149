package crew_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/placement"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// asked is a node that counts how often it is asked what is awake.
type asked struct {
	*planetest.Node

	times *atomic.Int64
}

func (a asked) Awake(ctx context.Context, workspace string) (fleet.Awake, error) {
	a.times.Add(1)
	return a.Node.Awake(ctx, workspace)
}

// crowd is a yard whose nodes count how often they are asked, and say what they have.
type crowd struct {
	*yard

	t     *testing.T
	times atomic.Int64
}

func newCrowd(t *testing.T, n int, limits doze.Limits) *crowd {
	t.Helper()
	c := &crowd{yard: newYard(t, n), t: t}
	for id := range c.nodes {
		c.Update(id, func(m *crew.Member) { m.Node = asked{c.nodes[id], &c.times} })
	}
	c.beat()
	if err := c.SetLimits(t.Context(), "main", limits); err != nil {
		t.Fatal(err)
	}
	return c
}

// load is what a node says of itself.
func (c *crowd) load(id string) fleet.Load {
	n := c.nodes[id]
	l := fleet.Load{Memory: 1 << 20, Processors: 2, Disk: 100_000, Sandboxes: n.Count(), Workspaces: map[string]fleet.Awake{}}
	n.Mu.Lock()
	defer n.Mu.Unlock()
	for _, m := range n.Machines {
		one := l.Workspaces[m.Order.Workspace]
		if m.Phase == doze.Running {
			l.Reserved += m.Order.Memory
			one.Sandboxes++
			one.Memory += m.Order.Memory
		}
		l.Workspaces[m.Order.Workspace] = one
	}
	return l
}

func (c *crowd) beat() {
	for id := range c.nodes {
		c.Beat(id, c.load(id))
	}
}

// create creates a sandbox, and returns how many nodes were asked what is awake.
func (c *crowd) create(o fleet.Order) (asked int64, err error) {
	before := c.times.Load()
	err = c.Create(c.t.Context(), o)
	return c.times.Load() - before, err
}

// TestQuotaOfManyNodes: no node is asked while a limit is far. Near it they are, and a workspace
// gets exactly what it may have, also if sandboxes woke of which control has not heard.
func TestQuotaOfManyNodes(t *testing.T) {
	t.Parallel()
	const nodes, most = 40, 100
	for name, limits := range map[string]doze.Limits{
		"sandboxes": {doze.QuotaSandboxesAwake: most},
		"memory":    {doze.QuotaMemoryAwake: most * 1024},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrowd(t, nodes, limits)
			made := 0
			for ; made < 60; made++ {
				if asked, err := c.create(order(fmt.Sprint("m", made))); err != nil || asked > 0 {
					t.Fatalf("the create %d asked %d nodes: %v", made, asked, err)
				}
				if made%7 == 0 {
					c.beat()
				}
			}
			slept := 0
			for _, n := range c.nodes { // they sleep, which control hears, and wake, which it does not
				n.Mu.Lock()
				for _, m := range n.Machines {
					if slept++; slept > 15 {
						break
					}
					m.Phase = doze.Standby
				}
				n.Mu.Unlock()
			}
			c.beat()
			c.beat()
			for _, n := range c.nodes {
				n.Mu.Lock()
				for _, m := range n.Machines {
					m.Phase = doze.Running
				}
				n.Mu.Unlock()
			}
			for ; made < most; made++ {
				if _, err := c.create(order(fmt.Sprint("m", made))); err != nil {
					t.Fatalf("the create %d of %d: %v", made, most, err)
				}
			}
			asked, err := c.create(order("more"))
			if doze.Public(err).Name != "QUOTA_EXCEEDED" || asked < nodes {
				t.Errorf("one more asked %d nodes: %v", asked, err)
			}
			if now, err := c.Awake(t.Context(), "main"); err != nil || now.Sandboxes != most || now.Memory != most*1024 {
				t.Errorf("awake: %+v, %v", now, err)
			}
		})
	}
}

// TestQuotaOfFew: the quota of a workspace with a few sandboxes costs a few calls, whatever the
// number of nodes.
func TestQuotaOfFew(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 40, doze.Limits{doze.QuotaSandboxesAwake: 2})
	for i := range 2 {
		stale := map[string]fleet.Load{}
		for id := range c.nodes {
			stale[id] = c.load(id)
		}
		if asked, err := c.create(order(fmt.Sprint("m", i))); err != nil || asked > 2 {
			t.Fatalf("the create %d asked %d nodes: %v", i, asked, err)
		}
		for id, l := range stale { // what they said before the create comes after it
			c.Beat(id, l)
		}
	}
	if asked, err := c.create(order("more")); doze.Public(err).Name != "QUOTA_EXCEEDED" || asked > 3 {
		t.Errorf("one more asked %d nodes: %v", asked, err)
	}
	c.beat()
	c.beat()
	if asked, err := c.create(order("again")); doze.Public(err).Name != "QUOTA_EXCEEDED" || asked > 3 {
		t.Errorf("one more, after the nodes spoke twice, asked %d of them: %v", asked, err)
	}
	other := order("other")
	other.Workspace = "other"
	if asked, err := c.create(other); err != nil || asked > 0 {
		t.Errorf("a sandbox of another workspace asked %d nodes: %v", asked, err)
	}
}

// TestQuotaOfSilentNode: a node that does not say what is awake, or what cannot be, is asked.
func TestQuotaOfSilentNode(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 3, doze.Limits{doze.QuotaSandboxesAwake: 1000})
	if err := c.Create(t.Context(), order("a")); err != nil {
		t.Fatal(err)
	}
	crowded := map[string]fleet.Awake{}
	for i := range fleet.WorkspacesMax + 1 {
		crowded[fmt.Sprint("w", i)] = fleet.Awake{}
	}
	for i, said := range []map[string]fleet.Awake{nil, crowded, {"main": {Sandboxes: -1000}}, {"main": {Memory: 1 << 62}}} {
		c.Beat("n1", fleet.Load{Memory: 1 << 20, Workspaces: said})
		if asked, err := c.create(order(fmt.Sprint("b", i))); err != nil || asked == 0 {
			t.Errorf("%d nodes were asked after the node said %d workspaces: %v", asked, len(said), err)
		}
	}
}

// TestDriver: a sandbox goes on from a checkpoint where sandboxes are driven as on the node that
// made it, also if that is away.
func TestDriver(t *testing.T) {
	t.Parallel()
	c := newCrowd(t, 3, nil)
	for id, driver := range map[string]string{"n0": "first", "n1": "first", "n2": "second"} {
		l := c.load(id)
		l.Driver = driver
		c.Put(crew.Member{Info: fleet.NodeInfo{ID: id}, Node: c.nodes[id], Open: true, Load: l})
	}
	ctx := t.Context()
	if err := c.Move(ctx, crew.Machine, "m", "n0"); err != nil {
		t.Fatal(err)
	}
	c.Remove("n0")
	for range 3 {
		at, err := c.Allot("m", "main", placement.Want{Memory: 4096, Driver: c.Driver(c.Of(crew.Machine, "m"))}) // n1 is the fuller one soon
		if err != nil || at != "n1" {
			t.Errorf("it goes to %s: %v", at, err)
		}
	}
	c.SetDriver("gone", "third")
	if _, err := c.Allot("m", "main", placement.Want{Driver: c.Driver("gone")}); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("no node drives sandboxes so: %v", err)
	}
	c.Discard("gone")
	if driver := c.Driver("gone"); driver != "" {
		t.Errorf("a node that is off the records has %s", driver)
	}
}
