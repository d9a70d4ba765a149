package roster

import (
	"context"
	"log/slog"
	"time"

	"github.com/dozehq/doze/internal/store"
)

// sweepEvery is how often the bucket is looked at for what no record names. What a delete
// leaves there for so long costs its space.
const sweepEvery = 10 * time.Minute

// Copies are what the bucket has of machines, by their ids.
type Copies interface {
	List(ctx context.Context) (ids []string, err error)
	// Drop removes all of a machine. One that is not there is no error.
	Drop(ctx context.Context, id string) error
}

// sweep drops copies of machines that are gone, until ctx ends.
func (r *Roster) sweep(ctx context.Context) {
	for tick := time.NewTicker(sweepEvery); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return
		}
		dropped, err := r.sweepOnce(ctx)
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "copies of machines that are gone stay in the bucket", "err", err)
		}
		if dropped > 0 {
			slog.InfoContext(ctx, "dropped copies of machines that are gone", "machines", dropped)
		}
	}
}

// sweepOnce is one look at the bucket. The list comes before the records. A machine that
// has a copy has a record, until it is gone.
func (r *Roster) sweepOnce(ctx context.Context) (dropped int, err error) {
	ids, err := r.Copies.List(ctx)
	if err != nil {
		return 0, err
	}
	living := map[string]bool{}
	err = r.Store.EachLiving(ctx, func(sb store.Sandbox) error {
		living[sb.Machine] = true
		return nil
	})
	if err != nil {
		return 0, err
	}
	if err := r.sweepPlaces(ctx); err != nil {
		return 0, err
	}
	for _, id := range ids {
		if living[id] || fileForm.MatchString(id) {
			continue
		}
		if err := r.Copies.Drop(ctx, id); err != nil {
			return dropped, err
		}
		dropped++
	}
	return dropped, nil
}

// sweepPlaces forgets places of machines that no record names: control ended, or the
// records were out of reach, before it forgot them. A machine has a record before its place.
func (r *Roster) sweepPlaces(ctx context.Context) error {
	all := r.Crew.Machines()
	named, err := r.Store.Machines(ctx, all)
	if err != nil {
		return err
	}
	for _, machine := range all {
		if !named[machine] {
			r.Crew.Forget(ctx, machine)
		}
	}
	return nil
}
