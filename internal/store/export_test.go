package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"
)

// MigrateTo makes a database with the schema of an earlier version, and runs
// statements in it.
func MigrateTo(ctx context.Context, address string, version int64, statements ...string) (err error) {
	e, err := connect(address)
	if err != nil {
		return err
	}
	defer func() {
		for _, db := range []*sql.DB{e.read, e.write} {
			err = errors.Join(err, db.Close())
		}
	}()
	p, err := e.schema()
	if err != nil {
		return err
	}
	if _, err := p.UpTo(ctx, version); err != nil {
		return err
	}
	for _, text := range statements {
		if _, err := e.write.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// Plan is how the database finds the sandboxes of a list.
func (s *Store) Plan(ctx context.Context, q Query) (string, error) {
	q.Sort = cmp.Or(q.Sort, NewestFirst)
	text, args, err := statement(listed[Sandbox]{table: "sandboxes", columns: sandboxColumns, key: "uid", ended: "terminated", phased: true}, q, time.Now())
	if err != nil {
		return "", err
	}
	steps, err := collect(ctx, s.read, func(r row) (step string, err error) {
		var id, parent, unused int
		return step, r.Scan(&id, &parent, &unused, &step)
	}, "EXPLAIN QUERY PLAN "+text, args...)
	return strings.Join(steps, "\n"), err
}
