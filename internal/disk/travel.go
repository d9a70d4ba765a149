package disk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
)

// An image that was built or loaded can go to other hosts. Its file and its record are the same
// there.

// layersMost bounds the layers that a record from elsewhere names: no registry takes images of more.
const layersMost = 128

// travelling is a record on its way.
type travelling struct {
	Digest string           `json:"digest"`
	Bytes  int64            `json:"bytes"`
	Config doze.ImageConfig `json:"config"`
	Layers []string         `json:"layers,omitempty"`
}

// HasBuilt reports whether an image is here.
func (l *Library) HasBuilt(ref string) bool {
	_, there := l.find(ref)
	return isBuilt(ref) && there
}

// Lacking returns those of some references that a directory of images does not have.
func Lacking(dir string, refs []string) ([]string, error) {
	if len(refs) == 0 {
		return nil, nil
	}
	records, _, err := read(filepath.Join(dir, "images"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	here := map[string]bool{}
	for _, r := range records {
		for ref := range r.Refs {
			here[ref] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(refs), func(ref string) bool { return here[ref] }), nil
}

// Built returns the file of an image that was built or loaded, and its record for [Library.Receive].
// One that is not here is NotFound.
func (l *Library) Built(ref string) (file string, raw []byte, err error) {
	if !isBuilt(ref) {
		return "", nil, doze.Errorf(doze.Invalid, "%.200q is no image that was built", ref)
	}
	img, there := l.find(ref)
	if !there {
		return "", nil, doze.Errorf(doze.NotFound, "there is no image %.200q", ref)
	}
	r, err := readRecord(l.imageDir(), img.hex())
	if errors.Is(err, os.ErrNotExist) {
		return "", nil, doze.Wrap(err, doze.NotFound, "there is no image %.200q", ref)
	}
	if err != nil {
		return "", nil, damaged(img, err)
	}
	raw, err = json.Marshal(travelling{r.Digest, r.Bytes, r.ImageConfig, r.Layers})
	return r.Path, raw, err
}

// Receive puts an image into the library whose record came from Built of another host.
// The file is put into a directory by fetch, which returns its path. On an error nothing is left.
func (l *Library) Receive(ctx context.Context, ref string, raw []byte, fetch func(ctx context.Context, dir string) (string, error)) (err error) {
	t, err := parseTravelling(ref, raw)
	if err != nil {
		return err
	}
	if _, there, err := l.adopt(ref, t.Digest); there || err != nil {
		return err
	}
	work, err := l.workspace()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, work.discard()) }()
	release, err := l.o.room()(t.Bytes)
	if err != nil {
		return err
	}
	defer release()
	file, err := fetch(ctx, work.dir)
	if err != nil {
		return err
	}
	info, err := os.Lstat(file)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() != t.Bytes {
		return fmt.Errorf("the image %.200s is %d bytes long, not %d", ref, info.Size(), t.Bytes)
	}
	if err := durable.Sync(file); err != nil {
		return err
	}
	_, err = l.commit(file, record{Image: Image{Ref: ref, Digest: t.Digest, Bytes: t.Bytes, ImageConfig: t.Config}, Configured: true, Layers: t.Layers})
	return err
}

// parseTravelling reads the record of an image from another host.
func parseTravelling(ref string, raw []byte) (t travelling, err error) {
	if len(raw) > recordBytesMax {
		return t, doze.Errorf(doze.TooLarge, "the record of an image has %d bytes, and may have %d", len(raw), recordBytesMax)
	}
	if err := json.Unmarshal(raw, &t); err != nil {
		return t, fmt.Errorf("read the record of an image: %w", err)
	}
	_, digest, _ := strings.Cut(ref, "@")
	switch {
	case !isBuilt(ref) || digest != t.Digest:
		return t, fmt.Errorf("the record of an image is about %.100q, not about %.200q", t.Digest, ref)
	case t.Bytes <= 0:
		return t, fmt.Errorf("the record of an image says that it has %d bytes", t.Bytes)
	case len(t.Layers) > layersMost || slices.ContainsFunc(t.Layers, func(d string) bool { return !digestForm.MatchString(d) }):
		return t, errors.New("the record of an image names layers that no image has")
	}
	return t, nil
}
