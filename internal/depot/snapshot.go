package depot

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/vault"
)

// A snapshot never changes. It is saved once, by its own id, and any number of nodes may have
// it.

// snapshotEpoch is that of all snapshots.
const snapshotEpoch = 1

// SaveSnapshot implements [fleet.Mover].
func (d *Depot) SaveSnapshot(ctx context.Context, id string) error {
	return d.inTurn(ctx, fleet.SnapshotObject(id), func(ctx context.Context) error { return d.saveSnapshot(ctx, id) })
}

func (d *Depot) saveSnapshot(ctx context.Context, id string) error {
	object := fleet.SnapshotObject(id)
	has, err := d.Vault.Has(ctx, object)
	if err != nil || has {
		return err
	}
	_, key, err := d.right(ctx, object)
	if err != nil {
		return err
	}
	start := time.Now()
	dir, needs, err := d.node.SnapshotOut(id)
	if err != nil {
		return err
	}
	sent, err := d.files.send(ctx, dir, needs, nil)
	if err != nil {
		return err
	}
	tree, err := vault.Tree(dir)
	if err != nil {
		return err
	}
	saved, err := d.Vault.SaveIf(ctx, object, key, d.next(ctx, object, snapshotEpoch), tree, func(ctx context.Context) error { return d.files.hold(ctx, sent.Root, sent.Agent) })
	if err != nil {
		return err
	}
	slog.InfoContext(ctx, "a snapshot is in the bucket", "snapshot", id, "took", time.Since(start), "sent", saved.SentBytes, "of", saved.ChunkBytes)
	return nil
}

// FetchSnapshot brings a snapshot that another node made. One that is here stays.
func (d *Depot) FetchSnapshot(ctx context.Context, id string) error {
	life, release, err := d.locks.Take(ctx, fleet.SnapshotObject(id))
	if err != nil {
		return err
	}
	defer release()
	turn, cancel := context.WithCancel(life)
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	if d.node.HasSnapshot(id) {
		return nil
	}
	_, key, err := d.right(turn, fleet.SnapshotObject(id))
	if err != nil {
		return err
	}
	dir, err := d.node.Incoming(id)
	if err != nil {
		return err
	}
	start := time.Now()
	_, err = d.Vault.Load(turn, fleet.SnapshotObject(id), key, dir)
	if errors.Is(err, vault.ErrNotFound) {
		return doze.Wrap(err, doze.Unavailable, "the snapshot is on a node that is away, and the bucket has no copy of it: wait for the node")
	}
	if err != nil {
		return err
	}
	needs, err := readNeeds(dir)
	if err != nil {
		return err
	}
	has, err := d.files.fetch(turn, needs)
	if err != nil {
		return err
	}
	if err := d.node.SnapshotIn(id, has); err != nil {
		return err
	}
	slog.InfoContext(ctx, "a snapshot of another node is here", "snapshot", id, "took", time.Since(start))
	return nil
}
