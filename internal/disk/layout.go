package disk

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dozehq/doze"
)

// What comes as an archive is hostile: a caller uploads it, or a builder writes it, which
// is as hostile as its Dockerfile. The archive goes to one file of the disk, within
// bounds. Nothing is called as it says: its names are keys of a map.

const (
	// entriesMax bounds the entries of an archive: images have a file or three for each
	// layer, and some have a dozen manifests of other machines.
	entriesMax = 4096
	// nestingMax bounds lists of images in lists: builders write one in another.
	nestingMax = 3
	// listBytesMax bounds lists of images and of layers, of which each takes a hundred bytes
	// here for three there.
	listBytesMax = 1 << 20
	// archiveRef is what messages call an image that has no reference.
	archiveRef = "the archive"
)

// builtMark is before the id of an image that was built or loaded here. No registry and
// no image of ours has such a reference.
const builtMark = doze.BuiltPrefix

// idForm is that of ids, which become file names and parts of references.
var idForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// builtKey is the reference of an image that was built or loaded. It means these bytes
// for ever.
func builtKey(id, digest string) string { return builtMark + id + "@" + digest }

// isBuilt reports whether a reference has the form of builtKey.
func isBuilt(ref string) bool {
	rest, ok := strings.CutPrefix(ref, builtMark)
	id, digest, pinned := strings.Cut(rest, "@")
	return ok && pinned && idForm.MatchString(id) && digestForm.MatchString(digest)
}

// ImportLayout makes an image of a tar, which may be compressed. It has an OCI layout, or
// what docker saves, and one image for this kind of machine. The id of the import is
// never used again. The Ref of the result means its bytes for ever, and no caller of an
// API can write it.
//
// The lowest layer may be missing in the archive if it is that of a base, as
// [Library.Export] writes it. Then only what is new is converted. Without bases nothing
// may be missing. What is no image is Invalid, what is too large TooLarge.
// progress may be nil. On an error nothing is left.
func (l *Library) ImportLayout(ctx context.Context, id string, archive io.Reader, bases []Image, progress func(Progress)) (_ Image, err error) {
	if !idForm.MatchString(id) {
		return Image{}, doze.Errorf(doze.Internal, "%.40q is no id of an import", id)
	}
	ctx, leave, err := l.begin(ctx, builtMark+id)
	if err != nil {
		return Image{}, err
	}
	defer leave()
	if progress == nil {
		progress = func(Progress) {}
	}
	work, err := l.workspace()
	if err != nil {
		return Image{}, err
	}
	defer func() { err = errors.Join(err, work.discard()) }()
	progress(Progress{"reading the archive", 0})
	s, err := l.spool(ctx, work.dir, archive)
	if err != nil {
		return Image{}, err
	}
	defer func() { err = errors.Join(err, s.file.Close()) }()
	b, err := s.bundle(l.limits)
	if err != nil {
		return Image{}, err
	}
	end, err := l.turn(ctx) // not before: an upload takes as long as its caller likes
	if err != nil {
		return Image{}, err
	}
	defer end()
	if err := l.complement(ctx, b, bases); err != nil {
		return Image{}, err
	}
	key := builtKey(id, b.digest)
	if b.sure() {
		if img, ok, err := l.adopt(key, b.digest); ok || err != nil {
			return img, err
		}
	}
	return l.stack(ctx, key, s, b, progress)
}

// begin has Close end an import. leave is to be called at its end.
func (l *Library) begin(ctx context.Context, key string) (_ context.Context, leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, nil, errClosed
	case l.flights[key] != nil:
		return nil, nil, doze.Errorf(doze.Conflict, "the import %s is under way", strings.TrimPrefix(key, builtMark))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	f := newFlight(cancel)
	l.flights[key] = f
	l.builds.Add(1)
	return ctx, func() {
		cancel(nil)
		l.mu.Lock()
		delete(l.flights, key)
		l.mu.Unlock()
		close(f.done)
		l.builds.Done()
	}, nil
}

// turn waits until one image fewer is being made than may be. end is to be called at the
// end.
func (l *Library) turn(ctx context.Context) (end func(), err error) {
	select {
	case l.slots <- struct{}{}:
		return func() { <-l.slots }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// A section is a file of an archive, in the spool.
type section struct {
	at, size int64
	digest   v1.Hash
}

// A spool has the files of an archive, one after the other in one file.
type spool struct {
	file     *os.File
	names    map[string]section
	links    map[string]string // what old versions of docker save instead of a second copy
	contents map[v1.Hash]section
}

// spool reads an archive to its end.
func (l *Library) spool(ctx context.Context, dir string, archive io.Reader) (_ *spool, err error) {
	plain, done, err := expand(&attentive{ctx, archive})
	if err != nil {
		return nil, noArchive(err)
	}
	defer done()
	f, err := os.OpenFile(filepath.Join(dir, "archive"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("spool the archive: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	s := &spool{file: f, names: map[string]section{}, links: map[string]string{}, contents: map[v1.Hash]section{}}
	tooLarge := doze.Errorf(doze.TooLarge, "the archive is larger than %d MB, which is the limit: the operator sets it with --image-max-mb", l.limits.bytes>>20)
	in := tar.NewReader(&meter{plain, l.limits.bytes + entriesMax*headersMax, tooLarge})
	left := l.limits.bytes
	for n := 0; ; n++ {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return s, nil
		}
		if err != nil {
			return nil, noArchive(err)
		}
		if n == entriesMax {
			return nil, doze.Errorf(doze.TooLarge, "the archive has more than %d entries: an OCI layout, or what docker saves, has fewer", entriesMax)
		}
		name := path.Clean(h.Name)
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeGNUSparse:
			if left -= h.Size; h.Size < 0 || left < 0 {
				return nil, tooLarge
			}
			if s.names[name], err = s.append(in, h.Size, l.o.room()); err != nil {
				return nil, err
			}
		case tar.TypeSymlink:
			s.links[name] = path.Join(path.Dir(name), h.Linkname) //nolint:gosec // G305: it is a key of a map, and no path
		case tar.TypeLink:
			s.links[name] = path.Clean(h.Linkname)
		}
	}
}

// append takes the content of an entry.
func (s *spool) append(content io.Reader, size int64, room func(int64) (func(), error)) (section, error) {
	release, err := room(size)
	if err != nil {
		return section{}, err
	}
	defer release()
	at, err := s.file.Seek(0, io.SeekEnd)
	if err != nil {
		return section{}, fmt.Errorf("spool the archive: %w", err)
	}
	sum := sha256.New()
	n, err := io.Copy(&disked{s.file}, io.TeeReader(content, sum))
	if err != nil {
		return section{}, noArchive(err)
	}
	if n != size {
		return section{}, notImage("it has a file that is shorter than it says")
	}
	c := section{at, size, v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum.Sum(nil))}}
	s.contents[c.digest] = c
	return c, nil
}

// disked is a file whose errors say that they are those of this host.
type disked struct{ w io.Writer }

func (d *disked) Write(b []byte) (int, error) {
	n, err := d.w.Write(b)
	if err != nil {
		err = fault(err)
		if !known(err) {
			err = doze.Wrap(err, doze.Internal, "the archive cannot be written to the disk")
		}
	}
	return n, err
}

// attentive is a reader that fails once its context has ended.
type attentive struct {
	ctx context.Context //nolint:containedctx // of the one call that reads
	r   io.Reader
}

func (a *attentive) Read(b []byte) (int, error) {
	if err := context.Cause(a.ctx); err != nil {
		return 0, err
	}
	return a.r.Read(b)
}

// noArchive classifies what a reader of an archive returned.
func noArchive(err error) error {
	if known(err) {
		return err
	}
	return errors.Join(notImage("it cannot be read to its end: it is damaged, or no tar"), err)
}

// open reads a section.
func (s *spool) open(c section) io.Reader { return io.NewSectionReader(s.file, c.at, c.size) }

// named finds a file by its name, through one link.
func (s *spool) named(name string) (section, bool) {
	name = path.Clean(name)
	if to, ok := s.links[name]; ok {
		name = to
	}
	c, ok := s.names[name]
	return c, ok
}

// text is a small file as a whole.
func (s *spool) text(what string, c section, most int64) ([]byte, error) {
	if c.size > most {
		return nil, notImage("%s has %d bytes; at most %d are allowed", what, c.size, most)
	}
	b := make([]byte, c.size)
	_, err := io.ReadFull(s.open(c), b)
	return b, err
}

func notImage(format string, args ...any) error {
	return &doze.Error{Kind: doze.Invalid, Name: doze.NameInvalidImage, Message: fmt.Sprintf("the archive is no image that can be used: "+format, args...)}
}

// A bundle is an image of an archive.
type bundle struct {
	digest string // its identity
	// addressed says that the digest is that of a manifest, which has the digests of
	// all files of the image. Otherwise it is that of the configuration alone.
	addressed bool
	config    config
	layers    []part
}

// A part is a layer of a bundle.
type part struct {
	section

	missing bool
	diff    v1.Hash // of the archive in it
}

// plain reports whether a layer is known to be what the configuration says, without
// reading it again.
func (p part) plain() bool { return !p.missing && p.digest == p.diff }

// sure reports whether equal digests are equal images.
func (b *bundle) sure() bool {
	return b.addressed || !slices.ContainsFunc(b.layers, func(p part) bool { return !p.plain() })
}

// chain is what the layers are, lowest first.
func (b *bundle) chain() (all []string) {
	for _, p := range b.layers {
		all = append(all, p.diff.String())
	}
	return all
}

// bundle finds the image.
func (s *spool) bundle(l limits) (*bundle, error) {
	if index, ok := s.named(indexName); ok {
		return s.layout(index, l)
	}
	if list, ok := s.named(dockerName); ok {
		return s.docker(list, l)
	}
	return nil, notImage("it has neither %s of an OCI layout nor %s of docker", indexName, dockerName)
}

// layout reads an OCI layout.
func (s *spool) layout(index section, l limits) (*bundle, error) {
	found := map[v1.Hash]section{}
	if err := s.images(index, nestingMax, map[v1.Hash]bool{}, found); err != nil {
		return nil, err
	}
	if len(found) != 1 {
		return nil, notImage("it has %d images for linux/%s; it must have one", len(found), runtime.GOARCH)
	}
	var manifest section
	for _, manifest = range found { // there is one
	}
	raw, err := s.text("the manifest", manifest, listBytesMax)
	if err != nil {
		return nil, err
	}
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, notImage("its manifest cannot be read")
	}
	config, ok := s.contents[m.Config.Digest]
	if !ok {
		return nil, notImage("its configuration is missing")
	}
	if len(m.Layers) > l.layers {
		return nil, errLayers(len(m.Layers), l)
	}
	var layers []part
	for i, d := range m.Layers {
		content, ok := s.contents[d.Digest]
		if ok && content.size != d.Size {
			return nil, notImage("layer %d has %d bytes, and %d in the manifest", i+1, content.size, d.Size)
		}
		content.digest = d.Digest
		layers = append(layers, part{section: content, missing: !ok})
	}
	b, err := s.describe(config, layers)
	if err != nil {
		return nil, err
	}
	b.digest, b.addressed = manifest.digest.String(), true
	return b, nil
}

// images finds the manifests for this machine in a list.
func (s *spool) images(list section, depth int, seen map[v1.Hash]bool, found map[v1.Hash]section) error {
	if seen[list.digest] {
		return nil
	}
	seen[list.digest] = true
	raw, err := s.text("the list of images", list, listBytesMax)
	if err != nil {
		return err
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return notImage("its list of images cannot be read")
	}
	for _, d := range index.Manifests {
		c, ok := s.contents[d.Digest]
		if p := d.Platform; !ok || p != nil && (p.OS != "linux" || p.Architecture != runtime.GOARCH) {
			continue // of another machine, or what is about an image
		}
		switch {
		case !d.MediaType.IsIndex():
			found[d.Digest] = c
		case depth == 0:
			return notImage("its lists of images are in one another, more than %d deep", nestingMax)
		default:
			if err := s.images(c, depth-1, seen, found); err != nil {
				return err
			}
		}
	}
	return nil
}

// docker reads what docker saves.
func (s *spool) docker(list section, l limits) (*bundle, error) {
	raw, err := s.text("the list of images", list, listBytesMax)
	if err != nil {
		return nil, err
	}
	var all []dockerImage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, notImage("its list of images cannot be read")
	}
	if len(all) != 1 {
		return nil, notImage("it has %d images; it must have one", len(all))
	}
	config, ok := s.named(all[0].Config)
	if !ok {
		return nil, notImage("its configuration is missing")
	}
	if len(all[0].Layers) > l.layers {
		return nil, errLayers(len(all[0].Layers), l)
	}
	var layers []part
	for i, name := range all[0].Layers {
		content, ok := s.named(name)
		if !ok {
			return nil, notImage("layer %d is missing", i+1)
		}
		layers = append(layers, part{section: content})
	}
	b, err := s.describe(config, layers)
	if err != nil {
		return nil, err
	}
	// It must not be that of a manifest, which says more.
	b.digest = "sha256:" + sumOf("docker "+config.digest.String())
	return b, nil
}

func errLayers(n int, l limits) error {
	return notImage("it has %d layers; at most %d are allowed", n, l.layers)
}

// describe reads the configuration of an image with some layers.
func (s *spool) describe(c section, layers []part) (*bundle, error) {
	raw, err := s.text("the configuration", c, configBytesMax)
	if err != nil {
		return nil, err
	}
	file, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, notImage("its configuration cannot be read")
	}
	if file.OS != "linux" || file.Architecture != runtime.GOARCH {
		return nil, notImage("it is for %.20s/%.20s, not for linux/%s", file.OS, file.Architecture, runtime.GOARCH)
	}
	if len(file.RootFS.DiffIDs) != len(layers) {
		return nil, notImage("its configuration has %d diff_ids for %d layers", len(file.RootFS.DiffIDs), len(layers))
	}
	if err := checkConfig(archiveRef, file); err != nil {
		return nil, err
	}
	for i := range layers {
		layers[i].diff = file.RootFS.DiffIDs[i]
	}
	b := &bundle{config: configOf(*file), layers: layers}
	b.config.readRaw(raw)
	return b, nil
}

// complement compares what is missing with the layers of some bases. That can be the
// lowest layer alone.
func (l *Library) complement(ctx context.Context, b *bundle, bases []Image) error {
	for i, p := range b.layers {
		if !p.missing {
			continue
		}
		if i > 0 || p.digest != p.diff {
			return notImage("layer %d is missing", i+1)
		}
		known := false
		for _, base := range bases {
			e, err := l.exportedAs(ctx, base)
			if err != nil {
				return err
			}
			known = known || e.Layer == p.diff.String()
		}
		if !known {
			return notImage("layer %d is missing", i+1)
		}
	}
	return nil
}

// exportedAs is exportOf for an image whose file is not open.
func (l *Library) exportedAs(ctx context.Context, img Image) (_ exported, err error) {
	s, err := openSealed(img.Path)
	if err != nil {
		return exported{}, damaged(img, err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	e, err := l.exportOf(ctx, img, s)
	return e, damaged(img, err)
}

// here is how many of the layers have their content here, as it is, lowest first.
func (b *bundle) here() (n int) {
	for n < len(b.layers) && (b.layers[n].plain() || b.layers[n].missing) {
		n++
	}
	return n
}

// stack makes the image: of an image with the most of its layers, and of the rest. A
// layer is taken from an image that is here only if its content has come, too. Digests
// are no secret: without the content, a caller could get at the files of others.
func (l *Library) stack(ctx context.Context, key string, s *spool, b *bundle, report func(Progress)) (Image, error) {
	made := record{Image: Image{Ref: key, Digest: b.digest, ImageConfig: b.config.ImageConfig}, Configured: true, Layers: b.chain()}
	under, n, err := l.longest(made.Layers, b.here(), func(record) bool { return true })
	if err != nil {
		return Image{}, err
	}
	if n == 0 && len(b.layers) > 0 && b.layers[0].missing {
		return Image{}, doze.Errorf(doze.Unavailable, "the image that this one begins with was removed: try again")
	}
	all := &stretch{}
	for _, p := range b.layers[n:] {
		all.left += p.size
	}
	all.left = expansion(all.left)
	return l.compose(ctx, made, under, n, func(t *rootTree) error {
		for i, p := range b.layers[n:] {
			report(Progress{fmt.Sprintf("layer %d of %d", n+i+1, len(b.layers)), 40 + 50*i/len(b.layers[n:])})
			if err := layFrom(ctx, t, s.open(p.section), p.diff, p.size, all); err != nil {
				return refused(err, n+i+1)
			}
		}
		report(Progress{"writing the image", 95})
		return nil
	})
}

// refused says which layer of an archive cannot be used.
func refused(err error, layer int) error {
	public := doze.Public(err)
	if public.Name != "" || public.Kind != doze.Invalid && public.Kind != doze.TooLarge {
		return err
	}
	return errors.Join(notImage("layer %d: %s", layer, public.Message), err)
}
