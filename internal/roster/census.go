package roster

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/metric"
)

// What becomes of sandboxes in a census. Those of lost nodes are Resumed or Failed. Those that an
// operator moves, also by a drain, are Moved or Stayed.
const (
	Resumed = "resumed" // on another node, from its last copy
	Failed  = "failed"  // nothing is left of it
	Moved   = "moved"
	Stayed  = "stayed" // it goes on where it was
)

// Away is the state in a census of a node that has not joined and is not lost.
const Away = "away"

// tally counts since this process began.
type tally struct {
	losses, resumed, failed, moved, stayed atomic.Uint64
	files, fileBytes                       atomic.Uint64 // that were dropped from the bucket
}

// Census counts the nodes on record, and what became of sandboxes since this process began. It is
// empty while the records are out of reach.
func (r *Roster) Census(ctx context.Context) metric.Nodes {
	const megabyte = 1 << 20
	all, err := r.List(ctx)
	restored, unread := r.Store.Restored(ctx)
	err = errors.Join(err, unread)
	if err != nil {
		slog.WarnContext(ctx, "the metrics of nodes are missing", "err", err)
		return metric.Nodes{}
	}
	c := metric.Nodes{
		States: map[string]int64{string(doze.NodeReady): 0, string(doze.NodeCordoned): 0, string(doze.NodeDraining): 0, string(doze.NodeLost): 0, Away: 0},
		Losses: r.tally.losses.Load(), Rescues: map[string]uint64{Resumed: r.tally.resumed.Load(), Failed: r.tally.failed.Load()},
		Moves:    map[string]uint64{Moved: r.tally.moved.Load(), Stayed: r.tally.stayed.Load()},
		Restored: restored,
		Files:    r.tally.files.Load(), FileBytes: r.tally.fileBytes.Load(),
	}
	for _, n := range all {
		switch {
		case n.Present:
			c.States[string(n.State)]++
			c.Memory += int64(n.Memory) * megabyte
			c.Reserved += int64(n.Reserved) * megabyte
		case n.State == doze.NodeLost:
			c.States[string(n.State)]++
		default:
			c.States[Away]++
		}
	}
	return c
}
