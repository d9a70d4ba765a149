package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
)

// MigrateTo makes a database with the schema of an earlier version, and runs
// statements in it.
func MigrateTo(ctx context.Context, address string, version int64, statements ...string) error {
	return climb(address, func(e *engine, p *goose.Provider) error {
		if _, err := p.UpTo(ctx, version); err != nil {
			return err
		}
		return e.run(ctx, statements)
	})
}

// Climb makes a database and brings it from each version of the schema to the
// next. Look hears how many rows each table had before and has after a step;
// then come the rows of that version. At the end it hears those of the last.
func Climb(ctx context.Context, address string, rows map[int64][]string, look func(version int64, before, after map[string]int)) error {
	return climb(address, func(e *engine, p *goose.Provider) error {
		before, version := map[string]int{}, int64(0)
		for {
			step, err := p.UpByOne(ctx)
			if errors.Is(err, goose.ErrNoNextVersion) {
				look(version, before, before)
				return nil
			}
			if err != nil {
				return err
			}
			after, err := e.counts(ctx)
			if err != nil {
				return err
			}
			look(step.Source.Version, before, after)
			version = step.Source.Version
			if err := e.run(ctx, rows[step.Source.Version]); err != nil {
				return fmt.Errorf("rows of version %d: %w", step.Source.Version, err)
			}
			if before, err = e.counts(ctx); err != nil {
				return err
			}
		}
	})
}

func climb(address string, work func(*engine, *goose.Provider) error) (err error) {
	e, err := connect(address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.read.Close(), e.write.Close()) }()
	p, err := e.schema()
	if err != nil {
		return err
	}
	return work(e, p)
}

func (e *engine) run(ctx context.Context, statements []string) error {
	for _, text := range statements {
		if _, err := e.write.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return nil
}

// counts says how many rows each table has, but for the one that says which
// schema it is.
func (e *engine) counts(ctx context.Context) (map[string]int, error) {
	list := `SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name <> 'goose_db_version'`
	if e.dialect == goose.DialectPostgres {
		list = `SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() AND table_name <> 'goose_db_version'`
	}
	tables, err := collect(ctx, e.read, scanText, list)
	counts := map[string]int{}
	for _, table := range tables {
		if counts[table], err = one(ctx, e.read, scanNumber, "", `SELECT COUNT(*) FROM `+table); err != nil {
			return nil, err
		}
	}
	return counts, err
}

// Plan is how the database finds the sandboxes of a list, in each of its
// statements.
func (s *Store) Plan(ctx context.Context, q listing.Query) (string, error) {
	q.Sort = cmp.Or(q.Sort, listing.NewestFirst)
	l := listed[Sandbox]{table: "sandboxes", columns: sandboxColumns, key: "uid", ended: doze.Terminated.String(), phases: present, pieces: withPiece}
	var plan []string
	for _, among := range searches(l, q) {
		text, args, err := statement(l, q, among, time.Now())
		if err != nil {
			return "", err
		}
		steps, err := collect(ctx, s.read, func(r row) (step string, err error) {
			var id, parent, unused int
			return step, r.Scan(&id, &parent, &unused, &step)
		}, "EXPLAIN QUERY PLAN "+text, args...)
		if err != nil {
			return "", err
		}
		plan = append(plan, steps...)
	}
	return strings.Join(plan, "\n"), nil
}

// Pieces is how many rows the index of searches has.
func (s *Store) Pieces(ctx context.Context) (int, error) {
	return one(ctx, s.read, scanNumber, "", `SELECT COUNT(*) FROM sandbox_pieces`)
}
