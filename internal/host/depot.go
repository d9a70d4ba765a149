package host

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/depot"
	"github.com/dozehq/doze/internal/drive"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/node"
	"github.com/dozehq/doze/internal/vault"
)

// findTime is how long a start waits for the bucket.
const findTime = 5 * time.Second

// errNoBucket is for what needs copies of sandboxes.
var errNoBucket = doze.Errorf(doze.Unsupported, "this platform has no bucket for checkpoints, so no sandbox can move: its operator names one with --remote and --remote-credentials")

// openDepot opens the bucket of copies, and removes files that came with copies and that
// nobody needs any more.
func (h *Host) openDepot(ctx context.Context) error {
	if h.o.Remote.URL == "" || h.o.Rights == nil {
		return nil
	}
	bucket, err := drive.Open(h.o.Remote)
	if err != nil {
		return err
	}
	client, name := bucket.Client()
	v, err := vault.New(client, name, vault.Options{Bandwidth: h.o.RemoteBandwidth})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, findTime)
	defer cancel()
	if err := bucket.Check(ctx); err != nil {
		slog.WarnContext(ctx, "the bucket of checkpoints cannot be used: sandboxes of this node are on this node alone", "bucket", bucket.URL(), "err", err)
	}
	local := []string{filepath.Join(h.o.ImagesDir, "images"), filepath.Join(h.o.Data, "agents", "images")}
	h.depot, err = depot.New(depot.Options{
		Vault: v, Rights: h.o.Rights, ID: h.o.ID, After: h.o.RemoteAfter, Every: h.o.RemoteEvery, Dir: filepath.Join(h.o.Data, "foreign"), Local: local,
		Images: h.images,
	}, h.node)
	if err != nil {
		return err
	}
	close(h.stocked)
	roots, err := h.node.ImageFiles()
	if err != nil {
		return err
	}
	agents, all := h.node.Agents()
	if !all {
		return nil // one may be needed that nobody can name
	}
	return h.depot.Retain(func(path string) bool { return slices.Contains(roots, path) || slices.Contains(agents, path) })
}

// fetchCopy is how the node gets copies from the bucket, or nil if it has none.
func (h *Host) fetchCopy() func(context.Context, string) (node.Files, error) {
	if h.o.Remote.URL == "" || h.o.Rights == nil {
		return nil
	}
	return func(ctx context.Context, uid string) (node.Files, error) {
		select {
		case <-h.stocked: // the node is open before its depot is
		case <-ctx.Done():
			return node.Files{}, context.Cause(ctx)
		}
		return h.depot.Fetch(ctx, uid)
	}
}

// Depart implements [fleet.Mover].
func (n Node) Depart(ctx context.Context, uid string) error {
	if n.depot == nil {
		return errNoBucket
	}
	if n.Rests(uid) {
		return nil // the bucket has it as it is
	}
	return n.depot.Depart(ctx, uid)
}

// Revive implements [fleet.Mover].
func (n Node) Revive(ctx context.Context, o fleet.Order, used time.Time, ran bool) (time.Time, error) {
	if n.depot == nil {
		return time.Time{}, errNoBucket
	}
	at, err := n.depot.Revive(ctx, o, used, ran)
	if err == nil && n.Buried(&o) {
		err = n.Unarchive(ctx, o)
	}
	return at, err
}

// SaveVolume implements [fleet.Mover].
func (n Node) SaveVolume(ctx context.Context, id string) error {
	if n.depot == nil {
		return errNoBucket
	}
	return n.depot.SaveVolume(ctx, id)
}

// SaveSnapshot implements [fleet.Mover].
func (n Node) SaveSnapshot(ctx context.Context, id string) error {
	if n.depot == nil {
		return errNoBucket
	}
	return n.depot.SaveSnapshot(ctx, id)
}

// SaveBuilt implements [fleet.Mover].
func (n Node) SaveBuilt(ctx context.Context, ref string) error {
	if n.depot == nil {
		return errNoBucket
	}
	return n.depot.SaveBuilt(ctx, ref)
}

// CheckImage implements [fleet.Node]: what another node built may come.
func (n Node) CheckImage(ctx context.Context, ref string) error {
	err := n.Node.CheckImage(ctx, ref)
	if err == nil || n.depot == nil || !strings.HasPrefix(ref, doze.BuiltPrefix) {
		return err
	}
	has, none := n.depot.HasBuilt(ctx, ref)
	if has {
		return nil
	}
	return errors.Join(err, none)
}

// bring has an image here that another node built.
func (h *Host) bring(ctx context.Context, ref string) error {
	if !strings.HasPrefix(ref, doze.BuiltPrefix) || h.depot == nil || h.images.HasBuilt(ref) {
		return nil
	}
	return h.depot.FetchBuilt(ctx, ref)
}

// MakeVolume implements [fleet.Node]: a template that another node had comes first.
func (n Node) MakeVolume(ctx context.Context, id string, size doze.Megabytes, from string) error {
	if n.depot != nil && from != "" {
		if err := n.depot.FetchTemplate(ctx, from); err != nil {
			return err
		}
	}
	return n.Node.MakeVolume(ctx, id, size, from)
}

// Create implements [fleet.Node]: volumes and the snapshot that other nodes had come first.
func (n Node) Create(ctx context.Context, o fleet.Order) error {
	if n.depot != nil {
		err := n.depot.FetchVolumes(ctx, o.Volumes)
		if err == nil && o.From != "" && !n.HasSnapshot(o.From) {
			err = n.depot.FetchSnapshot(ctx, o.From)
		}
		if err != nil {
			if !n.Has(o.UID) { // what was claimed for it
				err = errors.Join(err, n.Delete(context.WithoutCancel(ctx), o.UID))
			}
			return err
		}
	}
	return n.Node.Create(ctx, o)
}
