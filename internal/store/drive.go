package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
)

// Drive is the record of a drive.
type Drive struct {
	doze.Drive
	ID string // where it is in the bucket
}

// DriveReady is the phase of every drive.
const DriveReady = "ready"

const (
	driveColumns = `id, body`
	errNoDrive   = "there is no drive %.80q"
)

// InsertDrive adds a drive. A name that is taken is a Conflict; more than
// [doze.DrivesMax] in a workspace are Exhausted.
func (s *Store) InsertDrive(ctx context.Context, d Drive) error {
	body, err := json.Marshal(d.Drive)
	if err != nil {
		return wrap(err, "encode drive")
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		if err := checkRoom(ctx, tx, "drives", d.Metadata.Workspace, doze.DrivesMax); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO drives (id, workspace, name, external_id, search, phase, created_at, body)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
			d.ID, d.Metadata.Workspace, d.Metadata.Name, d.Metadata.ExternalID, searchText(d.Metadata), DriveReady,
			millis(d.Metadata.CreatedAt.Time), string(body))
		return err
	})
	if duplicate(err) {
		return &doze.Error{Kind: doze.Conflict, Name: doze.NameDriveExists, Message: "the drive " + d.Metadata.Name + " already exists"}
	}
	return wrap(err, "insert drive")
}

// Drive returns a drive of a workspace by its name, or NotFound.
func (s *Store) Drive(ctx context.Context, workspace, name string) (Drive, error) {
	return driveOf(ctx, s.read, workspace, name)
}

func driveOf(ctx context.Context, q querier, workspace, name string) (Drive, error) {
	return one(ctx, q, scanDrive, fmt.Sprintf(errNoDrive, name),
		`SELECT `+driveColumns+` FROM drives WHERE workspace = $1 AND name = $2`, workspace, name)
}

// DriveByExternalID returns the youngest drive with an external id, or NotFound.
func (s *Store) DriveByExternalID(ctx context.Context, workspace, id string) (Drive, error) {
	return one(ctx, s.read, scanDrive, fmt.Sprintf("no drive has the external id %.80q", id), `SELECT `+driveColumns+` FROM drives
		WHERE workspace = $1 AND external_id = $2 AND external_id <> '' ORDER BY created_at DESC, id LIMIT 1`, workspace, id)
}

// ListDrives returns a page of those of a workspace, in the manner of
// [Store.List].
func (s *Store) ListDrives(ctx context.Context, q listing.Query, now time.Time) (p listing.Page[Drive], err error) {
	q.Terminated = true // of sandboxes only: a drive ends at once
	total, err := countIn(ctx, s.read, "drives", q.Workspace)
	if err != nil {
		return p, wrap(err, "count drives")
	}
	p, err = pageOf(ctx, s.read, listed[Drive]{
		table: "drives", columns: driveColumns, key: "id", scan: scanDrive, label: s.hasLabel,
		where: func(d Drive) listing.Cursor {
			return listing.Cursor{UID: d.ID, Name: d.Metadata.Name, Time: millis(d.Metadata.CreatedAt.Time)}
		},
	}, q, now)
	p.Total = total
	return p, wrap(err, "list drives")
}

// ChangeDrive hands a drive to fn and writes what fn makes of it, in one
// transaction.
func (s *Store) ChangeDrive(ctx context.Context, workspace, name string, fn func(*Drive) error) (d Drive, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		if d, err = driveOf(ctx, tx, workspace, name); err != nil {
			return err
		}
		if err := fn(&d); err != nil {
			return err
		}
		body, err := json.Marshal(d.Drive)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE drives SET external_id = $1, search = $2, body = $3 WHERE id = $4`,
			d.Metadata.ExternalID, searchText(d.Metadata), string(body), d.ID)
		return err
	})
	return d, wrap(err, "change drive")
}

// DeleteDrive removes the record of a drive; what is in the bucket remains to be
// removed.
func (s *Store) DeleteDrive(ctx context.Context, id string) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO dropped_drives (id) VALUES ($1) ON CONFLICT (id) DO NOTHING`, id); err != nil {
			return err
		}
		return gone(tx.ExecContext(ctx, `DELETE FROM drives WHERE id = $1`, id))("the drive was deleted meanwhile")
	})
	return wrap(err, "delete drive")
}

// DroppedDrives returns up to limit drives that the bucket may still have and
// that nobody needs.
func (s *Store) DroppedDrives(ctx context.Context, limit int) ([]string, error) {
	ids, err := collect(ctx, s.read, scanText, `SELECT id FROM dropped_drives LIMIT $1`, limit)
	return ids, wrap(err, "read dropped drives")
}

// ForgetDrive notes that nothing of a dropped drive is left.
func (s *Store) ForgetDrive(ctx context.Context, id string) error {
	_, err := s.write.ExecContext(ctx, `DELETE FROM dropped_drives WHERE id = $1`, id)
	return wrap(err, "forget a drive")
}

func scanDrive(r row) (d Drive, err error) {
	var body string
	if err := r.Scan(&d.ID, &body); err != nil {
		return d, err
	}
	d.Metadata.Plan = doze.Plan // records of earlier versions have none
	if err := json.Unmarshal([]byte(body), &d.Drive); err != nil {
		return d, fmt.Errorf("the body of drive %s is damaged: %w", d.ID, err)
	}
	d.Status = doze.DriveDeployed
	return d, nil
}
