package roster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/vault"
)

const (
	// fileGrace is for how long nothing has needed a file that is dropped. A file that is
	// needed again within that is not sent again.
	fileGrace = 24 * time.Hour
	// oldFileGrace is that of uploads without a record. Nodes of an earlier release make some, and do
	// not ask whether they may rely on them. That long, a fleet may have such nodes.
	oldFileGrace = 14 * fileGrace
	// filesEvery is how often control begins to look which files are needed. That reads all
	// copies, with six small requests for each.
	filesEvery = 6 * time.Hour
	// readsMost is how many copies are read in a sweep of the bucket, and readsParallel how many
	// at a time. 100,000 copies take 50 sweeps.
	readsMost, readsParallel = 2000, 4
	// needsMost bounds what says which files a copy needs, in bytes: one chunk.
	needsMost = vault.ChunkBytes
	// markBytes is how many random bytes a mark has.
	markBytes = 8
)

// FileMark implements [fleet.Control].
func (r *Roster) FileMark(ctx context.Context, node, name string) (string, error) {
	raw, err := r.FileKey(ctx, node, name)
	if err != nil {
		return "", err
	}
	return r.Store.FileMark(ctx, name, func() (object, mark string) {
		var random [markBytes]byte
		_, _ = rand.Read(random[:]) // it never fails
		mark = hex.EncodeToString(random[:])
		return fleet.FileObject(raw, mark), mark
	})
}

// A reaper finds the files of the bucket that nothing needs. One look reads all copies, and may last
// for many sweeps. A file is dropped that was on the list of idle ones before a look began,
// and that the look did not find needed. A save asks for the mark of a file after
// the look can see its copy, which takes the file from the list. So no clock decides. See
// docs/design/0150.
type reaper struct {
	r     *Roster
	began time.Time // when the last look began; zero: none has
	look  *look     // nil: none is under way
}

// A look is one reading of all copies.
type look struct {
	rows   map[string]store.File // on record before it began, by object
	listed map[string]bool       // objects of files in the bucket
	left   []string              // copies that are to be read

	mu     sync.Mutex
	needed map[string]bool // guarded by mu; objects of files
	read   map[string]bool // guarded by mu; copies that were read, of those that are being read
}

// step goes on with a look, or begins one when it is time. It returns how many files are to be
// dropped.
func (p *reaper) step(ctx context.Context) (dropped int, err error) {
	if p.look == nil {
		if !p.began.IsZero() && time.Since(p.began) < filesEvery {
			return 0, nil
		}
		began := time.Now()
		if p.look, err = p.r.beginLook(ctx); err != nil {
			p.look = nil
			return 0, err
		}
		p.began = began
	}
	if err := p.r.readSome(ctx, p.look); err != nil || len(p.look.left) > 0 {
		return 0, err // the next step reads the others
	}
	over := p.look
	p.look = nil
	return p.r.endLook(ctx, over)
}

// beginLook says what a look reads. The records of files come first, then the list, and then the records
// of what copies are of.
func (r *Roster) beginLook(ctx context.Context) (*look, error) {
	l := &look{rows: map[string]store.File{}, listed: map[string]bool{}, needed: map[string]bool{}, read: map[string]bool{}}
	rows, err := r.Store.Files(ctx)
	if err != nil {
		return nil, err
	}
	for _, f := range rows {
		l.rows[f.Object] = f
	}
	ids, err := r.Copies.List(ctx)
	if err != nil {
		return nil, err
	}
	named, err := r.named(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		switch {
		case fleet.FileForm.MatchString(id):
			l.listed[id] = true
		case named(id) && !fleet.VolumeForm.MatchString(id): // a volume needs no file
			l.left = append(l.left, id)
		}
	}
	return l, nil
}

// readSome reads some copies of a look. Those that cannot be read are left.
func (r *Roster) readSome(ctx context.Context, l *look) error {
	group, bounded := errgroup.WithContext(ctx)
	group.SetLimit(readsParallel)
	for _, id := range l.left[:min(readsMost, len(l.left))] {
		group.Go(func() error {
			needs, err := r.Copies.Needs(bounded, id)
			if err != nil {
				return fmt.Errorf("read what %s needs: %w", id, err)
			}
			objects, err := r.fileObjects(needs)
			if err != nil {
				return err
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			l.read[id] = true
			for _, object := range objects {
				l.needed[object] = true
			}
			return nil
		})
	}
	err := group.Wait()
	l.left = slices.DeleteFunc(l.left, func(id string) bool { return l.read[id] })
	clear(l.read)
	return err
}

// fileObjects are the names in the bucket of files that a copy needs. A copy of an earlier release has
// no marks, and the one before that called a file by its label.
func (r *Roster) fileObjects(needs []fleet.FileNeed) (objects []string, err error) {
	for _, n := range needs {
		key, err := vault.Derive(r.Master, n.Label())
		if err != nil {
			return nil, err
		}
		objects = append(objects, n.Object(key.Reveal()))
		if n.Mark == "" {
			objects = append(objects, n.Label())
		}
	}
	return objects, nil
}

// endLook decides what becomes of each file. Those that are to be dropped go with the next sweep.
func (r *Roster) endLook(ctx context.Context, l *look) (dropped int, err error) {
	bucket, err := r.Copies.Now(ctx)
	if err != nil {
		return 0, err
	}
	now := time.Now()
	var idle, needed []string
	for object := range l.listed {
		if _, known := l.rows[object]; !known && !l.needed[object] {
			idle = append(idle, object)
		}
	}
	for object, f := range l.rows {
		switch {
		case f.Dropped: // a save that has not asked again yet may name it, and fails
		case l.needed[object] && !f.Idle.IsZero():
			needed = append(needed, object)
		case l.needed[object]:
		default:
			goes, err := r.goes(ctx, f, l.listed[object], now, bucket)
			if err != nil {
				return dropped, err
			}
			if !goes {
				if f.Idle.IsZero() {
					idle = append(idle, object)
				}
				continue
			}
			was, err := r.Store.DropFile(ctx, f)
			if err != nil {
				return dropped, err
			}
			if was {
				dropped++
			}
		}
	}
	if err := r.Store.SetFilesNeeded(ctx, needed); err != nil {
		return dropped, err
	}
	return dropped, r.Store.SetFilesIdle(ctx, idle, now, bucket)
}

// goes reports whether a file is dropped that nothing needs. One that is gone from the bucket already is: an
// operator may have restored records of before its drop. No copy can rely on it, and each save would fail.
func (r *Roster) goes(ctx context.Context, f store.File, listed bool, now, bucket time.Time) (bool, error) {
	if !f.Idle.IsZero() && r.stale(f, now, bucket) {
		return true, nil
	}
	if !listed || f.Label == "" {
		return false, nil
	}
	return r.Copies.Dropped(ctx, f.Object)
}

// stale reports whether a file has been idle for its grace period, by both clocks.
func (r *Roster) stale(f store.File, now, bucket time.Time) bool {
	grace := r.FileGrace
	if grace == 0 {
		grace = fileGrace
		if f.Label == "" {
			grace = oldFileGrace
		}
	}
	return now.Sub(f.Idle) >= grace && bucket.Sub(f.BucketIdle) >= grace
}

// NeedsIn are the files that something in a bucket needs, as [Copies] has it. The keys of all copies are
// made of master.
func NeedsIn(ctx context.Context, v *vault.Vault, master []byte, id string) (all []fleet.FileNeed, err error) {
	key, err := vault.Derive(master, id)
	if err != nil {
		return nil, err
	}
	err = v.EachNewest(ctx, id, key, func(ctx context.Context, c *vault.Copy) error {
		for _, f := range c.Files() {
			if f.Name != fleet.NeedsFile && f.Name != fleet.BuiltFile {
				continue
			}
			if f.Size > needsMost {
				return fmt.Errorf("%s of the copy has %d bytes", f.Name, f.Size)
			}
			raw, err := c.Chunk(ctx, f.Name, 0)
			if err != nil {
				return err
			}
			needs, err := fleet.NeedsOf(raw)
			all = append(all, needs...)
			return err
		}
		return errors.New("the copy does not say which files it needs")
	})
	return all, err
}

// droppedFiles are the files that are being removed. Those that the bucket's list does not have any
// more are forgotten.
func (r *Roster) droppedFiles(ctx context.Context, listed map[string]bool) (map[string]bool, error) {
	rows, err := r.Store.Files(ctx)
	if err != nil {
		return nil, err
	}
	dropped := map[string]bool{}
	for _, f := range rows {
		switch {
		case f.Dropped && listed[f.Object]:
			dropped[f.Object] = true
		case f.Dropped:
			if err := r.Store.ForgetFile(ctx, f.Object); err != nil {
				return nil, err
			}
		}
	}
	return dropped, nil
}

// dropFile removes a file from the bucket, and counts it.
func (r *Roster) dropFile(ctx context.Context, object string) error {
	bytes, err := r.Copies.Bytes(ctx, object)
	if err != nil {
		return err
	}
	if err := r.Copies.Drop(ctx, object); err != nil {
		return err
	}
	if bytes > 0 { // otherwise a control before this one removed it
		r.tally.files.Add(1)
		r.tally.fileBytes.Add(uint64(bytes))
	}
	return nil
}
