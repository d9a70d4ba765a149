package instance

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/dozehq/doze/internal/durable"
)

// Kinds of records, as they are called in recordsFile.
const (
	inDatabaseFile = "sqlite"
	onServer       = "postgres"
)

// Records returns where the records of a data directory are: the address of a
// server, if there is one, or a file. A directory keeps to the kind that it began
// with: with the records of another one, its sandboxes would count as left over.
func Records(data, server string) (address string, err error) {
	address, err = Where(data, server)
	if err != nil {
		return "", err
	}
	return address, setRecords(data, kindOf(server))
}

// setRecords says of which kind the records of a data directory are from now on.
func setRecords(data, kind string) error {
	return durable.Replace(filepath.Join(data, recordsFile), []byte(kind+"\n"), 0o600)
}

func kindOf(server string) string {
	if server != "" {
		return onServer
	}
	return inDatabaseFile
}

// Where is Records for a caller that only looks.
func Where(data, server string) (address string, err error) {
	address, kind := DatabaseFile(data), kindOf(server)
	if server != "" {
		address = server
	}
	was, err := recordsOf(data)
	switch {
	case err != nil:
		return "", err
	case was == "" || was == kind:
		return address, nil
	case was == inDatabaseFile:
		return "", fmt.Errorf("the records of %s are in its %s: leave out --database, choose another --data, or move them with dozed migrate", data, databaseFile)
	}
	return "", fmt.Errorf("the records of %s are on a PostgreSQL server: name it with --database or --database-file, choose another --data, or move them with dozed migrate", data)
}

// recordsOf says of which kind the records of a data directory are. It is empty
// before the first start.
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
