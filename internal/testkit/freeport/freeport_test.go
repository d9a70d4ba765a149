package freeport_test

import (
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/testkit/freeport"
)

// TestPort: nobody gets a port twice, nor one that the kernel could give to
// somebody, nor one that somebody has.
func TestPort(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	lowest, err := strconv.Atoi(strings.Fields(string(raw))[0])
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for i := range 100 {
		port, err := freeport.Port(t.Context())
		if err != nil || seen[port] || port >= lowest {
			t.Errorf("port %d, %v; the kernel chooses from %d; before: %v", port, err, lowest, seen)
		}
		seen[port] = true
		next := port + 1 // which comes next, but at the end of the range
		l, err := listen(t, i%2 == 0, next)
		if err != nil {
			continue // somebody has it
		}
		if port, err = freeport.Port(t.Context()); err != nil || port == next {
			t.Errorf("port %d, which somebody has: %v", port, err)
		}
		seen[port] = true
		_ = l.Close()
	}
}

func listen(t *testing.T, stream bool, port int) (io.Closer, error) {
	t.Helper()
	at := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	if stream {
		return new(net.ListenConfig).Listen(t.Context(), "tcp", at)
	}
	return new(net.ListenConfig).ListenPacket(t.Context(), "udp", at)
}
