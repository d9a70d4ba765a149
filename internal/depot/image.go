package depot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/vault"
)

// An image that was built or loaded never changes. It is saved once, by its reference, and any number
// of nodes may have it. Its file is among those that copies of sandboxes need, too.

const (
	// builtFile, of an image in the bucket, says what it is.
	builtFile = fleet.BuiltFile
	// builtMost bounds it, in bytes: the record of an image has up to 1 MiB, of which JSON in JSON
	// makes no more.
	builtMost = vault.ChunkBytes
	// imageEpoch is that of all images.
	imageEpoch = 1
)

// Images are the images of a node: a [disk.Library].
type Images interface {
	// HasBuilt reports whether an image is here.
	HasBuilt(ref string) bool
	// Built returns the file of an image that was built or loaded, and its record. One that is not
	// here is NotFound.
	Built(ref string) (file string, record []byte, err error)
	// Receive puts an image into the library whose record came from Built of another node.
	// The file is put into a directory by fetch, which returns its path.
	Receive(ctx context.Context, ref string, record []byte, fetch func(ctx context.Context, dir string) (string, error)) error
}

// built is what the bucket has of an image.
type built struct {
	Root   need            `json:"root"`
	Record json.RawMessage `json:"record"`
}

func parseBuilt(raw []byte) (b built, err error) {
	if err := json.Unmarshal(raw, &b); err != nil {
		return b, fmt.Errorf("what the bucket has of an image cannot be read: %w", err)
	}
	return b, b.Root.Check()
}

// SaveBuilt implements [fleet.Mover].
func (d *Depot) SaveBuilt(ctx context.Context, ref string) error {
	return d.inTurn(ctx, fleet.ImageObject(ref), func(ctx context.Context) error { return d.saveBuilt(ctx, ref) })
}

func (d *Depot) saveBuilt(ctx context.Context, ref string) (err error) {
	object := fleet.ImageObject(ref)
	has, err := d.Vault.Has(ctx, object)
	if err != nil || has {
		return err
	}
	_, key, err := d.right(ctx, ref)
	if err != nil {
		return err
	}
	start := time.Now()
	file, record, err := d.Images.Built(ref)
	if err != nil {
		return err
	}
	root, err := d.files.offer(ctx, file)
	if err != nil {
		return err
	}
	raw, err := json.Marshal(built{root, record})
	if err != nil {
		return err
	}
	if len(raw) > builtMost {
		return doze.Errorf(doze.TooLarge, "the record of the image is longer than %d bytes", builtMost)
	}
	dir, err := os.MkdirTemp(d.Dir, "image-") // Retain removes it after a crash
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.WriteFile(filepath.Join(dir, builtFile), raw, 0o600); err != nil {
		return err
	}
	tree, err := vault.Tree(dir)
	if err != nil {
		return err
	}
	hold := func(ctx context.Context) error { return d.files.hold(ctx, root) }
	if _, err := d.Vault.SaveIf(ctx, object, key, d.next(ctx, object, imageEpoch), tree, hold); err != nil {
		return err
	}
	slog.InfoContext(ctx, "an image is in the bucket", "image", ref, "took", time.Since(start))
	return nil
}

// HasBuilt reports whether the bucket has an image.
func (d *Depot) HasBuilt(ctx context.Context, ref string) (bool, error) {
	return d.Vault.Has(ctx, fleet.ImageObject(ref))
}

// FetchBuilt brings an image that another node made. One that is here stays.
func (d *Depot) FetchBuilt(ctx context.Context, ref string) error {
	return d.inTurn(ctx, fleet.ImageObject(ref), func(ctx context.Context) error { return d.fetchBuilt(ctx, ref) })
}

func (d *Depot) fetchBuilt(ctx context.Context, ref string) error {
	if d.Images.HasBuilt(ref) {
		return nil
	}
	object := fleet.ImageObject(ref)
	_, key, err := d.right(ctx, ref)
	if err != nil {
		return err
	}
	start := time.Now()
	c, err := d.Vault.Open(ctx, object, key)
	if errors.Is(err, vault.ErrNotFound) {
		return doze.Wrap(err, doze.Unavailable, "the image is on a node that is away, and the bucket has no copy of it: wait for the node, or build it again")
	}
	if err != nil {
		return err
	}
	raw, err := small(ctx, c, builtFile, builtMost)
	if err != nil {
		return err
	}
	b, err := parseBuilt(raw)
	if err != nil {
		return err
	}
	err = d.Images.Receive(ctx, ref, b.Record, func(ctx context.Context, dir string) (string, error) { return d.files.into(ctx, b.Root, dir) })
	if err != nil {
		return fmt.Errorf("get an image that was built: %w", err)
	}
	slog.InfoContext(ctx, "an image of another node is here", "image", ref, "took", time.Since(start))
	return nil
}
