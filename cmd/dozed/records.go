package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
)

const (
	databaseFile = "doze.db"
	// recordsFile says where the records of a data directory are.
	recordsFile = "records"
	// addressMax bounds the file with the address of a database.
	addressMax = 4 << 10

	inDatabaseFile = "sqlite"
	onServer       = "postgres"
)

// readDatabase fills in the address that is in a file of its own.
func (c *config) readDatabase() error {
	if c.DatabaseFile == "" {
		return nil
	}
	if c.Database != "" {
		return errors.New("database and databaseFile: give one of them")
	}
	f, err := os.Open(c.DatabaseFile)
	if err != nil {
		return fmt.Errorf("read the address of the database: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, addressMax+1))
	if err != nil {
		return fmt.Errorf("read the address of the database: %w", err)
	}
	if c.Database = strings.TrimSpace(string(text)); c.Database == "" || len(text) > addressMax {
		return fmt.Errorf("%s must hold the address of a database and nothing else", c.DatabaseFile)
	}
	return nil
}

// checkDatabase adds what is wrong with the address of the database.
func (c config) checkDatabase(p *doze.Problems) {
	if c.Database == "" {
		return
	}
	if err := store.CheckAddress(c.Database); err != nil {
		p.Add("database", "%v", err)
	}
}

// shown is the configuration without its secrets.
func (c config) shown() config {
	if c.DatabaseFile != "" {
		c.Database = ""
	}
	if !store.HasPassword(c.Database) {
		return c
	}
	u, err := url.Parse(c.Database)
	if err != nil {
		c.Database = "(not shown)"
		return c
	}
	q := u.Query()
	q.Del("password")
	u.RawQuery = q.Encode()
	c.Database = u.Redacted()
	return c
}

// records returns where the records are: the address of a server, or a file in
// the data directory. A directory keeps to the kind that it began with: with
// the records of another one, its sandboxes would count as left over.
func (c config) records() (string, error) {
	address, kind := filepath.Join(c.Data, databaseFile), inDatabaseFile
	if c.Database != "" {
		address, kind = c.Database, onServer
	}
	was, err := recordsOf(c.Data)
	switch {
	case err != nil:
		return "", err
	case was == "" || was == kind:
		return address, os.WriteFile(filepath.Join(c.Data, recordsFile), []byte(kind+"\n"), 0o600)
	case was == inDatabaseFile:
		return "", fmt.Errorf("the records of %s are in its %s: start without --database, or with another --data", c.Data, databaseFile)
	}
	return "", fmt.Errorf("the records of %s are on a PostgreSQL server: name it with --database or --database-file, or choose another --data", c.Data)
}

// recordsOf says of which kind the records of a data directory are; empty is of
// none yet.
func recordsOf(data string) (string, error) {
	text, err := os.ReadFile(filepath.Join(data, recordsFile))
	kind := strings.TrimSpace(string(text))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("find the records: %w", err)
	}
	if kind == "" { // of a version that knew no other, or cut short
		if _, err := os.Stat(filepath.Join(data, databaseFile)); err == nil {
			kind = inDatabaseFile
		}
	}
	return kind, nil
}
