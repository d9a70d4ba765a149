// Package store keeps the records of the control plane and is the only package
// that knows SQL. A record's body is JSON text; what is searched is a column.
//
// Two things always hold. A phase changes and its event is written in one
// transaction, so that they never disagree. And what a method returned without
// an error is on disk.
package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"doze"
	"doze/internal/seal"
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	// readers is enough for the cores of a small host; a read takes well
	// under a millisecond.
	readers = 8
	// busy bounds the wait for a lock that another process holds, such as a
	// backup. Our own writers queue for the one connection instead.
	busy = 10 * time.Second
	// idLength of the letters that [rand.Text] uses is 100 random bits.
	idLength = 20
)

// Store is an open database. It is safe for concurrent use.
type Store struct {
	write *sql.DB // one connection: SQLite has one writer
	read  *sql.DB
	box   *seal.Box
}

// Open opens or creates the SQLite database in the file name and brings its
// schema up to date. Only the owner may read the file. What is secret is sealed
// with box, which must be the same every time.
func Open(ctx context.Context, name string, box *seal.Box) (_ *Store, err error) {
	name, err = filepath.Abs(name)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	// SQLite gives its other files the mode of this one.
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	if err = errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}

	s := &Store{box: box}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("database %s: %w", name, err), s.Close())
		}
	}()
	if s.write, err = sql.Open("sqlite", dsn(name, "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)")); err != nil {
		return nil, err
	}
	s.write.SetMaxOpenConns(1)
	sub, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return nil, err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, s.write, sub, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return nil, err
	}
	if _, err = p.Up(ctx); err != nil {
		return nil, fmt.Errorf("bring the schema up to date: %w", err)
	}
	if s.read, err = sql.Open("sqlite", dsn(name, "query_only(1)")); err != nil {
		return nil, err
	}
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	return s, s.checkSeal(ctx)
}

// sealSetting holds something sealed, which tells the right key from another.
const sealSetting = "seal"

// checkSeal fails if the database was sealed with another key: records that
// nobody can read would be found one by one.
func (s *Store) checkSeal(ctx context.Context) error {
	text, err := s.Setting(ctx, sealSetting)
	if err != nil {
		return err
	}
	if text == "" {
		return s.SetSetting(ctx, sealSetting, hex.EncodeToString(s.box.Seal(nil, sealSetting)))
	}
	sealed, err := hex.DecodeString(text)
	if err == nil {
		_, err = s.box.Unseal(sealed, sealSetting)
	}
	if err != nil {
		return fmt.Errorf("it was sealed with another key: restore the key file that belongs to it: %w", err)
	}
	return nil
}

func dsn(name string, pragmas ...string) string {
	q := url.Values{"_txlock": {"immediate"}}
	q.Add("_pragma", fmt.Sprintf("busy_timeout(%d)", busy.Milliseconds()))
	for _, p := range pragmas {
		q.Add("_pragma", p)
	}
	return (&url.URL{Scheme: "file", Path: name, RawQuery: q.Encode()}).String()
}

// Close closes the database. Calls in progress fail.
func (s *Store) Close() error {
	var errs []error
	for _, db := range []*sql.DB{s.read, s.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// NewID returns a fresh random identity of 20 characters [a-z2-7]: safe as a
// file name, a host name and a container id.
func NewID() string { return strings.ToLower(rand.Text())[:idLength] }

// update runs fn in a transaction of the one writer.
func (s *Store) update(ctx context.Context, fn func(*sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// querier is a database or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// collect runs a query and scans each of its rows.
func collect[T any](ctx context.Context, q querier, scan func(row) (T, error), query string, args ...any) (all []T, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// one runs a query of at most one row. No row is NotFound with the message
// missing.
func one[T any](ctx context.Context, q querier, scan func(row) (T, error), missing, query string, args ...any) (v T, err error) {
	all, err := collect(ctx, q, scan, query, args...)
	switch {
	case err != nil:
		return v, err
	case len(all) == 0:
		return v, doze.Errorf(doze.NotFound, "%s", missing)
	}
	return all[0], nil
}

// row is what a scan function reads.
type row interface{ Scan(dest ...any) error }

// duplicate reports whether err says that a unique value is taken.
func duplicate(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
}

// millis is t as a column keeps it; the zero time is 0.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// moment is the inverse of millis.
func moment(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
