package e2e_test

import (
	"path/filepath"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

// TestRecordsOnAServer: what dozed was told is still there after it was killed,
// also with the records in PostgreSQL, and the next one has the database to
// itself again.
func TestRecordsOnAServer(t *testing.T) {
	t.Parallel()
	address := postgres.Database(t)
	p, c := start(t, "--database", address, "--warm-pool", "0")
	sb, agent := create(t, c, named("kept", 2048))
	sh(t, agent, "echo 42 >/root/answer")
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	revive(t, p)
	got, err := c.Sandbox(t.Context(), sb.Metadata.Name)
	if err != nil || got.Status != "DEPLOYED" {
		t.Fatalf("it is %s, %v", got.Status, err)
	}
	if answer := sh(t, agent, "cat /root/answer"); answer != "42" {
		t.Errorf("its file has %q", answer)
	}
	if files, err := filepath.Glob(filepath.Join(p.Data, "doze.db*")); err != nil || len(files) > 0 {
		t.Errorf("there are records in %v, %v", files, err)
	}

	postgres.Break(t, address)
	until(t, "it has a connection again", func() bool {
		_, err := c.Create(t.Context(), named("other", 2048), true)
		if kind := doze.Public(err).Kind; err != nil && kind != doze.Unavailable {
			t.Fatal(err)
		}
		return err == nil
	})
}
