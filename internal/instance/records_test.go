package instance

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/settings"
	"github.com/dozehq/doze/internal/store"
)

// TestLeaveHome: records that leave a data directory with sandboxes say that they are on its
// node, unless they say of another one already.
func TestLeaveHome(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	home := func() string {
		t.Helper()
		cipher, err := seal.Open(SealFile(data))
		if err != nil {
			t.Fatal(err)
		}
		s, err := store.Open(t.Context(), DatabaseFile(data), cipher)
		if err != nil {
			t.Fatal(err)
		}
		id, err := s.Setting(t.Context(), store.HomeNode)
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		return id
	}
	claim := func() {
		t.Helper()
		s := settings.Settings{Data: data}
		if _, err := new(Migration).leaveHome(t.Context(), s, DatabaseFile(data)); err != nil {
			t.Fatal(err)
		}
	}
	claim()
	if id := home(); id != "" {
		t.Errorf("without sandboxes, they are on %s", id)
	}
	if err := os.Mkdir(filepath.Join(data, "sandboxes"), 0o700); err != nil {
		t.Fatal(err)
	}
	claim()
	id, err := NodeID(data)
	if got := home(); err != nil || got != id {
		t.Errorf("they are on %q, and the node is %q: %v", got, id, err)
	}
	if err := os.WriteFile(filepath.Join(data, NodeFile), []byte("another1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if claim(); home() != id {
		t.Error("another node has them after a second move")
	}
}

// TestRoles: the roles that serve a data directory are named, and those that have ended are not.
func TestRoles(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	if roles := Roles(data); len(roles) > 0 {
		t.Errorf("at first: %v", roles)
	}
	unlock, err := LockRole("node", data)
	if err != nil {
		t.Fatal(err)
	}
	if roles := Roles(data); !slices.Equal(roles, []string{"node"}) {
		t.Errorf("while a node runs: %v", roles)
	}
	unlock()
	if roles := Roles(data); len(roles) > 0 {
		t.Errorf("after it: %v", roles)
	}
}

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
