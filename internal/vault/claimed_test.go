package vault_test

import (
	"testing"

	"github.com/dozehq/doze/internal/vault"
)

// TestClaimed: the newest epoch that was claimed is known, unless the sandbox was dropped.
func TestClaimed(t *testing.T) {
	t.Parallel()
	for server, serve := range servers {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			v := serve(t).open(t, false, vault.Options{})
			check := func(want uint64) {
				t.Helper()
				if got, err := v.Claimed(t.Context(), "a"); got != want || err != nil {
					t.Errorf("the epoch %d was claimed, %v, want %d", got, err, want)
				}
			}
			check(0)
			for _, epoch := range []uint64{2, 1 << 41} {
				if _, err := v.Claim(t.Context(), "a", epoch); err != nil {
					t.Fatal(err)
				}
				check(epoch)
			}
			if err := v.Drop(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			check(0)
			if _, err := v.Claimed(t.Context(), "../a"); err == nil {
				t.Error("a path is an id")
			}
		})
	}
}
