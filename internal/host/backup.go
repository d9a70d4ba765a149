package host

import (
	"context"
)

// Contents is what the disk of a host has that a backup must have.
type Contents struct {
	Sandboxes []string `json:"sandboxes"` // by UID
	Volumes   []string `json:"volumes"`   // that no sandbox has for itself
	Images    []string `json:"images"`    // files, with their records
	ImagesDir string   `json:"imagesDir"` // where they are
}

// Contents returns what a backup must have.
func (h *Host) Contents(ctx context.Context) (c Contents, err error) {
	c.Sandboxes, c.ImagesDir = h.node.Sandboxes(), h.o.ImagesDir
	if c.Volumes, err = h.node.Volumes(ctx); err != nil {
		return c, err
	}
	used, err := h.node.ImageFiles()
	if err != nil {
		return c, err
	}
	named, err := h.o.Named(ctx)
	if err != nil {
		return c, err
	}
	c.Images, err = h.images.Lasting(used, named)
	return c, err
}

// Backup makes a directory with a sandbox: see [node.Node.Backup].
func (h *Host) Backup(ctx context.Context, uid, dir string) (left string, err error) {
	return h.node.Backup(ctx, uid, dir)
}

// BackupVolume copies a volume into a new file.
func (h *Host) BackupVolume(ctx context.Context, id, file string) error {
	return h.node.BackupVolume(ctx, id, file)
}
