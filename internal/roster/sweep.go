package roster

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"time"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/store"
)

// sweepEvery is how often the bucket is looked at for what no record names. What a delete
// leaves there for so long costs its space.
const sweepEvery = 10 * time.Minute

// buryAfter is for how long the bucket knows that a machine was dropped: twice what a node may
// take for a copy. After that, no copy is under way that was begun before. The clock of the bucket and
// that of this process must both say so.
const buryAfter = time.Hour

// Copies are what the bucket has of machines, by their ids.
type Copies interface {
	List(ctx context.Context) (ids []string, err error)
	// Has reports whether there is a copy of a machine that counts.
	Has(ctx context.Context, id string) (bool, error)
	// Archived reports whether the newest copy of a machine has an archive.
	Archived(ctx context.Context, id string) (bool, error)
	// Claimed returns the newest epoch in which a node has claimed an object; 0 if none has, and if it
	// was dropped.
	Claimed(ctx context.Context, id string) (epoch uint64, err error)
	// Drop removes all of a machine. One that is not there is no error. The id stays in the
	// list, so that nobody can save under it.
	Drop(ctx context.Context, id string) error
	// Bury has the list forget a machine that was dropped longer ago than the grace period, if
	// nothing came since. It reports whether it did.
	Bury(ctx context.Context, id string, grace time.Duration) (gone bool, err error)
	// Needs are the files that the newest copy needs, and what a copy needs that may count soon. A copy that is
	// not there needs none. It is an error if nobody can say it.
	Needs(ctx context.Context, id string) ([]fleet.FileNeed, error)
	// Dropped reports whether the bucket knows that something was dropped.
	Dropped(ctx context.Context, id string) (bool, error)
	// Bytes is what something takes in the bucket.
	Bytes(ctx context.Context, id string) (int64, error)
	// Now is the present by the clock of the bucket.
	Now(ctx context.Context) (time.Time, error)
}

// sweep drops copies of machines that are gone, until ctx ends.
func (r *Roster) sweep(ctx context.Context) {
	graves, files := map[string]time.Time{}, reaper{r: r}
	for tick := time.NewTicker(sweepEvery); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			tick.Stop()
			return
		}
		if restored, err := r.Store.Restored(ctx); restored || err != nil { // the records do not name all
			continue
		}
		dropped, err := r.sweepOnce(ctx, graves)
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "copies of machines that are gone stay in the bucket", "err", err)
		}
		idle, err := files.step(ctx)
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "files that nothing needs stay in the bucket: nobody knows yet which ones these are", "err", err)
		}
		if idle > 0 {
			slog.InfoContext(ctx, "files go from the bucket that nothing needs", "files", idle)
		}
		if err := r.tidy(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "nodes still have disks that others have, or nobody", "err", err)
		}
		if dropped > 0 {
			slog.InfoContext(ctx, "dropped copies of machines that are gone", "machines", dropped)
		}
	}
}

// sweepOnce is one look at the bucket. The list comes before the records. A machine that
// has a copy has a record, until it is gone. The graves say when this process dropped machines
// that are still in the list.
func (r *Roster) sweepOnce(ctx context.Context, graves map[string]time.Time) (dropped int, err error) {
	ids, err := r.Copies.List(ctx)
	if err != nil {
		return 0, err
	}
	listed := map[string]bool{}
	for _, id := range ids {
		listed[id] = true
	}
	maps.DeleteFunc(graves, func(id string, _ time.Time) bool { return !listed[id] })
	named, err := r.named(ctx)
	if err != nil {
		return 0, err
	}
	if err := r.sweepPlaces(ctx); err != nil {
		return 0, err
	}
	files, err := r.droppedFiles(ctx, listed)
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		if named(id) || fleet.FileForm.MatchString(id) && !files[id] {
			continue
		}
		at, known := graves[id]
		switch {
		case !known && files[id]:
			if err := r.dropFile(ctx, id); err != nil {
				return dropped, err
			}
			graves[id] = time.Now()
		case !known:
			if err := r.Copies.Drop(ctx, id); err != nil {
				return dropped, err
			}
			graves[id] = time.Now()
			dropped++
		case time.Since(at) >= buryAfter:
			gone, err := r.Copies.Bury(ctx, id, buryAfter)
			if err != nil {
				return dropped, err
			}
			if gone { // it may come back all the same, and is dropped anew then
				delete(graves, id)
			}
		}
	}
	return dropped, nil
}

// named returns what reports whether records name something that is in the bucket, besides files.
func (r *Roster) named(ctx context.Context) (func(id string) bool, error) {
	living := map[string]bool{}
	err := r.Store.EachLiving(ctx, func(sb store.Sandbox) error {
		living[sb.Machine] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	recorded, err := r.recorded(ctx)
	if err != nil {
		return nil, err
	}
	images, err := r.imageObjects(ctx)
	if err != nil {
		return nil, err
	}
	return func(id string) bool {
		if m := fleet.SnapshotForm.FindStringSubmatch(id); m != nil && recorded(crew.Snapshot, m[1]) {
			return true
		}
		if m := fleet.VolumeForm.FindStringSubmatch(id); m != nil && recorded(crew.Volume, m[1]) {
			return true
		}
		return living[id] || images[id]
	}, nil
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
			r.Crew.Forget(ctx, crew.Machine, machine)
		}
	}
	return nil
}

// tidy has nodes remove disks that other nodes have, or that nobody knows. The lists of the
// nodes come before the records: a disk has a record before any node has it.
func (r *Roster) tidy(ctx context.Context) error {
	all := r.Crew.Members()
	there, snapshots := make([][]string, len(all)), make([]map[string]int64, len(all))
	var errs []error
	for i, m := range all {
		ids, err := m.Node.Volumes(ctx)
		there[i], errs = ids, append(errs, err)
		snapshots[i], err = m.Node.Snapshots(ctx)
		errs = append(errs, err)
	}
	known, err := r.Store.Disks(ctx)
	if err != nil {
		return err
	}
	taken, err := r.snapshotIDs(ctx)
	if err != nil {
		return err
	}
	for i, m := range all {
		errs = append(errs, r.Crew.Tidy(ctx, m, there[i], known), r.Crew.TidySnapshots(ctx, m, snapshots[i], taken))
	}
	return errors.Join(errs...)
}

// imageObjects are the names in the bucket of all images on record that were built or loaded.
func (r *Roster) imageObjects(ctx context.Context) (map[string]bool, error) {
	refs, err := r.Store.BuiltRefs(ctx)
	objects := map[string]bool{}
	for _, ref := range refs {
		objects[fleet.ImageObject(ref)] = true
	}
	return objects, err
}

// snapshotIDs are all snapshots on record, also those that are being made.
func (r *Roster) snapshotIDs(ctx context.Context) (map[string]bool, error) {
	all, err := r.Store.AllSnapshots(ctx)
	ids := map[string]bool{}
	for _, n := range all {
		ids[n.ID] = true
	}
	return ids, err
}
