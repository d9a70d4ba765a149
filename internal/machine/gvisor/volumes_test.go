package gvisor

import (
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/dozehq/doze/internal/machine"
)

// TestOldLauncher: one of an older build would boot a machine without its
// volumes or its disk, and nobody would notice.
func TestOldLauncher(t *testing.T) {
	t.Parallel()
	with := Config{Volumes: []machine.Volume{{Source: "/a", Path: "/b"}}}
	for name, tc := range map[string]struct {
		says string
		c    Config
		want error
	}{
		"old, without": {`{"engine":"x","pid":7}`, Config{}, nil},
		"old":          {`{"engine":"x","pid":7}`, with, machine.ErrNoVolumes},
		"new":          {`{"engine":"x","pid":7,"volumes":true}`, with, nil},
		"no disks":     {`{"engine":"x","pid":7,"volumes":true}`, Config{Disk: 1}, machine.ErrNoDisks},
		"disks":        {`{"engine":"x","pid":7,"volumes":true,"disks":true}`, Config{Disk: 1}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			socket := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, tc.says) })}
			go func() { _ = server.Serve(l) }() // ends with Close
			t.Cleanup(func() { _ = server.Close() })
			e := &engine{client: newClient(socket), used: make(chan struct{})}
			if err := e.mounts(t.Context(), tc.c); !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}
