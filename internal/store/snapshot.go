package store

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
)

// Snapshot is the record of a snapshot.
type Snapshot struct {
	doze.Snapshot
	UID       string // of its sandbox
	Authority string // likewise, which all that goes on from it has
	// Heir is what a fork gets besides the machine: variables that are no
	// secrets, when it ends, and the network, which is that of the sandbox today,
	// or was at its end.
	Heir doze.SandboxSpec
	// Withheld is how many routing rules no fork gets, since they have secrets.
	Withheld int
	// Passing says that it was taken for a fork, of which nobody has an answer
	// yet. A crash leaves it to be removed.
	Passing bool
}

// snapshotContent is the body of a record. The name of the member of each is
// part of the file format.
type snapshotContent struct {
	Snapshot  doze.Snapshot    `json:"snapshot"`
	Heir      doze.SandboxSpec `json:"heir"`
	Withheld  int              `json:"withheld,omitempty"`
	Passing   bool             `json:"passing,omitempty"`
	Authority string           `json:"authority,omitempty"`
}

// encode returns the body of a record.
func (n *Snapshot) encode() ([]byte, error) {
	return json.Marshal(snapshotContent{n.Snapshot, n.Heir, n.Withheld, n.Passing, n.Authority})
}

const (
	// snapshotColumns say besides whether the sandbox is gone.
	snapshotColumns = `id, uid, phase, body, NOT EXISTS (SELECT 1 FROM sandboxes WHERE sandboxes.uid = snapshots.uid AND sandboxes.` + alive + `)`
	// snapshotGone is the phase of a snapshot that nobody sees any more and
	// whose files a node may still have.
	snapshotGone = "gone"
	errNoSnap    = "there is no snapshot %.80q"
)

// InsertSnapshot adds a snapshot that is being made. A name that another one
// of its sandbox has is a Conflict; more than the workspace may have are
// Exhausted.
func (s *Store) InsertSnapshot(ctx context.Context, n Snapshot) error {
	n.Status = doze.SnapshotPending
	body, err := n.encode()
	if err != nil {
		return wrap(err, "encode snapshot")
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		err := cmp.Or(
			s.checkQuota(ctx, tx, n.Workspace, doze.QuotaSnapshots, 1),
			s.checkQuota(ctx, tx, n.Workspace, doze.QuotaDisk, int64(snapshotMost(n.Spec))),
		)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO snapshots (id, workspace, uid, name, search, phase, created_at, body)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
			n.ID, n.Workspace, n.UID, n.Name, strings.ToLower(n.Name+between+n.SandboxName), string(n.Status), millis(n.CreatedAt.Time), string(body))
		return err
	})
	if duplicate(err) {
		return doze.Errorf(doze.Conflict, "the sandbox has a snapshot %s already", n.Name)
	}
	return wrap(err, "insert snapshot")
}

// countSnapshots is how many a workspace has.
func countSnapshots(ctx context.Context, q querier, workspace string) (int, error) {
	return one(ctx, q, scanNumber, "",
		`SELECT COUNT(*) FROM snapshots WHERE workspace = $1 AND phase <> $2`, workspace, snapshotGone)
}

// FinishSnapshot notes that a pending snapshot is complete.
func (s *Store) FinishSnapshot(ctx context.Context, id string, bytes int64) (Snapshot, error) {
	return s.settle(ctx, id, func(n *Snapshot) bool {
		was := n.Status
		n.Status, n.Bytes = doze.SnapshotReady, bytes
		return was == doze.SnapshotPending
	})
}

// FailSnapshot notes that a snapshot cannot be used, and why. It holds its name
// no longer.
func (s *Store) FailSnapshot(ctx context.Context, id, why string) error {
	_, err := s.settle(ctx, id, func(n *Snapshot) bool {
		n.Status, n.Message = doze.SnapshotFailed, why
		return true
	})
	return err
}

// StaySnapshot notes that a snapshot that was taken for a fork stays.
func (s *Store) StaySnapshot(ctx context.Context, id string) error {
	_, err := s.settle(ctx, id, func(n *Snapshot) bool {
		n.Passing = false
		return true
	})
	return err
}

// settle writes what change makes of a snapshot that is not dropped. If change
// reports false, the snapshot is not what its caller took it for.
func (s *Store) settle(ctx context.Context, id string, change func(*Snapshot) bool) (n Snapshot, err error) {
	err = s.update(ctx, func(tx *sql.Tx) error {
		n, err = one(ctx, tx, scanSnapshot, "the snapshot was deleted meanwhile",
			`SELECT `+snapshotColumns+` FROM snapshots WHERE id = $1 AND phase <> $2`, id, snapshotGone)
		if err != nil {
			return err
		}
		if !change(&n) {
			return doze.Errorf(doze.Conflict, "the snapshot is not being made any more")
		}
		return saveSnapshot(ctx, tx, &n)
	})
	return n, wrap(err, "change snapshot")
}

func saveSnapshot(ctx context.Context, tx *sql.Tx, n *Snapshot) error {
	body, err := n.encode()
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE snapshots SET phase = $1, body = $2 WHERE id = $3`, string(n.Status), string(body), n.ID)
	return err
}

// bequeath has forks of all snapshots of a sandbox get the network that it has
// now: a rule that was added must not be lost by way of an old snapshot.
func bequeath(ctx context.Context, tx *sql.Tx, sb *Sandbox) error {
	all, err := collect(ctx, tx, scanSnapshot,
		`SELECT `+snapshotColumns+` FROM snapshots WHERE uid = $1 AND phase <> $2`, sb.UID, snapshotGone)
	if err != nil {
		return err
	}
	for _, n := range all {
		n.Heir.Network, n.Withheld = sb.Spec.Network.Heir()
		if err := saveSnapshot(ctx, tx, &n); err != nil {
			return err
		}
	}
	return nil
}

// Snapshots returns those of a sandbox, newest first.
func (s *Store) Snapshots(ctx context.Context, uid string) ([]Snapshot, error) {
	all, err := collect(ctx, s.read, scanSnapshot, `SELECT `+snapshotColumns+` FROM snapshots
		WHERE uid = $1 AND phase <> $2 ORDER BY created_at DESC, id DESC`, uid, snapshotGone)
	return all, wrap(err, "list snapshots")
}

// ListSnapshots returns a page of those of a workspace, in the manner of
// [Store.List].
func (s *Store) ListSnapshots(ctx context.Context, q listing.Query, now time.Time) (p listing.Page[Snapshot], err error) {
	q.ExternalID, q.Terminated = "", false // of sandboxes only
	total, err := countSnapshots(ctx, s.read, q.Workspace)
	if err != nil {
		return p, wrap(err, "count snapshots")
	}
	p, err = pageOf(ctx, s.read, listed[Snapshot]{
		table: "snapshots", columns: snapshotColumns, key: "id", ended: snapshotGone, scan: scanSnapshot,
		where: func(n Snapshot) listing.Cursor {
			return listing.Cursor{UID: n.ID, Name: n.Name, Time: millis(n.CreatedAt.Time)}
		},
	}, q, now)
	p.Total = total
	return p, wrap(err, "list snapshots")
}

// Snapshot returns a snapshot of a workspace by its id or its name: that of a
// sandbox, or of any for the empty uid. One that failed gives way to another
// of its name; a name that several have is a Conflict.
func (s *Store) Snapshot(ctx context.Context, workspace, uid, asked string) (Snapshot, error) {
	all, err := collect(ctx, s.read, scanSnapshot, `SELECT `+snapshotColumns+` FROM snapshots
		WHERE workspace = $1 AND (uid = $2 OR $2 = '') AND (id = $3 OR name = $3) AND phase <> $4
		ORDER BY CASE WHEN id = $3 THEN 0 WHEN phase = $5 THEN 2 ELSE 1 END, created_at DESC LIMIT 2`,
		workspace, uid, asked, snapshotGone, string(doze.SnapshotFailed))
	switch {
	case err != nil:
		return Snapshot{}, wrap(err, "read snapshot")
	case len(all) == 0:
		return Snapshot{}, doze.Errorf(doze.NotFound, errNoSnap, asked)
	case len(all) == 2 && all[0].ID != asked && all[1].Status != doze.SnapshotFailed:
		return Snapshot{}, doze.Errorf(doze.Conflict, "several snapshots have the name %s: use the id of one", asked)
	}
	return all[0], nil
}

// DropSnapshot lets nobody find a snapshot any more; its files remain to be
// removed.
func (s *Store) DropSnapshot(ctx context.Context, id string) error {
	_, err := s.write.ExecContext(ctx, `UPDATE snapshots SET phase = $1 WHERE id = $2`, snapshotGone, id)
	return wrap(err, "drop snapshot")
}

// ForgetSnapshot removes the record of a dropped snapshot, of which no file is
// left.
func (s *Store) ForgetSnapshot(ctx context.Context, id string) error {
	_, err := s.write.ExecContext(ctx, `DELETE FROM snapshots WHERE id = $1 AND phase = $2`, id, snapshotGone)
	return wrap(err, "forget a snapshot")
}

// DroppedSnapshots returns up to limit snapshots whose files nodes may still
// have.
func (s *Store) DroppedSnapshots(ctx context.Context, limit int) ([]string, error) {
	all, err := collect(ctx, s.read, scanText, `SELECT id FROM snapshots WHERE phase = $1 LIMIT $2`, snapshotGone, limit)
	return all, wrap(err, "read dropped snapshots")
}

// AllSnapshots returns every snapshot that is not dropped.
func (s *Store) AllSnapshots(ctx context.Context) ([]Snapshot, error) {
	all, err := collect(ctx, s.read, scanSnapshot, `SELECT `+snapshotColumns+` FROM snapshots WHERE phase <> $1`, snapshotGone)
	return all, wrap(err, "read snapshots")
}

func scanSnapshot(r row) (n Snapshot, err error) {
	var id, phase, body string
	var deleted bool
	if err := r.Scan(&id, &n.UID, &phase, &body, &deleted); err != nil {
		return n, err
	}
	var c snapshotContent
	if err := json.Unmarshal([]byte(body), &c); err != nil {
		return n, fmt.Errorf("the body of snapshot %s is damaged: %w", id, err)
	}
	n.Snapshot, n.Heir, n.Withheld, n.Passing, n.Authority = c.Snapshot, c.Heir, c.Withheld, c.Passing, c.Authority
	n.Status, n.Source.Deleted = doze.SnapshotStatus(phase), deleted
	return n, nil
}
