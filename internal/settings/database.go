package settings

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
)

// addressMax bounds the file with the address of a database.
const addressMax = 4 << 10

// readDatabase fills in the address that is in a file of its own.
func (s *Settings) readDatabase() error {
	if s.DatabaseFile == "" {
		return nil
	}
	if s.Database != "" {
		return errors.New("database and databaseFile: give one of them")
	}
	f, err := os.Open(s.DatabaseFile)
	if err != nil {
		return fmt.Errorf("read the address of the database: %w", err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, addressMax+1))
	if err != nil {
		return fmt.Errorf("read the address of the database: %w", err)
	}
	if s.Database = strings.TrimSpace(string(text)); s.Database == "" || len(text) > addressMax {
		return fmt.Errorf("%s must hold the address of a database and nothing else", s.DatabaseFile)
	}
	return nil
}

// checkDatabase adds what is wrong with the address of the database.
func (s Settings) checkDatabase(p *doze.Problems) {
	if s.Database == "" {
		return
	}
	if err := store.CheckAddress(s.Database); err != nil {
		p.Add("database", "%v", err)
	}
}

// Shown returns the settings without their secrets.
func (s Settings) Shown() Settings {
	if s.DatabaseFile != "" {
		s.Database = ""
	}
	if !store.HasPassword(s.Database) {
		return s
	}
	u, err := url.Parse(s.Database)
	if err != nil {
		s.Database = "(not shown)"
		return s
	}
	q := u.Query()
	q.Del("password")
	u.RawQuery = q.Encode()
	s.Database = u.Redacted()
	return s
}
