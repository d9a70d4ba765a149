package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/dozehq/doze/internal/buildapi"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/dozehq/doze/builder/layout"
)

const (
	// imageLease and resultLease are before the names of leases. A lease holds the blobs
	// of an image, which BuildKit's garbage collection would delete.
	imageLease  = "doze-image-"
	resultLease = "doze-result-"
	// putLease is for an image that is not whole yet.
	putLease = "doze-put-"
	// contentType is the type of blobs in leases.
	contentType = "content"
)

// ErrNoResult is a result that does not exist, or was deleted.
var ErrNoResult = errors.New("there is no such result")

// HasImage reports whether an image was put under a digest.
func (e *Engine) HasImage(key string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.images[key] != nil
}

// PutImage takes an image: an OCI layout as a tar. Errors are *[layout.MistakeError], or
// those of r and of the disk.
func (e *Engine) PutImage(ctx context.Context, key string, r io.Reader) (err error) {
	if e.HasImage(key) {
		return nil
	}
	if _, err := e.makeRoom(ctx); err != nil {
		return err
	}
	// Two calls may put the same image.
	temporary, err := e.leases.Create(ctx, leases.WithID(fmt.Sprintf("%s%s-%d", putLease, key, time.Now().UnixNano())))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.unlease(context.WithoutCancel(ctx), temporary.ID)) }()
	ctx = leases.WithLease(ctx, temporary.ID)
	var blobs []digest.Digest
	desc, err := layout.Read(r, func(d digest.Digest, size int64, in io.Reader) error {
		blobs = append(blobs, d)
		err := content.WriteBlob(ctx, e.content, temporary.ID+d.Encoded(), in, ocispec.Descriptor{Digest: d, Size: size})
		if errdefs.IsFailedPrecondition(err) { // the digest or the size
			return &layout.MistakeError{Text: fmt.Sprintf("blob %s: %v", d, err)}
		}
		return err
	})
	if err != nil {
		return err
	}
	m, err := e.manifest(ctx, desc.Digest)
	if errdefs.IsNotFound(err) {
		return &layout.MistakeError{Text: "the layout has no blob for its manifest"}
	}
	if err != nil {
		return err
	}
	img := &image{Manifest: desc.Digest, Used: time.Now()}
	for _, d := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		if _, err := e.content.Info(ctx, d.Digest); err != nil {
			return &layout.MistakeError{Text: fmt.Sprintf("the layout has no blob %s", d.Digest)}
		}
	}
	for _, l := range m.Layers {
		img.Layers = append(img.Layers, l.Digest)
	}
	if err := e.lease(ctx, imageLease+key, blobs); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.images[key] = img
	return e.saveImages()
}

// manifest reads a manifest of the cache.
func (e *Engine) manifest(ctx context.Context, d digest.Digest) (ocispec.Manifest, error) {
	raw, err := content.ReadBlob(ctx, e.content, ocispec.Descriptor{Digest: d})
	if err != nil {
		return ocispec.Manifest{}, err
	}
	return layout.Manifest(raw)
}

// lease holds blobs.
func (e *Engine) lease(ctx context.Context, id string, blobs []digest.Digest) error {
	l, err := e.leases.Create(ctx, leases.WithID(id))
	if errdefs.IsAlreadyExists(err) {
		l, err = leases.Lease{ID: id}, nil
	}
	if err != nil {
		return err
	}
	for _, d := range blobs {
		if err := e.leases.AddResource(ctx, l, leases.Resource{ID: d.String(), Type: contentType}); err != nil {
			return errors.Join(err, e.unlease(ctx, id))
		}
	}
	return nil
}

// unlease lets go of blobs. It is no error if there is no such lease.
func (e *Engine) unlease(ctx context.Context, id string) error {
	if err := e.leases.Delete(ctx, leases.Lease{ID: id}); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// forgetImages lets go of images that no build uses, as a call of Prune says.
func (e *Engine) forgetImages(ctx context.Context, p buildapi.Prune) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, img := range e.images {
		old := p.Age > 0 && time.Since(img.Used) > p.Age
		if e.inUse[key] > 0 || !p.All && !old {
			continue
		}
		if err := e.unlease(ctx, imageLease+key); err != nil {
			return err
		}
		delete(e.images, key)
	}
	return e.saveImages()
}

// use marks images as used until release is called. An image that is not here is an error.
func (e *Engine) use(names map[string]string) (release func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, key := range names {
		if e.images[key] == nil {
			return nil, fmt.Errorf("the image %s (%s) is not here: put it first", name, key)
		}
	}
	for _, key := range names {
		e.images[key].Used = time.Now()
		e.inUse[key]++
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, key := range names {
			if e.inUse[key]--; e.inUse[key] == 0 {
				delete(e.inUse, key)
			}
		}
	}, nil
}

// forgetOldest lets go of the image that nobody used for the longest time. It reports whether
// there was one.
func (e *Engine) forgetOldest(ctx context.Context) (bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	oldest := ""
	for key, img := range e.images {
		if e.inUse[key] == 0 && (oldest == "" || img.Used.Before(e.images[oldest].Used)) {
			oldest = key
		}
	}
	if oldest == "" {
		return false, nil
	}
	if err := e.unlease(ctx, imageLease+oldest); err != nil {
		return false, err
	}
	delete(e.images, oldest)
	return true, nil
}

// noteImages saves which images are here, and when they were used. On a full disk, the next
// process believes what was saved before, as far as there are leases.
func (e *Engine) noteImages(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.saveImages(); err != nil {
		e.log.WarnContext(ctx, "cannot save the list of images", "err", err)
	}
}

// dropResults deletes the results that an engine before has left, and halves of images.
func (e *Engine) dropResults(ctx context.Context) error {
	held, err := e.leases.List(ctx)
	if err != nil {
		return err
	}
	for _, l := range held {
		if strings.HasPrefix(l.ID, resultLease) || strings.HasPrefix(l.ID, putLease) {
			if err := e.unlease(ctx, l.ID); err != nil {
				return err
			}
		}
	}
	if err := os.RemoveAll(e.resultsDir()); err != nil {
		return err
	}
	return os.MkdirAll(e.resultsDir(), 0o700)
}

// DropResult deletes an image that was built. It is no error if there is none.
func (e *Engine) DropResult(ctx context.Context, id string) error {
	if err := os.Remove(e.resultFile(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return e.unlease(ctx, resultLease+id)
}

// Results counts the images that nobody has dropped.
func (e *Engine) Results() (int, error) {
	files, err := os.ReadDir(e.resultsDir())
	return len(files), err
}

// Result writes an image that was built as an OCI layout, without the layers of images that
// were put under some digests. It returns [ErrNoResult] before it writes.
func (e *Engine) Result(ctx context.Context, id string, without []string, w io.Writer) error {
	raw, err := os.ReadFile(e.resultFile(id))
	if errors.Is(err, os.ErrNotExist) {
		return ErrNoResult
	}
	if err != nil {
		return err
	}
	manifest, err := content.ReadBlob(ctx, e.content, ocispec.Descriptor{Digest: digest.Digest(raw)})
	if err != nil {
		return err
	}
	m, err := layout.Manifest(manifest)
	if err != nil {
		return err
	}
	left, manifest, err := e.leaveOut(m, manifest, without)
	if err != nil {
		return err
	}
	blobs := []layout.Blob{e.blob(ctx, m.Config)}
	for _, l := range m.Layers[left:] {
		blobs = append(blobs, e.blob(ctx, l))
	}
	return layout.Write(w, manifest, m.MediaType, blobs)
}

// leaveOut marks the layers of that image of which the result has most. It returns how many
// they are, and the manifest.
func (e *Engine) leaveOut(m ocispec.Manifest, manifest []byte, without []string) (int, []byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	most, marked := 0, m
	for _, key := range without {
		img := e.images[key]
		if img == nil {
			continue
		}
		candidate := m
		if n := layout.Without(&candidate, img.Layers, key); n > most {
			most, marked = n, candidate
		}
	}
	if most == 0 {
		return 0, manifest, nil
	}
	raw, err := layout.Encode(marked)
	return most, raw, err
}

// blob is a blob of the cache.
func (e *Engine) blob(ctx context.Context, d ocispec.Descriptor) layout.Blob {
	return layout.Blob{Digest: d.Digest, Size: d.Size, Open: func() (io.ReadCloser, error) {
		ra, err := e.content.ReaderAt(ctx, ocispec.Descriptor{Digest: d.Digest, Size: d.Size})
		if err != nil {
			return nil, fmt.Errorf("blob %s: %w", d.Digest, err)
		}
		return struct {
			io.Reader
			io.Closer
		}{content.NewReader(ra), ra}, nil
	}}
}
