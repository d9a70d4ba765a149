package disk

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
)

// Image is a read-only root file system in one file, with what its maker says
// about the process to run in it.
type Image struct {
	Ref    string `json:"ref"`    // what it was made from, in its one spelling
	Digest string `json:"digest"` // sha256:…; its identity
	Path   string `json:"-"`      // the EROFS file, absolute if the library's directory is
	Bytes  int64  `json:"bytes"`  // the size of that file

	doze.ImageConfig
}

// record is the file beside an image. An image without one does not exist.
type record struct {
	Image
	// Refs are all references that led here, and when each last did. Of two
	// images of one reference the later counts.
	Refs map[string]time.Time `json:"refs"`
	// Configured says that the whole configuration was read. Records of before the
	// entry point counted have the environment, the user and the directory alone.
	Configured bool `json:"configured,omitempty"`
	// Layers are the digests of the layers that it was made of, unpacked, lowest first,
	// if it was made of some.
	Layers []string `json:"layers,omitempty"`
	Export exported `json:"export,omitzero"` // what it is outside, once it was there
}

// as returns the image under one of its references.
func (r record) as(ref string) Image {
	img := r.Image
	img.Ref = ref
	return img
}

// recordBytesMax keeps a damaged file from filling memory. What an image says about
// its process is the only part of a record that can be long.
const recordBytesMax = 1 << 20

const (
	imageSuffix  = ".erofs"
	recordSuffix = ".json"
	recordMode   = 0o644 // there is nothing secret in a record
)

// hex is the digest as a file name.
func (i Image) hex() string { return strings.TrimPrefix(i.Digest, "sha256:") }

// read returns the records of a directory. It skips what is not whole, and
// says so in broken.
func read(dir string) (records []record, broken []error, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list images: %w", err)
	}
	for _, e := range entries {
		hex, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if !ok {
			continue
		}
		r, err := readRecord(dir, hex)
		if err != nil {
			broken = append(broken, fmt.Errorf("image %s: %w", hex, err))
			continue
		}
		records = append(records, r)
	}
	return records, broken, nil
}

func readRecord(dir, hex string) (r record, err error) {
	file := filepath.Join(dir, hex+recordSuffix)
	info, err := os.Stat(file)
	if err != nil {
		return r, err
	}
	if info.Size() > recordBytesMax {
		return r, doze.Errorf(doze.Internal, "its record is %d bytes long", info.Size())
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("read its record: %w", err)
	}
	r.Path = filepath.Join(dir, hex+imageSuffix)
	info, err = os.Stat(r.Path)
	switch {
	case err != nil:
		return r, err
	case r.hex() != hex:
		return r, doze.Errorf(doze.Internal, "its record is about %s", r.Digest)
	case info.Size() != r.Bytes:
		return r, doze.Errorf(doze.Internal, "it is %d bytes long, not %d", info.Size(), r.Bytes)
	}
	return r, nil
}

// Lasting returns the files of the images that cannot be made again as they are. Those are
// the images whose files used has, and those that no registry has and to which a reference
// of named leads. The record of an image comes after its file.
func (l *Library) Lasting(used, named []string) (files []string, err error) {
	records, _, err := read(l.imageDir())
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		wanted := slices.ContainsFunc(named, func(ref string) bool { _, ok := r.Refs[ref]; return ok })
		inUse := slices.ContainsFunc(used, func(file string) bool { return filepath.Base(file) == filepath.Base(r.Path) })
		if inUse || wanted && !r.remade() {
			files = append(files, r.Path, strings.TrimSuffix(r.Path, imageSuffix)+recordSuffix)
		}
	}
	return files, nil
}

// remade reports whether the image can be made again of each of its references, though
// perhaps of other bytes.
func (r record) remade() bool {
	for key := range r.Refs {
		ref, _, _ := strings.Cut(key, ownerMark)
		if known, err := parse(ref); err != nil || !known.made() {
			return false
		}
	}
	return true
}
