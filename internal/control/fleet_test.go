package control_test

import (
	"testing"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/fleettest"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestFakeIsANode: the node that these tests use keeps the promises of a real one.
func TestFakeIsANode(t *testing.T) {
	t.Parallel()
	fleettest.Run(t, fleettest.Host{Image: "base", Private: "example.com/private:1", Node: func(*testing.T) fleet.Node {
		n := planetest.NewNode()
		n.Report, n.Shelf = func(fleet.Report) {}, planetest.NewShelf()
		return n
	}})
}
