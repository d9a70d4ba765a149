package host

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/dozehq/doze/internal/disk"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/node"
)

// collectEvery is how often unused images are looked for. An image that was released
// while a sandbox may have been starting with it goes with the next look.
const collectEvery = 10 * time.Minute

// releaseImage has an image looked at of which a record is gone.
func (h *Host) releaseImage(ref string) {
	h.images.Release(ref)
	select {
	case h.unnamed <- struct{}{}:
	default: // somebody looks soon
	}
}

// collectImages removes images that nothing needs, until ctx ends.
func (h *Host) collectImages(ctx context.Context) error {
	every := time.NewTicker(collectEvery)
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-every.C:
		case <-h.unnamed:
		}
		if err := h.collectOnce(ctx); err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "unused images are not removed", "err", err)
		}
	}
}

// collectOnce asks who needs images, the records after the sandboxes: what begins
// meanwhile holds its image by itself.
func (h *Host) collectOnce(ctx context.Context) error {
	used, err := h.node.ImageFiles()
	if err != nil {
		return err
	}
	named, err := h.o.Named(ctx)
	if err != nil {
		return err
	}
	gone, err := h.images.Collect(used, append(named, h.o.Images...), h.o.ImageRetention)
	for _, i := range gone {
		slog.InfoContext(ctx, "removed an unused image", "image", i.Ref, "digest", i.Digest, "bytes", i.Bytes)
		h.o.Metrics.Collected(i.Bytes)
	}
	return err
}

// openImages opens the library, and makes what is wanted before the first request.
func (h *Host) openImages(ctx context.Context) (err error) {
	h.images, err = disk.Open(h.o.ImagesDir, disk.Options{
		PrivateRegistries: h.o.PrivateRegistries, BytesMax: h.o.ImageMax, Room: h.imageDisk.Claim, Owner: h.o.Data,
		Build: h.buildOwn, Through: h.o.Through, Mirrors: h.o.Mirrors,
	})
	if err != nil {
		return err
	}
	for _, name := range h.o.Images {
		if h.images.NeedsBuilder(name) { // see buildWanted
			continue
		}
		if _, err := h.images.Ensure(ctx, name, showProgress(h.o.Output, name)); err != nil {
			return fmt.Errorf("image %s: %w", name, err)
		}
	}
	return nil
}

// buildWanted builds the images that are wanted before the first request and that need the
// builder, which needs a node that serves. It then waits until ctx ends.
func (h *Host) buildWanted(ctx context.Context) error {
	for _, name := range h.o.Images {
		if !h.images.NeedsBuilder(name) {
			continue
		}
		if _, err := h.images.Ensure(ctx, name, showProgress(h.o.Output, name)); err != nil && ctx.Err() == nil {
			slog.ErrorContext(ctx, "an image is not built ahead: the first sandbox that wants it tries again", "image", name, "err", err)
		}
	}
	<-ctx.Done()
	return nil
}

// fetchImage has an image here. One that is not here yet is pulled, or comes from the bucket.
func (h *Host) fetchImage(ctx context.Context, ref string, login *fleet.Login) (node.Image, error) {
	if err := h.bring(ctx, ref); err != nil {
		return node.Image{}, err
	}
	image, err := h.images.EnsureFor(ctx, ref, diskLogin(login), showProgress(h.o.Output, ref))
	config := image.ImageConfig
	config.Labels = nil // records of sandboxes need none
	return node.Image{Path: image.Path, ImageConfig: config}, err
}

// pinImage has what a reference means now.
func (h *Host) pinImage(ctx context.Context, ref string, login *fleet.Login) (fleet.Pinned, error) {
	pinned, image, err := h.images.Pin(ctx, ref, diskLogin(login), showProgress(h.o.Output, ref))
	return fleet.Pinned{Ref: pinned, Bytes: image.Bytes, Config: image.ImageConfig}, err
}

// storedImages is what images take of the disk.
func (h *Host) storedImages() (uses []fleet.DiskUse, err error) {
	all, err := h.images.Stored()
	for _, i := range all {
		uses = append(uses, fleet.DiskUse{Kind: fleet.DiskImage, ID: filepath.Base(i.Path), Refs: i.Refs, Bytes: i.Allocated, Platform: i.Platform})
	}
	return uses, err
}

// diskLogin is a login as the library of images has it.
func diskLogin(l *fleet.Login) *disk.Login {
	if l == nil {
		return nil
	}
	return &disk.Login{Owner: l.Workspace, Username: l.Username, Password: l.Password}
}

// BuildImages makes images, or gets them from their registries. Progress goes to
// one writer, and what was made to the other.
func BuildImages(ctx context.Context, images *disk.Library, names []string, progress, made io.Writer) error {
	for _, name := range names {
		image, err := images.Ensure(ctx, name, showProgress(progress, name))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(made, "%s is %.19s, %d MB\n", name, image.Digest, image.Bytes>>20)
	}
	return nil
}

// ListImages prints a table of the images that are there.
func ListImages(images *disk.Library, w io.Writer) error {
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "IMAGE\tDIGEST\tMB")
	for _, i := range images.Images() {
		fmt.Fprintf(out, "%s\t%.19s\t%d\n", i.Ref, i.Digest, i.Bytes>>20)
	}
	return out.Flush()
}

// showProgress shows how an image gets on, a line for every step.
func showProgress(w io.Writer, name string) func(disk.Progress) {
	var last disk.Progress
	return func(p disk.Progress) {
		const every = 10 // percent
		if p.Step == last.Step && p.Percent < last.Percent+every {
			return
		}
		last = p
		fmt.Fprintf(w, "image %s: %3d%% %s\n", name, p.Percent, p.Step)
	}
}
