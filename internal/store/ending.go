package store

import (
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/dozehq/doze"
)

// An Ending is a sandbox whose deadline has come.
type Ending struct {
	UID       string
	Revision  int64 // a record that changed since is left alone
	Redeploys int
	Message   string
}

// End begins to delete many sandboxes in one transaction, and returns the ids of
// those that it did. The others changed or ended meanwhile. It writes what
// [Store.Apply] writes for each, in a few statements: a thousand that are due at
// one moment must not take turns.
func (s *Store) End(ctx context.Context, all []Ending, at time.Time) (ended []string, err error) {
	if len(all) == 0 {
		return nil, nil
	}
	err = s.update(ctx, func(tx *sql.Tx) error {
		for some := range slices.Chunk(all, listMax) {
			uids, err := endSome(ctx, tx, some, at)
			if err != nil {
				return err
			}
			ended = append(ended, uids...)
		}
		return nil
	})
	if err != nil {
		return nil, wrap(err, "end sandboxes")
	}
	return ended, nil
}

// endSome is End for as many as fit into a list.
func endSome(ctx context.Context, tx *sql.Tx, all []Ending, at time.Time) ([]string, error) {
	revisions, err := revisionsOf(ctx, tx, all)
	if err != nil {
		return nil, err
	}
	var uids []string
	var events []entry
	for _, e := range all {
		if now, alive := revisions[e.UID]; alive && now == e.Revision {
			uids = append(uids, e.UID)
			events = append(events, newEntry(doze.EventDeployment, doze.Deleting, e.Message, at, doze.FirstRevision+e.Redeploys))
		}
	}
	if len(uids) == 0 {
		return nil, nil
	}
	// All living phases have a row for Delete.
	marks, args := listOf(uids)
	if _, err := tx.ExecContext(ctx, `UPDATE sandboxes SET phase = 'deleting', deadline = NULL WHERE uid IN (`+marks+`)`, args...); err != nil { //nolint:gosec // G202: what is added are the names of parameters
		return nil, err
	}
	if err := forgetSchedules(ctx, tx, uids); err != nil {
		return nil, err
	}
	return uids, insertEvents(ctx, tx, uids, events)
}

// revisionsOf returns the revisions of those records that are alive.
func revisionsOf(ctx context.Context, tx *sql.Tx, all []Ending) (map[string]int64, error) {
	uids := make([]string, len(all))
	for i, e := range all {
		uids[i] = e.UID
	}
	type version struct {
		uid      string
		revision int64
	}
	marks, args := listOf(uids)
	rows, err := collect(ctx, tx, func(r row) (v version, err error) { return v, r.Scan(&v.uid, &v.revision) },
		`SELECT uid, revision FROM sandboxes WHERE uid IN (`+marks+`) AND `+alive, args...)
	revisions := map[string]int64{}
	for _, v := range rows {
		revisions[v.uid] = v.revision
	}
	return revisions, err
}
