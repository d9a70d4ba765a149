package builder

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dozehq/doze/internal/durable"
)

// bench is the builder of one workspace. Its machine may not be there yet.
type bench struct {
	workspace string // its id
	name      string // of the machine and of the record
	uid       string
	life      context.Context //nolint:containedctx // of its builds; ends when the builder is removed
	end       context.CancelCauseFunc
	turn      chan struct{} // holds a token while the machine or the record changes

	// What follows is guarded by mu of the room.
	record   record
	builds   int             // that are under way
	inside   map[string]bool // of these, those that use the machine, by their ids
	retired  bool            // no build begins any more
	idle     chan struct{}   // closed when a retired bench has no builds any more
	removing chan struct{}   // closed when the removal that is under way ends; nil without one
}

// record is what the next process must know of a builder.
type record struct {
	WorkspaceID string    `json:"workspaceId"`
	Token       string    `json:"token"` // what the program believes its node by
	Began       bool      `json:"began"` // the program has answered once
	LastUsed    time.Time `json:"lastUsed"`
	CacheBytes  int64     `json:"cacheBytes"` // as it was at the end of the last build
	// Open are the ids of builds of which something may be in the machine.
	Open []string `json:"open,omitempty"`
}

const (
	recordSuffix = ".json"
	recordMode   = 0o600 // it has the token
	// recordMax bounds a record, in bytes.
	recordMax = 64 << 10
	// nameBytes is how many bytes of the hash of a workspace's id make a name: ids have any
	// form, and names of machines are short.
	nameBytes = 12
)

// nameOf is the name of the builder of a workspace.
func nameOf(workspaceID string) string {
	sum := sha256.Sum256([]byte(workspaceID))
	return hex.EncodeToString(sum[:nameBytes])
}

// newBench returns a bench without builds.
func (r *Room) newBench(id string, known record) *bench {
	b := &bench{
		workspace: id, name: nameOf(id), record: known,
		turn: make(chan struct{}, 1), inside: map[string]bool{}, idle: make(chan struct{}),
	}
	b.uid = r.o.Machines.UID(b.name)
	b.life, b.end = context.WithCancelCause(r.life)
	return b
}

// take takes the turn of a bench.
func (b *bench) take(ctx context.Context) (leave func(), err error) {
	select {
	case b.turn <- struct{}{}:
		return func() { <-b.turn }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// enter counts a build of a workspace, and returns its bench. A builder that is being
// removed is removed first.
func (r *Room) enter(ctx context.Context, id string) (*bench, error) {
	for {
		if b := r.join(id); b != nil {
			return b, nil
		}
		if err := r.drop(ctx, id, errDropped); err != nil {
			return nil, err
		}
	}
}

// join counts a build in the bench of a workspace. It returns nil if that is retired.
func (r *Room) join(id string) *bench {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.benches[id]
	if b == nil {
		b = r.newBench(id, record{})
		r.benches[id] = b
	}
	if b.retired {
		return nil
	}
	b.builds++
	return b
}

// leave ends a build. A bench without a builder is forgotten with its last build.
func (r *Room) leave(b *bench) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b.builds--
	switch {
	case b.builds > 0:
	case b.retired:
		close(b.idle)
	case b.record.Token == "":
		delete(r.benches, b.workspace)
	}
}

// unused returns the workspaces whose builders nobody used for their age before a moment.
func (r *Room) unused(now time.Time) (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, b := range r.benches {
		age := r.o.age(id)
		if age > 0 && b.builds == 0 && !b.retired && now.Sub(b.record.LastUsed) > age {
			ids = append(ids, id)
		}
	}
	return ids
}

// drop cancels the builds of a workspace, waits for their ends, and removes the builder.
// One that is not there is no error. One that could not be removed builds nothing until
// it is.
func (r *Room) drop(ctx context.Context, id string, why error) error {
	for {
		b, others := r.retire(id, why)
		switch {
		case b == nil:
			return nil
		case others == nil:
			b.end(why)
			err := r.dismantle(ctx, b)
			r.settle(b, err)
			if err == nil {
				slog.InfoContext(ctx, "removed a builder", "workspace", id, "machine", b.uid, "why", why)
			}
			return err
		}
		select {
		case <-others:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// retire has no build of a workspace begin any more, and the caller remove the builder. If
// another call does that, it returns what is closed at its end. Without a builder, or
// with one that is in use and should not be, it returns nil.
func (r *Room) retire(id string, why error) (_ *bench, others <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.benches[id]
	switch {
	case b == nil, errors.Is(why, errUnused) && b.builds > 0:
		return nil, nil
	case b.removing != nil:
		return b, b.removing
	}
	b.removing = make(chan struct{})
	if !b.retired && b.builds == 0 {
		close(b.idle)
	}
	b.retired = true
	return b, nil
}

// settle takes note of the end of a removal.
func (r *Room) settle(b *bench, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(b.removing)
	b.removing = nil
	if err == nil {
		delete(r.benches, b.workspace)
	}
}

// dismantle waits for the ends of all builds, and removes machine and record.
func (r *Room) dismantle(ctx context.Context, b *bench) error {
	select {
	case <-b.idle:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	leave, err := b.take(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return r.discard(ctx, b)
}

// discard removes the machine of a bench, and then its record. A crash in between leaves a
// record without a machine, which the next start removes. Preconditions: the turn is held,
// and no build uses the machine.
func (r *Room) discard(ctx context.Context, b *bench) error {
	if err := r.o.Machines.Delete(ctx, b.uid); err != nil {
		return fmt.Errorf("end the builder: %w", err)
	}
	if err := os.Remove(r.file(b.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of the builder: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b.record = record{}
	return nil
}

// file is where the record of a builder is.
func (r *Room) file(name string) string { return filepath.Join(r.o.Dir, name+recordSuffix) }

// save writes the record of a bench. Preconditions: the turn is held.
func (r *Room) save(b *bench, rec record) error {
	raw, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if err := durable.Replace(r.file(b.name), raw, recordMode); err != nil {
		return fmt.Errorf("write the record of the builder: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b.record = rec
	return nil
}

// known returns the record of a bench.
func (r *Room) known(b *bench) record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return b.record
}

// newToken returns a token that nobody guesses.
func newToken() string { return rand.Text() }

// adopt takes over the builders of the process before. One without a record, or without a
// machine, was being made or removed: nothing of it stays.
func (r *Room) adopt(ctx context.Context) error {
	if err := os.MkdirAll(r.o.Dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of builders: %w", err)
	}
	entries, err := os.ReadDir(r.o.Dir)
	if err != nil {
		return fmt.Errorf("list builders: %w", err)
	}
	machines := r.o.Machines.All()
	owned := map[string]bool{}
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), recordSuffix)
		rec, err := readRecord(filepath.Join(r.o.Dir, e.Name()))
		uid := r.o.Machines.UID(name)
		m, made := machines[uid]
		if !ok || err != nil || nameOf(rec.WorkspaceID) != name || !rec.Began || !made || !m.usable() {
			slog.WarnContext(ctx, "what is left of a builder is removed", "record", e.Name(), "err", err)
			if err := os.RemoveAll(filepath.Join(r.o.Dir, e.Name())); err != nil {
				slog.ErrorContext(ctx, "it is not removed", "record", e.Name(), "err", err)
			}
			continue
		}
		owned[uid] = true
		r.benches[rec.WorkspaceID] = r.newBench(rec.WorkspaceID, rec)
	}
	for uid := range machines {
		if owned[uid] {
			continue
		}
		slog.WarnContext(ctx, "a builder that was not finished is removed", "machine", uid)
		if err := r.o.Machines.Delete(ctx, uid); err != nil { // a later build tries again
			slog.ErrorContext(ctx, "a builder is not removed", "machine", uid, "err", err)
		}
	}
	return nil
}

// readRecord reads a record.
func readRecord(file string) (rec record, err error) {
	info, err := os.Lstat(file)
	switch {
	case err != nil:
		return rec, err
	case !info.Mode().IsRegular() || info.Size() > recordMax:
		return rec, errors.New("it is no record")
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return rec, err
	}
	return rec, json.Unmarshal(raw, &rec)
}
