package host

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/builder"
	"github.com/dozehq/doze/internal/depot"
	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/node"
)

// BuilderProgram is the file name of the program that builds images: see [Companion].
const BuilderProgram = "doze-builder"

// Builds says how images are built.
type Builds struct {
	Program  string        // path of the program; a host that does not have it builds nothing
	Most     int           // builds at a time
	MemoryMB int64         // of each builder; 0: BuildMemoryDefault, and half of the memory for sandboxes at most
	DiskMB   int64         // of its file system, which is in its memory; 0: BuildDiskShare of that
	CacheAge time.Duration // for how long a builder stays that nobody uses; 0: for ever
	Timeout  time.Duration // of one build
}

const (
	// BuildMemoryDefault is the memory of a builder in MB: a large npm install has
	// 2 GB of files, and a compiler as much memory.
	BuildMemoryDefault = 4096
	// BuildMemoryOwn is the memory of the platform's own builder in MB. The largest image
	// of the catalogue has 3 GB of files while it is built.
	BuildMemoryOwn = 6144
	// BuildMemoryMin is what the program takes, with a small image.
	BuildMemoryMin = 512
	// BuildsMax bounds the builds at a time: each wants a processor.
	BuildsMax = 64
	// BuildDiskShare is the part of its memory that its files may take.
	BuildDiskShare = 0.75
	// builderVersion names how the root file system of builders is made: raise it with
	// each change of builderFiles.
	builderVersion = "1"
	// builderRef is the reference of that file system, in the library of agents.
	builderRef = "doze/builder:"
)

// memory returns the size of a builder on a host whose sandboxes can take so many bytes.
func (b *Builds) memory(all int64) doze.Megabytes {
	mb := b.MemoryMB
	if mb == 0 {
		mb = max(BuildMemoryMin, min(BuildMemoryDefault, all>>20/2))
	}
	return doze.Megabytes(mb)
}

// disk returns the size of its file system.
func (b *Builds) disk(memory doze.Megabytes) doze.Megabytes {
	if b.DiskMB > 0 {
		return min(doze.Megabytes(b.DiskMB), memory)
	}
	return share(memory)
}

// share is the part of a memory that files may take.
func share(memory doze.Megabytes) doze.Megabytes {
	return doze.Megabytes(float64(memory) * BuildDiskShare)
}

// own returns the size of the platform's own builder. What a workspace may have, it may
// have too.
func (b *Builds) own(all int64) builder.Size {
	memory := max(b.memory(all), doze.Megabytes(min(BuildMemoryOwn, all>>20/2)))
	return builder.Size{Memory: memory, Disk: max(b.disk(memory), share(memory))}
}

// Node is a node that builds images: what control asks, and what the edge does.
type Node struct {
	*node.Node
	fleet.Builder

	depot *depot.Depot // nil: there is no bucket
}

var _ fleet.Node = Node{}

// openBuilder opens the builders of a node.
func (h *Host) openBuilder(ctx context.Context) (err error) {
	o := &h.o.Builds
	memory := o.memory(h.memory)
	h.builder, err = builder.Open(ctx, builder.Options{
		Dir: filepath.Join(h.o.Data, "builders"), Root: h.builderFile, Able: h.builds, Machines: hidden{h.node.Hidden()}, Images: buildImages{h},
		Builds: o.Most, Size: builder.Size{Memory: memory, Disk: o.disk(memory)}, Own: o.own(h.memory), CacheAge: o.CacheAge, Timeout: o.Timeout,
	})
	if err != nil {
		return fmt.Errorf("open the builders: %w", err)
	}
	return nil
}

// builderRoot is the root file system of builders, and the program that it has.
type builderRoot struct {
	file string
	of   fs.FileInfo // nil: nobody needed it yet
}

// builderFile returns the root file system of builders of this build. It is made when
// the first one is needed, and removed with the next start after a new build came. See
// retireAgents.
func (h *Host) builderFile(ctx context.Context) (string, error) {
	select {
	case h.rooting <- struct{}{}:
		defer func() { <-h.rooting }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	info, err := h.builderProgram()
	if err != nil {
		return "", err
	}
	if h.root.of == nil || !h.root.of.ModTime().Equal(info.ModTime()) || !os.SameFile(h.root.of, info) {
		file, err := h.makeBuilderRoot(ctx)
		if err != nil {
			return "", err
		}
		h.root.of, h.root.file = info, file
	}
	return h.root.file, nil
}

// builderProgram looks at the program. Without one the error is Unsupported.
func (h *Host) builderProgram() (fs.FileInfo, error) {
	info, err := os.Stat(h.o.Builds.Program)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, doze.Wrap(err, doze.Unsupported, "this node cannot build images: its operator has to install %s beside dozed, or in ../lib/doze", BuilderProgram)
	}
	if err != nil {
		return nil, fmt.Errorf("look at the program of builders: %w", err)
	}
	return info, nil
}

// builds says why this host cannot build, or nothing.
func (h *Host) builds() error {
	_, err := h.builderProgram()
	return err
}

// makeBuilderRoot makes that file system, unless it is there. Preconditions: rooting is
// held.
func (h *Host) makeBuilderRoot(ctx context.Context) (string, error) {
	program, err := os.ReadFile(h.o.Builds.Program)
	if err != nil {
		return "", fmt.Errorf("read the program of builders: %w", err)
	}
	sum := sha256.Sum256(append([]byte(builderVersion+"\n"), program...))
	ref := builderRef + hex.EncodeToString(sum[:8])
	for _, i := range h.agents.Images() {
		if i.Ref == ref {
			return i.Path, nil
		}
	}
	archive, err := builderFiles(program)
	if err != nil {
		return "", fmt.Errorf("make the root file system of builders: %w", err)
	}
	image, err := h.agents.ImportTar(ctx, ref, archive)
	return image.Path, err
}

// authorities are where hosts have the certificates of the authorities that they trust.
var authorities = []string{
	"/etc/ssl/certs/ca-certificates.crt", // Debian, Arch, Alpine
	"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora
	"/etc/ssl/ca-bundle.pem",             // SUSE
}

// builderFiles returns a tar of the root file system of builders: the program, and the
// directories and accounts that programs expect. It has the authorities that the host
// trusts, by which registries are believed.
func builderFiles(program []byte) (io.Reader, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	var errs []error
	dir := func(name string, mode int64) {
		errs = append(errs, w.WriteHeader(&tar.Header{Name: name + "/", Mode: mode, Typeflag: tar.TypeDir}))
	}
	file := func(name string, mode int64, text []byte) {
		errs = append(errs, w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(text)), Typeflag: tar.TypeReg}))
		_, err := w.Write(text)
		errs = append(errs, err)
	}
	for _, name := range []string{"dev", "etc", "etc/ssl", "etc/ssl/certs", "proc", "root", "run", "sys", "usr", "usr/bin", "var", "var/lib", "var/log"} {
		dir(name, 0o755)
	}
	dir("tmp", 0o1777)
	file("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n"))
	file("etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n"))
	for _, name := range authorities {
		if text, err := os.ReadFile(name); err == nil {
			file("etc/ssl/certs/ca-certificates.crt", 0o644, text)
			break
		}
	}
	file(strings.TrimPrefix(builder.Program, "/"), 0o755, program)
	errs = append(errs, w.Close())
	return &archive, errors.Join(errs...)
}

// hidden are the machines of builders.
type hidden struct{ node.Hidden }

// All implements [builder.Machines].
func (h hidden) All() map[string]builder.Machine {
	all := map[string]builder.Machine{}
	for uid, m := range h.Hidden.All() {
		all[uid] = builder.Machine{Status: m.Status, Root: m.Root, Memory: m.Memory}
	}
	return all
}

// buildImages are the images of a host, for its builders.
type buildImages struct{ h *Host }

// Platform implements [builder.Images].
func (b buildImages) Platform(name string) bool { return b.h.images.Platform(name) }

// CheckPlatform implements [builder.Images].
func (b buildImages) CheckPlatform(name string) error { return b.h.images.CheckPlatform(name) }

// Mirrored implements [builder.Images].
func (b buildImages) Mirrored(name string) (ref, registry string, ok bool) {
	return b.h.images.Mirrored(name)
}

// Pin implements [builder.Images].
func (b buildImages) Pin(ctx context.Context, ref string) (string, error) {
	pinned, _, err := b.h.images.Pin(ctx, ref, nil, showProgress(b.h.o.Output, ref))
	return pinned, err
}

// ensure has an image here.
func (b buildImages) ensure(ctx context.Context, base fleet.Base) (disk.Image, error) {
	if err := b.h.bring(ctx, base.Ref); err != nil {
		return disk.Image{}, err
	}
	return b.h.images.EnsureFor(ctx, base.Ref, diskLogin(base.Login), showProgress(b.h.o.Output, base.Ref))
}

// Ensure implements [builder.Images].
func (b buildImages) Ensure(ctx context.Context, base fleet.Base) (string, error) {
	image, err := b.ensure(ctx, base)
	return image.Digest, err
}

// Export implements [builder.Images].
func (b buildImages) Export(ctx context.Context, base fleet.Base, w io.Writer) error {
	if err := b.h.bring(ctx, base.Ref); err != nil {
		return err
	}
	_, err := b.h.images.Export(ctx, base.Ref, diskLogin(base.Login), w)
	return err
}

// Import implements [builder.Images].
func (b buildImages) Import(ctx context.Context, id string, archive io.Reader, bases []fleet.Base) (fleet.Built, error) {
	var under []disk.Image
	for _, base := range bases {
		image, err := b.ensure(ctx, base)
		if err != nil {
			return fleet.Built{}, err
		}
		under = append(under, image)
	}
	image, err := b.h.images.ImportLayout(ctx, id, archive, under, nil)
	if err != nil {
		return fleet.Built{}, err
	}
	slog.DebugContext(ctx, "imported an image", "image", image.Ref, "bytes", image.Bytes)
	return fleet.Built{Ref: image.Ref, Digest: image.Digest, Bytes: image.Bytes, Image: image.ImageConfig}, nil
}
