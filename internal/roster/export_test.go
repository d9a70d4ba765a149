package roster

import (
	"context"
	"time"
)

// SweepOnce is one look at the bucket, as Run has them.
func (r *Roster) SweepOnce(ctx context.Context, graves map[string]time.Time) (dropped int, err error) {
	return r.sweepOnce(ctx, graves)
}
