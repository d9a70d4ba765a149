package store

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/dozehq/doze"
)

// What is on record of things that nodes have, and what becomes of it when a node was destroyed
// that alone had them.

// AllVolumes returns all volumes of all workspaces, besides those that are being made.
func (s *Store) AllVolumes(ctx context.Context) ([]Volume, error) {
	all, err := collect(ctx, s.read, scanVolume, `SELECT `+volumeColumns+` FROM volumes WHERE phase = $1 ORDER BY id`, VolumeReady)
	return all, wrap(err, "list all volumes")
}

// ReadyVersions returns the versions of all volume templates that have their files.
func (s *Store) ReadyVersions(ctx context.Context) ([]Version, error) {
	all, err := collect(ctx, s.read, scanVersion, `SELECT `+versionColumns+` FROM volume_template_versions ORDER BY id`)
	return slices.DeleteFunc(all, func(v Version) bool { return v.Status != doze.VersionReady }), wrap(err, "list the versions of volume templates")
}

// AllImages returns the images of all workspaces.
func (s *Store) AllImages(ctx context.Context) ([]doze.Image, error) {
	all, err := collect(ctx, s.read, scanImage, `SELECT body FROM images ORDER BY workspace, name`)
	return all, wrap(err, "list all images")
}

// LoseVolume removes the record of a volume whose disk is lost. The sandbox that has it gets an
// event. A volume that is gone is no error.
func (s *Store) LoseVolume(ctx context.Context, id, why string, at time.Time) error {
	uid, err := one(ctx, s.read, scanText, "", `SELECT attached FROM volumes WHERE id = $1`, id)
	if doze.Public(err).Kind == doze.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if uid != "" { // before the record goes: the next try says it again
		if err := s.Notify(ctx, uid, why, at); err != nil && doze.Public(err).Kind != doze.NotFound {
			return err
		}
	}
	_, err = s.write.ExecContext(ctx, `DELETE FROM volumes WHERE id = $1`, id)
	return wrap(err, "lose a volume")
}

// NoteVolume adds a notice to the events of a volume. A volume that is gone is no error.
func (s *Store) NoteVolume(ctx context.Context, id, message string, at time.Time) error {
	v, err := one(ctx, s.read, scanVolume, "", `SELECT `+volumeColumns+` FROM volumes WHERE id = $1`, id)
	if err == nil {
		_, err = s.ChangeVolume(ctx, v.Metadata.Workspace, v.Metadata.Name, func(now *Volume) error {
			if now.ID == id {
				now.note(message, at)
			}
			return nil
		})
	}
	if doze.Public(err).Kind == doze.NotFound {
		return nil
	}
	return err
}

// LoseVersion says that a version of a volume template lost its files. They can be uploaded again. A
// version that is gone is no error.
func (s *Store) LoseVersion(ctx context.Context, id string) error {
	v, err := s.VersionByID(ctx, id)
	if err == nil {
		v.Status, v.ContentSize, v.Uploaded = doze.VersionFailed, 0, doze.Time{}
		err = s.WriteVersion(ctx, v)
	}
	if doze.Public(err).Kind == doze.NotFound {
		return nil
	}
	return err
}

// LoseImage removes the tags that mean an image whose files are lost, in all workspaces.
func (s *Store) LoseImage(ctx context.Context, ref string) error {
	return wrap(s.update(ctx, func(tx *sql.Tx) error {
		all, err := collect(ctx, tx, scanImage, `SELECT body FROM images`)
		if err != nil {
			return err
		}
		for _, i := range all {
			had := len(i.Spec.Tags)
			i.Spec.Tags = slices.DeleteFunc(i.Spec.Tags, func(t doze.ImageTag) bool { return t.Image == ref })
			switch {
			case len(i.Spec.Tags) == had:
				continue
			case len(i.Spec.Tags) == 0:
				_, err = tx.ExecContext(ctx, `DELETE FROM images WHERE workspace = $1 AND name = $2`, i.Metadata.Workspace, i.Metadata.Name)
			default:
				err = putImage(ctx, tx, i)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}), "lose an image")
}
