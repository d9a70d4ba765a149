package netstate

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/dozehq/doze/internal/agentapi"
)

// TestNetstate runs TestNetstateInside in a network namespace of its own.
func TestNetstate(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: a network namespace needs root")
	}
	inside := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestNetstateInside$", "-test.v")
	inside.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := inside.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestNetstateInside") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestNetstateInside(t *testing.T) { //nolint:paralleltest // it changes the network
	if links, err := net.Interfaces(); err != nil || len(links) != 1 {
		t.Skip("TestNetstate runs this where it disturbs nobody")
	}
	sh := func(command string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), "sh", "-ec", command).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
	sh("ip link set lo up")
	born := Read()
	// No engine is around that could tell of namespaces.
	if now := Read().Since(born); now != (agentapi.Blockers{Namespaces: true}) {
		t.Fatalf("nothing has changed, and it is %+v", now)
	}
	for _, tt := range []struct{ name, do, undo string }{
		{"a link", "ip link add one type veth peer name two", "ip link del one"},
		{"an address", "ip addr add 192.0.2.1/32 dev lo", "ip addr del 192.0.2.1/32 dev lo"},
		{"a route", "ip route add 198.51.100.0/24 dev lo", "ip route del 198.51.100.0/24 dev lo"},
		{"a link that is down", "ip link set lo down", "ip link set lo up"},
		{"a packet size", "ip link set lo mtu 1400", "ip link set lo mtu 65536"},
	} {
		sh(tt.do)
		if now := Read().Since(born); now != (agentapi.Blockers{Links: true, Namespaces: true}) {
			t.Errorf("%s: %+v", tt.name, now)
		}
		sh(tt.undo)
		if now := Read().Since(born); now != (agentapi.Blockers{Namespaces: true}) {
			t.Errorf("%s is gone, and it is %+v", tt.name, now)
		}
	}
}
