package store

import (
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// busy bounds the wait for a lock that another process holds, such as a
// backup. Our own writers queue for the one connection instead.
const busy = 10 * time.Second

// openSQLite opens or creates the database in a file that only its owner may
// read.
func openSQLite(name string) (*engine, error) {
	name, err := filepath.Abs(name)
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
	e := &engine{name: name, dialect: goose.DialectSQLite3, migrations: migrations}
	if e.write, err = sql.Open("sqlite", dsn(name, "immediate", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(1)")); err != nil {
		return nil, err
	}
	// A transaction that only reads waits for no writer.
	e.read, err = sql.Open("sqlite", dsn(name, "deferred", "query_only(1)"))
	return e, err
}

func dsn(name, begin string, pragmas ...string) string {
	q := url.Values{"_txlock": {begin}}
	q.Add("_pragma", fmt.Sprintf("busy_timeout(%d)", busy.Milliseconds()))
	for _, p := range pragmas {
		q.Add("_pragma", p)
	}
	return (&url.URL{Scheme: "file", Path: name, RawQuery: q.Encode()}).String()
}

// duplicateInSQLite reports whether err says that a unique value is taken.
func duplicateInSQLite(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE || e.Code() == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY)
}
