package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine"
)

// Commit turns the files that the engine wrote into [Making] of dir into the checkpoint of c in
// dir: checksums, manifest, sync, rename, sync. Until the rename the checkpoint does
// not exist; after it, it is complete. The checksums of some files may be known.
// A sync that ctx ends goes on in tasks.
func (l Layout) Commit(ctx context.Context, tasks *sync.WaitGroup, c machine.Config, engine, dir string, known ...File) error {
	if err := failpoint.Reach(failpoint.Measure, c.ID); err != nil {
		return err
	}
	m := manifestOf(c, engine)
	if slices.ContainsFunc(known, func(f File) bool { return f.Name == FileIndex }) {
		m.Format = FormatLayers
	}
	for _, name := range l.files() {
		i := slices.IndexFunc(known, func(f File) bool { return f.Name == name })
		if i >= 0 {
			m.Files = append(m.Files, known[i])
			continue
		}
		f, err := measure(ctx, filepath.Join(Making(dir), name))
		if err != nil {
			return fmt.Errorf("checksum %s: %w", name, err)
		}
		m.Files = append(m.Files, f)
	}
	for _, f := range known {
		if !slices.Contains(l.files(), f.Name) {
			m.Files = append(m.Files, f)
		}
	}
	if !l.orders(m) || (m.disks() > 0) != (c.Disk > 0) {
		return fmt.Errorf("the engine wrote %d files that belong to no checkpoint", len(m.Files))
	}
	if err := failpoint.Reach(failpoint.Manifest, c.ID); err != nil {
		return err
	}
	if err := m.Write(Making(dir)); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	written := l.files() // other layers are on disk already
	if m.Format == FormatLayers {
		written = append(written, FileIndex)
	}
	if m.disks() > 0 {
		written = append(written, FileDisk)
	}
	for _, name := range append(written, FileManifest, ".") {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := cmp.Or(failpoint.Reach(failpoint.Sync, c.ID), flush(ctx, tasks, filepath.Join(Making(dir), name))); err != nil {
			return err
		}
	}
	return publish(c, dir)
}

// flush writes a file to disk. The kernel does not end that early, so it goes on
// in tasks when ctx ends.
func flush(ctx context.Context, tasks *sync.WaitGroup, name string) error {
	done := make(chan error, 1)
	tasks.Go(func() { done <- durable.Sync(name) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// publish gives a complete checkpoint of c its name. If that may not last, it takes
// it back.
func publish(c machine.Config, dir string) error {
	if err := failpoint.Reach(failpoint.Publish, c.ID); err != nil {
		return err
	}
	if err := os.Rename(Making(dir), dir); err != nil {
		return fmt.Errorf("publish the checkpoint: %w", err)
	}
	if err := cmp.Or(failpoint.Reach(failpoint.Published, c.ID), durable.Sync(filepath.Dir(dir))); err != nil {
		return errors.Join(err, os.Rename(dir, Making(dir)))
	}
	return nil
}

// Begin makes the directory in which the checkpoint of dir is made.
func Begin(dir string) error {
	if err := os.Mkdir(Making(dir), 0o700); err != nil {
		return fmt.Errorf("make room for the checkpoint: %w", err)
	}
	return nil
}

// Continue gives the checkpoint of a machine that was begun what an earlier one
// copied that was stopped.
func Continue(c machine.Config) error {
	err := os.Rename(filepath.Join(c.Dir, fileBegun), filepath.Join(Making(Dir(c)), FilePages))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("go on with a checkpoint: %w", err)
	}
	return nil
}

// Stop keeps what a checkpoint of a machine has copied that was stopped, for the
// next one, and returns what that takes of the disk, if there is something.
func Stop(c machine.Config) (bytes int64, left bool, err error) {
	begun := filepath.Join(c.Dir, fileBegun)
	if err = os.Rename(filepath.Join(Making(Dir(c)), FilePages), begun); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	info, gone := os.Stat(begun)
	if gone != nil {
		return 0, false, err
	}
	return allocated(info), true, err
}

// Precopied gives memory that was copied into [Making] of [Precopy] its name. It replaces an
// older copy, whose layers it may share.
func Precopied(c machine.Config) error {
	dir := Precopy(c)
	if err := durable.Sync(filepath.Join(Making(dir), FilePages)); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return os.Rename(Making(dir), dir)
}

// Cancel removes what was made of the checkpoint of dir.
func Cancel(dir string) error { return os.RemoveAll(Making(dir)) }

// Copy makes a copy of the checkpoint of a machine, which has the manifest m. It is
// complete when Copy returns, or not there. Their files are the same ones.
func Copy(c machine.Config, m Manifest, to string) error {
	if err := share(Dir(c), m, c, Making(to), false); err != nil {
		return err
	}
	for _, name := range []string{FileManifest, "."} { // the files are on disk since they were written
		if err := durable.Sync(filepath.Join(Making(to), name)); err != nil {
			return errors.Join(err, Cancel(to))
		}
	}
	if err := publish(c, to); err != nil {
		return errors.Join(err, Cancel(to))
	}
	return nil
}

// Inherit makes a copy, which has the manifest m, the checkpoint of a new machine.
// It may not last: the machine is to run.
func Inherit(c machine.Config, from string, m Manifest) error {
	if err := share(from, m, c, Making(Dir(c)), true); err != nil {
		return err
	}
	return os.Rename(Making(Dir(c)), Dir(c))
}

// Receive makes a copy, which has the manifest m, the checkpoint of the machine that was
// copied, in the place of an older one. The files of the copy are on disk.
func Receive(c machine.Config, from string, m Manifest) error {
	if err := errors.Join(Cancel(Dir(c)), RemoveStale(c)); err != nil {
		return err
	}
	if err := share(from, m, c, Making(Dir(c)), false); err != nil {
		return err
	}
	for _, name := range []string{FileManifest, "."} {
		if err := durable.Sync(filepath.Join(Making(Dir(c)), name)); err != nil {
			return errors.Join(err, Cancel(Dir(c)))
		}
	}
	if err := os.Rename(Dir(c), stale(c)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(fmt.Errorf("retire an older checkpoint: %w", err), Cancel(Dir(c)))
	}
	if err := errors.Join(UnmarkRan(c), publish(c, Dir(c))); err != nil {
		return errors.Join(err, Cancel(Dir(c)))
	}
	return Sweep(c)
}

// Discard removes a copy that Copy made, or began to make.
func Discard(dir string) error { return errors.Join(os.RemoveAll(dir), Cancel(dir)) }

// share fills a new directory with the checkpoint in from, which has the manifest m,
// as one of c. The files are the same ones, which nobody ever writes to again;
// the manifest is another.
func share(from string, m Manifest, c machine.Config, to string, other bool) (err error) {
	own := manifestOf(c, m.Engine)
	own.Format, own.Made, own.Files, own.Other = m.Format, m.Made, m.Files, other
	if err := os.Mkdir(to, 0o700); err != nil {
		return fmt.Errorf("make room for the checkpoint: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(to))
		}
	}()
	for _, f := range m.Files {
		if err := os.Link(filepath.Join(from, f.Name), filepath.Join(to, f.Name)); err != nil {
			return fmt.Errorf("share the checkpoint: %w", err)
		}
	}
	return own.Write(to)
}
