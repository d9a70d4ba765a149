package gvisor

import (
	"testing"

	"doze/internal/machine/machinetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	build(t)
	machinetest.Run(t, machinetest.Harness{
		New: func(t *testing.T) machinetest.Host { return newHost(t) }, //nolint:thelper // newHost is one
	})
}
