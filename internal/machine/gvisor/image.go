package gvisor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/failpoint"
	"github.com/dozehq/doze/internal/machine"
)

// Names in a machine's directory. An image is made beside its place, gets there
// in one rename, and leaves in another to dirStale, so that there is never a
// doubt which one counts.
const (
	dirImage  = "image"
	dirStale  = "image.stale"
	dirLast   = "image.last"  // the image that a machine woke from, if it may go back to it
	fileBegun = "image.begun" // the file of pages of a checkpoint that was stopped
	fileRan   = "image.ran"   // the machine ran since its image, which it may go back to
	unmade    = ".making"     // behind the name of what is being made
	dirMaking = dirImage + unmade
)

const (
	// Formats of an image. In the first, all memory is in one file, as older
	// launchers write it. In the second it is in layers. Others are refused.
	formatWhole, formatLayers = 2, 3
	// ImageChunk is how much of a file one checksum covers. Whoever waits for
	// one page of a machine's memory waits for its chunk.
	ImageChunk = 1 << 20
	// manifestMax bounds what we read of a manifest: 4 TiB of memory need less.
	manifestMax = 64 << 20
)

// files are what the engine writes.
var files = []string{FileState, FilePageMeta, FilePages}

// castagnoli is computed by an instruction of its own on every processor we run
// on: checking an image costs about as much as reading memory once. It finds
// accidents; the directory's mode keeps others away.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// manifest says what a complete image is. It is written last.
type manifest struct {
	Format int         `json:"format"`
	ID     string      `json:"id"`
	Engine string      `json:"engine"`
	Root   string      `json:"root"`  // file name of the root file system, which never changes
	Agent  string      `json:"agent"` // file name of the agent's file system
	Made   time.Time   `json:"made"`
	Files  []ImageFile `json:"files"`
	// Other says that it is a copy of another machine, which this one began with.
	// Nobody goes back to that: it does not know whose it is.
	Other bool `json:"other,omitempty"`
}

// ImageFile is one file of an image.
type ImageFile struct {
	Name   string   `json:"name"`
	Bytes  int64    `json:"bytes"`
	Chunks []uint32 `json:"chunks"` // CRC-32C of each chunk
	// Ranges are where the bytes are that the engine reads one after the other.
	// The rest of the file are holes. Without any, it is the whole file. Layers
	// have neither ranges nor checksums here: they are in the index.
	Ranges []ImageRange `json:"ranges,omitempty"`
}

// ImageRange is a part of a file.
type ImageRange struct {
	At    int64 `json:"at"`
	Bytes int64 `json:"bytes"`
}

// End returns the offset behind it.
func (r ImageRange) End() int64 { return r.At + r.Bytes }

// Locate returns where the byte is that the engine reads at an offset, and how
// many follow it there. It returns no bytes behind the last.
func (f ImageFile) Locate(offset int64) (at, bytes int64) {
	if len(f.Ranges) == 0 {
		return offset, max(0, f.Bytes-offset)
	}
	for _, r := range f.Ranges {
		if offset < r.Bytes {
			return r.At + offset, r.Bytes - offset
		}
		offset -= r.Bytes
	}
	return f.Bytes, 0
}

// Check compares the whole content of a file with what it should be.
func (f ImageFile) Check(raw []byte) error {
	if int64(len(raw)) != f.Bytes {
		return fmt.Errorf("%w: %s has %d bytes and should have %d", machine.ErrDamaged, f.Name, len(raw), f.Bytes)
	}
	for i := range f.Chunks {
		if err := f.CheckChunk(i, raw[i*ImageChunk:min(len(raw), (i+1)*ImageChunk)]); err != nil {
			return err
		}
	}
	return nil
}

// CheckChunk compares one chunk of a file with what it should be.
func (f ImageFile) CheckChunk(i int, raw []byte) error {
	if i >= len(f.Chunks) || f.Chunks[i] != crc32.Checksum(raw, castagnoli) {
		return fmt.Errorf("%w: %s was altered near byte %d", machine.ErrDamaged, f.Name, int64(i)*ImageChunk)
	}
	return nil
}

// Public returns what of an error about an image may be told outside: where we
// keep it is nobody's business.
func Public(err error) string {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		err = at.Err
	}
	return err.Error()
}

// sealed is a manifest as it is on disk: its own bytes are checked too.
type sealed struct {
	Manifest json.RawMessage `json:"manifest"`
	Sum      uint32          `json:"sum"`
}

// imageDir is where the image of a sleeping machine is.
func imageDir(c Config) string { return filepath.Join(c.Dir, dirImage) }

// commit turns the files that the engine wrote beside dir into the image of c in
// dir: checksums, manifest, sync, rename, sync. Until the rename the image does
// not exist; after it, it is complete. The checksums of some files may be known.
// A sync that ctx ends goes on in tasks.
func commit(ctx context.Context, tasks *sync.WaitGroup, c Config, engine, dir string, known ...ImageFile) error {
	if err := failpoint.Reach(failpoint.Measure, c.ID); err != nil {
		return err
	}
	m := manifestOf(c, engine)
	if slices.ContainsFunc(known, func(f ImageFile) bool { return f.Name == FileIndex }) {
		m.Format = formatLayers
	}
	for _, name := range files {
		i := slices.IndexFunc(known, func(f ImageFile) bool { return f.Name == name })
		if i >= 0 {
			m.Files = append(m.Files, known[i])
			continue
		}
		f, err := measure(ctx, filepath.Join(dir+unmade, name))
		if err != nil {
			return fmt.Errorf("checksum %s: %w", name, err)
		}
		m.Files = append(m.Files, f)
	}
	for _, f := range known {
		if !slices.Contains(files, f.Name) {
			m.Files = append(m.Files, f)
		}
	}
	if !m.ordered() {
		return fmt.Errorf("the launcher wrote %d files that belong to no image", len(m.Files))
	}
	if err := failpoint.Reach(failpoint.Manifest, c.ID); err != nil {
		return err
	}
	if err := writeManifest(filepath.Join(dir+unmade, FileManifest), m); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	written := slices.Clone(files) // other layers are on disk already
	if m.Format == formatLayers {
		written = append(written, FileIndex)
	}
	for _, name := range append(written, FileManifest, ".") {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := cmp.Or(failpoint.Reach(failpoint.Sync, c.ID), flush(ctx, tasks, filepath.Join(dir+unmade, name))); err != nil {
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

// publish gives a complete image of c its name. If that may not last, it takes
// it back.
func publish(c Config, dir string) error {
	if err := failpoint.Reach(failpoint.Publish, c.ID); err != nil {
		return err
	}
	if err := os.Rename(dir+unmade, dir); err != nil {
		return fmt.Errorf("publish the image: %w", err)
	}
	if err := cmp.Or(failpoint.Reach(failpoint.Published, c.ID), durable.Sync(filepath.Dir(dir))); err != nil {
		return errors.Join(err, os.Rename(dir, dir+unmade))
	}
	return nil
}

// manifestOf returns the manifest of an image of c that has no files yet.
func manifestOf(c Config, engine string) manifest {
	return manifest{
		Format: formatWhole, ID: c.ID, Engine: engine, Made: time.Now().UTC(),
		Root: filepath.Base(c.Root), Agent: filepath.Base(c.Agent),
	}
}

// shareImage fills a new directory with the image in from, which has the manifest m,
// as one of c. The files are the same ones, which nobody ever writes to again;
// the manifest is another.
func shareImage(from string, m manifest, c Config, to string, other bool) (err error) {
	own := manifestOf(c, m.Engine)
	own.Format, own.Made, own.Files, own.Other = m.Format, m.Made, m.Files, other
	if err := os.Mkdir(to, 0o700); err != nil {
		return fmt.Errorf("make room for the image: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(to))
		}
	}()
	for _, f := range m.Files {
		if err := os.Link(filepath.Join(from, f.Name), filepath.Join(to, f.Name)); err != nil {
			return fmt.Errorf("share the image: %w", err)
		}
	}
	return writeManifest(filepath.Join(to, FileManifest), own)
}

func writeManifest(name string, m manifest) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(sealed{Manifest: body, Sum: crc32.Checksum(body, castagnoli)})
	if err != nil {
		return err
	}
	return os.WriteFile(name, raw, 0o600)
}

// readManifest returns the manifest of the image in dir, if one of these engines
// may run it as c, or for a c without an ID, of any machine that is like c. Its
// errors are [machine.ErrDamaged], or [machine.ErrNoEngine] of one that is sound,
// but for a disk that cannot be read.
func readManifest(dir string, c Config, engines []string) (m manifest, err error) {
	f, err := os.Open(filepath.Join(dir, FileManifest))
	if errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("%w: it has no manifest", machine.ErrDamaged)
	}
	if err != nil {
		return m, fmt.Errorf("open the manifest: %w", err)
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, manifestMax))
	if err != nil {
		return m, fmt.Errorf("read the manifest: %w", err)
	}
	return parseManifest(raw, c, engines)
}

func parseManifest(raw []byte, c Config, engines []string) (m manifest, err error) {
	if m, err = unsealManifest(raw); err != nil {
		return m, err
	}
	for what, pair := range map[string][2]string{
		"machine":          {m.ID, cmp.Or(c.ID, m.ID)},
		"root file system": {m.Root, filepath.Base(c.Root)},
		"agent":            {m.Agent, filepath.Base(c.Agent)},
	} {
		if pair[0] != pair[1] {
			return m, fmt.Errorf("%w: it belongs to the %s %q, and this is %q", machine.ErrDamaged, what, pair[0], pair[1])
		}
	}
	if m.Format != formatWhole && m.Format != formatLayers {
		return m, fmt.Errorf("%w: its format is %d, and this is %d", machine.ErrDamaged, m.Format, formatLayers)
	}
	if !m.ordered() {
		return m, fmt.Errorf("%w: its manifest names other files", machine.ErrDamaged)
	}
	if !slices.Contains(engines, m.Engine) {
		return m, fmt.Errorf("%w: the engine %q is not installed: put its doze-sentry into engines/%s/ of the data directory",
			machine.ErrNoEngine, m.Engine, m.Engine)
	}
	return m, nil
}

// ordered reports whether a manifest names the files that its format has.
func (m manifest) ordered() bool {
	want := slices.Clone(files)
	if m.Format == formatLayers {
		want = append(want, FileIndex)
		for layer := 1; len(want) < len(m.Files) && layer < LayersMost; layer++ {
			want = append(want, LayerName(layer))
		}
	}
	return slices.EqualFunc(m.Files, want, func(f ImageFile, name string) bool { return f.Name == name })
}

// index returns what a manifest says of the index, if there is one.
func (m manifest) index() (ImageFile, bool) {
	i := slices.IndexFunc(m.Files, func(f ImageFile) bool { return f.Name == FileIndex })
	if i < 0 {
		return ImageFile{}, false
	}
	return m.Files[i], true
}

// unsealManifest returns a manifest as it was written.
func unsealManifest(raw []byte) (m manifest, err error) {
	var s sealed
	if err := json.Unmarshal(raw, &s); err != nil || crc32.Checksum(s.Manifest, castagnoli) != s.Sum {
		return m, fmt.Errorf("%w: its manifest was altered", machine.ErrDamaged)
	}
	// JSON has many spellings of the same, and we wrote one of them.
	if again, err := json.Marshal(s); err != nil || !bytes.Equal(raw, again) {
		return m, fmt.Errorf("%w: its manifest was altered", machine.ErrDamaged)
	}
	if err := json.Unmarshal(s.Manifest, &m); err != nil {
		return m, fmt.Errorf("%w: its manifest is of no known form", machine.ErrDamaged)
	}
	return m, nil
}

// made returns the engines that the images below dirs were made with. It fails
// if it cannot tell of all.
func made(dirs []string) (engines map[string]bool, err error) {
	engines = map[string]bool{}
	look := func(name string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was never made, or is gone by now
		}
		if err != nil || d.Name() != FileManifest {
			return err
		}
		raw, err := os.ReadFile(name) //nolint:gosec // G122: only root writes there
		if err != nil {
			return err
		}
		m, err := unsealManifest(raw)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		engines[m.Engine] = true
		return nil
	}
	for _, dir := range dirs {
		err = errors.Join(err, filepath.WalkDir(dir, look))
	}
	return engines, err
}

// verify reads all of an image and compares it with its manifest.
func verify(ctx context.Context, dir string, m manifest) error {
	_, layers := m.index()
	for _, want := range m.Files {
		if layers && want.Chunks == nil {
			continue
		}
		got, err := measure(ctx, filepath.Join(dir, want.Name))
		if err != nil {
			return unreadable(want.Name, err)
		}
		if got.Bytes != want.Bytes {
			return fmt.Errorf("%w: %s has %d bytes and should have %d", machine.ErrDamaged, want.Name, got.Bytes, want.Bytes)
		}
		for i := range want.Chunks {
			if i >= len(got.Chunks) || got.Chunks[i] != want.Chunks[i] {
				return fmt.Errorf("%w: %s was altered near byte %d", machine.ErrDamaged, want.Name, int64(i)*ImageChunk)
			}
		}
	}
	if !layers {
		return nil
	}
	memory, err := OpenMemory(dir, m.Files)
	if err != nil {
		return unreadable("the memory", err)
	}
	if err := errors.Join(memory.verify(ctx), memory.Close()); err != nil {
		return unreadable("the memory", err)
	}
	return nil
}

// unreadable makes an error of reading an image one about the image, unless
// nobody wants to read it any more.
func unreadable(name string, err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, machine.ErrDamaged):
		return err
	}
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		err = at.Err // where we keep it is nobody's business
	}
	return fmt.Errorf("%w: %s: %w", machine.ErrDamaged, name, err)
}

// measure reads a file on all processors.
func measure(ctx context.Context, name string) (ImageFile, error) {
	f, err := os.Open(name)
	if err != nil {
		return ImageFile{}, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return ImageFile{}, err
	}
	out := ImageFile{Name: filepath.Base(name), Bytes: info.Size(), Chunks: make([]uint32, (info.Size()+ImageChunk-1)/ImageChunk)}
	var next atomic.Int64
	workers, ctx := errgroup.WithContext(ctx)
	for range min(runtime.GOMAXPROCS(0), len(out.Chunks)) {
		workers.Go(func() error {
			buffer := make([]byte, min(ImageChunk, info.Size()))
			for {
				i := next.Add(1) - 1
				if i >= int64(len(out.Chunks)) {
					return nil
				}
				if err := ctx.Err(); err != nil {
					return err
				}
				n, err := f.ReadAt(buffer, i*ImageChunk)
				if err != nil && !errors.Is(err, io.EOF) {
					return err
				}
				out.Chunks[i] = crc32.Checksum(buffer[:n], castagnoli)
			}
		})
	}
	return out, workers.Wait()
}

// hasImage reports whether a committed image is there, and its size.
func hasImage(c Config) (bytes int64, ok bool) { return imageAt(imageDir(c)) }

// imageAt reports whether a committed image is in dir, and its size.
func imageAt(dir string) (bytes int64, ok bool) {
	return weigh(dir, func(os.FileInfo) bool { return true })
}

// freed reports whether a committed image is in dir, and how much of the disk its
// end would give back: files that another image has too stay.
func freed(dir string) (bytes int64, ok bool) {
	return weigh(dir, func(info os.FileInfo) bool {
		st, is := info.Sys().(*syscall.Stat_t)
		return is && st.Nlink == 1
	})
}

// weigh reports whether a committed image is in dir, and how much of the disk those
// of its files take that count.
func weigh(dir string, counts func(os.FileInfo) bool) (bytes int64, ok bool) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, false
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			continue
		}
		if counts(info) {
			bytes += allocated(info)
		}
		ok = ok || e.Name() == FileManifest
	}
	return bytes, ok
}

// statBlock is the unit of stat's blocks, whatever the file system's is.
const statBlock = 512

// allocated is how much of the disk a file takes: images have holes.
func allocated(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * statBlock
	}
	return info.Size()
}

// retired is where the image of a machine goes when it wakes.
func retired(c Config) string {
	if c.GoBack {
		return filepath.Join(c.Dir, dirLast)
	}
	return filepath.Join(c.Dir, dirStale)
}

// retire makes an image count no more, at once and in one step; what takes
// time, giving its blocks back, is sweepImages' work.
func retire(c Config) error {
	if err := failpoint.Reach(failpoint.Retire, c.ID); err != nil {
		return err
	}
	if _, err := os.Lstat(imageDir(c)); errors.Is(err, fs.ErrNotExist) {
		return unmark(c) // it was retired before
	}
	to := retired(c)
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("remove an old image: %w", err)
	}
	if err := os.Rename(imageDir(c), to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("retire the image: %w", err)
	}
	return unmark(c)
}

// mark says that the machine runs out of its image, which counts until all memory
// is loaded. What the machine does meanwhile is lost in a crash, and this is how
// anybody can tell.
func mark(c Config) error {
	return os.WriteFile(filepath.Join(c.Dir, fileRan), nil, 0o600)
}

// marked reports whether the machine ran since its image.
func marked(c Config) bool {
	_, err := os.Lstat(filepath.Join(c.Dir, fileRan))
	return err == nil
}

// unmark undoes mark.
func unmark(c Config) error {
	if err := os.Remove(filepath.Join(c.Dir, fileRan)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unmark the image: %w", err)
	}
	return nil
}

// isOther reports whether the image of a machine is, or may be, a copy of another.
func isOther(c Config) bool {
	raw, err := os.ReadFile(filepath.Join(imageDir(c), FileManifest))
	if err != nil {
		return true
	}
	m, err := unsealManifest(raw)
	return err != nil || m.Other
}

// outdate makes the last image of a machine one that nobody goes back to: a newer
// one is complete, or needs the room.
func outdate(c Config) error {
	stale := filepath.Join(c.Dir, dirStale)
	if err := os.RemoveAll(stale); err != nil {
		return fmt.Errorf("remove an old image: %w", err)
	}
	if err := os.Rename(filepath.Join(c.Dir, dirLast), stale); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("retire the last image: %w", err)
	}
	return nil
}

// goBack makes the last image of a machine without processes its image again, and
// returns when it was made. Without one it returns [machine.ErrGone].
func goBack(c Config) (made time.Time, err error) {
	last := filepath.Join(c.Dir, dirLast)
	made, err = madeAt(last)
	if !c.GoBack || errors.Is(err, fs.ErrNotExist) {
		return made, machine.ErrGone
	}
	if err != nil {
		return made, fmt.Errorf("go back: %w", err)
	}
	if err := cmp.Or(unmark(c), os.Rename(last, imageDir(c))); err != nil {
		return made, fmt.Errorf("go back: %w", err)
	}
	return made, durable.Sync(c.Dir)
}

// madeAt returns when the image in dir was made, or the beginning of time if it is
// damaged: the wake refuses it then.
func madeAt(dir string) (time.Time, error) {
	raw, err := os.ReadFile(filepath.Join(dir, FileManifest))
	if err != nil {
		return time.Time{}, err
	}
	m, err := unsealManifest(raw)
	if err != nil {
		return time.Unix(0, 0), nil //nolint:nilerr // see above
	}
	return m.Made, nil
}

// discount makes an image count no more that is older than what runs. What
// keeps it from being renamed may not keep it from being removed.
func discount(c Config) error {
	c.GoBack = c.GoBack && !isOther(c)
	err := retire(c)
	if err == nil {
		return nil
	}
	image := imageDir(c)
	if gone := cmp.Or(os.Remove(filepath.Join(image, FileManifest)), os.RemoveAll(image), unmark(c)); gone != nil {
		return errors.Join(err, gone)
	}
	return nil
}

// restoreImage undoes retire.
func restoreImage(c Config) error {
	if err := os.Rename(retired(c), imageDir(c)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("take back the image: %w", err)
	}
	return nil
}

// sweepImages removes what counts no more, or does not yet.
func sweepImages(c Config) error {
	if err := failpoint.Reach(failpoint.Sweep, c.ID); err != nil {
		return err
	}
	if _, newer := hasImage(c); newer || !c.GoBack {
		if err := outdate(c); err != nil {
			return err
		}
	}
	return cmp.Or(os.RemoveAll(filepath.Join(c.Dir, dirStale)), os.RemoveAll(filepath.Join(c.Dir, dirMaking)))
}
