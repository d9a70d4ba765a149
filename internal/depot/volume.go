package depot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/node"
	"github.com/dozehq/doze/internal/vault"
)

// A volume is in the bucket by its own id, with its own key and epochs, since it outlives
// sandboxes. The copy of a sandbox names the generations of its volumes that are of the same
// moment. Those are saved first, and the older ones go after the copy of the sandbox counts.

// volumeFile is the name of the file of a volume in the bucket.
const volumeFile = "image"

// volumesMost is how many volumes a copy may name.
const volumesMost = 64

// A held volume is one that a copy needs, as it was then.
type held struct {
	ID    string `json:"id"`
	Epoch uint64 `json:"epoch"`
	Seq   uint64 `json:"seq"`
}

func (h held) generation() vault.Generation { return vault.Generation{Epoch: h.Epoch, Seq: h.Seq} }

func (h held) check() error {
	if !fleet.VolumeForm.MatchString(fleet.VolumeObject(h.ID)) {
		return fmt.Errorf("the copy needs a volume that nobody can name: %.80q", h.ID)
	}
	return nil
}

// next is a generation of an epoch. It is newer than all in the bucket, also those that may be on
// their way there, and than all that this depot returned before.
func (d *Depot) next(ctx context.Context, id string, epoch uint64) vault.Generation {
	d.mu.Lock()
	d.seq = max(d.seq+1, uint64(time.Now().UnixNano()))
	g := vault.Generation{Epoch: epoch, Seq: d.seq}
	d.mu.Unlock()
	if last, err := d.Vault.Last(ctx, id, epoch); err == nil {
		g.Seq = max(g.Seq, last.Seq+1) // the clock of the host may have been set back
	}
	return g
}

// putVolume saves the file of a volume, which does not change meanwhile. Chunks that the bucket
// has are not sent: each is read and hashed to find out. The owner has the volume, if it is a copy
// of what a sandbox has. If another one has it by now, the copy may be older than what was saved.
func (d *Depot) putVolume(ctx context.Context, id, file, owner string) (h held, err error) {
	epoch, key, err := d.right(ctx, fleet.VolumeObject(id))
	if err != nil {
		return h, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return h, err
	}
	start, object := time.Now(), fleet.VolumeObject(id)
	g := d.next(ctx, object, epoch) // a sandbox that gets the volume after the next line gets a higher one
	if now := d.node.Travels().Owner(id); now != owner {
		return h, doze.Errorf(doze.Conflict, "the volume %s went from the sandbox while it was copied", id)
	}
	tree := []vault.File{{Name: volumeFile, Mode: 0o600, Size: info.Size(), Open: func() (*os.File, error) { return os.Open(file) }}}
	saved, err := d.Vault.Save(ctx, object, key, g, tree)
	if err != nil {
		return h, fmt.Errorf("copy the volume %s: %w", id, err)
	}
	slog.InfoContext(ctx, "a volume is in the bucket", "volume", id, "took", time.Since(start), "sent", saved.SentBytes, "of", saved.ChunkBytes)
	return held{id, g.Epoch, g.Seq}, nil
}

// tidyVolume removes older generations of a volume that no copy needs any more.
func (d *Depot) tidyVolume(ctx context.Context, id string) {
	_, key, err := d.right(ctx, fleet.VolumeObject(id))
	if err == nil {
		_, err = d.Vault.Sweep(ctx, fleet.VolumeObject(id), key, copiesMost, sweepGrace)
	}
	if err != nil {
		slog.WarnContext(ctx, "older copies of a volume stay in the bucket", "volume", id, "err", err)
	}
}

// putVolumes saves the volumes of a copy in a directory.
func (d *Depot) putVolumes(ctx context.Context, dir, uid string, ids []string) (all []held, err error) {
	for _, id := range ids {
		h, err := d.putVolume(ctx, id, filepath.Join(dir, node.VolumesName, id), uid)
		if err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	return all, nil
}

// without leaves the files of volumes that are saved by themselves out of the tree of a copy.
func without(tree []vault.File, ids []string) []vault.File {
	return slices.DeleteFunc(tree, func(f vault.File) bool {
		dir, name := path.Split(f.Name)
		return dir == node.VolumesName+"/" && slices.Contains(ids, name)
	})
}

// getVolumes brings the volumes that a copy needs to this node, as they were then.
func (d *Depot) getVolumes(ctx context.Context, all []held) error {
	for _, h := range all {
		epoch, key, err := d.right(ctx, fleet.VolumeObject(h.ID))
		if err != nil {
			return err
		}
		// From here on, the node before saves nothing that counts.
		if _, err := d.Vault.Claim(ctx, fleet.VolumeObject(h.ID), epoch); err != nil {
			return err
		}
		if err := d.getVolume(ctx, h, epoch, key); err != nil {
			return err
		}
	}
	return nil
}

// getVolume brings one generation of a volume to this node.
func (d *Depot) getVolume(ctx context.Context, h held, epoch uint64, key vault.Key) error {
	start := time.Now()
	c, err := d.Vault.OpenAt(ctx, fleet.VolumeObject(h.ID), key, h.generation())
	if err != nil {
		return fmt.Errorf("get the volume %s: %w", h.ID, err)
	}
	files := c.Files()
	if len(files) != 1 || files[0].Name != volumeFile {
		return fmt.Errorf("get the volume %s: it has %d files in the bucket", h.ID, len(files))
	}
	size := files[0].Size
	err = d.node.Travels().Receive(h.ID, epoch, size, func(to *os.File) error { return c.Fetch(ctx, volumeFile, to) })
	if doze.Public(err).Kind == doze.Exhausted {
		err = errors.Join(fleet.ErrFull, err) // another node may have room
	}
	if err != nil {
		return fmt.Errorf("get the volume %s: %w", h.ID, err)
	}
	slog.InfoContext(ctx, "a volume of another node is here", "volume", h.ID, "took", time.Since(start), "size", size, "data", files[0].Data)
	return nil
}

// SaveVolume implements [fleet.Mover].
func (d *Depot) SaveVolume(ctx context.Context, id string) error {
	return d.inTurn(ctx, fleet.VolumeObject(id), func(ctx context.Context) error { return d.saveVolume(ctx, id) })
}

func (d *Depot) saveVolume(ctx context.Context, id string) error {
	epoch, _, err := d.right(ctx, fleet.VolumeObject(id))
	if err != nil {
		return err
	}
	travels := d.node.Travels()
	here, err := travels.Epoch(id)
	if err != nil {
		return err
	}
	last, err := d.Vault.Head(ctx, fleet.VolumeObject(id))
	if err != nil && !errors.Is(err, vault.ErrNotFound) {
		return err
	}
	if here < epoch && last != (vault.Generation{}) {
		return nil // it has not come here yet, and is in the bucket as it was
	}
	return travels.Lend(ctx, id, func(ctx context.Context, file string) error {
		if known, err := travels.Saved(id); err != nil || known != "" && known == last.String() {
			return err
		}
		h, err := d.putVolume(ctx, id, file, "")
		if err != nil {
			return err
		}
		d.tidyVolume(ctx, id)
		return travels.SetSaved(id, h.generation().String())
	})
}

// FetchTemplate brings a volume that never changes, and that another node had. One that is here
// stays, in whichever epoch it came.
func (d *Depot) FetchTemplate(ctx context.Context, id string) error {
	return d.inTurn(ctx, fleet.VolumeObject(id), func(ctx context.Context) error {
		here, err := d.node.Travels().Epoch(id)
		if err != nil || here > 0 {
			return err
		}
		epoch, _, err := d.right(ctx, fleet.VolumeObject(id))
		if err != nil {
			return err
		}
		return d.FetchVolumes(ctx, []fleet.Volume{{ID: id, Epoch: epoch}})
	})
}

// FetchVolumes brings volumes of an order that other nodes had, and that no sandbox had since.
func (d *Depot) FetchVolumes(ctx context.Context, all []fleet.Volume) error {
	for _, v := range all {
		if v.ID == "" || v.Epoch == 0 { // a platform of one node has no epochs
			continue
		}
		here, err := d.node.Travels().Epoch(v.ID)
		if err != nil {
			return err
		}
		if here >= v.Epoch {
			continue
		}
		epoch, key, err := d.right(ctx, fleet.VolumeObject(v.ID))
		if err != nil {
			return err
		}
		g, err := d.Vault.Claim(ctx, fleet.VolumeObject(v.ID), epoch)
		if err != nil {
			return err
		}
		if g == (vault.Generation{}) {
			return doze.Errorf(doze.Unavailable, "the bucket has no copy of a volume that another node had")
		}
		if err := d.getVolume(ctx, held{v.ID, g.Epoch, g.Seq}, epoch, key); err != nil {
			return err
		}
	}
	return nil
}
