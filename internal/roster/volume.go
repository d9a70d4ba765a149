package roster

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

const (
	// saveEvery is how often control looks for snapshots, and for volumes that no sandbox has,
	// which the bucket may not have as they are.
	saveEvery = 10 * time.Second
	// savesMost is how many of them are saved at a time, over all nodes.
	savesMost = 4
	// saveRetry is the pause after one could not be saved.
	saveRetry = time.Minute
)

// saveAll has the bucket have all snapshots, and all volumes that no sandbox has, until ctx ends.
// So a sandbox can get them on another node at once, also when their node is lost.
func (r *Roster) saveAll(ctx context.Context) {
	failed := map[string]time.Time{} // by volume
	for tick := time.NewTicker(saveEvery); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return
		}
		if err := r.saveOnce(ctx, failed); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "nobody knows which volumes and snapshots are to be saved", "err", err)
		}
	}
}

// saveOnce is one look at them. Only those of nodes that have joined can be saved.
func (r *Roster) saveOnce(ctx context.Context, failed map[string]time.Time) error {
	if n := len(r.members()); n == 0 || n == 1 && r.Copies == nil { // nobody else could want them
		return nil
	}
	all, err := r.unsaved(ctx)
	if err != nil {
		return err
	}
	for id, at := range failed {
		if time.Since(at) > saveRetry {
			delete(failed, id)
		}
	}
	var tasks sync.WaitGroup
	var mu sync.Mutex
	slots := make(chan struct{}, savesMost)
	for id, save := range all {
		mu.Lock()
		_, waits := failed[id]
		mu.Unlock()
		if waits || ctx.Err() != nil {
			continue
		}
		slots <- struct{}{}
		tasks.Go(func() {
			defer func() { <-slots }()
			err := save(ctx, id)
			if err == nil {
				return
			}
			mu.Lock()
			failed[id] = time.Now()
			mu.Unlock()
			if ctx.Err() == nil && doze.Public(err).Kind != doze.NotFound { // it was deleted meanwhile
				slog.WarnContext(ctx, "a volume or snapshot is not in the bucket yet", "id", id, "err", err, "again", saveRetry)
			}
		})
	}
	tasks.Wait()
	return nil
}

// unsaved are the free volumes and the snapshots that the bucket may not have, by id, with what
// saves each.
func (r *Roster) unsaved(ctx context.Context) (map[string]func(context.Context, string) error, error) {
	all := map[string]func(context.Context, string) error{}
	volumes, err := r.Store.FreeVolumes(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range volumes {
		if !r.Crew.Saved(id) {
			all[id] = r.Crew.SaveVolume
		}
	}
	snapshots, err := r.Store.AllSnapshots(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range snapshots {
		if n.Status == doze.SnapshotReady && !n.Passing && !r.Crew.SnapshotSaved(n.ID) {
			all[n.ID] = r.Crew.SaveSnapshot
		}
	}
	return all, nil
}

// follow records that the volumes of a machine are where it is. The bucket must have the
// machine, and its volumes with it: a volume of which there is no copy stays where it is.
func (r *Roster) follow(ctx context.Context, o *fleet.Order) error {
	for _, v := range o.Volumes {
		if v.ID == "" {
			continue
		}
		has, err := r.Copies.Has(ctx, o.UID)
		if err != nil {
			return err
		}
		if !has {
			return doze.Errorf(doze.NotFound, "the bucket has no copy of the sandbox: it was on a node that is lost, and never slept for long enough; its volumes are on that node")
		}
		return r.Crew.Follow(ctx, o)
	}
	return nil
}
