package launcher

import (
	"io"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/state"
	"gvisor.dev/gvisor/pkg/tcpip"
)

// TestBar: gVisor saves no sockets that have the bar among them.
func TestBar(t *testing.T) {
	t.Parallel()
	sockets := []tcpip.Endpoint{theBar}
	if _, err := state.Save(t.Context(), io.Discard, &sockets); err == nil || !strings.Contains(err.Error(), "a network namespace that is in use") {
		t.Errorf("saved: %v", err)
	}
}
