package e2e_test

import (
	"strings"
	"testing"
)

// TestPing: ping of Debian reaches the sandbox itself, for root and for others, before a
// sleep on disk and after it. Other capabilities that a file asks for are refused as ever.
func TestPing(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "500ms", "--save-after", "200ms", "--disk-after", "1s", "--swap", "off")
	_, agent := create(t, c, named("pings", 512))
	packages(t, agent, "iputils-ping", "libcap2", "libcap2-bin")
	if got := sh(t, agent, "getcap $(readlink -f $(command -v ping))"); !strings.Contains(got, "cap_net_raw=ep") {
		t.Fatalf("the package did not give ping its capability: %q", got)
	}
	reached := func() {
		t.Helper()
		for _, as := range []string{"", "setpriv --reuid 65534 --regid 65534 --clear-groups "} {
			for _, to := range []string{"127.0.0.1", "localhost", "::1"} {
				if got := sh(t, agent, as+"ping -c 2 -i 0.2 -W 2 "+to); !strings.Contains(got, " 0% packet loss") {
					t.Errorf("%sping %s: %s", as, to, got)
				}
			}
		}
	}
	reached()
	awaitTier(t, p, "pings", "disk")
	reached()
	if got := sh(t, agent, "cp /bin/true /root/admin && setcap cap_net_raw,cap_sys_admin=ep /root/admin && /root/admin 2>&1 || true"); !strings.Contains(got, "not permitted") {
		t.Errorf("a file with the capability of an administrator: %q", got)
	}
	if got := sh(t, agent, `python3 -c '
import socket
try: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP); print("raw")
except PermissionError: print("refused")'`); got != "refused" {
		t.Errorf("a raw socket: %s", got)
	}
}
