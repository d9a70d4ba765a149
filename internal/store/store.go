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
	"strconv"
	"strings"
	"time"

	"github.com/pressly/goose/v3"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/seal"
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	// readers is enough for the cores of a small host; a read takes well
	// under a millisecond.
	readers = 8
	// idLength of the letters that [rand.Text] uses is 100 random bits.
	idLength = 20
)

// Store is an open database. It is safe for concurrent use.
type Store struct {
	write  pool // of one connection
	read   pool
	cipher *seal.Cipher
	// postgres is false for SQLite, which has other functions for JSON.
	postgres bool
	// defaults are the limits of workspaces without any of their own.
	defaults doze.Limits
	// measured is what workspaces take of the disk besides, in bytes.
	measured func(workspace string) int64
}

// engine is an opened database, and what there is to know about its kind.
type engine struct {
	name        string // for people
	write, read *sql.DB
	dialect     goose.Dialect
	migrations  fs.FS
	begin       func(context.Context, *Store) error // nil is nothing; when the schema is up to date
}

// Open opens the database at an address and brings its schema up to date. An address
// postgres://… is a PostgreSQL server. Any other address is the file of a SQLite
// database, which Open makes if it is missing. Secrets are sealed with cipher, which
// must be the same every time.
func Open(ctx context.Context, address string, cipher *seal.Cipher) (_ *Store, err error) {
	e, err := connect(address)
	if err != nil {
		return nil, err
	}
	// To read again does no harm, and all readers may be lost at once.
	s := &Store{measured: func(string) int64 { return 0 }, write: pool{e.write, 0}, read: pool{e.read, readers}, cipher: cipher, postgres: e.dialect == goose.DialectPostgres}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("database %s: %w", e.name, classify(ctx, err)), s.Close())
		}
	}()
	e.write.SetMaxOpenConns(1)
	e.read.SetMaxOpenConns(readers)
	e.read.SetMaxIdleConns(readers)
	p, err := e.schema()
	if err != nil {
		return nil, err
	}
	if _, err := p.Up(ctx); err != nil {
		return nil, fmt.Errorf("bring the schema up to date: %w", err)
	}
	if err := s.checkSeal(ctx); err != nil {
		return nil, err
	}
	if e.begin != nil {
		return s, e.begin(ctx, s)
	}
	return s, nil
}

func connect(address string) (*engine, error) {
	if onPostgres(address) {
		return openPostgres(address)
	}
	return openSQLite(address)
}

// schema is what brings the schema up to date.
func (e *engine) schema() (*goose.Provider, error) {
	sub, err := fs.Sub(e.migrations, "migrations")
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(e.dialect, e.write, sub, goose.WithDisableGlobalRegistry(true), goose.WithGoMigrations(indexAll()))
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
		return s.SetSetting(ctx, sealSetting, hex.EncodeToString(s.cipher.Seal(nil, sealSetting)))
	}
	sealed, err := hex.DecodeString(text)
	if err == nil {
		_, err = s.cipher.Unseal(sealed, sealSetting)
	}
	if err != nil {
		return fmt.Errorf("it was sealed with another key: restore the key file that belongs to it: %w", err)
	}
	return nil
}

// Close closes the database. Calls in progress fail.
func (s *Store) Close() error { return errors.Join(s.read.Close(), s.write.Close()) }

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
		return classify(ctx, err)
	}
	return classify(ctx, tx.Commit())
}

// pool is a database that says when it is out of reach.
type pool struct {
	*sql.DB
	again int // how often a query is repeated that met a connection that was lost
}

// ExecContext is that of [sql.DB].
func (p pool) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	res, err := p.DB.ExecContext(ctx, query, args...)
	return res, classify(ctx, err)
}

// QueryContext is that of [sql.DB].
func (p pool) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	rows, err := p.DB.QueryContext(ctx, query, args...)
	for try := 0; try < p.again && broken(ctx, err); try++ {
		rows, err = p.DB.QueryContext(ctx, query, args...)
	}
	return rows, classify(ctx, err)
}

// BeginTx is that of [sql.DB].
func (p pool) BeginTx(ctx context.Context, o *sql.TxOptions) (*sql.Tx, error) {
	tx, err := p.DB.BeginTx(ctx, o)
	return tx, classify(ctx, err)
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
	return all, classify(ctx, rows.Err())
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

// listMax bounds the values of one list in a statement: databases take tens of
// thousands, and one of hundreds costs hardly more per value.
const listMax = 500

// listOf is up to [listMax] values as a statement has them: its first parameters,
// and what they stand for.
func listOf(values []string) (marks string, args []any) {
	all := make([]string, len(values))
	for i, v := range values {
		all[i] = "$" + strconv.Itoa(i+1)
		args = append(args, v)
	}
	return strings.Join(all, ", "), args
}

// duplicate reports whether err says that a unique value is taken.
func duplicate(err error) bool { return duplicateInSQLite(err) || duplicateInPostgres(err) }

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
