package vault

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze/internal/sparse"
)

// File is one file of a tree that is saved. Nobody may change it until then: Save looks at
// its size and its time before it reads it and after that, and no closer.
type File struct {
	Name string      // relative, with slashes
	Mode fs.FileMode // permissions
	Size int64       // in bytes
	// Open returns the file. It is called again if a chunk has to be sent again.
	Open func() (*os.File, error)
}

// Tree returns the regular files below a directory. Anything else is an error, except
// for directories.
func Tree(dir string) (tree []File, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file", path)
		}
		rel, err := filepath.Rel(dir, path)
		tree = append(tree, File{Name: filepath.ToSlash(rel), Mode: info.Mode().Perm(), Size: info.Size(), Open: func() (*os.File, error) { return os.Open(path) }})
		return err
	})
	return tree, err
}

// Saved says what a save did.
type Saved struct {
	Chunks     int   // of the tree, each content once
	Sent       int   // chunks that the bucket did not have
	SentBytes  int64 // what those took, compressed
	ChunkBytes int64 // what the chunks of all files have, without holes
}

// attemptsMost is how often a save sends again what sweeps removed meanwhile.
const attemptsMost = 5

// Save stores a tree as a generation. It claims the epoch, if that is new. When it returns
// nil, the generation counts, and every later claim goes on from it or from a newer one.
//
// Each number is for one tree. One save of a sandbox at a time is the caller's part. A save
// that failed may be repeated, with the same files and the same generation: it sends what the
// bucket lacks. It may also count already. Other files need a higher number.
func (v *Vault) Save(ctx context.Context, id string, key Key, g Generation, tree []File) (Saved, error) {
	return v.SaveIf(ctx, id, key, g, tree, nil)
}

// SaveIf is Save, and asks last whether the generation may count; nil: it may. By then the bucket has
// all of it, and [Vault.EachNewest] finds it until a later one counts. An error is that of SaveIf.
func (v *Vault) SaveIf(ctx context.Context, id string, key Key, g Generation, tree []File, may func(context.Context) error) (Saved, error) {
	s, err := v.begin(ctx, id, key, g, tree)
	if err != nil {
		return Saved{}, err
	}
	if err := s.send(ctx); err != nil {
		return Saved{}, err
	}
	m, err := s.secure(ctx)
	if err != nil {
		return Saved{}, err
	}
	if may != nil {
		if err := may(ctx); err != nil {
			return Saved{}, err
		}
	}
	if err := s.publish(ctx, m); err != nil {
		return Saved{}, err
	}
	v.cache.put(id, s.used(m))
	return s.saved, nil
}

// A save is one call of [Vault.Save].
type save struct {
	v       *Vault
	id      string
	g       Generation
	sealer  *sealer
	sources []*source
	pending string // key of the manifest before it counts

	mu    sync.Mutex
	marks map[name]mark  // guarded by mu; which object has a content, or will have
	first map[name]place // guarded by mu; where a content is in the files
	parts int            // guarded by mu; that are not zero
	saved Saved          // guarded by mu
}

// A place is a part of a file.
type place struct {
	source *source
	number uint32
}

// begin refuses what nobody may save, and learns which chunks the bucket has.
func (v *Vault) begin(ctx context.Context, id string, key Key, g Generation, tree []File) (*save, error) {
	if err := errors.Join(checkID(id), checkEpoch(g.Epoch)); err != nil {
		return nil, err
	}
	sealer, err := newSealer(id, key)
	if err != nil {
		return nil, err
	}
	s := &save{v: v, id: id, g: g, sealer: sealer, marks: map[name]mark{}, first: map[name]place{}}
	m := manifest{generation: g}
	for _, f := range tree {
		s.sources = append(s.sources, &source{File: f})
	}
	slices.SortFunc(s.sources, func(a, b *source) int { return cmp.Compare(a.Name, b.Name) })
	for _, f := range s.sources {
		m.files = append(m.files, entry{name: f.Name, mode: f.Mode, size: f.Size})
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("save %s: %w", id, err)
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // it never fails
	s.pending = v.key(id, kindPending, g.String()+"-"+hex.EncodeToString(random[:]))

	newest, err := v.Claim(ctx, id, g.Epoch)
	if err != nil {
		return nil, err
	}
	if g.Before(newest) {
		return nil, fmt.Errorf("%w: %s of %s was saved, which is newer than %s", ErrSuperseded, newest, id, g)
	}
	if s.marks = v.cache.take(id); s.marks == nil {
		s.marks = map[name]mark{}
		doomed, err := v.doomed(ctx, id)
		if err != nil {
			return nil, err
		}
		return s, v.eachChunk(ctx, id, func(c chunk, _ object) {
			if !doomed[c] {
				s.marks[c.name] = c.mark
			}
		})
	}
	return s, nil
}

// eachChunk calls found for each chunk that a sandbox has in the bucket.
func (v *Vault) eachChunk(ctx context.Context, id string, found func(chunk, object)) error {
	return v.list(ctx, id, kindChunk, "", func(o object) error {
		if c, ok := parseChunk(o.rest); ok {
			found(c, o)
		}
		return nil
	})
}

// A source is a file that is being saved.
type source struct {
	File
	f        *os.File
	modified time.Time
	left     atomic.Int64 // parts that are under way, and one for the walk

	mu   sync.Mutex
	refs []placed // guarded by mu; in any order
}

// placed is a part of a file and what it has.
type placed struct {
	number uint32
	name   name
}

// open opens the file, and takes note of what must not change.
func (s *source) open() (err error) {
	if s.f, err = s.Open(); err != nil {
		return fmt.Errorf("open %s: %w", s.Name, err)
	}
	info, err := s.f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is no regular file", s.Name)
	case info.Size() != s.Size || !s.modified.IsZero() && !s.modified.Equal(info.ModTime()):
		err = fmt.Errorf("%w: %s has %d bytes since %v, and had %d", ErrChanged, s.Name, info.Size(), info.ModTime(), s.Size)
	}
	if err != nil {
		return errors.Join(err, s.f.Close())
	}
	s.modified = info.ModTime()
	return nil
}

// release ends one part; the last one closes the file.
func (s *source) release() error {
	if s.left.Add(-1) > 0 {
		return nil
	}
	return s.close()
}

// close closes the file, and returns an error if it changed since it was opened.
func (s *source) close() error {
	info, err := s.f.Stat()
	if err == nil && (info.Size() != s.Size || !info.ModTime().Equal(s.modified)) {
		err = fmt.Errorf("%w: %s was written to while it was saved", ErrChanged, s.Name)
	}
	return errors.Join(err, s.f.Close())
}

// read reads a part of the file.
func (s *source) read(to []byte, number uint32) ([]byte, error) {
	n := int(min(ChunkBytes, s.Size-int64(number)*ChunkBytes))
	if _, err := s.f.ReadAt(to[:n], int64(number)*ChunkBytes); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%w: it became shorter", ErrChanged)
		}
		return nil, fmt.Errorf("read %s: %w", s.Name, err)
	}
	return to[:n], nil
}

// numbers calls found for each part of the file that is no hole, in order.
func (s *source) numbers(found func(uint32) error) error {
	next := int64(0)
	for e, err := range sparse.Extents(s.f, s.Size) {
		if err != nil {
			return err
		}
		for next = max(next, e.Offset/ChunkBytes); next*ChunkBytes < e.Offset+e.Length; next++ {
			if err := found(uint32(next)); err != nil { //nolint:gosec // G115: FileMost has fewer
				return err
			}
		}
	}
	return nil
}

// send reads all files, and sends the chunks that the bucket does not have.
func (s *save) send(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(s.v.parallel)
	walk := func() error {
		for _, f := range s.sources {
			if err := f.open(); err != nil {
				return err
			}
			f.left.Store(1)
			err := f.numbers(func(number uint32) error {
				f.left.Add(1)
				group.Go(func() error { return errors.Join(s.part(ctx, f, number), f.release()) })
				return context.Cause(ctx)
			})
			if err := errors.Join(err, f.release()); err != nil {
				return err
			}
		}
		return nil
	}
	err := walk()
	// What went wrong in a part is why the walk ended.
	return cmp.Or(group.Wait(), err)
}

// part sends a part of a file, unless it is zero or the bucket has it.
func (s *save) part(ctx context.Context, f *source, number uint32) error {
	work, err := s.v.sending.take(ctx)
	if err != nil {
		return err
	}
	defer s.v.sending.free(work)
	plain, err := f.read(work.plain, number)
	if err != nil || bytes.Equal(plain, zeros[:len(plain)]) {
		return err
	}
	n := s.sealer.name(plain)
	f.mu.Lock()
	f.refs = append(f.refs, placed{number, n})
	f.mu.Unlock()

	s.mu.Lock()
	if s.parts++; s.parts > chunksMost {
		s.mu.Unlock()
		return fmt.Errorf("save %s: its files have more than %d MiB that are not zero", s.id, chunksMost)
	}
	s.saved.ChunkBytes += int64(len(plain))
	_, seen := s.first[n]
	if !seen {
		s.first[n] = place{f, number}
		s.saved.Chunks++
	}
	m, there := s.marks[n]
	if !there {
		m = newMark(s.g.Epoch)
		s.marks[n] = m
	}
	s.mu.Unlock()
	if there {
		return nil
	}
	return s.upload(ctx, work, plain, chunk{n, m})
}

// upload sends a chunk.
func (s *save) upload(ctx context.Context, work *buffers, plain []byte, c chunk) error {
	sealed := s.sealer.sealChunk(s.v.packed(work, plain), c)
	if err := s.v.put(ctx, s.v.key(s.id, kindChunk, c.String()), sealed, false); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saved.Sent, s.saved.SentBytes = s.saved.Sent+1, s.saved.SentBytes+int64(len(sealed))
	return nil
}

// manifest says what was read, and where it is.
func (s *save) manifest() *manifest {
	m := &manifest{generation: s.g}
	for n := range s.first {
		m.chunks = append(m.chunks, chunk{n, s.marks[n]})
	}
	slices.SortFunc(m.chunks, byName)
	index := make(map[name]uint32, len(m.chunks))
	for i, c := range m.chunks {
		index[c.name] = uint32(i)
	}
	for _, f := range s.sources {
		slices.SortFunc(f.refs, func(a, b placed) int { return cmp.Compare(a.number, b.number) })
		e := entry{name: f.Name, mode: f.Mode, size: f.Size}
		for _, r := range f.refs {
			e.refs = append(e.refs, ref{r.number, index[r.name]})
		}
		m.files = append(m.files, e)
	}
	return m
}

// secure writes the manifest where sweeps look for chunks in use, and nobody reads it. Then it
// sees which chunks sweeps removed before they could see it, or are about to remove. It
// sends those again, under other marks, until there are none.
func (s *save) secure(ctx context.Context) (*manifest, error) {
	for range attemptsMost {
		m := s.manifest()
		sealed, err := s.sealer.sealManifest(m)
		if err != nil {
			return nil, err
		}
		if err := s.v.put(ctx, s.pending, sealed, false); err != nil {
			return nil, err
		}
		lost, err := s.lost(ctx, m)
		if err != nil {
			return nil, err
		}
		if len(lost) == 0 {
			return m, nil
		}
		if err := s.again(ctx, lost); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("save %s: sweeps removed its chunks %d times: give them a longer grace period", s.id, attemptsMost)
}

// lost returns the chunks of a manifest that the bucket does not have, or not for long.
func (s *save) lost(ctx context.Context, m *manifest) ([]chunk, error) {
	missing := make(map[chunk]bool, len(m.chunks))
	for _, c := range m.chunks {
		missing[c] = true
	}
	// A sweep that is over by now removed what the second list lacks. One that is not
	// is in the first.
	doomed, err := s.v.doomed(ctx, s.id)
	if err != nil {
		return nil, err
	}
	if err := s.v.eachChunk(ctx, s.id, func(c chunk, _ object) { delete(missing, c) }); err != nil {
		return nil, err
	}
	for _, c := range m.chunks {
		if doomed[c] {
			missing[c] = true
		}
	}
	lost := make([]chunk, 0, len(missing))
	for c := range missing {
		lost = append(lost, c)
	}
	return lost, nil
}

// again sends chunks under new marks. Nobody ever removes those for an old reason.
func (s *save) again(ctx context.Context, lost []chunk) error {
	places := map[*source][]name{}
	for _, c := range lost {
		f := s.first[c.name].source
		places[f] = append(places[f], c.name)
	}
	for f, names := range places {
		if err := f.open(); err != nil {
			return err
		}
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(s.v.parallel)
		for _, n := range names {
			group.Go(func() error {
				work, err := s.v.sending.take(ctx)
				if err != nil {
					return err
				}
				defer s.v.sending.free(work)
				plain, err := f.read(work.plain, s.first[n].number)
				if err != nil {
					return err
				}
				if s.sealer.name(plain) != n {
					return fmt.Errorf("%w: %s has another content than before", ErrChanged, f.Name)
				}
				m := newMark(s.g.Epoch)
				s.mu.Lock()
				s.marks[n] = m
				s.mu.Unlock()
				return s.upload(ctx, work, plain, chunk{n, m})
			})
		}
		if err := errors.Join(group.Wait(), f.close()); err != nil {
			return err
		}
	}
	return nil
}

// publish makes the manifest count, unless a newer epoch was claimed.
func (s *save) publish(ctx context.Context, m *manifest) error {
	sealed, err := s.sealer.sealManifest(m)
	if err != nil {
		return err
	}
	err = s.v.put(ctx, s.v.key(s.id, kindManifest, s.g.String()), sealed, true)
	if errors.Is(err, errExists) {
		var there *manifest
		there, err = s.v.manifest(ctx, s.sealer, s.g)
		switch {
		case errors.Is(err, errAbsent):
			err = fmt.Errorf("%w: %s of %s was saved, and a sweep removed it", ErrSuperseded, s.g, s.id)
		case err == nil && !there.same(m):
			err = fmt.Errorf("%w: %s of %s was saved with other files: take a higher number", ErrTaken, s.g, s.id)
		}
	}
	if err != nil {
		return err
	}
	// A claim that this list does not have looks for manifests later, and finds this one.
	claims, err := s.v.claimsUpTo(ctx, s.id, s.g.Epoch)
	if err != nil {
		return err
	}
	if len(claims) == 0 {
		return fmt.Errorf("%w: %s was dropped", ErrSuperseded, s.id)
	}
	newest, err := s.v.standing(ctx, s.id, claims)
	if err != nil {
		return err
	}
	if newest != s.g {
		return fmt.Errorf("%w: %s of %s was saved, which is newer than %s", ErrSuperseded, newest, s.id, s.g)
	}
	return s.settle(ctx)
}

// settle removes what this and earlier saves wrote before their manifests.
func (s *save) settle(ctx context.Context) error {
	var keys []string
	err := s.v.list(ctx, s.id, kindPending, "", func(o object) error {
		if g, ok := pendingOf(o.rest); ok && !s.g.Before(g) {
			keys = append(keys, o.key)
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.v.remove(ctx, keys)
}

// pendingOf returns the generation of a manifest that may not count yet.
func pendingOf(rest string) (Generation, bool) {
	if len(rest) < 2*digits+1 {
		return Generation{}, false
	}
	return parseGeneration(rest[:2*digits+1])
}

// used returns the chunks that a later save may rely on.
func (s *save) used(m *manifest) map[name]mark {
	marks := make(map[name]mark, len(m.chunks))
	for _, c := range m.chunks {
		marks[c.name] = c.mark
	}
	return marks
}
