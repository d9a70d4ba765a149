// Package checkpoint stores the checkpoints of machines on disk. It defines the files
// of a checkpoint, when it is complete, when it no longer counts, and how it is vouched
// for. It is the same for each driver and knows none. Each driver writes and reads the
// state of its own engine.
//
// A checkpoint of a machine c is a directory with a [Manifest]. It is made beside
// its place, gets there in one rename, and leaves in another.
package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/dozehq/doze/internal/machine"
)

const (
	// Formats of a checkpoint. In the first, all memory is in one file, as older
	// launchers write it. In the second it is in layers. Others are refused.
	FormatWhole, FormatLayers = 2, 3
	// SumChunk is how much of a file one checksum covers. A wait for one page of a
	// machine's memory is a wait for its chunk.
	SumChunk = 1 << 20
	// manifestMax bounds what we read of a manifest: 4 TiB of memory need less.
	manifestMax = 64 << 20
)

// Files of every checkpoint, besides those of its engine.
const (
	FilePages    = "pages.img"     // the memory, or the first layer of it
	FileIndex    = "index.img"     // where the memory is; older launchers write none
	FileManifest = "manifest.json" // what the checkpoint is; written last
)

// Layout is what the engine of one driver writes besides the memory: the names of
// its files, in the order of the manifest.
type Layout []string

// files are what one checkpoint has that is not in layers.
func (l Layout) files() []string { return append(slices.Clone(l), FilePages) }

// castagnoli is computed by an instruction of its own on every processor we run
// on: checking a checkpoint costs about as much as reading memory once. It finds
// accidents; the directory's mode keeps others away.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Manifest says what a complete checkpoint is. It is written last.
type Manifest struct {
	Format int       `json:"format"`
	ID     string    `json:"id"`
	Engine string    `json:"engine"`
	Root   string    `json:"root"`  // file name of the root file system, which never changes
	Agent  string    `json:"agent"` // file name of the agent's file system
	Made   time.Time `json:"made"`
	Files  []File    `json:"files"`
	// Other says that it is a copy of another machine, which this one began with.
	// Nobody goes back to that: it does not know whose it is.
	Other bool `json:"other,omitempty"`
}

// File is one file of a checkpoint.
type File struct {
	Name   string   `json:"name"`
	Bytes  int64    `json:"bytes"`
	Chunks []uint32 `json:"chunks"` // CRC-32C of each chunk
	// Sum is the checksum of a disk: see copySummed. Without, nobody read it.
	Sum *uint32 `json:"sum,omitempty"`
	// Ranges are where the bytes are that the engine reads one after the other.
	// The rest of the file are holes. Without any, it is the whole file. Layers
	// have neither ranges nor checksums here: they are in the index.
	Ranges []Range `json:"ranges,omitempty"`
}

// Range is a part of a file.
type Range struct {
	At    int64 `json:"at"`
	Bytes int64 `json:"bytes"`
}

// End returns the offset behind it.
func (r Range) End() int64 { return r.At + r.Bytes }

// Locate returns where the byte is that the engine reads at an offset, and how
// many follow it there. It returns no bytes behind the last.
func (f File) Locate(offset int64) (at, bytes int64) {
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
func (f File) Check(raw []byte) error {
	if int64(len(raw)) != f.Bytes {
		return fmt.Errorf("%w: %s has %d bytes and should have %d", machine.ErrDamaged, f.Name, len(raw), f.Bytes)
	}
	for i := range f.Chunks {
		if err := f.CheckChunk(i, raw[i*SumChunk:min(len(raw), (i+1)*SumChunk)]); err != nil {
			return err
		}
	}
	return nil
}

// CheckChunk compares one chunk of a file with what it should be.
func (f File) CheckChunk(i int, raw []byte) error {
	if i >= len(f.Chunks) || f.Chunks[i] != crc32.Checksum(raw, castagnoli) {
		return fmt.Errorf("%w: %s was altered near byte %d", machine.ErrDamaged, f.Name, int64(i)*SumChunk)
	}
	return nil
}

// Public returns what of an error about a checkpoint may be told outside: where we
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

// manifestOf returns the manifest of a checkpoint of c that has no files yet.
func manifestOf(c machine.Config, engine string) Manifest {
	return Manifest{
		Format: FormatWhole, ID: c.ID, Engine: engine, Made: time.Now().UTC(),
		Root: filepath.Base(c.Root), Agent: filepath.Base(c.Agent),
	}
}

// Write writes the manifest of the checkpoint in dir.
func (m Manifest) Write(dir string) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(sealed{Manifest: body, Sum: crc32.Checksum(body, castagnoli)})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, FileManifest), raw, 0o600)
}

// Read returns the manifest of the checkpoint in dir, if it may be run as c, or for
// a c without an ID, of any machine that is like c. Its errors are those of
// [ReadManifest]. Whether its engine is there, the driver knows.
func (l Layout) Read(dir string, c machine.Config) (Manifest, error) {
	m, err := ReadManifest(dir)
	if err != nil {
		return m, err
	}
	return m, l.check(m, c)
}

// ReadManifest returns the manifest of a checkpoint, of any machine and driver, as it
// was written. Its errors are [machine.ErrDamaged], but for a disk that cannot be
// read.
func ReadManifest(dir string) (m Manifest, err error) {
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
	return unseal(raw)
}

// check is [machine.ErrDamaged] for a manifest that is not one of c, or of no layout
// that we know.
func (l Layout) check(m Manifest, c machine.Config) error {
	for what, pair := range map[string][2]string{
		"machine":          {m.ID, cmp.Or(c.ID, m.ID)},
		"root file system": {m.Root, filepath.Base(c.Root)},
		"agent":            {m.Agent, filepath.Base(c.Agent)},
	} {
		if pair[0] != pair[1] {
			return fmt.Errorf("%w: it belongs to the %s %q, and this is %q", machine.ErrDamaged, what, pair[0], pair[1])
		}
	}
	if m.Format != FormatWhole && m.Format != FormatLayers {
		return fmt.Errorf("%w: its format is %d, and this is %d", machine.ErrDamaged, m.Format, FormatLayers)
	}
	if !l.orders(m) {
		return fmt.Errorf("%w: its manifest names other files", machine.ErrDamaged)
	}
	if (m.disks() > 0) != (c.Disk > 0) {
		return fmt.Errorf("%w: either it or the machine has a disk, and the other has none", machine.ErrDamaged)
	}
	return nil
}

// orders reports whether a manifest names the files that its format has.
func (l Layout) orders(m Manifest) bool {
	want := l.files()
	if m.Format == FormatLayers {
		m.Files = m.Files[:len(m.Files)-m.disks()]
		want = append(want, FileIndex)
		for layer := 1; len(want) < len(m.Files) && layer < LayersMost; layer++ {
			want = append(want, LayerName(layer))
		}
	}
	return slices.EqualFunc(m.Files, want, func(f File, name string) bool { return f.Name == name })
}

// disk returns what a manifest says of the disk, or nothing if there is none.
func (m Manifest) disk() (f File) {
	if m.disks() > 0 {
		f = m.Files[len(m.Files)-1]
	}
	return f
}

// disks is 1 if there is a disk, which is the last file, and 0 otherwise.
func (m Manifest) disks() int {
	if last := len(m.Files) - 1; last >= 0 && m.Files[last].Name == FileDisk {
		return 1
	}
	return 0
}

// Index returns what a manifest says of the index, if there is one.
func (m Manifest) Index() (File, bool) {
	i := slices.IndexFunc(m.Files, func(f File) bool { return f.Name == FileIndex })
	if i < 0 {
		return File{}, false
	}
	return m.Files[i], true
}

// unseal returns a manifest as it was written.
func unseal(raw []byte) (m Manifest, err error) {
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

// Engines returns the engines that the checkpoints below dirs were made with. It fails
// if it cannot tell of all.
func Engines(dirs []string) (engines map[string]bool, err error) {
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
		m, err := unseal(raw)
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
