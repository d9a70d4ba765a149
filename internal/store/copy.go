package store

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pressly/goose/v3"

	"github.com/dozehq/doze"
)

const (
	// batchRows and batchBytes bound one statement that writes rows, and so what a copy
	// has in memory besides its largest row.
	batchRows  = 100
	batchBytes = 1 << 20
	// versionTable is what goose has: each database makes its own.
	versionTable = "goose_db_version"
)

// Sum is what a table has: how many rows, and the checksum of them in the order of
// their key. Two tables with the same Sum have the same rows, whatever the database.
type Sum struct {
	Table string
	Rows  int64
	Sum   [sha256.Size]byte
}

// A Copying copies all records from one database to another one.
type Copying struct {
	From, To string // addresses, as those of Open
	// Alone says that nobody else may use From meanwhile: it is Unavailable if a dozed
	// does. Otherwise the copy is one moment of a database that is in use.
	Alone bool
	// Dry has Do write no record. It fails where it would find other records at To.
	Dry bool
	// Copied hears of each table that was copied. It may be nil.
	Copied func(Sum)
}

// Do copies all tables of the schema in one transaction of each database. It reads the
// copy again, and compares the two. The error is a Conflict if there are other records at
// To. If the same ones are there, an earlier copy was complete, and Do writes nothing.
// It leaves From as it is. Both have the schema of this version.
func (c Copying) Do(ctx context.Context) (sums []Sum, err error) {
	from, err := c.source(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, from.close()) }()
	to, err := connect(c.To)
	if err != nil {
		return nil, err
	}
	defer func() {
		err = errors.Join(err, to.close())
		if err != nil {
			err = fmt.Errorf("copy the records to %s: %w", to.name, classify(ctx, err))
		}
	}()
	to.write.SetMaxOpenConns(1)
	if err := to.upgrade(ctx); err != nil {
		return nil, err
	}
	tables, err := schemaTables(ctx)
	if err != nil {
		return nil, err
	}
	read, err := from.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = read.Rollback() }() // it wrote nothing
	if err := from.matches(ctx, read, tables); err != nil {
		return nil, err
	}
	if there, err := to.filled(ctx, tables); err != nil || there {
		return c.again(ctx, read, to, tables, err)
	}
	if c.Dry {
		return nil, nil
	}
	write, err := to.write.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = write.Rollback() }() // after a commit it does nothing
	for _, t := range tables {
		sum, err := t.copy(ctx, read, write)
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", t.name, err)
		}
		sums = append(sums, sum)
		if c.Copied != nil {
			c.Copied(sum)
		}
	}
	if err := write.Commit(); err != nil {
		return nil, err
	}
	return sums, to.compare(ctx, tables, sums)
}

// source opens the database that is read.
func (c Copying) source(ctx context.Context) (*engine, error) {
	if !onPostgres(c.From) { // one that is missing would be made
		if _, err := os.Stat(c.From); err != nil {
			return nil, fmt.Errorf("the records that are to be copied: %w", err)
		}
	}
	e, err := connect(c.From)
	if err != nil {
		return nil, err
	}
	e.write.SetMaxOpenConns(1)
	if c.Alone { // of PostgreSQL it takes the lock, and keeps it until the end
		err = e.write.PingContext(ctx)
		if err == nil {
			err = e.upgrade(ctx)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("the records in %s: %w", e.name, classify(ctx, err)), e.close())
	}
	return e, nil
}

// again compares the records with those that are at the place for them.
func (Copying) again(ctx context.Context, read *sql.Tx, to *engine, tables []table, err error) ([]Sum, error) {
	if err != nil {
		return nil, err
	}
	sums, err := sumAll(ctx, read, tables)
	if err != nil {
		return nil, err
	}
	if err := to.compare(ctx, tables, sums); err != nil {
		return nil, doze.Wrap(err, doze.Conflict, "there are other records already: name an empty database")
	}
	return sums, nil
}

func (e *engine) close() error { return errors.Join(e.read.Close(), e.write.Close()) }

// upgrade brings the schema of a database up to date.
func (e *engine) upgrade(ctx context.Context) error {
	p, err := e.schema()
	if err != nil {
		return err
	}
	if _, err := p.Up(ctx); err != nil {
		return fmt.Errorf("bring the schema up to date: %w", err)
	}
	return nil
}

// snapshot begins a transaction that sees one moment of a database, and writes nothing.
func (e *engine) snapshot(ctx context.Context) (*sql.Tx, error) {
	if e.dialect == goose.DialectPostgres {
		return e.read.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
	}
	return e.read.BeginTx(ctx, nil)
}

// matches fails for a database of another version, whose tables are others.
func (e *engine) matches(ctx context.Context, tx *sql.Tx, tables []table) error {
	list := `SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name <> '` + versionTable + `'`
	if e.dialect == goose.DialectPostgres {
		list = `SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema() AND table_name <> '` + versionTable + `'`
	}
	has, err := collect(ctx, tx, scanText, list)
	if err != nil {
		return err
	}
	p, err := e.schema()
	if err != nil {
		return err
	}
	newest := p.ListSources()[len(p.ListSources())-1].Version
	version, err := one(ctx, tx, scanNumber, "it has no schema", `SELECT MAX(version_id) FROM `+versionTable)
	if err != nil {
		return err
	}
	var want []string
	for _, t := range tables {
		want = append(want, t.name)
	}
	slices.Sort(has)
	slices.Sort(want)
	if int64(version) != newest || !slices.Equal(has, want) {
		return doze.Errorf(doze.Conflict, "its schema is of version %d with the tables %s, and this dozed has version %d: use the dozed that last served it, or remove tables that are not ours",
			version, strings.Join(has, ", "), newest)
	}
	return nil
}

// filled reports whether some table of a database has a row.
func (e *engine) filled(ctx context.Context, tables []table) (bool, error) {
	for _, t := range tables {
		rows, err := collect(ctx, e.read, scanNumber, `SELECT 1 FROM `+t.name+` LIMIT 1`)
		if err != nil || len(rows) > 0 {
			return len(rows) > 0, err
		}
	}
	return false, nil
}

// compare fails if a database has anything else than what the sums say.
func (e *engine) compare(ctx context.Context, tables []table, want []Sum) error {
	tx, err := e.snapshot(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // it wrote nothing
	got, err := sumAll(ctx, tx, tables)
	if err != nil {
		return err
	}
	for i, w := range want {
		if got[i] != w {
			return fmt.Errorf("the table %s of the copy has %d rows with the checksum %x, and should have %d with %x",
				w.Table, got[i].Rows, got[i].Sum[:4], w.Rows, w.Sum[:4])
		}
	}
	return nil
}

// table is one table of the schema.
type table struct {
	name    string
	columns []string
	key     []string // columns by which its rows have an order
	parents []string // tables that must have their rows first
}

// schemaTables returns all tables of the schema, parents first. It reads them from a new
// database, so that no list of ours can miss one.
func schemaTables(ctx context.Context) (all []table, err error) {
	dir, err := os.MkdirTemp("", "doze-schema-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	e, err := openSQLite(filepath.Join(dir, "schema.db"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := e.upgrade(ctx); err != nil {
		return nil, err
	}
	names, err := collect(ctx, e.read, scanText, `SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name <> '`+versionTable+`' ORDER BY name`)
	if err != nil {
		return nil, err
	}
	var left []table
	for _, name := range names {
		t := table{name: name}
		if t.columns, err = collect(ctx, e.read, scanText, `SELECT name FROM pragma_table_info('`+name+`') ORDER BY cid`); err != nil {
			return nil, err
		}
		if t.key, err = collect(ctx, e.read, scanText, `SELECT name FROM pragma_table_info('`+name+`') WHERE pk > 0 ORDER BY pk`); err != nil {
			return nil, err
		}
		if len(t.key) == 0 {
			t.key = t.columns
		}
		if t.parents, err = collect(ctx, e.read, scanText, `SELECT DISTINCT "table" FROM pragma_foreign_key_list('`+name+`') WHERE "table" <> '`+name+`'`); err != nil {
			return nil, err
		}
		left = append(left, t)
	}
	return parentsFirst(left)
}

// parentsFirst orders tables so that the rows of each can be written after those that
// they refer to.
func parentsFirst(left []table) (all []table, err error) {
	done := map[string]bool{}
	for len(left) > 0 {
		i := slices.IndexFunc(left, func(t table) bool {
			return !slices.ContainsFunc(t.parents, func(p string) bool { return !done[p] })
		})
		if i < 0 {
			return nil, errors.New("tables of the schema refer to each other in a circle")
		}
		done[left[i].name] = true
		all = append(all, left[i])
		left = slices.Delete(left, i, i+1)
	}
	return all, nil
}

// each calls fn with every row in the order of the key. The values are strings, numbers
// of 64 bits, or nil; fn may keep them.
func (t table) each(ctx context.Context, q querier, fn func(values []any) error) (err error) {
	rows, err := q.QueryContext(ctx, `SELECT `+strings.Join(t.columns, ", ")+` FROM `+t.name+` ORDER BY `+strings.Join(t.key, ", "))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		values, places := make([]any, len(t.columns)), make([]any, len(t.columns))
		for i := range values {
			places[i] = &values[i]
		}
		if err := rows.Scan(places...); err != nil {
			return err
		}
		if err := fn(values); err != nil {
			return err
		}
	}
	return rows.Err()
}

// sum is the Sum of a table.
func (t table) sum(ctx context.Context, q querier) (Sum, error) {
	s := summer{hash: sha256.New()}
	err := t.each(ctx, q, s.add)
	return s.sum(t.name), err
}

// sumAll is the Sum of each table.
func sumAll(ctx context.Context, q querier, tables []table) (all []Sum, err error) {
	for _, t := range tables {
		s, err := t.sum(ctx, q)
		if err != nil {
			return nil, fmt.Errorf("table %s: %w", t.name, err)
		}
		all = append(all, s)
	}
	return all, nil
}

// copy copies all rows of a table.
func (t table) copy(ctx context.Context, from querier, to *sql.Tx) (Sum, error) {
	s, batch, bytes := summer{hash: sha256.New()}, []any(nil), 0
	flush := func() error {
		if len(batch) == 0 {
			return nil
		}
		_, err := to.ExecContext(ctx, t.insert(len(batch)/len(t.columns)), batch...)
		batch, bytes = batch[:0], 0
		return err
	}
	err := t.each(ctx, from, func(values []any) error {
		if err := s.add(values); err != nil {
			return err
		}
		for _, v := range values {
			if text, ok := v.(string); ok {
				bytes += len(text)
			}
		}
		if batch = append(batch, values...); bytes < batchBytes && len(batch) < batchRows*len(values) {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	return s.sum(t.name), err
}

// insert is a statement that writes some rows.
func (t table) insert(rows int) string {
	var b strings.Builder
	b.WriteString(`INSERT INTO ` + t.name + ` (` + strings.Join(t.columns, ", ") + `) VALUES `)
	n := 0
	for r := range rows {
		if r > 0 {
			b.WriteString(", ")
		}
		for i := range t.columns {
			n++
			b.WriteString(map[bool]string{true: "($", false: ", $"}[i == 0] + strconv.Itoa(n))
		}
		b.WriteString(")")
	}
	return b.String()
}

// summer adds up rows.
type summer struct {
	hash hash.Hash
	rows int64
}

// Kinds of values, as they are summed.
const (
	sumNull = iota
	sumNumber
	sumText
)

// add adds a row: of each value its kind, its length and itself, so that no two rows are
// summed alike.
func (s *summer) add(values []any) error {
	s.rows++
	var head [9]byte
	for _, v := range values {
		switch v := v.(type) {
		case nil:
			head[0] = sumNull
			_, _ = s.hash.Write(head[:1])
		case int64:
			head[0] = sumNumber
			binary.BigEndian.PutUint64(head[1:], uint64(v)) //nolint:gosec // G115: the bits are what counts
			_, _ = s.hash.Write(head[:])
		case string:
			head[0] = sumText
			binary.BigEndian.PutUint64(head[1:], uint64(len(v)))
			_, _ = s.hash.Write(head[:])
			_, _ = s.hash.Write([]byte(v))
		default:
			return fmt.Errorf("a value is a %T, and no column has those", v)
		}
	}
	return nil
}

func (s *summer) sum(table string) Sum {
	return Sum{Table: table, Rows: s.rows, Sum: [sha256.Size]byte(s.hash.Sum(nil))}
}

// Named is what the records of a database name on the disk of a node.
type Named struct {
	Sandboxes []string // by UID
	Snapshots []string // by ID; complete ones
	Volumes   []string // by the id of the disk, and those of templates
}

// NamedIn reads what the records in a file of SQLite name.
func NamedIn(ctx context.Context, file string) (n Named, err error) {
	e, err := openSQLite(file)
	if err != nil {
		return n, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if n.Sandboxes, err = collect(ctx, e.read, scanText, `SELECT uid FROM sandboxes WHERE `+alive+` ORDER BY uid`); err != nil {
		return n, err
	}
	if n.Snapshots, err = collect(ctx, e.read, scanText, `SELECT id FROM snapshots WHERE phase = $1 ORDER BY id`, string(doze.SnapshotReady)); err != nil {
		return n, err
	}
	n.Volumes, err = collect(ctx, e.read, scanText, `SELECT id FROM volumes WHERE phase = $1 UNION SELECT id FROM volume_template_versions ORDER BY 1`, VolumeReady)
	return n, err
}
