package store_test

import (
	"path/filepath"
	"strings"
	"testing"

	"doze/internal/store"
)

// TestListsUseIndexes asks SQLite how it would find sandboxes: what a list costs
// must not grow with the records that it does not have. PostgreSQL decides by
// what it has counted.
func TestListsUseIndexes(t *testing.T) {
	t.Parallel()
	s := database{t, filepath.Join(t.TempDir(), "doze.db"), filepath.Join(t.TempDir(), "key")}.open(t)
	for index, q := range map[string]store.Query{
		"sandboxes_created":     {Workspace: "w", Limit: 50},
		"sandboxes_external_id": {Workspace: "w", Limit: 50, ExternalID: "x"},
	} {
		plan, err := s.Plan(t.Context(), q)
		if err != nil || !strings.Contains(plan, index) {
			t.Errorf("%s: %v\n%s", index, err, plan)
		}
	}
}
