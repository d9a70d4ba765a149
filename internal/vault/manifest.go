package vault

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

const (
	// ChunkBytes is the size of a chunk. Its bookkeeping is 70 bytes, and a request for
	// each is no more than what its transfer takes.
	ChunkBytes = 1 << 20
	// FilesMost bounds the files of a tree. A checkpoint has about 20.
	FilesMost = 4096
	// NameMost bounds a name, in bytes. File systems take 255 for each part.
	NameMost = 1024
	// FileMost bounds a file, in bytes: 4 TiB, as the memory of a checkpoint.
	FileMost = 4 << 40
	// chunksMost bounds the chunks of a tree: 1 TiB that is no hole. A list of them
	// is held in memory.
	chunksMost = 1 << 20
	// manifestMost is what a manifest of all these takes, in bytes.
	manifestMost = headBytes + chunksMost*(chunkBytes+refBytes) + FilesMost*(fileBytes+NameMost)
)

// sealedManifestMost is what a manifest takes in the bucket: encryption adds to it.
const sealedManifestMost = int64(manifestMost) + 1<<10

// magic is what a manifest begins with, once it is decrypted.
const magic = "doze vault\n"

// Sizes of the parts of a manifest, in bytes.
const (
	headBytes  = len(magic) + 8 + 8 + 4 + 4
	chunkBytes = len(name{}) + len(mark{})
	fileBytes  = 2 + 4 + 8 + 4 // without its name
	refBytes   = 4 + 4
)

// A manifest says what one generation of a tree is.
type manifest struct {
	generation Generation
	chunks     []chunk // each once, by name
	files      []entry // by name
}

// An entry is a file.
type entry struct {
	name string
	mode fs.FileMode // permissions
	size int64       // in bytes
	refs []ref       // by number; what has none is a hole
}

// A ref says which chunk a part of a file is.
type ref struct {
	number uint32 // the part is at this number of ChunkBytes
	chunk  uint32 // index in the manifest
}

// length returns how many bytes a part of a file has: the last may have fewer.
func (e *entry) length(number uint32) int {
	return int(min(ChunkBytes, e.size-int64(number)*ChunkBytes))
}

// checkName returns an error for a name that is no plain path below a directory.
func checkName(name string) error {
	switch {
	case len(name) > NameMost:
		return fmt.Errorf("the name of a file has %d bytes, and may have %d", len(name), NameMost)
	case !fs.ValidPath(name) || name == "." || strings.ContainsRune(name, 0):
		return fmt.Errorf("%q is no relative path of a file", name)
	}
	return nil
}

// check returns an error for a manifest that nobody may write.
func (m *manifest) check() error {
	switch {
	case len(m.files) > FilesMost:
		return fmt.Errorf("%d files, and a tree may have %d", len(m.files), FilesMost)
	case len(m.chunks) > chunksMost:
		return fmt.Errorf("%d chunks, and a tree may have %d", len(m.chunks), chunksMost)
	case !slices.IsSortedFunc(m.chunks, byName):
		return fmt.Errorf("chunks in disorder")
	}
	for i := 1; i < len(m.chunks); i++ {
		if m.chunks[i].name == m.chunks[i-1].name {
			return fmt.Errorf("a chunk twice")
		}
	}
	used, count, refs := make([]bool, len(m.chunks)), 0, 0
	names := make(map[string]bool, len(m.files))
	for i := range m.files {
		f := &m.files[i]
		if err := checkName(f.name); err != nil {
			return err
		}
		switch {
		case i > 0 && f.name <= m.files[i-1].name:
			return fmt.Errorf("the file %q twice, or in disorder", f.name)
		case f.mode&^fs.ModePerm != 0:
			return fmt.Errorf("the file %q has the mode %v, which is more than permissions", f.name, f.mode)
		case f.size < 0 || f.size > FileMost:
			return fmt.Errorf("the file %q has %d bytes, and may have %d", f.name, f.size, int64(FileMost))
		}
		names[f.name] = true
		for j, r := range f.refs {
			if int64(r.number)*ChunkBytes >= f.size || j > 0 && r.number <= f.refs[j-1].number || int64(r.chunk) >= int64(len(m.chunks)) {
				return fmt.Errorf("the file %q has chunks in disorder", f.name)
			}
			if !used[r.chunk] {
				used[r.chunk], count = true, count+1
			}
		}
		if refs += len(f.refs); refs > chunksMost {
			return fmt.Errorf("more than %d chunks in its files", chunksMost)
		}
	}
	if count != len(m.chunks) {
		return fmt.Errorf("chunks of no file")
	}
	for name := range names {
		for at := range name {
			if name[at] == '/' && names[name[:at]] {
				return fmt.Errorf("%q is a file and a directory", name[:at])
			}
		}
	}
	return nil
}

func byName(a, b chunk) int { return bytes.Compare(a.name[:], b.name[:]) }

// encode returns the manifest as bytes.
func (m *manifest) encode() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	raw := []byte(magic)
	raw = le.AppendUint64(raw, m.generation.Epoch)
	raw = le.AppendUint64(raw, m.generation.Seq)
	raw = le.AppendUint32(raw, uint32(len(m.chunks))) //nolint:gosec // G115: checked
	raw = le.AppendUint32(raw, uint32(len(m.files)))  //nolint:gosec // G115: checked
	for _, c := range m.chunks {
		raw = append(append(raw, c.name[:]...), c.mark[:]...)
	}
	for _, f := range m.files {
		raw = le.AppendUint16(raw, uint16(len(f.name))) //nolint:gosec // G115: checked
		raw = append(raw, f.name...)
		raw = le.AppendUint32(raw, uint32(f.mode))
		raw = le.AppendUint64(raw, uint64(f.size))      //nolint:gosec // G115: checked
		raw = le.AppendUint32(raw, uint32(len(f.refs))) //nolint:gosec // G115: checked
		for _, r := range f.refs {
			raw = le.AppendUint32(le.AppendUint32(raw, r.number), r.chunk)
		}
	}
	return raw, nil
}

// parseManifest is the inverse of encode, and accepts nothing else.
func parseManifest(raw []byte) (*manifest, error) {
	bad := func(what string) (*manifest, error) {
		return nil, fmt.Errorf("%w: a manifest has %s", ErrDamaged, what)
	}
	if len(raw) > manifestMost || len(raw) < headBytes || !bytes.HasPrefix(raw, []byte(magic)) {
		return bad("another beginning or length")
	}
	le := binary.LittleEndian
	raw = raw[len(magic):]
	m := &manifest{generation: Generation{Epoch: le.Uint64(raw), Seq: le.Uint64(raw[8:])}}
	chunks, files := int64(le.Uint32(raw[16:])), int64(le.Uint32(raw[20:]))
	raw = raw[headBytes-len(magic):]
	if chunks > chunksMost || files > FilesMost || int64(len(raw)) < chunks*int64(chunkBytes)+files*int64(fileBytes) {
		return bad("more than it says")
	}
	m.chunks = make([]chunk, chunks)
	for i := range m.chunks {
		copy(m.chunks[i].name[:], raw)
		copy(m.chunks[i].mark[:], raw[len(name{}):])
		raw = raw[chunkBytes:]
	}
	m.files = make([]entry, files)
	for i := range m.files {
		if len(raw) < fileBytes || len(raw) < fileBytes+int(le.Uint16(raw)) {
			return bad("a file that ends too early")
		}
		n := int(le.Uint16(raw))
		f := entry{name: string(raw[2 : 2+n])}
		raw = raw[2+n:]
		f.mode, f.size = fs.FileMode(le.Uint32(raw)), int64(le.Uint64(raw[4:])) //nolint:gosec // G115: check refuses what is negative
		refs := int64(le.Uint32(raw[12:]))
		if raw = raw[16:]; int64(len(raw)) < refs*refBytes {
			return bad("a file with fewer chunks")
		}
		f.refs = make([]ref, refs)
		for j := range f.refs {
			f.refs[j] = ref{le.Uint32(raw), le.Uint32(raw[4:])}
			raw = raw[refBytes:]
		}
		m.files[i] = f
	}
	if len(raw) > 0 {
		return bad("something behind its end")
	}
	if err := m.check(); err != nil {
		return bad(err.Error())
	}
	return m, nil
}

// same reports whether two manifests say that the same files have the same content.
func (m *manifest) same(o *manifest) bool {
	return slices.EqualFunc(m.files, o.files, func(a, b entry) bool {
		return a.name == b.name && a.mode == b.mode && a.size == b.size && slices.EqualFunc(a.refs, b.refs, func(x, y ref) bool {
			return x.number == y.number && m.chunks[x.chunk].name == o.chunks[y.chunk].name
		})
	})
}
