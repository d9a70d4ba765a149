package roster

import (
	"context"
	"time"

	"github.com/dozehq/doze/internal/fleet"
)

// SweepOnce is one look at the bucket, as Run has them.
func (r *Roster) SweepOnce(ctx context.Context, graves map[string]time.Time) (dropped int, err error) {
	return r.sweepOnce(ctx, graves)
}

// Rescued is what the log says of sandboxes that were to go on elsewhere.
var Rescued = rescued

// SweepFiles is a look at the files of the bucket from its beginning to its end, as Run has them. It
// returns how many files are to be dropped. The next SweepOnce drops them.
func (r *Roster) SweepFiles(ctx context.Context) (dropped int, err error) {
	p := reaper{r: r}
	for {
		if dropped, err = p.step(ctx); err != nil || p.look == nil {
			return dropped, err
		}
	}
}

// Meet has a node count as one that has joined.
func (r *Roster) Meet(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes[id] = &member{info: fleet.NodeInfo{ID: id}}
}
