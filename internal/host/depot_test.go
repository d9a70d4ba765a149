package host

import (
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// TestNoBucket: a node without a bucket says that nothing of it can move.
func TestNoBucket(t *testing.T) {
	t.Parallel()
	var n Node
	for what, do := range map[string]func() error{
		"a departure": func() error { return n.Depart(t.Context(), "a") },
		"a revival":   func() error { _, err := n.Revive(t.Context(), fleet.Order{UID: "a"}, time.Time{}, true); return err },
		"a volume":    func() error { return n.SaveVolume(t.Context(), "v") },
		"a snapshot":  func() error { return n.SaveSnapshot(t.Context(), "s") },
	} {
		if err := do(); doze.Public(err).Kind != doze.Unsupported {
			t.Errorf("%s: %v", what, err)
		}
	}
}
