package host

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/fence"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/node"
	"github.com/dozehq/doze/internal/space"
	"github.com/dozehq/doze/internal/volume"
)

// TestQuitWithoutLease: after the session ends, nothing waits for a lease. Under a good one,
// operations begin as before.
func TestQuitWithoutLease(t *testing.T) {
	t.Parallel()
	for name, fenced := range map[string]bool{"without a lease": true, "under a lease": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r := NewRemote("https://127.0.0.1:1", http.DefaultTransport, "n1", Options{Data: dir, Run: dir})
			driver := fence.New(machinetest.NewFake(), r.gate)
			ledger, err := space.Open(dir, r.options.Disk)
			if err != nil {
				t.Fatal(err)
			}
			volumes, err := volume.Open(filepath.Join(dir, volumesDir), ledger)
			if err != nil {
				t.Fatal(err)
			}
			n, err := node.Open(t.Context(), node.Options{
				Dir: filepath.Join(dir, sandboxesDir), Snapshots: filepath.Join(dir, snapshotsDir), Away: filepath.Join(dir, "away"), Driver: driver, Volumes: volumes,
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(n.Stop)
			session := r.Services(&Host{node: n}, fleet.NodeInfo{ID: "n1"})[0]
			if fenced {
				if err := r.gate.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			booted := make(chan error, 1)
			go func() {
				_, err := driver.Boot(context.WithoutCancel(t.Context()), machine.Config{ID: "a", Dir: filepath.Join(dir, "a"), Root: dir, Memory: 64 << 20})
				booted <- err
			}()
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := session.Run(ctx); err != nil {
				t.Fatal(err)
			}
			if err := <-booted; errors.Is(err, fence.ErrClosed) != fenced || !fenced && err != nil {
				t.Errorf("an operation without an end: %v", err)
			}
		})
	}
}
