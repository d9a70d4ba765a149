package store

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/dozehq/doze"
)

const (
	// restoredSetting is when somebody restored the records, in milliseconds. It is empty unless
	// nodes may know better than the records.
	restoredSetting = "restored"
	// epochSetting is the least epoch of a thing that gets another node.
	epochSetting = "epoch"
)

// MarkRestored takes note that the records are those of an earlier moment. What they say of nodes
// counts no more: none is lost, and none has a lease, until it joins and says so. The least epoch
// from now on is the time in milliseconds. So it is higher than all that were given since: a thing
// gets less than one in a millisecond. A machine that was left over may be that of a sandbox since.
// It counts as one that is not on record. To mark records again does no harm.
func (s *Store) MarkRestored(ctx context.Context, now time.Time) error {
	err := s.update(ctx, func(tx *sql.Tx) error {
		highest, err := collect(ctx, tx, scanLong, `SELECT COALESCE(MAX(epoch), 0) FROM places`)
		if err != nil {
			return err
		}
		least, err := epochIn(ctx, tx)
		if err != nil {
			return err
		}
		least = max(uint64(now.UnixMilli()), uint64(highest[0])+1, least+1) //nolint:gosec // G115: neither is negative
		for key, value := range map[string]string{restoredSetting: strconv.FormatInt(now.UnixMilli(), 10), epochSetting: strconv.FormatUint(least, 10)} {
			_, err := tx.ExecContext(ctx, `INSERT INTO settings (key, value) VALUES ($1, $2)
				ON CONFLICT (key) DO UPDATE SET value = excluded.value`, key, value)
			if err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM leftovers`); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE nodes SET leased = 0, state = CASE WHEN state = $1 THEN $2 ELSE state END`, doze.NodeLost, doze.NodeReady)
		return err
	})
	return wrap(err, "mark the records as restored")
}

// Restored reports whether nodes may know better than the records, which somebody restored.
func (s *Store) Restored(ctx context.Context) (bool, error) {
	at, err := s.Setting(ctx, restoredSetting)
	return at != "", err
}

// EndRestored takes note that the records count again.
func (s *Store) EndRestored(ctx context.Context) error { return s.SetSetting(ctx, restoredSetting, "") }

// LeastEpoch is the least epoch of a thing that gets another node. It is 0 for records that
// nobody ever restored.
func (s *Store) LeastEpoch(ctx context.Context) (uint64, error) { return epochIn(ctx, s.read) }

func epochIn(ctx context.Context, q querier) (uint64, error) {
	all, err := collect(ctx, q, scanText, `SELECT value FROM settings WHERE key = $1`, epochSetting)
	if err != nil || len(all) == 0 {
		return 0, wrap(err, "read the least epoch")
	}
	least, err := strconv.ParseUint(all[0], 10, 63)
	return least, wrap(err, "read the least epoch")
}

func scanLong(r row) (n int64, err error) { return n, r.Scan(&n) }
