package roster

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
)

const (
	// saveEvery is how often control looks for what the bucket may not have as it is. Those are
	// snapshots, images that were built, volume templates, and volumes that no sandbox has.
	saveEvery = 10 * time.Second
	// savesMost is how many of them are saved at a time, over all nodes.
	savesMost = 4
	// saveRetry is the pause after one could not be saved.
	saveRetry = time.Minute
)

// saveAll has the bucket have all snapshots, all images that were built, and all volumes that no
// sandbox has, until ctx ends. So a sandbox can get them on another node at once, also when their
// node is lost.
func (r *Roster) saveAll(ctx context.Context) {
	failed := map[string]time.Time{} // by id
	for tick := time.NewTicker(saveEvery); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return
		}
		if err := r.saveOnce(ctx, failed); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "nobody knows which volumes, snapshots and images are to be saved", "err", err)
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
				slog.WarnContext(ctx, "a volume, snapshot or image is not in the bucket yet", "id", id, "err", err, "again", saveRetry)
			}
		})
	}
	tasks.Wait()
	return nil
}

// unsaved is what the bucket may not have, by id, with what saves each: free volumes, snapshots,
// images and volume templates.
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
		if n.Status == doze.SnapshotReady && !n.Passing && !r.Crew.Stored(crew.Snapshot, n.ID) {
			all[n.ID] = r.storing(crew.Snapshot, fleet.SnapshotObject(n.ID), r.Crew.SaveSnapshot)
		}
	}
	templates, err := r.Store.TemplateDisks(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range templates {
		if !r.Crew.Stored(crew.Volume, id) {
			all[id] = r.storing(crew.Volume, fleet.VolumeObject(id), r.Crew.SaveVolume)
		}
	}
	refs, err := r.Store.BuiltRefs(ctx)
	if err != nil {
		return nil, err
	}
	for _, ref := range refs {
		if !r.Crew.Stored(crew.Image, ref) {
			all[ref] = r.storing(crew.Image, fleet.ImageObject(ref), r.Crew.SaveBuilt)
		}
	}
	return all, nil
}

// storing has the bucket have what never changes. If the node of it is away, the bucket is asked:
// a control before this one may have had it saved.
func (r *Roster) storing(k crew.Kind, object string, save func(context.Context, string) error) func(context.Context, string) error {
	return func(ctx context.Context, id string) error {
		if _, here := r.Crew.Member(r.Crew.Of(k, id)); here {
			err := save(ctx, id)
			if err == nil {
				r.Crew.SetStored(k, id)
			}
			return err
		}
		has, err := r.Copies.Has(ctx, object)
		if err != nil {
			return err
		}
		if !has {
			return doze.Errorf(doze.Unavailable, "its node is away")
		}
		r.Crew.SetStored(k, id)
		return nil
	}
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
