package registry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"slices"
	"strings"

	"cuelabs.dev/go/oci/ociregistry"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dozehq/doze"
)

// A backend is the registry as the library that speaks its protocol asks it. What it
// does not have of the interface is unsupported: all that writes.
type backend struct {
	*ociregistry.Funcs

	server *Server
}

// blob is a file on its way.
type blob struct {
	io.ReadCloser
	descriptor ociregistry.Descriptor
}

// Descriptor implements [ociregistry.BlobReader].
func (b blob) Descriptor() ociregistry.Descriptor { return b.descriptor }

// tags returns the tags of a repository: WORKSPACE/NAME. The caller may enter the
// workspace, or it would not be here.
func (b backend) tags(ctx context.Context, repo string) (workspace, name string, tags []doze.ImageTag, err error) {
	workspace, name, ok := strings.Cut(repo, "/")
	if !ok || strings.Contains(name, "/") {
		return "", "", nil, ociregistry.ErrNameUnknown
	}
	tags, err = b.server.Images.Tags(ctx, workspace, name)
	return workspace, name, tags, outside(err, ociregistry.ErrNameUnknown)
}

// outside is an error of ours as the library knows it. missing is what is not there.
func outside(err error, missing error) error {
	if err == nil {
		return nil
	}
	switch e := doze.Public(err); e.Kind {
	case doze.NotFound:
		return missing
	case doze.Exhausted:
		return ociregistry.NewHTTPError(errors.Join(ociregistry.ErrTooManyRequests, err), e.Kind.Status(), nil, nil)
	default:
		return ociregistry.NewHTTPError(errors.New(e.Message), e.Kind.Status(), nil, nil)
	}
}

// find returns the head of the first tag of a repository for which a digest is one of
// its files. Tags whose heads are remembered come first.
func (b backend) find(ctx context.Context, repo string, digest ociregistry.Digest, missing error) (workspace, name string, tag doze.ImageTag, h *head, err error) {
	hash, err := v1.NewHash(string(digest))
	if err != nil {
		return "", "", tag, nil, ociregistry.ErrDigestInvalid
	}
	workspace, name, tags, err := b.tags(ctx, repo)
	if err != nil {
		return "", "", tag, nil, err
	}
	slices.SortStableFunc(tags, func(x, y doze.ImageTag) int {
		return b.rank(x) - b.rank(y)
	})
	for _, t := range tags {
		h, err := b.server.headOf(ctx, workspace, name, t)
		if err != nil {
			missing = outside(err, missing) // another tag may have it all the same
			continue
		}
		if _, ok := h.small[hash]; ok {
			return workspace, name, t, h, nil
		}
		if _, ok := h.large[hash]; ok {
			return workspace, name, t, h, nil
		}
	}
	return "", "", tag, nil, missing
}

// rank orders tags: those that cost nothing first.
func (b backend) rank(t doze.ImageTag) int {
	if b.server.known.Contains(t.Image) {
		return 0
	}
	return 1
}

// byTag returns the head of a tag.
func (b backend) byTag(ctx context.Context, repo, tag string) (*head, error) {
	workspace, name, tags, err := b.tags(ctx, repo)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(tags, func(t doze.ImageTag) bool { return t.Name == tag })
	if at < 0 {
		return nil, ociregistry.ErrManifestUnknown
	}
	h, err := b.server.headOf(ctx, workspace, name, tags[at])
	return h, outside(err, ociregistry.ErrManifestUnknown)
}

// asManifest is the manifest of a head.
func (h *head) asManifest() blob {
	raw := h.small[h.manifest.Digest]
	return blob{io.NopCloser(bytes.NewReader(raw)), describe(h.manifest)}
}

func describe(d v1.Descriptor) ociregistry.Descriptor {
	return ociregistry.Descriptor{MediaType: string(d.MediaType), Digest: ociregistry.Digest(d.Digest.String()), Size: d.Size}
}

// GetTag implements [ociregistry.Interface].
func (b backend) GetTag(ctx context.Context, repo, tag string) (ociregistry.BlobReader, error) {
	h, err := b.byTag(ctx, repo, tag)
	if err != nil {
		return nil, err
	}
	return h.asManifest(), nil
}

// ResolveTag implements [ociregistry.Interface].
func (b backend) ResolveTag(ctx context.Context, repo, tag string) (ociregistry.Descriptor, error) {
	h, err := b.byTag(ctx, repo, tag)
	if err != nil {
		return ociregistry.Descriptor{}, err
	}
	return describe(h.manifest), nil
}

// GetManifest implements [ociregistry.Interface].
func (b backend) GetManifest(ctx context.Context, repo string, digest ociregistry.Digest) (ociregistry.BlobReader, error) {
	_, _, _, h, err := b.find(ctx, repo, digest, ociregistry.ErrManifestUnknown)
	if err == nil && h.manifest.Digest.String() != string(digest) {
		err = ociregistry.ErrManifestUnknown
	}
	if err != nil {
		return nil, err
	}
	return h.asManifest(), nil
}

// ResolveManifest implements [ociregistry.Interface].
func (b backend) ResolveManifest(ctx context.Context, repo string, digest ociregistry.Digest) (ociregistry.Descriptor, error) {
	m, err := b.GetManifest(ctx, repo, digest)
	if err != nil {
		return ociregistry.Descriptor{}, err
	}
	return m.Descriptor(), m.Close()
}

// octets is the type of a file that only a manifest gives one.
const octets = "application/octet-stream"

// ResolveBlob implements [ociregistry.Interface].
func (b backend) ResolveBlob(ctx context.Context, repo string, digest ociregistry.Digest) (ociregistry.Descriptor, error) {
	_, _, _, h, err := b.find(ctx, repo, digest, ociregistry.ErrBlobUnknown)
	if err != nil {
		return ociregistry.Descriptor{}, err
	}
	return h.file(digest), nil
}

// file describes a file of a head.
func (h *head) file(digest ociregistry.Digest) ociregistry.Descriptor {
	hash, _ := v1.NewHash(string(digest)) // find has read it
	d := ociregistry.Descriptor{MediaType: octets, Digest: digest, Size: int64(len(h.small[hash]))}
	if l, ok := h.large[hash]; ok {
		d.Size = l.Size
	}
	return d
}

// GetBlob implements [ociregistry.Interface].
func (b backend) GetBlob(ctx context.Context, repo string, digest ociregistry.Digest) (ociregistry.BlobReader, error) {
	return b.GetBlobRange(ctx, repo, digest, 0, -1)
}

// GetBlobRange implements [ociregistry.Interface]. Of a layer, what is before the range
// is read and thrown away: the node writes it from the beginning.
func (b backend) GetBlobRange(ctx context.Context, repo string, digest ociregistry.Digest, from, to int64) (ociregistry.BlobReader, error) {
	workspace, name, tag, h, err := b.find(ctx, repo, digest, ociregistry.ErrBlobUnknown)
	if err != nil {
		return nil, err
	}
	d := h.file(digest)
	if to < 0 || to > d.Size {
		to = d.Size
	}
	if from < 0 || from > to {
		return nil, ociregistry.ErrRangeInvalid
	}
	hash, _ := v1.NewHash(string(digest)) // find has read it
	if small, ok := h.small[hash]; ok {
		return blob{io.NopCloser(bytes.NewReader(small[from:to])), d}, nil
	}
	layer, err := b.server.layer(ctx, workspace, name, tag, hash)
	if err != nil {
		return nil, outside(err, ociregistry.ErrBlobUnknown)
	}
	if _, err := io.CopyN(io.Discard, layer, from); err != nil {
		return nil, errors.Join(err, layer.Close())
	}
	return blob{struct {
		io.Reader
		io.Closer
	}{io.LimitReader(layer, to-from), layer}, d}, nil
}

// Tags implements [ociregistry.Interface].
func (b backend) Tags(ctx context.Context, repo, startAfter string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		_, _, tags, err := b.tags(ctx, repo)
		if err != nil {
			yield("", err)
			return
		}
		var names []string
		for _, t := range tags {
			names = append(names, t.Name)
		}
		slices.Sort(names)
		for _, name := range names {
			if name > startAfter && !yield(name, nil) {
				return
			}
		}
	}
}
