package store

import (
	"context"
	"database/sql"
	"errors"
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
