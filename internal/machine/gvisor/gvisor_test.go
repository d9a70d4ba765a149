package gvisor

import (
	"testing"

	"github.com/dozehq/doze/internal/machine/machinetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	shared.Build(t)
	machinetest.Run(t, machinetest.Harness{
		New: func(t *testing.T) machinetest.Host { return newHost(t) }, //nolint:thelper // newHost is one
	})
}

// TestConformanceReady runs the suite with processes that wait for their wake.
func TestConformanceReady(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: the same suite runs without")
	}
	shared.Build(t)
	machinetest.Run(t, machinetest.Harness{New: func(t *testing.T) machinetest.Host {
		t.Helper()
		h := newHost(t)
		h.ready = 2
		return h
	}})
}
