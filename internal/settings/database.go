package settings

import (
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
)

// addressMax bounds a file with the address of a database, or of a proxy.
const addressMax = 4 << 10

// readDatabase fills in the address that is in a file of its own.
func (s *Settings) readDatabase() error {
	return readSecret(&s.Database, s.DatabaseFile, "database", "the address of a database")
}

// readSecret fills in the setting of a name that is in a file of its own, if there is one.
// What says what the file holds.
func readSecret(to *string, file, name, what string) error {
	if file == "" {
		return nil
	}
	if *to != "" {
		return fmt.Errorf("%s and %sFile: give one of them", name, name)
	}
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, addressMax+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", what, err)
	}
	if *to = strings.TrimSpace(string(text)); *to == "" || len(text) > addressMax {
		return fmt.Errorf("%s must hold %s and nothing else", file, what)
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

// hidden stands for a secret.
const hidden = "(not shown)"

// Shown returns the settings without their secrets.
func (s Settings) Shown() Settings {
	s.hideProxy()
	if s.Join != "" {
		s.Join = hidden
	}
	if s.DatabaseFile != "" {
		s.Database = ""
	}
	if !store.HasPassword(s.Database) {
		return s
	}
	u, err := url.Parse(s.Database)
	if err != nil {
		s.Database = hidden
		return s
	}
	q := u.Query()
	q.Del("password")
	u.RawQuery = q.Encode()
	s.Database = u.Redacted()
	return s
}

// ReadAddress reads a file with the address of a database and nothing else.
func ReadAddress(file string) (address string, err error) {
	err = readSecret(&address, file, "address", "the address of a database")
	return address, err
}
