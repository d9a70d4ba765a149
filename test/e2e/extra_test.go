package e2e_test

import (
	_ "embed"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

//go:embed filter.py
var filter string

// tunnel attaches a tun device, gives it an address, and receives what is sent
// through it. It says so, and holds the device as long as it lives.
const tunnel = `
import fcntl, os, socket, struct, time
tun = os.open("/dev/net/tun", os.O_RDWR)
fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"tun0", 0x1001)) # TUNSETIFF, IFF_TUN | IFF_NO_PI
if os.system("ip addr add 192.0.2.1/24 dev tun0 && ip link set tun0 up"): raise SystemExit("ip")
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"through the tunnel", ("192.0.2.9", 9))
while True:
    packet = os.read(tun, 2000)
    if packet.endswith(b"through the tunnel"): break
print("received", flush=True)
time.sleep(3600)
`

// extra is a sandbox with extra arguments that are enabled.
func extra(name string, keys ...string) doze.Sandbox {
	sb := named(name, 512)
	sb.Spec.Runtime.ExtraArgs = map[string]string{}
	for _, k := range keys {
		sb.Spec.Runtime.ExtraArgs[k] = "enabled"
	}
	return sb
}

// tells reports whether an event of a sandbox has a text.
func tells(t *testing.T, c *client.Client, name, text string) bool {
	t.Helper()
	sb, err := c.Sandbox(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range sb.Events {
		if strings.Contains(e.Message, text) {
			return true
		}
	}
	return false
}

// overLoopback asks the agent over lo, and says what comes of it.
const overLoopback = `python3 -c '
import socket
try: socket.create_connection(("127.0.0.1", 8080), 2); print("reached")
except Exception as e: print(type(e).__name__)'`

// unsleepable checks that a sandbox has something that a checkpoint would leave out,
// and that it is not lost for it.
func unsleepable(t *testing.T, p *testkit.Platform, c *client.Client, name, what string, there func()) {
	t.Helper()
	there()
	awaitTier(t, p, name, "paused")
	stays(t, p, name, "paused", 3*time.Second)
	until(t, "an event that says why", func() bool { return tells(t, c, name, what) })
	if _, err := c.CreateSnapshot(t.Context(), name, ""); kind(err) != doze.Conflict || !strings.Contains(err.Error(), what) {
		t.Errorf("a snapshot of it: %v", err)
	}
	there()
	if _, err := c.CreateSnapshot(t.Context(), name, ""); kind(err) != doze.Conflict {
		t.Errorf("a snapshot of it, awake: %v", err)
	}
	if _, err := c.Fork(t.Context(), name, into(name+"-fork")); kind(err) != doze.Conflict {
		t.Errorf("a fork of it: %v", err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitTier(t, p, name, "paused")
	stays(t, p, name, "paused", 2*time.Second)
	there()
}

// TestIPTables: filter rules work, keep a sandbox in memory, and no longer do
// when they are gone. A copy of it has what it may do as well.
func TestIPTables(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "500ms", "--save-after", "200ms", "--disk-after", "1s", "--swap", "off")
	_, agent := create(t, c, extra("rules", "iptables"))
	put(t, agent, "/root/filter.py", filter)
	for range 2 { // a sleep on disk changes nothing that counts
		awaitTier(t, p, "rules", "disk")
		if got := sh(t, agent, overLoopback); got != "reached" {
			t.Fatalf("without a rule: %s", got)
		}
	}
	sh(t, agent, "python3 /root/filter.py on")
	unsleepable(t, p, c, "rules", "its filter rules", func() {
		t.Helper()
		if got := sh(t, agent, overLoopback); got != "TimeoutError" {
			t.Errorf("with a rule: %s", got)
		}
	})
	sh(t, agent, "python3 /root/filter.py off")
	awaitTier(t, p, "rules", "disk")
	if got := sh(t, agent, overLoopback); got != "reached" {
		t.Errorf("without the rule: %s", got)
	}
	if _, err := c.Fork(t.Context(), "rules", into("copy")); err != nil {
		t.Fatal(err)
	}
	_, agent = open(t, c, "copy")
	sh(t, agent, "python3 /root/filter.py on")
	if got := sh(t, agent, overLoopback); got != "TimeoutError" {
		t.Errorf("with a rule in a copy: %s", got)
	}
}

// TestTun: a tun device works, keeps a sandbox in memory, disabled too, and no
// longer does when it is gone.
func TestTun(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "500ms", "--save-after", "200ms", "--disk-after", "1s", "--swap", "off")
	_, agent := create(t, c, extra("tunnel", "tun"))
	awaitTier(t, p, "tunnel", "disk")
	put(t, agent, "/root/tunnel.py", tunnel)
	holder := spawn(t, agent, client.Command{Command: "exec python3 /root/tunnel.py", Name: "tunnel"})
	until(t, "a packet through the tunnel", func() bool {
		logs, err := agent.Logs(t.Context(), holder.PID)
		if err != nil || logs.Stderr != "" {
			t.Fatal(logs, err)
		}
		return logs.Stdout == "received\n"
	})
	attached := func() {
		t.Helper()
		if got := sh(t, agent, "grep -c tun0 /proc/net/dev; pgrep -cf tunnel.py"); got != "1\n1" {
			t.Errorf("the device, and its process: %q", got)
		}
	}
	unsleepable(t, p, c, "tunnel", "its network links", attached)

	enable := func(is bool) {
		t.Helper()
		sb, err := c.Sandbox(t.Context(), "tunnel")
		if err != nil {
			t.Fatal(err)
		}
		sb.Spec.Enabled = &is
		if _, err := c.Update(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
	}
	enable(false)
	awaitTier(t, p, "tunnel", "paused")
	stays(t, p, "tunnel", "paused", 2*time.Second)
	enable(true)
	attached()
	sh(t, agent, "pkill -f tunnel.py")
	awaitTier(t, p, "tunnel", "disk")
}

// TestNamespaces: every sandbox may have network namespaces besides the first.
// With one of them it stays in memory, and it no longer does when that is gone.
func TestNamespaces(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "500ms", "--save-after", "200ms", "--disk-after", "1s", "--swap", "off")
	_, agent := create(t, c, named("nested", 512))
	awaitTier(t, p, "nested", "disk") // an engine that was restored knows as well
	spawn(t, agent, client.Command{Name: "nested", Command: `exec unshare -Urn sh -c '
ip link add one type veth peer name two && ip addr add 192.0.2.1/24 dev one && exec python3 -m http.server 7000'`})
	const enter = `nsenter -t $(pgrep -xo python3) -U -n --preserve-credentials `
	until(t, "somebody listens in there", func() bool {
		return sh(t, agent, enter+`python3 -c 'import socket; socket.create_connection(("192.0.2.1", 7000))' 2>/dev/null && echo yes || true`) == "yes"
	})
	unsleepable(t, p, c, "nested", "network namespaces", func() {
		t.Helper()
		if got := sh(t, agent, enter+`ip -o addr show dev one`); !strings.Contains(got, "192.0.2.1/24") {
			t.Errorf("the address in there: %q", got)
		}
	})
	sh(t, agent, "pkill -xo python3")
	awaitTier(t, p, "nested", "disk")
	if _, err := c.Fork(t.Context(), "nested", into("copy")); err != nil {
		t.Error(err)
	}
}

// TestNoExtras: a sandbox that did not ask for it has neither, and one that
// asked has what it asked for. Nobody gets a tun device by way of a node and a
// namespace of his own.
func TestNoExtras(t *testing.T) {
	t.Parallel()
	_, c := start(t, "--pause-after", "60s")
	const look = `test -e /dev/net/tun && echo tun; python3 -c '
import socket
try: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW); print("raw")
except PermissionError: pass'; ip link add type veth 2>/dev/null && echo links
mknod /root/tun c 10 200 && unshare -Urn python3 -c '
import fcntl, struct
try: fcntl.ioctl(open("/root/tun", "r+b", 0), 0x400454CA, struct.pack("16sH22x", b"tun0", 0x1001)); print("attached")
except OSError as e: print(e.strerror)'`
	for name, tt := range map[string]struct {
		keys []string
		has  string
	}{
		"neither":  {nil, "No such device"},
		"iptables": {[]string{doze.ExtraIPTables}, "raw\nlinks\nNo such device"},
		"tun":      {[]string{doze.ExtraTun}, "tun\nlinks\nattached"},
		"both":     {[]string{doze.ExtraIPTables, doze.ExtraTun}, "tun\nraw\nlinks\nattached"},
	} {
		_, agent := create(t, c, extra(name, tt.keys...))
		if got := sh(t, agent, look); got != tt.has {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestLoopback: lo is the same whichever way a sandbox has started.
func TestLoopback(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "500ms", "--save-after", "200ms", "--disk-after", "1s", "--swap", "off")
	_, agent := create(t, c, named("booted", 512))
	const look = `ip -o addr show dev lo; python3 -c '
import socket
s = socket.create_server(("::1", 0), family=socket.AF_INET6)
socket.create_connection(s.getsockname()[:2])
print("reached")'`
	booted := sh(t, agent, look)
	if !strings.Contains(booted, "::1/128") || !strings.HasSuffix(booted, "reached") {
		t.Errorf("after a boot: %s", booted)
	}
	awaitTier(t, p, "booted", "disk")
	if got := sh(t, agent, look); got != booted {
		t.Errorf("after a boot: %s\nafter a sleep: %s", booted, got)
	}
	if _, err := c.Fork(t.Context(), "booted", into("copy")); err != nil {
		t.Fatal(err)
	}
	_, agent = open(t, c, "copy")
	if got := sh(t, agent, look); got != booted {
		t.Errorf("after a boot: %s\nin a copy: %s", booted, got)
	}
}
