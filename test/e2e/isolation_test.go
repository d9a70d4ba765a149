package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// Addresses that a sandbox must not reach. Each of them is given to a server
// of the test's own in a network namespace that nothing leaves, so that a hole
// is found and no packet goes astray.
const (
	metadataIP = "169.254.169.254"
	publicIP   = "1.2.3.4"
	privateIP  = "192.168.77.1"
)

// within runs f on a thread in another network namespace.
func within(t *testing.T, netns string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { // ends with f
		runtime.LockOSThread() // and never unlocked: the thread is thrown away
		ns, err := os.Open(netns)
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
			_ = ns.Close()
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("in %s: %v", netns, err)
	}
}

// run runs a command of the host and returns its output.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// namespace makes an empty network namespace and returns the id of a process
// in it, and its file.
func namespace(t *testing.T) (pid, file string) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed by us
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("unshare says %q, %v", line, err)
	}
	pid = strconv.Itoa(cmd.Process.Pid)
	return pid, "/proc/" + pid + "/ns/net"
}

const greeting = "you should not be here"

// serve listens in a network namespace on any address of it, TCP and UDP, at
// the ports of an agent, of DNS and of web servers.
func serve(t *testing.T, netns string) {
	t.Helper()
	within(t, netns, func() error {
		for _, port := range []string{"53", "80", "8080"} {
			l, err := net.Listen("tcp4", ":"+port)
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = l.Close() })
			go func() { // ends with the listener
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = io.WriteString(conn, greeting)
					_ = conn.Close()
				}
			}()
			u, err := net.ListenPacket("udp4", ":"+port)
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = u.Close() })
			go func() { // ends with the socket
				b := make([]byte, 2048)
				for {
					_, from, err := u.ReadFrom(b)
					if err != nil {
						return
					}
					_, _ = u.WriteTo([]byte(greeting), from)
				}
			}()
		}
		return nil
	})
}

// prober tries to reach addresses, all at the same time, and prints which it
// reached.
const prober = `
import json, socket, sys, threading
reached, lock = [], threading.Lock()
def tcp(host, port):
    socket.create_connection((host, port), timeout=1.5).recv(100)
def udp(host, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.settimeout(1.5)
    s.sendto(b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01", (host, port))
    s.recv(100)
def icmp(host, kind):
    s = socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP)
    s.settimeout(1.5)
    s.sendto(b"\x08\x00\xf7\xfe\x00\x00\x00\x01", (host, 0))
    s.recv(100)
def attempt(f, *args):
    try:
        f(*args)
    except ConnectionRefusedError:
        pass  # something said no: that is an answer too
    except OSError:
        return
    with lock:
        reached.append(" ".join([f.__name__] + [str(a) for a in args]))
threads = []
for host in sys.argv[1:]:
    for port in 53, 80, 8080:
        threads += [(tcp, host, port), (udp, host, port)]
    threads += [(icmp, host, int(socket.SOCK_DGRAM)), (icmp, host, int(socket.SOCK_RAW))]
threads = [threading.Thread(target=attempt, args=a) for a in threads]
for t in threads: t.start()
for t in threads: t.join()
print(json.dumps(sorted(reached)))
`

// probe returns what a sandbox reaches of some addresses.
func probe(t *testing.T, agent *client.Agent, addresses ...string) (reached []string) {
	t.Helper()
	put(t, agent, "/root/probe.py", prober)
	out := sh(t, agent, "python3 /root/probe.py "+strings.Join(addresses, " "))
	if err := json.Unmarshal([]byte(out), &reached); err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	return reached
}

// addressOf is the address of a sandbox, as it knows it itself.
func addressOf(t *testing.T, agent *client.Agent) string {
	t.Helper()
	return sh(t, agent, "ip -4 -o addr show dev eth0 | sed -E 's/.* inet ([0-9.]+).*/\\1/'")
}

// gatewayOf is the next hop of a sandbox.
func gatewayOf(t *testing.T, agent *client.Agent) string {
	t.Helper()
	return sh(t, agent, "ip route show default | sed -E 's/.* via ([0-9.]+).*/\\1/'")
}

func TestIsolation(t *testing.T) {
	t.Parallel()
	p, c := start(t)
	_, one := create(t, c, named("one", 2048))
	_, two := create(t, c, named("two", 512))

	t.Run("network", func(t *testing.T) {
		t.Parallel()
		closedNetwork(t, p, one, two)
	})
	t.Run("loopback", func(t *testing.T) {
		t.Parallel()
		spawn(t, two, client.Command{Command: "exec python3 -m http.server -b 127.0.0.1 -d /etc 7000"})
		out := sh(t, two, "for i in $(seq 50); do curl -s localhost:7000/hostname && exit; sleep 0.1; done; exit 1")
		if out != "two" {
			t.Errorf("the server says %q", out)
		}
		if out := sh(t, two, "hostname; timeout 2 getent ahosts two | head -1"); !strings.HasPrefix(out, "two\n127.") {
			t.Errorf("its own name is %q", out)
		}
	})
	t.Run("kill", func(t *testing.T) {
		t.Parallel()
		_, three := create(t, c, named("three", 512))
		if _, err := three.Start(t.Context(), client.Command{Command: "kill -9 -1", Wait: true}); err != nil {
			t.Error(err)
		}
		if out := sh(t, three, "echo alive"); out != "alive" {
			t.Errorf("after everything in it was killed, the sandbox says %q", out)
		}
	})
	t.Run("host", func(t *testing.T) {
		t.Parallel()
		// Files with a name that only we know, wherever a mistake would show them.
		secret := "doze-e2e-" + filepath.Base(p.Data) + strconv.Itoa(os.Getpid())
		for _, dir := range []string{p.Data, os.TempDir(), "/root", filepath.Join(p.RunDir)} {
			file := filepath.Join(dir, secret)
			if err := os.WriteFile(file, []byte("host"), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.Remove(file) })
		}
		if found := sh(t, one, "find / -name '"+secret+"*' 2>/dev/null; ls -d "+p.Data+" "+p.RunDir+" 2>/dev/null; true"); found != "" {
			t.Errorf("the sandbox sees files of the host: %s", found)
		}
		if found := sh(t, one, "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep -E '[d]ozed|[s]entry|[r]unsc|[g]o-build' || true"); found != "" {
			t.Errorf("the sandbox sees processes of the host: %s", found)
		}
		if found := sh(t, one, "ls /dev | grep -E '^(mem|kmem|kvm|sd|vd|nvme|loop|dm-)' || true"); found != "" {
			t.Errorf("the sandbox has devices of the host: %s", found)
		}
		if host, err := os.ReadFile("/proc/sys/kernel/osrelease"); err != nil || sh(t, one, "uname -r") == strings.TrimSpace(string(host)) {
			t.Errorf("the sandbox runs on the host's kernel (%v)", err)
		}
	})
}

// closedNetwork gives the router addresses and servers, and a neighbour behind
// it, and tries to reach all of them from a sandbox.
func closedNetwork(t *testing.T, p *testkit.Platform, one, two *client.Agent) {
	t.Helper()
	router := p.RouterNetNS()
	pid, outside := namespace(t)
	in := func(args ...string) { run(t, "nsenter", append([]string{"--net=" + router, "ip"}, args...)...) }
	out := func(args ...string) { run(t, "nsenter", append([]string{"--net=" + outside, "ip"}, args...)...) }
	in("link", "set", "lo", "up")
	in("addr", "add", metadataIP+"/32", "dev", "lo")
	in("addr", "add", privateIP+"/32", "dev", "lo")
	in("link", "add", "leak", "type", "veth", "peer", "name", "leak", "netns", pid)
	in("addr", "add", "1.2.3.1/24", "dev", "leak")
	in("link", "set", "leak", "up")
	out("link", "set", "lo", "up")
	out("addr", "add", publicIP+"/24", "dev", "leak")
	out("link", "set", "leak", "up")
	out("route", "add", "default", "via", "1.2.3.1")
	serve(t, router)
	serve(t, outside)
	// The servers are there: the router itself reaches them.
	within(t, router, func() error {
		for _, ip := range []string{metadataIP, privateIP, publicIP} {
			conn, err := net.DialTimeout("tcp4", ip+":80", time.Second)
			if ip == publicIP && err == nil {
				return conn.Close()
			}
			if ip == publicIP {
				return fmt.Errorf("the neighbour does not answer: %w", err)
			}
			if err == nil {
				_ = conn.Close() // lo is not a sandbox's link, but the filter closes it too
			}
		}
		return nil
	})

	targets := []string{gatewayOf(t, one), gatewayOf(t, two), addressOf(t, two), "10.88.0.0", "10.91.255.254", metadataIP, privateIP, "1.2.3.1", publicIP}
	if reached := probe(t, one, targets...); len(reached) > 0 {
		t.Errorf("the sandbox reached %q", reached)
	}
	if self := probe(t, one, addressOf(t, one)); len(self) == 0 {
		t.Error("the sandbox does not reach itself: the probe proves nothing")
	}
	if name := sh(t, one, "timeout 2 getent ahosts doze.invalid || echo no"); name != "no" {
		t.Errorf("a name was resolved to %q", name)
	}
	// An address that was not given to it brings it no further.
	sh(t, one, "ip addr add "+metadataIP+"/32 dev eth0 2>/dev/null; ip route add default dev eth0 2>/dev/null; true")
	if reached := probe(t, one, gatewayOf(t, two), addressOf(t, two), publicIP); len(reached) > 0 {
		t.Errorf("the sandbox reached %q from another address", reached)
	}
	// Nothing leads from the router to the machine.
	for link := range strings.Lines(run(t, "nsenter", "--net="+router, "ip", "-o", "link")) {
		name := strings.Trim(strings.Fields(link)[1], ":")
		name, _, _ = strings.Cut(name, "@")
		if name != "lo" && name != "leak" && !strings.HasPrefix(name, "sandbox") {
			t.Errorf("the router has a link of another kind: %s", link)
		}
	}
	if routes := run(t, "nsenter", "--net="+router, "ip", "route", "show", "default"); routes != "" {
		t.Errorf("the router has a way out: %s", routes)
	}
}

// forsaken waits, in a sandbox, for a server that never says anything: after a
// sleep on disk nobody knows whether the server is still there, and who waits is
// told so.
func forsaken(t *testing.T, p *testkit.Platform, agent *client.Agent, netns string) {
	t.Helper()
	const port = "7000"
	within(t, netns, func() error {
		l, err := net.Listen("tcp4", ":"+port) // the kernel takes connections
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
		}
		return err
	})
	const reader = `
import socket
far = socket.create_connection(("` + publicIP + `", ` + port + `))
near, other = socket.create_server(("127.0.0.1", 0)), None
other = socket.create_connection(near.getsockname())
print("waits", flush=True)
try: print("ended", far.recv(1), flush=True)
except OSError as e: print("ended", e, flush=True)
near.accept()[0].send(b"x")
print("near", other.recv(1), flush=True)
`
	held, err := agent.Start(t.Context(), client.Command{Command: "exec python3 -c '" + reader + "'"})
	if err != nil {
		t.Fatal(err)
	}
	said := func(what string) bool {
		logs, err := agent.Logs(t.Context(), held.PID)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(logs.Stdout, what)
	}
	until(t, "it waits", func() bool { return said("waits") })
	if err := p.AwaitTier(t.Context(), "one", "paused"); err != nil {
		t.Fatal(err)
	}
	if said("ended") {
		t.Error("a connection did not outlive a sleep in memory")
	}
	if err := p.AwaitTier(t.Context(), "one", "disk"); err != nil {
		t.Fatal(err)
	}
	until(t, "it is told", func() bool { return said("ended") })
	until(t, "what is inside goes on", func() bool { return said("near b'x'") })
}

// apart is set in the copy of this process that has a network namespace of its
// own as the machine's.
var apart = flag.Bool("apart", false, "run TestOpenEgress in this network namespace, which must be a fresh one")

// TestOpenEgress runs a platform with --egress direct in a network namespace
// where only the test's own servers can be reached.
func TestOpenEgress(t *testing.T) {
	if !*apart {
		t.Parallel()
		if testing.Short() || os.Geteuid() != 0 {
			t.Skip("SKIPPED: real sandboxes need root and time")
		}
		cmd := exec.CommandContext(t.Context(), "unshare", "--net", os.Args[0], "-test.run=^TestOpenEgress$", "-apart", "-test.v")
		cmd.WaitDelay = patience
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	if links := run(t, "ip", "-o", "link"); strings.Contains(links, "eth") {
		t.Fatalf("this is not a fresh network namespace:\n%s", links)
	}
	pid, outside := namespace(t)
	run(t, "ip", "link", "set", "lo", "up")
	run(t, "ip", "link", "add", "wan", "type", "veth", "peer", "name", "wan", "netns", pid)
	run(t, "ip", "addr", "add", "1.2.3.1/24", "dev", "wan")
	run(t, "ip", "link", "set", "wan", "up")
	out := func(args ...string) { run(t, "nsenter", append([]string{"--net=" + outside, "ip"}, args...)...) }
	out("link", "set", "lo", "up")
	for _, ip := range []string{publicIP + "/24", metadataIP + "/32", privateIP + "/32"} {
		out("addr", "add", ip, "dev", "wan")
	}
	out("link", "set", "wan", "up")
	run(t, "ip", "route", "add", "default", "via", publicIP)
	serve(t, outside)
	serve(t, "/proc/thread-self/ns/net") // that of the process is the one of its first thread

	p, c := start(t, "--egress", "direct", "--pause-after", "300ms", "--save-after", "0s", "--swap", "off", "--disk-after", "1s")
	_, one := create(t, c, named("one", 2048))
	_, two := create(t, c, named("two", 512))
	reached := probe(t, one, publicIP)
	for _, want := range []string{"tcp " + publicIP + " 80", "udp " + publicIP + " 53"} {
		if !strings.Contains(strings.Join(reached, "\n"), want) {
			t.Errorf("reached %q, and not %s", reached, want)
		}
	}
	closed := []string{metadataIP, privateIP, "1.2.3.1", gatewayOf(t, one), gatewayOf(t, two), addressOf(t, two), "169.254.88.253", "169.254.88.254"}
	rows := map[string]row{}
	for _, ip := range closed {
		rows[ip+" by ICMP"] = row{"ping", args(ip), "nothing"}
		for _, port := range []int{53, 80, doze.AgentPort} {
			to := ip + ":" + strconv.Itoa(port)
			rows[to] = row{"raw", args(ip, port), "refused"}
			rows[to+" by UDP"] = row{"datagram", args(ip, port), "nothing"}
		}
	}
	try(t, one, rows)
	forsaken(t, p, one, outside)
	// Closed again, nothing is left in the machine's namespace.
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	p.Arguments("--egress", "closed")
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if reached := probe(t, one, publicIP); len(reached) > 0 {
		t.Errorf("with egress closed, the sandbox reached %q", reached)
	}
	if links := run(t, "ip", "-o", "link"); strings.Contains(links, "doze") {
		t.Errorf("the uplink is still there:\n%s", links)
	}
}
