package roster

import (
	"context"
	"sync/atomic"

	"github.com/dozehq/doze"
)

// A Census is what nodes are now, and what became of sandboxes since this process began.
type Census struct {
	// States has how many nodes on record are in each state. Those that have not joined
	// this process are away, unless they are lost.
	States map[string]int64
	// Memory is what sandboxes of the nodes that are here can have together, and Reserved
	// what those that are awake may use, in MB.
	Memory, Reserved int64
	// Losses are leases that ended.
	Losses uint64
	// Rescues are sandboxes of lost nodes, by what became of them: Resumed or Failed.
	Rescues map[string]uint64
	// Moves are sandboxes that an operator moved, also by a drain: Moved or Stayed.
	Moves map[string]uint64
}

// What becomes of sandboxes in a [Census].
const (
	Resumed = "resumed" // on another node, from its last copy
	Failed  = "failed"  // nothing is left of it
	Moved   = "moved"
	Stayed  = "stayed" // it goes on where it was
)

// Away is the state in a [Census] of a node that has not joined and is not lost.
const Away = "away"

// tally counts since this process began.
type tally struct{ losses, resumed, failed, moved, stayed atomic.Uint64 }

// Census counts the nodes.
func (r *Roster) Census(ctx context.Context) (Census, error) {
	all, err := r.List(ctx)
	if err != nil {
		return Census{}, err
	}
	c := Census{
		States: map[string]int64{string(doze.NodeReady): 0, string(doze.NodeCordoned): 0, string(doze.NodeDraining): 0, string(doze.NodeLost): 0, Away: 0},
		Losses: r.tally.losses.Load(), Rescues: map[string]uint64{Resumed: r.tally.resumed.Load(), Failed: r.tally.failed.Load()},
		Moves: map[string]uint64{Moved: r.tally.moved.Load(), Stayed: r.tally.stayed.Load()},
	}
	for _, n := range all {
		switch {
		case n.Present:
			c.States[string(n.State)]++
			c.Memory += int64(n.Memory)
			c.Reserved += int64(n.Reserved)
		case n.State == doze.NodeLost:
			c.States[string(n.State)]++
		default:
			c.States[Away]++
		}
	}
	return c, nil
}
