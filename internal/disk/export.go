package disk

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"runtime"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
)

// exported is what is remembered of the layer that an image becomes outside. The same
// code makes the same bytes of the same image each time.
type exported struct {
	Layer string `json:"layer"` // sha256:…, of a tar that is not compressed
	Bytes int64  `json:"bytes"`
	Maker string `json:"maker"` // which code made it
}

// exportMaker names the code that writes layers. Raise its number when [sealed.layer]
// writes other bytes. The library that writes tars is that of the compiler.
var exportMaker = "1 " + runtime.Version()

// Export writes an image as an OCI layout in a tar, and returns the digest of its
// manifest. The image has one layer, which is not compressed, and its configuration.
// The small files come first, the layer last. The archive is one that docker loads too.
// Equal images give equal bytes. An image that is not here is made or pulled, and login
// may be nil, as for [Library.EnsureFor].
func (l *Library) Export(ctx context.Context, ref string, login *Login, w io.Writer) (digest string, err error) {
	img, err := l.EnsureFor(ctx, ref, login, nil)
	if err != nil {
		return "", err
	}
	s, err := openSealed(img.Path)
	if err != nil {
		return "", damaged(img, err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	e, err := l.exportOf(ctx, img, s)
	if err != nil {
		return "", damaged(img, err)
	}
	out, err := packageOf(img, e)
	if err != nil {
		return "", err
	}
	if err := out.write(ctx, s, w); err != nil {
		if errors.Is(err, errOtherLayer) {
			err = errors.Join(err, l.remember(img, exported{}))
		}
		return "", damaged(img, err)
	}
	return out.index.Manifests[0].Digest.String(), nil
}

// exportOf returns the digest and the size of the layer of an image: as they are
// remembered, or else by writing the layer to nowhere.
func (l *Library) exportOf(ctx context.Context, img Image, s *sealed) (exported, error) {
	if r, err := readRecord(l.imageDir(), img.hex()); err == nil && r.Export.Maker == exportMaker {
		return r.Export, nil
	}
	sum := sha256.New()
	count := &counter{w: sum}
	if err := s.layer(ctx, count); err != nil {
		return exported{}, err
	}
	e := exported{Layer: "sha256:" + hex.EncodeToString(sum.Sum(nil)), Bytes: count.n, Maker: exportMaker}
	return e, l.remember(img, e)
}

// remember notes the layer of an image beside it. An image that was removed meanwhile
// has nothing to note.
func (l *Library) remember(img Image, e exported) error {
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	r, err := readRecord(l.imageDir(), img.hex())
	if err != nil {
		return nil
	}
	r.Export = e
	return l.write(r)
}

// counter counts what is written.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// A parcel is an image as others take it, but for the bytes of its layer.
type parcel struct {
	config   []byte
	manifest []byte
	index    v1.IndexManifest
	layer    v1.Descriptor
}

// packageOf writes what describes an image with one layer.
func packageOf(i Image, e exported) (p parcel, err error) {
	layer, err := v1.NewHash(e.Layer)
	if err != nil {
		return p, fmt.Errorf("the layer of %s: %w", i.Ref, err)
	}
	p.layer = v1.Descriptor{MediaType: types.OCIUncompressedLayer, Digest: layer, Size: e.Bytes}
	platform := v1.Platform{OS: "linux", Architecture: runtime.GOARCH}
	p.config, err = json.Marshal(configFile{Config: i.configOutside(), ConfigFile: v1.ConfigFile{
		OS: platform.OS, Architecture: platform.Architecture,
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{layer}},
		History: []v1.History{{CreatedBy: "doze"}},
	}})
	if err != nil {
		return p, fmt.Errorf("write the configuration of %s: %w", i.Ref, err)
	}
	p.manifest, err = json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Config: descriptorOf(types.OCIConfigJSON, p.config), Layers: []v1.Descriptor{p.layer},
	})
	if err != nil {
		return p, fmt.Errorf("write the manifest of %s: %w", i.Ref, err)
	}
	manifest := descriptorOf(types.OCIManifestSchema1, p.manifest)
	manifest.Platform = &platform
	p.index = v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{manifest}}
	return p, nil
}

// configFile is a configuration with what the library leaves out of it.
type configFile struct {
	v1.ConfigFile

	Config imageConfig `json:"config"`
}

type imageConfig struct {
	v1.Config

	Healthcheck *healthConfig `json:",omitempty"`
}

type healthConfig struct {
	v1.HealthConfig

	StartInterval time.Duration `json:",omitempty"`
}

// configOutside is the configuration of an image as others read it.
func (i Image) configOutside() imageConfig {
	c := imageConfig{Config: v1.Config{
		Env: i.Env, User: i.User, WorkingDir: i.WorkDir, Entrypoint: i.Entrypoint, Cmd: i.Cmd, Labels: i.Labels, StopSignal: i.StopSignal,
	}}
	for _, port := range i.Ports {
		if c.ExposedPorts == nil {
			c.ExposedPorts = map[string]struct{}{}
		}
		c.ExposedPorts[port] = struct{}{}
	}
	if h := i.Health; h != nil {
		c.Healthcheck = &healthConfig{v1.HealthConfig{
			Test: h.Test, Interval: duration(h.Interval), Timeout: duration(h.Timeout), StartPeriod: duration(h.StartPeriod), Retries: h.Retries,
		}, duration(h.StartInterval)}
	}
	return c
}

// duration is the reverse of seconds.
func duration(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

func descriptorOf(media types.MediaType, content []byte) v1.Descriptor {
	sum := sha256.Sum256(content)
	return v1.Descriptor{MediaType: media, Size: int64(len(content)), Digest: v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}}
}

// Names in an OCI layout, and of what docker looks for besides.
const (
	layoutName = "oci-layout"
	indexName  = "index.json"
	dockerName = "manifest.json"
	blobsDir   = "blobs/sha256/"
)

// dockerImage is an image in what docker loads and saves.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// errOtherLayer says that the layer is not that of before.
var errOtherLayer = doze.Errorf(doze.Unavailable, "the image was written in another way before: try again")

// write writes the tar.
func (p parcel) write(ctx context.Context, s *sealed, w io.Writer) error {
	index, err := json.Marshal(p.index)
	if err != nil {
		return err
	}
	manifest, config := p.index.Manifests[0].Digest, descriptorOf(types.OCIConfigJSON, p.config).Digest
	docker, err := json.Marshal([]dockerImage{{Config: blobsDir + config.Hex, RepoTags: []string{}, Layers: []string{blobsDir + p.layer.Digest.Hex}}})
	if err != nil {
		return err
	}
	t := tar.NewWriter(w)
	for _, f := range []struct {
		name    string
		content []byte
	}{
		{layoutName, []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{indexName, index},
		{dockerName, docker},
		{"blobs/", nil},
		{blobsDir, nil},
		{blobsDir + manifest.Hex, p.manifest},
		{blobsDir + config.Hex, p.config},
	} {
		h := plainHeader(f.name, int64(len(f.content)))
		if f.content == nil {
			h.Typeflag, h.Mode = tar.TypeDir, 0o755
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(f.content); err != nil {
			return err
		}
	}
	if err := t.WriteHeader(plainHeader(blobsDir+p.layer.Digest.Hex, p.layer.Size)); err != nil {
		return err
	}
	sum := sha256.New()
	if err := s.layer(ctx, io.MultiWriter(t, sum)); errors.Is(err, tar.ErrWriteTooLong) {
		return errOtherLayer
	} else if err != nil {
		return err
	}
	if hex.EncodeToString(sum.Sum(nil)) != p.layer.Digest.Hex {
		return errOtherLayer
	}
	return t.Close()
}

// plainHeader is that of a file without an owner and a time.
func plainHeader(name string, size int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
}

// layer writes all files as the layer of an image: parents first, by name. Files with
// several names are hard links to the first one. Sockets and devices are left out, as
// where layers are read.
func (s *sealed) layer(ctx context.Context, w io.Writer) error {
	out := &layering{sealed: s, tar: tar.NewWriter(w), names: map[uint64]string{}, left: s.inodes}
	root, err := s.inode(s.root)
	if err != nil {
		return err
	}
	if root.kind() != unix.S_IFDIR {
		return errDamaged
	}
	if err := out.directory(ctx, root, "./", 0); err != nil {
		return err
	}
	return out.tar.Close()
}

// A layering writes one layer.
type layering struct {
	*sealed

	tar   *tar.Writer
	names map[uint64]string // of what has several, by its number
	left  int64             // inodes that can still come
}

// directory writes a directory and all below it. Its name ends with a slash.
func (l *layering) directory(ctx context.Context, dir inode, name string, depth int) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	// A directory that is in itself would have no end.
	if l.left--; l.left < 0 || depth > pathMax/2 {
		return errDamaged
	}
	if err := l.tar.WriteHeader(l.header(dir, tar.TypeDir, name)); err != nil {
		return err
	}
	all, err := l.children(dir)
	if err != nil {
		return err
	}
	for _, c := range all {
		i, err := l.inode(c.number)
		if err != nil {
			return err
		}
		at := path.Join(name, c.name)
		if i.kind() == unix.S_IFDIR {
			err = l.directory(ctx, i, at+"/", depth+1)
		} else {
			err = l.file(i, at)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (l *layering) header(i inode, kind byte, name string) *tar.Header {
	return &tar.Header{
		Typeflag: kind, Name: name, Mode: int64(i.mode &^ unix.S_IFMT), Uid: int(i.uid), Gid: int(i.gid), ModTime: i.time, Format: tar.FormatPAX,
	}
}

// file writes anything but a directory.
func (l *layering) file(i inode, name string) error {
	if first, ok := l.names[i.number]; ok {
		h := l.header(i, tar.TypeLink, name)
		h.Linkname = first
		return l.tar.WriteHeader(h)
	}
	if i.links > 1 {
		l.names[i.number] = name
	}
	switch i.kind() {
	case unix.S_IFREG:
		h := l.header(i, tar.TypeReg, name)
		h.Size = i.size
		content, err := l.open(i)
		if err != nil {
			return err
		}
		if err := l.tar.WriteHeader(h); err != nil {
			return err
		}
		_, err = io.Copy(l.tar, content)
		return err
	case unix.S_IFLNK:
		h := l.header(i, tar.TypeSymlink, name)
		var err error
		if h.Linkname, err = l.target(i); err != nil {
			return err
		}
		return l.tar.WriteHeader(h)
	case unix.S_IFIFO:
		return l.tar.WriteHeader(l.header(i, tar.TypeFifo, name))
	}
	return nil
}

// pour applies the files of an image to a tree as its lowest layer.
func (t *rootTree) pour(ctx context.Context, s *sealed) error {
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := s.layer(ctx, w)
		_ = w.CloseWithError(err) // never fails
		written <- err
	}()
	err := t.apply(ctx, r)
	_ = r.CloseWithError(cmp.Or(err, io.ErrClosedPipe)) // never fails
	switch wrote := <-written; {
	case errors.Is(wrote, errDamaged), err == nil:
		return wrote
	}
	return err
}
