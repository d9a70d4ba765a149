package vault

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/durable"
)

// manifest returns the manifest of a generation. errAbsent passes.
func (v *Vault) manifest(ctx context.Context, s *sealer, g Generation) (*manifest, error) {
	raw, err := v.get(ctx, v.key(s.id, kindManifest, g.String()), sealedManifestMost)
	if err != nil {
		return nil, err
	}
	return s.openManifest(raw, g)
}

// Copy is one generation in the bucket. Its chunks are there until a grace period after a
// newer generation was saved.
type Copy struct {
	v      *Vault
	sealer *sealer
	m      *manifest
}

// Open returns the newest generation of a sandbox that counts. It reads the manifest alone.
func (v *Vault) Open(ctx context.Context, id string, key Key) (*Copy, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	s, err := newSealer(id, key)
	if err != nil {
		return nil, err
	}
	for range racesMost {
		g, err := v.Head(ctx, id)
		if err != nil {
			return nil, err
		}
		m, err := v.manifest(ctx, s, g)
		if errors.Is(err, errAbsent) {
			continue // a sweep removed it, since there is a newer one
		}
		if err != nil {
			return nil, err
		}
		return &Copy{v, s, m}, nil
	}
	return nil, fmt.Errorf("%w: the manifest that counts of %s is missing", ErrDamaged, id)
}

// OpenAt returns a generation that counts, or did until a newer one was saved. One that a sweep
// removed is ErrNotFound.
func (v *Vault) OpenAt(ctx context.Context, id string, key Key, g Generation) (*Copy, error) {
	if err := errors.Join(checkID(id), checkEpoch(g.Epoch)); err != nil {
		return nil, err
	}
	s, err := newSealer(id, key)
	if err != nil {
		return nil, err
	}
	m, err := v.manifest(ctx, s, g)
	if errors.Is(err, errAbsent) {
		return nil, fmt.Errorf("%w: %s has no generation %s", ErrNotFound, id, g)
	}
	if err != nil {
		return nil, err
	}
	return &Copy{v, s, m}, nil
}

// EachNewest calls found for all generations of a sandbox that count now, or may do so later. Those are
// pending manifests, and the newest one. It may call found twice for the same. Of a generation that found reads, chunks may be missing: then it cannot count. found returns
// ErrDamaged of what it cannot read. That is an error if the newest generation is damaged. A sandbox
// that has none, or was dropped, is no error.
func (v *Vault) EachNewest(ctx context.Context, id string, key Key, found func(context.Context, *Copy) error) error {
	if err := checkID(id); err != nil {
		return err
	}
	s, err := newSealer(id, key)
	if err != nil {
		return err
	}
	type begun struct {
		Generation
		key string
	}
	var pending []begun
	err = v.list(ctx, id, kindPending, "", func(o object) error {
		if g, ok := pendingOf(o.rest); ok {
			pending = append(pending, begun{g, o.key})
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, p := range pending {
		raw, err := v.get(ctx, p.key, sealedManifestMost)
		if errors.Is(err, errAbsent) {
			continue // it counts by now, or another one does
		}
		if err != nil {
			return err
		}
		m, err := s.openManifest(raw, p.Generation)
		if err == nil {
			err = found(ctx, &Copy{v, s, m})
		}
		if err != nil && !errors.Is(err, ErrDamaged) { // its save sends again what is missing, and asks after that
			return err
		}
	}
	// What was pending is so until it counts. So the newest comes last.
	for n := 1; ; n++ {
		c, err := v.Open(ctx, id, key)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		if err = found(ctx, c); !errors.Is(err, ErrDamaged) || n == racesMost { // there may be a newer one by now
			return err
		}
	}
}

// Generation returns which one it is.
func (c *Copy) Generation() Generation { return c.m.generation }

// Info is what a copy knows of a file.
type Info struct {
	Name string      // relative, with slashes
	Mode fs.FileMode // permissions
	Size int64       // in bytes, with holes
	Data int64       // in bytes, of the chunks that are no holes
}

// Files returns the files of the tree, by name.
func (c *Copy) Files() []Info {
	all := make([]Info, len(c.m.files))
	for i := range c.m.files {
		f := &c.m.files[i]
		all[i] = Info{Name: f.name, Mode: f.mode, Size: f.size}
		for _, r := range f.refs {
			all[i].Data += int64(f.length(r.number))
		}
	}
	return all
}

// file returns the entry of a file.
func (c *Copy) file(name string) (*entry, error) {
	i, ok := slices.BinarySearchFunc(c.m.files, name, func(f entry, name string) int { return strings.Compare(f.name, name) })
	if !ok {
		return nil, fmt.Errorf("%w: %s of %s has no file %q", ErrNotFound, c.m.generation, c.sealer.id, name)
	}
	return &c.m.files[i], nil
}

// Chunk returns a part of a file, at a number of ChunkBytes. It is nil for a hole. The last
// part of a file may have fewer bytes than ChunkBytes.
func (c *Copy) Chunk(ctx context.Context, name string, number int64) ([]byte, error) {
	f, err := c.file(name)
	if err != nil {
		return nil, err
	}
	i, ok := slices.BinarySearchFunc(f.refs, number, func(r ref, number int64) int { return int(int64(r.number) - number) })
	if !ok {
		return nil, nil
	}
	work, err := c.v.loading.take(ctx)
	if err != nil {
		return nil, err
	}
	defer c.v.loading.free(work)
	plain, err := c.v.chunk(ctx, c.sealer, work, c.m.chunks[f.refs[i].chunk], f.length(f.refs[i].number))
	return bytes.Clone(plain), err
}

// Fetch writes a file of the tree into an empty one, with its holes. It syncs nothing.
func (c *Copy) Fetch(ctx context.Context, name string, to *os.File) error {
	f, err := c.file(name)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(c.v.parallel)
	err = c.fetch(ctx, group, f, to, false)
	return cmp.Or(group.Wait(), err)
}

// fetch begins to write a file in a group. With partly, the file may have some of it, or
// other content.
func (c *Copy) fetch(ctx context.Context, group *errgroup.Group, f *entry, to *os.File, partly bool) error {
	if err := to.Truncate(f.size); err != nil {
		return err
	}
	if partly {
		if err := holes(f, to); err != nil {
			return err
		}
	}
	for _, r := range f.refs {
		if ctx.Err() != nil {
			return context.Cause(ctx) // what went wrong in the group
		}
		group.Go(func() error { return c.part(ctx, f, r, to, partly) })
	}
	return nil
}

// part writes a part of a file. With partly, it looks first whether it is there.
func (c *Copy) part(ctx context.Context, f *entry, r ref, to *os.File, partly bool) error {
	work, err := c.v.loading.take(ctx)
	if err != nil {
		return err
	}
	defer c.v.loading.free(work)
	at, length := int64(r.number)*ChunkBytes, f.length(r.number)
	object := c.m.chunks[r.chunk]
	if partly {
		there := work.plain[:length]
		if _, err := to.ReadAt(there, at); err != nil {
			return err
		}
		if c.sealer.name(there) == object.name {
			return nil
		}
		if err := punch(to, at, int64(length)); err != nil {
			return err
		}
	}
	plain, err := c.v.chunk(ctx, c.sealer, work, object, length)
	if err != nil {
		return fmt.Errorf("load %s: %w", f.name, err)
	}
	if err := writeSparse(to, plain, at); err != nil {
		return fmt.Errorf("load %s: %w", f.name, err)
	}
	return nil
}

// block is what is looked at for zeros, in bytes: the smallest hole of most file systems.
const block = 4096

// writeSparse writes what is not zero to a place where nothing was written yet.
func writeSparse(to io.WriterAt, raw []byte, at int64) error {
	begin := -1 // of what is to be written
	for i := 0; i <= len(raw); i += block {
		end := min(i+block, len(raw))
		if i < len(raw) && !bytes.Equal(raw[i:end], zeros[:end-i]) {
			if begin < 0 {
				begin = i
			}
			continue
		}
		if begin >= 0 {
			if _, err := to.WriteAt(raw[begin:min(i, len(raw))], at+int64(begin)); err != nil {
				return err
			}
			begin = -1
		}
	}
	if begin >= 0 { // the last block is not whole
		_, err := to.WriteAt(raw[begin:], at+int64(begin))
		return err
	}
	return nil
}

// holes makes holes of what a file has between its parts.
func holes(f *entry, to *os.File) error {
	at := int64(0)
	for _, r := range f.refs {
		begin := int64(r.number) * ChunkBytes
		if err := punch(to, at, begin-at); err != nil {
			return err
		}
		at = begin + int64(f.length(r.number))
	}
	return punch(to, at, f.size-at)
}

func punch(f *os.File, at, length int64) error {
	if length == 0 {
		return nil
	}
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, at, length)
	if err != nil {
		return fmt.Errorf("make a hole in %s: %w", f.Name(), err)
	}
	return nil
}

// PartSuffix is of the directory that a load writes into.
const PartSuffix = ".part"

// Load writes the newest generation of a sandbox that counts into a new directory, and
// returns which one it is. The directory appears in one step, when all of it is on disk. A
// load that failed leaves what it has beside it, under PartSuffix, and the next one goes on
// from there. On a full disk nothing is left.
func (v *Vault) Load(ctx context.Context, id string, key Key, dir string) (Generation, error) {
	var last Generation
	for {
		c, err := v.Open(ctx, id, key)
		if err != nil {
			return Generation{}, err
		}
		err = c.Load(ctx, dir)
		switch {
		case err == nil:
			return c.Generation(), nil
		case !errors.Is(err, ErrDamaged) || !last.Before(c.Generation()):
			return Generation{}, err
		}
		// A sweep may have removed it, if there is a newer one by now.
		last = c.Generation()
	}
}

// Load writes the tree into a new directory, as [Vault.Load] does. Of chunks that a sweep
// removed the error is ErrDamaged.
func (c *Copy) Load(ctx context.Context, dir string) error {
	_, err := os.Lstat(dir)
	if err == nil {
		return fmt.Errorf("load %s: %w: %s", c.sealer.id, fs.ErrExist, dir)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	part := dir + PartSuffix
	release, err := lock(part)
	if err != nil {
		return err
	}
	defer release()
	err = c.load(ctx, part)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return errors.Join(fmt.Errorf("load %s: %w: free some space and try again", c.sealer.id, err), os.RemoveAll(part))
	}
	if err != nil {
		return err
	}
	if err := unix.Renameat2(unix.AT_FDCWD, part, unix.AT_FDCWD, dir, unix.RENAME_NOREPLACE); err != nil {
		return fmt.Errorf("rename %s: %w", part, err)
	}
	return durable.Sync(filepath.Dir(dir))
}

// lock makes a directory that nobody else loads into.
func lock(part string) (release func(), err error) {
	if err := os.Mkdir(part, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	d, err := os.Open(part)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w: somebody loads into %s", ErrBusy, part)
		}
		return nil, errors.Join(err, d.Close())
	}
	return func() { _ = d.Close() }, nil
}

// load writes all files below a directory, which may have some of them, and syncs them.
func (c *Copy) load(ctx context.Context, dir string) error {
	dirs := map[string]bool{".": true}
	for i := range c.m.files {
		for d := filepath.Dir(c.m.files[i].name); !dirs[d]; d = filepath.Dir(d) {
			dirs[d] = true
		}
	}
	there, err := clean(dir, c.m, dirs)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for d := range dirs {
		if err := root.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	// Each file waits for its chunks, and then for the disk: the next ones do not wait for that.
	group, loading := errgroup.WithContext(ctx)
	group.SetLimit(c.v.parallel)
	for i := range c.m.files {
		f := &c.m.files[i]
		group.Go(func() error { return c.loadFile(loading, root, f, there[f.name]) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for d := range dirs {
		if err := durable.Sync(filepath.Join(dir, d)); err != nil {
			return err
		}
	}
	return nil
}

// loadFile writes one file, whose directory is there, and syncs it.
func (c *Copy) loadFile(ctx context.Context, root *os.Root, f *entry, there bool) (err error) {
	if there {
		if err := root.Chmod(f.name, 0o600); err != nil {
			return err
		}
	}
	to, err := root.OpenFile(f.name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(c.v.parallel)
	err = c.fetch(ctx, group, f, to, there)
	if err := cmp.Or(group.Wait(), err); err != nil {
		return err
	}
	if err := to.Chmod(f.mode); err != nil {
		return err
	}
	return to.Sync()
}

// clean removes from a directory what is no file and no directory of the manifest, and
// returns the names of the files that are.
func clean(dir string, m *manifest, dirs map[string]bool) (there map[string]bool, err error) {
	wanted := map[string]bool{}
	for i := range m.files {
		wanted[m.files[i].name] = true
	}
	there = map[string]bool{}
	var others []string
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && dirs[rel]:
		case d.Type().IsRegular() && wanted[rel]:
			there[rel] = true
		default:
			others = append(others, path)
		}
		return nil
	})
	for _, path := range slices.Backward(others) { // a directory after what was in it
		err = errors.Join(err, os.Remove(path))
	}
	return there, err
}
