package instance

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRecordsStayWhereTheyAre: a data directory keeps to the kind of records
// that it began with.
func TestRecordsStayWhereTheyAre(t *testing.T) {
	t.Parallel()
	const url = "postgres://h/db"
	for name, c := range map[string]struct {
		files map[string]string
		now   string
		good  bool
	}{
		"fresh, in a file":        {nil, "", true},
		"fresh, on a server":      {nil, url, true},
		"in a file":               {map[string]string{databaseFile: "x", recordsFile: "sqlite\n"}, "", true},
		"on a server":             {map[string]string{recordsFile: "postgres\n"}, url, true},
		"an older version's":      {map[string]string{databaseFile: "x"}, "", true},
		"from a file to a server": {map[string]string{databaseFile: "x", recordsFile: "sqlite\n"}, url, false},
		"an older one's too":      {map[string]string{databaseFile: "x"}, url, false},
		"cut short":               {map[string]string{databaseFile: "x", recordsFile: ""}, url, false},
		"from a server to a file": {map[string]string{recordsFile: "postgres\n"}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data := t.TempDir()
			for name, text := range c.files {
				if err := os.WriteFile(filepath.Join(data, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // what the first start wrote is good for the next
				where, err := Records(data, c.now)
				if want := c.now != ""; (err == nil) != c.good || err == nil && (where == url) != want {
					t.Errorf("%q, %v", where, err)
				}
			}
		})
	}
}
