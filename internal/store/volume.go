package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
)

// Volume is the record of a volume.
type Volume struct {
	doze.Volume
	ID string // what nodes know its disk by
}

// The phases of a volume. While it is made, only its name is taken.
const (
	volumeMaking = "making"
	VolumeReady  = "ready"
)

const (
	// volumeColumns say besides the name of the sandbox that has it.
	volumeColumns = `id, body, COALESCE((SELECT name FROM sandboxes WHERE sandboxes.uid = volumes.attached), '')`
	errNoVolume   = "there is no volume %.80q"
)

// InsertVolume adds a volume that is being made. A name that is taken is a
// Conflict; more than the workspace may have are Exhausted.
func (s *Store) InsertVolume(ctx context.Context, v Volume) error {
	body, err := json.Marshal(v.Volume)
	if err != nil {
		return wrap(err, "encode volume")
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		err := cmp.Or(
			s.checkQuota(ctx, tx, v.Metadata.Workspace, doze.QuotaVolumes, 1),
			s.checkQuota(ctx, tx, v.Metadata.Workspace, doze.QuotaVolumesSize, int64(v.Spec.Size)),
			s.checkQuota(ctx, tx, v.Metadata.Workspace, doze.QuotaDisk, int64(v.Spec.Size)),
		)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO volumes (id, workspace, name, external_id, search, phase, attached, created_at, body)
			VALUES ($1, $2, $3, $4, $5, $6, '', $7, $8)`,
			v.ID, v.Metadata.Workspace, v.Metadata.Name, v.Metadata.ExternalID, searchText(v.Metadata), volumeMaking,
			millis(v.Metadata.CreatedAt.Time), string(body))
		return err
	})
	if duplicate(err) {
		return &doze.Error{Kind: doze.Conflict, Name: doze.NameVolumeExists, Message: "the volume " + v.Metadata.Name + " already exists"}
	}
	return wrap(err, "insert volume")
}

// note adds a notice to the history of a volume, which forgets the oldest.
func (v *Volume) note(message string, at time.Time) {
	v.Events = append(v.Events, doze.Event{
		Type: doze.EventNotice, Status: doze.VolumeDeployed, Message: message, Time: doze.Time{Time: at},
	}.Revised(doze.FirstRevision))
	v.Events = v.Events[max(len(v.Events)-doze.VolumeEventsMax, 0):]
}

// FinishVolume notes that the disk of a volume is there.
func (s *Store) FinishVolume(ctx context.Context, id string) error {
	return gone(s.write.ExecContext(ctx, `UPDATE volumes SET phase = $1 WHERE id = $2`, VolumeReady, id))("the volume was deleted meanwhile")
}

// AbandonVolume removes the record of a volume that was being made; its disk
// remains to be removed.
func (s *Store) AbandonVolume(ctx context.Context, id string) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		if err := dropDisk(ctx, tx, id); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM volumes WHERE id = $1 AND phase = $2`, id, volumeMaking)
		return err
	})
	return wrap(err, "abandon a volume")
}

// UnfinishedVolumes returns the ids of those that are being made.
func (s *Store) UnfinishedVolumes(ctx context.Context) ([]string, error) {
	ids, err := collect(ctx, s.read, scanText, `SELECT id FROM volumes WHERE phase = $1`, volumeMaking)
	return ids, wrap(err, "read unfinished volumes")
}

// Volume returns a volume of a workspace by its name, or NotFound.
func (s *Store) Volume(ctx context.Context, workspace, name string) (Volume, error) {
	return volumeOf(ctx, s.read, workspace, name)
}

func volumeOf(ctx context.Context, q querier, workspace, name string) (Volume, error) {
	return one(ctx, q, scanVolume, fmt.Sprintf(errNoVolume, name),
		`SELECT `+volumeColumns+` FROM volumes WHERE workspace = $1 AND name = $2 AND phase = $3`, workspace, name, VolumeReady)
}

// VolumeByExternalID returns the youngest volume with an external id, or
// NotFound.
func (s *Store) VolumeByExternalID(ctx context.Context, workspace, id string) (Volume, error) {
	return one(ctx, s.read, scanVolume, fmt.Sprintf("no volume has the external id %.80q", id), `SELECT `+volumeColumns+` FROM volumes
		WHERE workspace = $1 AND external_id = $2 AND external_id <> '' AND phase = $3 ORDER BY created_at DESC, id LIMIT 1`, workspace, id, VolumeReady)
}

// ListVolumes returns a page of those of a workspace, in the manner of
// [Store.List].
func (s *Store) ListVolumes(ctx context.Context, q listing.Query, now time.Time) (p listing.Page[Volume], err error) {
	q.Terminated = false // of sandboxes only
	total, err := countIn(ctx, s.read, "volumes", q.Workspace)
	if err != nil {
		return p, wrap(err, "count volumes")
	}
	p, err = pageOf(ctx, s.read, listed[Volume]{
		table: "volumes", columns: volumeColumns, key: "id", ended: volumeMaking, scan: scanVolume, label: s.hasLabel,
		where: func(v Volume) listing.Cursor {
			return listing.Cursor{UID: v.ID, Name: v.Metadata.Name, Time: millis(v.Metadata.CreatedAt.Time)}
		},
	}, q, now)
	p.Total = total
	return p, wrap(err, "list volumes")
}

// ChangeVolume hands a volume to fn and writes what fn makes of it, in one
// transaction.
func (s *Store) ChangeVolume(ctx context.Context, workspace, name string, fn func(*Volume) error) (v Volume, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		if v, err = volumeOf(ctx, tx, workspace, name); err != nil {
			return err
		}
		was := v.Spec.Size
		if err := fn(&v); err != nil {
			return err
		}
		if v.Spec.Size != was {
			err := cmp.Or(
				s.checkQuota(ctx, tx, workspace, doze.QuotaVolumesSize, int64(v.Spec.Size-was)),
				s.checkQuota(ctx, tx, workspace, doze.QuotaDisk, int64(v.Spec.Size-was)),
			)
			if err != nil {
				return err
			}
			message := fmt.Sprintf("its size is %d MB now, it was %d MB", v.Spec.Size, was)
			if v.State.AttachedTo != "" {
				message += "; " + v.State.AttachedTo + " sees that on its next machine, after a redeploy or an archive"
			}
			v.note(message, v.Metadata.UpdatedAt.Time)
		}
		body, err := json.Marshal(v.Volume)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE volumes SET external_id = $1, search = $2, body = $3 WHERE id = $4`,
			v.Metadata.ExternalID, searchText(v.Metadata), string(body), v.ID)
		return err
	})
	return v, wrap(err, "change volume")
}

// DeleteVolume removes the record of a volume that nobody has and returns it;
// its disk remains to be removed. One that a sandbox has is a Conflict.
func (s *Store) DeleteVolume(ctx context.Context, workspace, name string) (v Volume, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		if v, err = volumeOf(ctx, tx, workspace, name); err != nil {
			return err
		}
		if err := dropDisk(ctx, tx, v.ID); err != nil {
			return err
		}
		err := gone(tx.ExecContext(ctx, `DELETE FROM volumes WHERE id = $1 AND attached = ''`, v.ID))("")
		if doze.Public(err).Kind == doze.NotFound {
			err = attached(v)
		}
		return err
	})
	return v, wrap(err, "delete volume")
}

// attached is the Conflict with the sandbox that has a volume.
func attached(v Volume) error {
	return &doze.Error{
		Kind: doze.Conflict, Name: doze.NameVolumeAttached,
		Message: "the volume " + v.Metadata.Name + " is attached to " + v.State.AttachedTo + ": it is free when that is deleted",
	}
}

// attach gives a sandbox the volumes of its spec. One that is not there is
// Invalid, one that another sandbox has is a Conflict.
func attach(ctx context.Context, tx *sql.Tx, sb *Sandbox) error {
	for i, a := range sb.Spec.Volumes {
		if a.Type != doze.VolumePersistent {
			continue
		}
		v, err := volumeOf(ctx, tx, sb.Metadata.Workspace, a.Name)
		if doze.Public(err).Kind == doze.NotFound {
			return doze.Errorf(doze.Invalid, "spec.volumes[%d].name is %q, and there is no such volume: create it first", i, a.Name)
		}
		if err != nil {
			return err
		}
		v.note("it is attached to the sandbox "+sb.Metadata.Name, sb.Metadata.CreatedAt.Time)
		err = hand(ctx, tx, v, "", sb.UID)
		if doze.Public(err).Kind == doze.NotFound {
			err = attached(v)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// detach frees the volumes of a sandbox.
func detach(ctx context.Context, tx *sql.Tx, sb *Sandbox, at time.Time) error {
	all, err := volumesOf(ctx, tx, sb.UID)
	if err != nil {
		return err
	}
	for _, v := range all {
		v.note("the sandbox "+sb.Metadata.Name+" is gone: it is free", at)
		if err := hand(ctx, tx, v, sb.UID, ""); err != nil {
			return err
		}
	}
	return nil
}

// hand gives a volume from one sandbox, or nobody, to another, or nobody. If the
// first does not have it, that is NotFound.
func hand(ctx context.Context, tx *sql.Tx, v Volume, from, to string) error {
	body, err := json.Marshal(v.Volume)
	if err != nil {
		return err
	}
	return gone(tx.ExecContext(ctx, `UPDATE volumes SET attached = $1, body = $2 WHERE id = $3 AND attached = $4`, to, string(body), v.ID, from))("")
}

// VolumesOf returns the volumes that a sandbox has, by name.
func (s *Store) VolumesOf(ctx context.Context, uid string) (map[string]Volume, error) {
	all, err := volumesOf(ctx, s.read, uid)
	byName := map[string]Volume{}
	for _, v := range all {
		byName[v.Metadata.Name] = v
	}
	return byName, wrap(err, "read the volumes of a sandbox")
}

func volumesOf(ctx context.Context, q querier, uid string) ([]Volume, error) {
	return collect(ctx, q, scanVolume, `SELECT `+volumeColumns+` FROM volumes WHERE attached = $1 AND attached <> ''`, uid)
}

// Disks returns the ids of all disks that are on record, besides those that
// were dropped.
func (s *Store) Disks(ctx context.Context) (map[string]bool, error) {
	ids, err := collect(ctx, s.read, scanText, `SELECT id FROM volumes UNION ALL SELECT id FROM volume_template_versions`)
	known := map[string]bool{}
	for _, id := range ids {
		known[id] = true
	}
	return known, wrap(err, "read disks")
}

// TemplateDisks returns the ids of the disks of all versions that are ready. They never change.
func (s *Store) TemplateDisks(ctx context.Context) (ids []string, err error) {
	all, err := collect(ctx, s.read, scanVersion, `SELECT `+versionColumns+` FROM volume_template_versions ORDER BY id`)
	for _, v := range all {
		if v.Status == doze.VersionReady {
			ids = append(ids, v.ID)
		}
	}
	return ids, wrap(err, "list the disks of volume templates")
}

// FreeVolumes returns the ids of the volumes that no sandbox has.
func (s *Store) FreeVolumes(ctx context.Context) ([]string, error) {
	ids, err := collect(ctx, s.read, scanText, `SELECT id FROM volumes WHERE phase = $1 AND attached = '' ORDER BY id`, VolumeReady)
	return ids, wrap(err, "read free volumes")
}

// DropDisk notes that nobody needs a disk.
func (s *Store) DropDisk(ctx context.Context, id string) error {
	return wrap(s.update(ctx, func(tx *sql.Tx) error { return dropDisk(ctx, tx, id) }), "drop a disk")
}

func dropDisk(ctx context.Context, tx *sql.Tx, id string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO dropped_disks (id) VALUES ($1) ON CONFLICT (id) DO NOTHING`, id)
	return err
}

// DroppedDisks returns up to limit disks that nodes may still have and that
// nobody needs.
func (s *Store) DroppedDisks(ctx context.Context, limit int) ([]string, error) {
	ids, err := collect(ctx, s.read, scanText, `SELECT id FROM dropped_disks LIMIT $1`, limit)
	return ids, wrap(err, "read dropped disks")
}

// ForgetDisk notes that nothing of a dropped disk is left.
func (s *Store) ForgetDisk(ctx context.Context, id string) error {
	_, err := s.write.ExecContext(ctx, `DELETE FROM dropped_disks WHERE id = $1`, id)
	return wrap(err, "forget a disk")
}

func scanVolume(r row) (v Volume, err error) {
	var body, sandbox string
	if err := r.Scan(&v.ID, &body, &sandbox); err != nil {
		return v, err
	}
	v.Metadata.Plan = doze.Plan // records of earlier versions have none
	if err := json.Unmarshal([]byte(body), &v.Volume); err != nil {
		return v, fmt.Errorf("the body of volume %s is damaged: %w", v.ID, err)
	}
	v.Status, v.State = doze.VolumeDeployed, doze.VolumeState{}
	if sandbox != "" {
		v.State.AttachedTo = "sandbox:" + sandbox
	}
	return v, nil
}
