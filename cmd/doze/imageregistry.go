package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
)

// A registryLogin is how we log in to a registry.
type registryLogin struct {
	username string
	stdin    bool
}

// flags adds the flags of a login.
func (p *registryLogin) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&p.username, "username", "u", "", "log in to the registry with this `name` (default: what docker login stored)")
	cmd.Flags().BoolVar(&p.stdin, "password-stdin", false, "read the password for the registry from standard input")
}

// passwordMax bounds a password: tokens of registries have some thousand characters.
const passwordMax = 64 << 10

// registry returns the options of a call of a registry.
func (a *app) registry(ctx context.Context, p registryLogin) ([]remote.Option, error) {
	options := []remote.Option{remote.WithContext(ctx), remote.WithUserAgent("doze")}
	if (p.username != "") != p.stdin {
		return nil, usagef("--username and --password-stdin go together")
	}
	if !p.stdin {
		return append(options, remote.WithAuthFromKeychain(authn.DefaultKeychain)), nil
	}
	password, err := io.ReadAll(io.LimitReader(a.in, passwordMax))
	if err != nil {
		return nil, err
	}
	return append(options, remote.WithAuth(&authn.Basic{Username: p.username, Password: strings.TrimRight(string(password), "\r\n")})), nil
}

// reference reads what a user wrote for an image in a registry.
func reference(s string) (name.Reference, error) {
	ref, err := name.ParseReference(s, name.WithDefaultTag(doze.TagDefault))
	if err != nil {
		return nil, usagef("%q is no image of a registry: write it like registry.example.com/team/app:1.0", s)
	}
	return ref, nil
}

const loginHelp = `
Credentials are those that docker login stored. --username and --password-stdin
replace them.`

func (a *app) pushImage() *cobra.Command {
	var at registryLogin
	cmd := &cobra.Command{
		Use: "push NAME[:TAG] IMAGE", Short: "Copy an image to a registry",
		Long: `Copy an image of the workspace to a registry. It has one layer there, which is
compressed on the way. The image passes through this machine.
` + loginHelp,
		Example: "  doze image push app:1.0 registry.example.com/team/app:1.0\n  echo \"$TOKEN\" | doze image push app registry.example.com/team/app -u me --password-stdin",
		Args:    takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := reference(args[1])
			if err != nil {
				return err
			}
			options, err := a.registry(cmd.Context(), at)
			if err != nil {
				return err
			}
			digest, err := a.push(cmd.Context(), args[0], ref, options)
			if err != nil {
				return err
			}
			pushed := map[string]string{"image": ref.Context().Digest(digest).Name(), "name": args[0]}
			return a.show(pushed, [][]string{{"NAME", "IMAGE"}, {pushed["name"], pushed["image"]}})
		},
	}
	at.flags(cmd)
	return cmd
}

// push copies an image of the workspace to a registry, and returns its digest there.
func (a *app) push(ctx context.Context, from string, to name.Reference, options []remote.Option) (digest string, err error) {
	c, err := a.connect()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "doze-push-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	root, err := os.OpenRoot(dir) // nothing in it leads out
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	archive, err := c.SaveImage(ctx, from)
	if err != nil {
		return "", err
	}
	p := a.watch("saving "+from, 0)
	img, err := unpackLayout(root, p.counts(archive))
	p.end()
	if err := errors.Join(err, archive.Close()); err != nil {
		return "", err
	}
	updates := make(chan v1.Update, 1)
	sending := a.watch("pushing "+to.Name(), 0)
	told := make(chan struct{})
	go func() {
		defer close(told)
		for u := range updates { // the writer closes it
			sending.done.Store(u.Complete)
		}
	}()
	err = remote.Write(to, img, append(options, remote.WithProgress(updates))...)
	<-told
	sending.end()
	if err != nil {
		return "", outcome(err, to)
	}
	h, err := img.Digest()
	return h.String(), err
}

var blobName = regexp.MustCompile(`^blobs/sha256/[0-9a-f]{64}$`)

// documentMax bounds a document of an image in memory.
const documentMax = 4 << 20

// unpackLayout writes the files of an OCI layout to a directory, and returns the image in
// it. Its layers are compressed when they are read.
func unpackLayout(root *os.Root, archive io.Reader) (v1.Image, error) {
	var index *v1.IndexManifest
	for in := tar.NewReader(archive); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, wrongArchive(err)
		}
		switch {
		case h.Name == "index.json":
			if index, err = v1.ParseIndexManifest(io.LimitReader(in, documentMax)); err != nil {
				return nil, wrongArchive(err)
			}
		case blobName.MatchString(h.Name):
			f, err := root.OpenFile(path.Base(h.Name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
			if err != nil {
				return nil, err
			}
			if _, err := io.CopyN(f, in, h.Size); err != nil {
				return nil, errors.Join(err, f.Close())
			}
			if err := f.Close(); err != nil {
				return nil, err
			}
		}
	}
	if index == nil || len(index.Manifests) != 1 {
		return nil, errArchive
	}
	raw, err := document(root, index.Manifests[0].Digest)
	if err != nil {
		return nil, err
	}
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, wrongArchive(err)
	}
	packed := &packedImage{layers: map[v1.Hash]v1.Layer{}, manifest: *m}
	if packed.config, err = document(root, m.Config.Digest); err != nil {
		return nil, err
	}
	for i, d := range m.Layers {
		l, err := tarball.LayerFromOpener(
			func() (io.ReadCloser, error) { return root.Open(d.Digest.Hex) },
			tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestSpeed),
		)
		if err != nil {
			return nil, wrongArchive(err)
		}
		digest, err := l.Digest()
		if err != nil {
			return nil, err
		}
		size, err := l.Size()
		if err != nil {
			return nil, err
		}
		packed.manifest.Layers[i] = v1.Descriptor{MediaType: types.OCILayer, Digest: digest, Size: size}
		packed.layers[digest] = l
	}
	return partial.CompressedToImage(packed)
}

// document reads a small file of a layout.
func document(root *os.Root, h v1.Hash) ([]byte, error) {
	f, err := root.Open(h.Hex)
	if err != nil {
		return nil, wrongArchive(err)
	}
	defer func() { _ = f.Close() }() // it was only read
	return io.ReadAll(io.LimitReader(f, documentMax))
}

// A packedImage is an image whose layers are compressed, and whose configuration is as
// it was.
type packedImage struct {
	manifest v1.Manifest
	config   []byte
	layers   map[v1.Hash]v1.Layer
}

func (i *packedImage) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (i *packedImage) RawConfigFile() ([]byte, error)      { return i.config, nil }
func (i *packedImage) RawManifest() ([]byte, error)        { return json.Marshal(i.manifest) }
func (i *packedImage) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	if l, ok := i.layers[h]; ok {
		return l, nil
	}
	return nil, fmt.Errorf("the image has no layer %s", h)
}

func (a *app) pullImage() *cobra.Command {
	var at registryLogin
	var tag, platform string
	cmd := &cobra.Command{
		Use: "pull IMAGE", Short: "Copy an image from a registry to the workspace",
		Long: `Copy an image from a registry to the workspace. The image passes through this
machine, which needs to reach the registry. With doze image add, the server pulls it.
` + loginHelp,
		Example: "  doze image pull registry.example.com/team/app:1.0 -t app:1.0",
		Args:    takes(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ref, err := reference(args[0])
			if err != nil {
				return err
			}
			if tag == "" {
				tag = path.Base(ref.Context().RepositoryStr())
				if t, ok := ref.(name.Tag); ok {
					tag += ":" + t.TagStr()
				}
			}
			of, err := v1.ParsePlatform(platform)
			if err != nil {
				return usagef("--platform must be like linux/%s", runtime.GOARCH)
			}
			options, err := a.registry(cmd.Context(), at)
			if err != nil {
				return err
			}
			img, err := remote.Image(ref, append(options, remote.WithPlatform(*of))...)
			if err != nil {
				return outcome(err, ref)
			}
			return a.pull(cmd.Context(), tag, ref, img)
		},
	}
	at.flags(cmd)
	cmd.Flags().StringVarP(&tag, "tag", "t", "", "`NAME[:TAG]` of the image in the workspace (default: as in the registry)")
	cmd.Flags().StringVar(&platform, "platform", "linux/"+runtime.GOARCH, "which `image` of a list, by system and processor of the server")
	return cmd
}

// pull uploads an image of a registry to the workspace, while it comes.
func (a *app) pull(ctx context.Context, tag string, ref name.Reference, img v1.Image) error {
	size, err := weight(img)
	if err != nil {
		return outcome(err, ref)
	}
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := writeLayout(w, img)
		_ = w.CloseWithError(err) // never fails
		written <- err
	}()
	err = a.load(ctx, tag, "copying "+ref.Name(), size, r)
	_ = r.CloseWithError(io.ErrClosedPipe) // never fails
	if wrote := <-written; wrote != nil && !errors.Is(wrote, io.ErrClosedPipe) {
		return outcome(wrote, ref) // what the server says follows from it
	}
	return err
}

// weight is how many bytes of layers there are.
func weight(img v1.Image) (n int64, err error) {
	m, err := img.Manifest()
	if err != nil {
		return 0, err
	}
	for _, l := range m.Layers {
		n += l.Size
	}
	return n, nil
}

// writeLayout writes an image as an OCI layout in a tar, as it is in its registry.
func writeLayout(w io.Writer, img v1.Image) error {
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	raw, err := img.RawManifest()
	if err != nil {
		return err
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return err
	}
	d, err := partial.Descriptor(img)
	if err != nil {
		return err
	}
	d.Platform = nil // the configuration says it
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{*d}})
	if err != nil {
		return err
	}
	out := tar.NewWriter(w)
	header := func(name string, size int64) error {
		return out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: fileMode, Size: size, ModTime: time.Unix(0, 0)})
	}
	for _, f := range []struct {
		name    string
		content []byte
	}{
		{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{"index.json", index},
		{"blobs/sha256/" + d.Digest.Hex, raw},
		{"blobs/sha256/" + m.Config.Digest.Hex, config},
	} {
		if err := header(f.name, int64(len(f.content))); err != nil {
			return err
		}
		if _, err := out.Write(f.content); err != nil {
			return err
		}
	}
	written := map[v1.Hash]bool{}
	for _, l := range m.Layers {
		if written[l.Digest] { // the same twice is one file
			continue
		}
		written[l.Digest] = true
		if err := header("blobs/sha256/"+l.Digest.Hex, l.Size); err != nil {
			return err
		}
		layer, err := img.LayerByDigest(l.Digest)
		if err != nil {
			return err
		}
		content, err := layer.Compressed()
		if err != nil {
			return err
		}
		_, err = io.Copy(out, content)
		if err := errors.Join(err, content.Close()); err != nil {
			return err
		}
	}
	return out.Close()
}

// outcome says what a user can do about an error of a registry.
func outcome(err error, ref name.Reference) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	registry := ref.Context().RegistryStr()
	refused, answered := errors.AsType[*transport.Error](err)
	if !answered {
		if dial, ok := errors.AsType[*net.OpError](err); ok { // the library repeats it for each address that it tried
			err = dial
		}
		return doze.Wrap(err, doze.Unavailable, "the registry %s cannot be reached, or breaks off", registry)
	}
	switch refused.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return doze.Wrap(err, doze.Forbidden, "the registry %s wants other credentials for %s, or there is no such image: use docker login %s, or --username with --password-stdin", registry, ref.Name(), registry)
	case http.StatusNotFound:
		return doze.Wrap(err, doze.NotFound, "the registry %s has no image %s", registry, ref.Name())
	}
	return doze.Wrap(err, doze.Unavailable, "the registry %s answered with status %d", registry, refused.StatusCode)
}
