package e2e_test

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/dnstest"
)

// otherIP is another address of the internet of these tests, and ownIP the one
// of the machine.
const (
	otherIP  = "5.6.7.8"
	listedIP = "5.6.7.9" // in bypass
	ownIP    = "1.2.3.1"
	publicV6 = "2600:5::4"
	ownV6    = "2600:5::1"
)

// netnsTest is set in the copy of this process that has a network namespace of its
// own as the machine's.
var netnsTest = flag.Bool("netns", false, "run a test in this network namespace, which must be a fresh one")

// internet is what is outside: a namespace with servers that say how they were
// reached, and a DNS that knows where they are.
type internet struct {
	zone      *dnstest.Zone
	outside   string       // its namespace
	datagrams atomic.Int64 // packets by UDP, but for those from dedicated addresses to one port
	leaked    atomic.Int64 // connections to ports that nobody may reach
}

func newInternet(t *testing.T) *internet {
	t.Helper()
	pid, outside := namespace(t)
	run(t, "ip", "link", "set", "lo", "up")
	run(t, "ip", "link", "add", "wan", "type", "veth", "peer", "name", "wan", "netns", pid)
	run(t, "ip", "addr", "add", ownIP+"/24", "dev", "wan")
	run(t, "ip", "link", "set", "wan", "up")
	run(t, "ip", "addr", "add", ownV6+"/64", "dev", "wan", "nodad")
	out := func(args ...string) { run(t, "nsenter", append([]string{"--net=" + outside, "ip"}, args...)...) }
	out("link", "set", "lo", "up")
	for _, ip := range []string{publicIP + "/24", otherIP + "/32", listedIP + "/32", metadataIP + "/32", privateIP + "/32"} {
		out("addr", "add", ip, "dev", "wan")
	}
	for _, ip := range []string{publicV6 + "/64", "fd00::4/128", "64:ff9b::a9fe:a9fe/128"} {
		out("addr", "add", ip, "dev", "wan", "nodad")
	}
	out("link", "set", "wan", "up")
	run(t, "ip", "route", "add", "default", "via", publicIP)
	run(t, "ip", "-6", "route", "add", "default", "via", publicV6)
	n := &internet{zone: dnstest.Serve(t), outside: outside}
	for name, ip := range map[string][4]byte{
		"allowed.test": {1, 2, 3, 4}, "a.wild.test": {1, 2, 3, 4}, "wild.test": {1, 2, 3, 4}, "ported.test": {1, 2, 3, 4}, "fronted.test": {1, 2, 3, 4},
		"free.test": {1, 2, 3, 4}, "evil.test": {5, 6, 7, 8}, "direct.test": {5, 6, 7, 8}, "rebind.test": {169, 254, 169, 254}, "own.test": {1, 2, 3, 1}, "inner.test": {192, 168, 77, 1},
		"mail.test": {1, 2, 3, 4},
	} {
		n.zone.A(name, ip)
	}
	for name, ip := range map[string]string{
		"a.six.test": publicV6, "own.six.test": ownV6, "unique.six.test": "fd00::4", "link.six.test": "fe80::1", "loop.six.test": "::1",
		"mapped.six.test": "::ffff:169.254.169.254", "translated.six.test": "64:ff9b::a9fe:a9fe",
	} {
		n.zone.AAAA(name, netip.MustParseAddr(ip).As16())
	}
	n.zone.TXT("allowed.test", "a text")
	n.zone.TXT("free.test", "a text")
	n.zone.TXT("evil.test", "a text")
	within(t, outside, func() error { return n.serve(t) })
	for _, port := range []string{"80", "8080"} { // of the machine itself
		l, err := net.Listen("tcp4", net.JoinHostPort(ownIP, port))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go n.count(l)
	}
	return n
}

// serve starts the servers outside: of the web, which say how they were reached;
// of a port that an entry names; and those that nobody may reach.
func (n *internet) serve(t *testing.T) error {
	t.Helper()
	say := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sni := "-"
		if r.TLS != nil {
			sni = r.TLS.ServerName
		}
		at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		from, _, _ := net.SplitHostPort(r.RemoteAddr)
		_, _ = fmt.Fprintf(w, "host=%s sni=%s at=%s from=%s\n", r.Host, sni, at, from)
		if r.URL.Path == "/hold" {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	})
	for port, secure := range map[string]bool{"80": false, "443": true} {
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			return err
		}
		s := &httptest.Server{Listener: l, Config: &http.Server{Handler: say}}
		if secure {
			s.StartTLS()
		} else {
			s.Start()
		}
		t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	}
	for _, port := range []string{"25", "53", "853", "5432", "8080", "8443", "9999"} {
		l, err := net.Listen("tcp4", ":"+port)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = l.Close() })
		go n.count(l)
	}
	for _, port := range []string{"53", "443", "853", "9999"} {
		u, err := net.ListenPacket("udp4", ":"+port)
		if err != nil {
			return err
		}
		t.Cleanup(func() { _ = u.Close() })
		go func() { // ends with the socket
			for {
				_, from, err := u.ReadFrom(make([]byte, 2048))
				if err != nil {
					return
				}
				host, _, _ := net.SplitHostPort(from.String())
				if dedicated := host == sourceIP || host == nextIP; !dedicated || port != "443" {
					n.datagrams.Add(1)
				}
				_, _ = u.WriteTo([]byte("from="+host), from)
			}
		}()
	}
	return nil
}

// count greets whoever connects; at other ports than those of tests that may, nobody
// may.
func (n *internet) count(l net.Listener) {
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for {
		c, err := l.Accept()
		if err != nil {
			return // the listener is closed
		}
		if port != "8443" && port != "5432" {
			n.leaked.Add(1)
		}
		_, _ = io.WriteString(c, greeting)
		_ = c.Close()
	}
}

// egressProber has a function for each way out. It prints what came of each.
const egressProber = `
import json, os, socket, ssl, subprocess, sys, threading
TIME = 60
c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
def connect(host, port, time=TIME):
    return socket.create_connection((host, port), timeout=time)
def lookup(name):
    return socket.gethostbyname(name)
def speak(s, text):
    s.sendall(text.encode())
    out = b""
    while True:
        b = s.recv(4096)
        if not b: return out.decode()
        out += b
def first(answer):
    head, _, body = answer.partition("\r\n\r\n")
    status = head.split(" ")[1] if " " in head else head
    blocked = [l for l in head.split("\r\n") if l.lower().startswith("proxy-error:")]
    return status + (" " + blocked[0].split(": ")[1] if blocked else " " + body.strip() if status == "200" else "")
def web(name, host=None, port=80):
    s = connect(name, port)
    return first(speak(s, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (host or name)))
def twice(name, second):
    s = connect(name, 80)
    s.sendall(("HEAD / HTTP/1.1\r\nHost: %s\r\n\r\n" % name).encode())
    one = b""
    while b"\r\n\r\n" not in one:
        one += s.recv(1)
    return first(one.decode())[:3] + " then " + first(speak(s, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % second))
def tls_on(s, sni):
    t = c.wrap_socket(s, server_hostname=sni)
    return first(speak(t, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (sni or "none")))
def tls(host, sni, port=443):
    return tls_on(connect(host, port), sni)
def tunnel(to, sni=None, host=None):
    s = socket.create_connection(("169.254.88.1", 3128), timeout=TIME)
    s.sendall(("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (to, to)).encode())
    head = b""
    while b"\r\n\r\n" not in head:
        b = s.recv(1)
        if not b: return "closed"
        head += b
    if not head.startswith(b"HTTP/1.1 200"): return first(head.decode())
    if host: return first(speak(s, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % host))
    return tls_on(s, sni)
def raw(host, port):
    return speak(connect(host, port), "")
def silent(host, port):
    return speak(connect(host, port, 1.5), "")
def datagram(host, port, data=b"hello", time=1.5):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(time)
    s.sendto(data, (host, port))
    return s.recv(2000)
def connected(host, port):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(6); s.connect((host, port))
    for _ in range(10): # a packet may be lost
        s.send(b"hello")
        try: return str(s.recv(2000))
        except TimeoutError: pass
    raise TimeoutError
def udp(host, port):
    for _ in range(10): # a packet may be lost
        try: return datagram(host, port, time=6).decode()
        except TimeoutError: pass
    raise TimeoutError
def question(name, kind):
    q = b"".join(bytes([len(l)]) + l.encode() for l in name.split(".")) + b"\0"
    return b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + q + bytes([0, kind, 0, 1])
def told(reply):
    return "%d answers, code %d" % (reply[7], reply[3] & 15)
def dns(server, name, kind=1):
    for _ in range(10):
        try: return told(datagram(server, 53, question(name, kind), 3))
        except TimeoutError: pass
    raise TimeoutError
def dns_more(server, name, more):
    text = bytes([len(more)]) + more.encode()
    record = b"\0\0\x10\0\1\0\0\0\0" + len(text).to_bytes(2, "big") + text
    q = question(name, 1)
    q = q[:10] + b"\0\1" + q[12:] + record
    for _ in range(10):
        try: return told(datagram(server, 53, q, 3))
        except TimeoutError: pass
    raise TimeoutError
def dns_tcp(server, name):
    s = connect(server, 53); q = question(name, 1)
    s.sendall(bytes([0, len(q)]) + q)
    return told(s.recv(500)[2:])
def ping(host):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP); s.settimeout(1.5)
    s.sendto(b"\x08\x00\xf7\xfe\x00\x00\x00\x01", (host, 0))
    return s.recv(100).hex()
def answered(host):
    for _ in range(10): # a packet may be lost
        try: return ping(host)
        except TimeoutError: pass
    raise TimeoutError
def six(host):
    s = socket.socket(socket.AF_INET6, socket.SOCK_STREAM); s.settimeout(1.5)
    s.connect((host, 80)); return "connected"
def curl(*args):
    p = subprocess.run(["curl", "-sk", "-m", str(TIME), "-o", "/dev/stdout", "-w", "%{http_code} %{http_connect}", *args], capture_output=True, text=True)
    return p.stdout.strip().split("\n")[-1] if p.returncode == 0 else "curl %d %s" % (p.returncode, p.stdout.strip())
def static(*args):
    return subprocess.run(["/root/raw", *args, "1.2.3.4"], capture_output=True, text=True, env={}).stdout.strip()
def attempt(name, f, args):
    try: out = f(*args)
    except (ConnectionRefusedError, ConnectionResetError, ssl.SSLEOFError, BrokenPipeError): out = "refused"
    except TimeoutError: out = "nothing"
    except OSError as e: out = "error " + (errno_name(e))
    with lock: found[name] = out
def errno_name(e):
    import errno
    return errno.errorcode.get(e.errno, str(e))
found, lock = {}, threading.Lock()
todo = [threading.Thread(target=attempt, args=(n, globals()[f], a)) for n, f, *a in json.load(open(sys.argv[1]))]
for t in todo: t.start()
for t in todo: t.join()
print(json.dumps(found))
`

// A row is one way out, and what comes of it.
type row struct {
	call string // of the prober
	args []any
	want string // what it says, or the beginning of it
}

// try makes the attempts of a table in a sandbox, all at the same time.
func try(t *testing.T, agent *client.Agent, rows map[string]row) {
	t.Helper()
	var list [][]any
	for name, r := range rows {
		list = append(list, append([]any{name, r.call}, r.args...))
	}
	raw, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	put(t, agent, "/root/egress.py", egressProber)
	put(t, agent, "/root/rows.json", string(raw))
	found := map[string]string{}
	if out := sh(t, agent, "python3 /root/egress.py /root/rows.json"); json.Unmarshal([]byte(out), &found) != nil {
		t.Fatal(out)
	}
	for name, r := range rows {
		if !strings.HasPrefix(found[name], r.want) || r.want == "" {
			t.Errorf("%s: %s%q gives %q, want %q", name, r.call, r.args, found[name], r.want)
		}
	}
}

// args are those of a row.
func args(all ...any) []any { return all }

const (
	blocked = "403 firewall_blocked"
	// pong begins an answer to an echo request.
	pong = "0000"
	// reachedBy begins what the server says.
	reached = "200 host=allowed.test sni=- at=1.2.3.4:80"
	secured = "200 host=allowed.test sni=allowed.test at=1.2.3.4:443"
)

// ownNetwork runs a test in a copy of this process that has a network namespace of its
// own as the machine's, and reports whether this is that copy.
func ownNetwork(t *testing.T) bool {
	t.Helper()
	if *netnsTest {
		if links := run(t, "ip", "-o", "link"); strings.Contains(links, "eth") {
			t.Fatalf("this is not a fresh network namespace:\n%s", links)
		}
		return true
	}
	t.Parallel()
	if testing.Short() || os.Geteuid() != 0 {
		t.Skip("SKIPPED: real sandboxes need root and time")
	}
	cmd := exec.CommandContext(t.Context(), "unshare", "--net", os.Args[0], "-test.run=^"+t.Name()+"$", "-netns", "-test.v")
	cmd.WaitDelay = patience
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	return false
}

// TestEgress has a sandbox with rules try every way past them that is known, and
// next to each of them one that is allowed.
// TestPrivateNetworks: --egress-allow opens a network that is not public for all sandboxes,
// within their rules, and nothing besides.
func TestPrivateNetworks(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	n := newInternet(t)
	_, c := start(t, "--egress", "open", "--egress-allow", privateIP+","+ownIP, "--resolver", n.zone.Address, "--pause-after", "1h")
	_, free := create(t, c, named("free", 1024))
	sb := named("ruled", 1024)
	sb.Spec.Network = &doze.Network{Proxy: &doze.Proxy{AllowedDomains: []string{"allowed.test"}}}
	_, ruled := create(t, c, sb)
	putRaw(t, free, ruled)
	try(t, free, map[string]row{
		"a name":              {"web", args("inner.test"), "200 host=inner.test"},
		"an address":          {"web", args(privateIP), "200 host=" + privateIP},
		"ping":                {"answered", args(privateIP), pong},
		"ping to a name":      {"answered", args("inner.test"), pong},
		"the metadata":        {"raw", args(metadataIP, 80), "refused"},
		"its name":            {"web", args("rebind.test"), blocked},
		"this machine":        {"web", args(ownIP), "refused"},
		"a name of it":        {"web", args("own.test"), blocked},
		"the public internet": {"web", args("allowed.test"), reached},
		"a neighbour":         {"raw", args(addressOf(t, ruled), doze.AgentPort), "refused"},
	})
	try(t, ruled, map[string]row{
		"a name":     {"web", args("inner.test"), blocked},
		"an address": {"web", args(privateIP), blocked},
	})
	if n.leaked.Load() != 0 {
		t.Errorf("%d connections went where nothing may go", n.leaked.Load())
	}
}

func TestEgress(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	n := newInternet(t)
	p, c := start(t, "--egress", "open", "--resolver", n.zone.Address, "--pause-after", "1h", "--warm-pool", "1")
	sb := named("one", 2048)
	bypass := []string{"direct.test", metadataIP, "192.168.0.0/16", listedIP}
	sb.Spec.Network = &doze.Network{Proxy: &doze.Proxy{
		AllowedDomains: []string{"allowed.test", "*.wild.test", "ported.test:8443", "mail.test:25", "rebind.test", "own.test", "inner.test", "*.six.test"},
		Bypass:         bypass,
	}}
	sb, one := create(t, c, sb)
	if diff := cmp.Diff(bypass, sb.Spec.Network.Proxy.Bypass); diff != "" {
		t.Error(diff)
	}
	_, two := create(t, c, extra("two", "iptables")) // which has raw sockets
	serveInside(t, two)
	putRaw(t, one, two)

	try(t, one, n.rows(gatewayOf(t, one), addressOf(t, two)))
	audited(t, p)
	refusalsTold(t, c)
	serveInside(t, one)
	try(t, two, n.withoutRules(gatewayOf(t, two), addressOf(t, one)))
	if n.leaked.Load() != 0 || n.datagrams.Load() != 0 {
		t.Errorf("%d connections and %d packets went where nothing may go", n.leaked.Load(), n.datagrams.Load())
	}
	for name, want := range map[string]bool{"allowed.test": true, "evil.test": false, "stolen.evil.test": false, "a.six.test": true} {
		if got := n.zone.Asked(name); got != want {
			t.Errorf("%s was asked of the DNS: %v", name, got)
		}
	}
	t.Run("live", func(t *testing.T) { n.changes(t, c, sb, one) })
	t.Run("wake", func(t *testing.T) { wakes(t, p, c, sb, one) })
	t.Run("archive", func(t *testing.T) { archives(t, c, sb, one) })
	t.Run("crash", func(t *testing.T) { n.crash(t, p, one) })
	t.Run("switch", func(t *testing.T) { n.switches(t, p, c) })
}

// putRaw builds the program of testdata/raw and puts it into sandboxes.
func putRaw(t *testing.T, agents ...*client.Agent) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "raw")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w", "-o", program, "./testdata/raw")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	raw, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, agent := range agents {
		put(t, agent, "/root/raw", string(raw))
		sh(t, agent, "chmod +x /root/raw")
	}
}

// audited looks for the lines about what was tried, those of the kernel too, and
// for what it counted.
func audited(t *testing.T, p *testkit.Platform) {
	t.Helper()
	for _, line := range []string{
		`"protocol":"tcp","host":"allowed.test","port":80,"verdict":"allow","rule":"allowedDomains[0]"`,
		`"protocol":"tcp","host":"evil.test","port":80,"verdict":"deny","rule":"allowedDomains"`,
		`"protocol":"tcp","host":"169.254.169.254","port":80,"verdict":"deny","rule":"private"`,
		`"protocol":"udp","host":"1.2.3.4","port":443,"verdict":"deny","rule":"transport"`,
		`"protocol":"icmp","host":"1.2.3.4","port":0,"verdict":"deny","rule":"no-name"`,
		`"protocol":"icmp","host":"evil.test","port":0,"verdict":"deny","rule":"allowedDomains"`,
		`"protocol":"icmp","host":"rebind.test","port":0,"verdict":"deny","rule":"private"`,
		`"protocol":"icmp","host":"allowed.test","port":0,"verdict":"allow","rule":"allowedDomains[0]"`,
	} {
		until(t, "the log has "+line, func() bool {
			return regexp.MustCompile(`"msg":"egress","sandbox":"[^"]+","workspace":"[^"]*","name":"one",` + regexp.QuoteMeta(line)).MatchString(p.Printed())
		})
	}
	_, metrics := get(t, p, p.Address+"/metrics")
	for _, protocol := range []string{"tcp", "udp"} {
		if !regexp.MustCompile(`(?m)^doze_egress_refused_packets_total\{protocol="` + protocol + `"\} [1-9]`).MatchString(metrics) {
			t.Errorf("no refused packet of %s is counted:\n%s", protocol, metrics)
		}
	}
}

// refusalsTold looks at the events of the first sandbox: its refusals are among them, and
// they are few.
func refusalsTold(t *testing.T, c *client.Client) {
	t.Helper()
	const most = 9 // eight at once, and one in half an hour
	until(t, "refusals are events", func() bool {
		sb, err := c.Sandbox(t.Context(), "one")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, e := range sb.Events {
			if e.Type == doze.EventNotice && strings.HasPrefix(e.Message, "egress by ") && strings.Contains(e.Message, " is refused (") {
				n++
			}
		}
		if n > most {
			t.Fatalf("%d refusals are events", n)
		}
		return n > 1
	})
}

// serveInside listens in a sandbox, so that others would reach something there.
func serveInside(t *testing.T, agent *client.Agent) {
	t.Helper()
	spawn(t, agent, client.Command{Command: "exec python3 -m http.server -d /etc 7000"})
	sh(t, agent, "for i in $(seq 100); do curl -s localhost:7000/hostname && exit; sleep 0.1; done; exit 1")
}

// rows are the ways out of a sandbox with a list of allowed domains.
func (n *internet) rows(gateway, neighbour string) map[string]row {
	return map[string]row{
		"a tool without a proxy":            {"web", args("allowed.test"), reached},
		"a tool without a proxy, elsewhere": {"web", args("evil.test"), blocked},
		"by TLS":                            {"tls", args("allowed.test", "allowed.test"), secured},
		"by TLS, elsewhere":                 {"tls", args("evil.test", "evil.test"), "refused"},
		"a wildcard":                        {"web", args("a.wild.test"), "200 host=a.wild.test"},
		"a wildcard, not itself":            {"web", args("wild.test"), blocked},
		"upper case":                        {"web", args("ALLOWED.test."), "200"},
		"UDP":                               {"datagram", args(publicIP, 443), "nothing"},
		"UDP to a name":                     {"datagram", args("allowed.test", 443), "nothing"},
		"ping":                              {"answered", args("allowed.test"), pong},
		"ping to a wildcard":                {"answered", args("a.wild.test"), pong},
		"ping to an address in bypass":      {"answered", args(listedIP), pong},
		"ping elsewhere":                    {"ping", args("evil.test"), "nothing"},
		"ping to a name with a port":        {"ping", args("ported.test"), "nothing"},
		"ping to an address":                {"ping", args(publicIP), "nothing"},
		"ping to the metadata":              {"ping", args(metadataIP), "nothing"},
		"ping to a name of the metadata":    {"ping", args("rebind.test"), "nothing"},
		"ping to this machine":              {"ping", args("own.test"), "nothing"},
		"ping to the gateway":               {"ping", args(gateway), "nothing"},
		"ping to another sandbox":           {"ping", args(neighbour), "nothing"},

		"a secret in a label":             {"lookup", args("stolen.evil.test"), "198."},
		"a resolver elsewhere":            {"dns", args(publicIP, "allowed.test"), "1 answers, code 0"},
		"a resolver elsewhere, by TCP":    {"dns_tcp", args(publicIP, "allowed.test"), "1 answers, code 0"},
		"a resolver in a private network": {"dns", args(privateIP, "allowed.test"), "1 answers, code 0"},
		"DNS over TLS":                    {"tls", args(publicIP, "allowed.test", 853), "refused"},
		"DNS over HTTPS":                  {"tls", args("dns.evil.test", "dns.evil.test"), "refused"},
		"a text":                          {"dns", args(publicIP, "allowed.test", 16), "1 answers, code 0"},
		"a text, elsewhere":               {"dns", args(publicIP, "evil.test", 16), "0 answers, code 5"},
		"a name that does not exist":      {"dns", args(publicIP, "none.six.test"), "0 answers, code 3"},
		"a name of version 6":             {"dns", args(publicIP, "a.six.test", 28), "1 answers, code 0"},
		"an address of version 6":         {"dns", args(publicIP, "allowed.test", 28), "0 answers, code 0"},
		"a key for a hidden name":         {"dns", args(publicIP, "allowed.test", 65), "0 answers, code 0"},
		"more in a question":              {"dns_more", args(publicIP, "allowed.test", "stolen"), "1 answers, code 0"},
		"a name of one label":             {"dns", args(publicIP, "localhost"), "0 answers, code 3"},

		"the address of somebody else":          {"tls", args(otherIP, "allowed.test"), secured},
		"the address of somebody else, in HTTP": {"web", args(otherIP, "allowed.test"), reached},
		"the name of somebody else":             {"tls", args("allowed.test", "evil.test"), "refused"},
		"the name of somebody else, in HTTP":    {"web", args("allowed.test", "evil.test"), blocked},
		"fronted":                               {"web", args("allowed.test", "fronted.test"), blocked},
		"a later request":                       {"twice", args("allowed.test", "evil.test"), "200 then " + blocked},
		"a later request to the same":           {"twice", args("allowed.test", "allowed.test"), "200 then " + reached},
		"another port in Host":                  {"web", args("allowed.test", "allowed.test:8443"), blocked},
		"no name":                               {"tls", args(publicIP, nil), "refused"},
		"no name, to a name":                    {"tls", args("allowed.test", nil), "refused"},

		"a tunnel":                  {"tunnel", args("allowed.test:443", "allowed.test"), secured},
		"a tunnel elsewhere":        {"tunnel", args("evil.test:443", "evil.test"), blocked},
		"a tunnel, another name":    {"tunnel", args("allowed.test:443", "evil.test"), "refused"},
		"a tunnel, HTTP":            {"tunnel", args("allowed.test:80", nil, "allowed.test"), reached},
		"a tunnel, HTTP elsewhere":  {"tunnel", args("allowed.test:80", nil, "evil.test"), blocked},
		"a tunnel to an address":    {"tunnel", args(publicIP+":443", "allowed.test"), blocked},
		"a tunnel to a number":      {"tunnel", args("16909060:80", nil, "allowed.test"), blocked},
		"a tunnel to an odd number": {"tunnel", args("0x1.2.3.4:80", nil, "allowed.test"), blocked},

		"an address":             {"web", args(publicIP), blocked},
		"an address as a number": {"web", args("allowed.test", "16909060"), blocked},
		"in hexadecimal":         {"web", args("allowed.test", "0x01020304"), blocked},
		"in octal":               {"web", args("allowed.test", "01.02.03.04"), blocked},
		"in short form":          {"web", args("allowed.test", "127.1"), blocked},

		"a name of the metadata":           {"web", args("rebind.test"), blocked},
		"a name of the metadata, by TLS":   {"tls", args("rebind.test", "rebind.test"), "refused"},
		"a name of a private network":      {"web", args("inner.test"), blocked},
		"a name of this machine":           {"web", args("own.test"), blocked},
		"the metadata":                     {"raw", args(metadataIP, 80), "refused"},
		"a private network":                {"raw", args(privateIP, 80), "refused"},
		"this machine":                     {"web", args(ownIP), blocked},
		"this machine, another port":       {"raw", args(ownIP, 8080), "refused"},
		"the gateway":                      {"raw", args(gateway, 3129), "refused"},
		"another sandbox":                  {"raw", args(neighbour, 7000), "refused"},
		"the agent of another sandbox":     {"raw", args(neighbour, doze.AgentPort), "refused"},
		"a shared network":                 {"raw", args("100.64.0.1", 80), "refused"},
		"version 6":                        {"six", args("2001:db8::1"), "error"},
		"version 4 in version 6, metadata": {"six", args("::ffff:169.254.169.254"), "refused"},

		"version 6 by name":         {"web", args("a.six.test"), "200 host=a.six.test sni=- at=[" + publicV6 + "]:80"},
		"version 6 by name and TLS": {"tls", args("a.six.test", "a.six.test"), "200 host=a.six.test sni=a.six.test at=[" + publicV6 + "]:443"},
		"a tunnel to version 6":     {"tunnel", args("["+publicV6+"]:80", nil, "a.six.test"), blocked},
		"this machine by version 6": {"web", args("own.six.test"), blocked},
		"a unique local address":    {"web", args("unique.six.test"), blocked},
		"an address of a link":      {"web", args("link.six.test"), blocked},
		"the loopback of version 6": {"web", args("loop.six.test"), blocked},
		"version 4 in version 6":    {"web", args("mapped.six.test"), blocked},
		"version 4 in NAT64":        {"web", args("translated.six.test"), blocked},
		"an address in bypass":      {"web", args(listedIP), "200 host=" + listedIP + " sni=- at=" + listedIP + ":80"},
		"an address in bypass, TLS": {"tls", args(listedIP, "evil.test"), "200 host=evil.test sni=evil.test at=" + listedIP + ":443"},
		"any port of an entry":      {"raw", args("allowed.test", 5432), greeting},
		"any port of a wildcard":    {"raw", args("a.wild.test", 5432), greeting},
		"any port of another":       {"raw", args("evil.test", 5432), "refused"},
		"any port of the metadata":  {"raw", args("rebind.test", 5432), "refused"},
		"any port of this machine":  {"raw", args("own.test", 8080), "refused"},
		"DNS over TLS, by an entry": {"tls", args("allowed.test", "allowed.test", 853), "refused"},
		"a port of an entry":        {"raw", args("ported.test", 8443), greeting},
		"another one than that":     {"web", args("ported.test"), blocked},
		"mail":                      {"raw", args("mail.test", 25), "refused"},
		"mail to an address":        {"raw", args(publicIP, 25), "refused"},
		"past the proxy":            {"tls", args("direct.test", "direct.test"), "200 host=direct.test sni=direct.test at=5.6.7.8:443"},
		"curl as it comes":          {"curl", args("https://allowed.test/"), "200 200"},
		"curl, elsewhere":           {"curl", args("https://evil.test/"), "curl 56 000 403"},
		"curl, plain":               {"curl", args("http://evil.test/"), "403 000"},
		"curl without a proxy":      {"curl", args("--noproxy", "*", "https://allowed.test/"), "200 000"},
		"curl, elsewhere, without":  {"curl", args("--noproxy", "*", "https://evil.test/"), "curl 35"},
		"curl past the proxy":       {"curl", args("https://direct.test/"), "200 000"},
		"curl, metadata":            {"curl", args("http://169.254.169.254/"), "curl 7"},

		"a static program":                    {"static", args("web", "allowed.test"), reached},
		"a static program, elsewhere":         {"static", args("web", "evil.test"), blocked},
		"a static program, by TLS":            {"static", args("tls", "allowed.test"), secured},
		"a static program, by TLS, elsewhere": {"static", args("tls", "evil.test"), "refused"},
		"a static program, an address":        {"static", args("web", publicIP), blocked},
		"a static program, metadata":          {"static", args("web", metadataIP), "refused"},
		"a packet of its own":                 {"static", args("packet", publicIP+":443"), "error operation not permitted"},
	}
}

// withoutRules are those of a sandbox that has none: it is led the same way.
func (n *internet) withoutRules(gateway, neighbour string) map[string]row {
	return map[string]row{
		"a name":                       {"web", args("free.test"), "200 host=free.test"},
		"a name, by TLS":               {"tls", args("free.test", "free.test"), "200 host=free.test sni=free.test"},
		"an address":                   {"web", args(publicIP), "200 host=1.2.3.4"},
		"no name, by TLS":              {"tls", args(publicIP, nil), "200"},
		"a text":                       {"dns", args(publicIP, "free.test", 16), "1 answers, code 0"},
		"a name of version 6":          {"dns", args(publicIP, "a.six.test", 28), "1 answers, code 0"},
		"version 6":                    {"web", args("a.six.test"), "200 host=a.six.test sni=- at=[" + publicV6 + "]:80"},
		"a tunnel to version 6":        {"tunnel", args("["+publicV6+"]:80", nil, "a.six.test"), "200 host=a.six.test sni=- at=[" + publicV6 + "]:80"},
		"a tunnel to this machine":     {"tunnel", args("["+ownV6+"]:80", nil, "a.six.test"), blocked},
		"a tunnel to NAT64":            {"tunnel", args("[64:ff9b::a9fe:a9fe]:80", nil, "a.six.test"), blocked},
		"a name that does not exist":   {"dns", args(publicIP, "none.test"), "0 answers, code 3"},
		"a resolver elsewhere":         {"dns", args(publicIP, "free.test"), "1 answers, code 0"},
		"a resolver elsewhere, by TCP": {"dns_tcp", args(publicIP, "free.test"), "1 answers, code 0"},
		"UDP":                          {"datagram", args(publicIP, 443), "nothing"},
		"DNS over TLS":                 {"tls", args(publicIP, "free.test", 853), "refused"},
		"DNS over TLS, by name":        {"tls", args("free.test", "free.test", 853), "refused"},
		"UDP, another port":            {"datagram", args(publicIP, 9999), "nothing"},
		"ping":                         {"answered", args("free.test"), pong},
		"ping to an address":           {"answered", args(publicIP), pong},
		"ping to the metadata":         {"ping", args(metadataIP), "nothing"},
		"ping to a private network":    {"ping", args(privateIP), "nothing"},
		"ping to this machine":         {"ping", args(ownIP), "nothing"},
		"ping to the gateway":          {"ping", args(gateway), "nothing"},
		"ping to another sandbox":      {"ping", args(neighbour), "nothing"},
		"mail":                         {"raw", args(publicIP, 25), "refused"},
		"the metadata":                 {"raw", args(metadataIP, 80), "refused"},
		"a name of the metadata":       {"tls", args("rebind.test", "rebind.test"), "refused"},
		"a private network":            {"raw", args(privateIP, 80), "refused"},
		"this machine":                 {"raw", args(ownIP, 8080), "refused"},
		"the gateway":                  {"raw", args(gateway, 3129), "refused"},
		"another sandbox":              {"raw", args(neighbour, 7000), "refused"},
		"the agent of another sandbox": {"raw", args(neighbour, doze.AgentPort), "refused"},

		"a static program":                       {"static", args("web", "free.test"), "200 host=free.test"},
		"a static program, metadata":             {"static", args("web", metadataIP), "refused"},
		"a packet of its own":                    {"static", args("packet", publicIP+":443"), "nothing"},
		"a packet of its own, for the DNS":       {"static", args("packet", publicIP+":53"), "answered"},
		"a packet of its own, a private network": {"static", args("packet", privateIP+":443"), "nothing"},
	}
}

// changes tightens and turns the rules of a sandbox while it runs.
func (n *internet) changes(t *testing.T, c *client.Client, sb doze.Sandbox, agent *client.Agent) {
	t.Helper()
	set := func(network *doze.Network) {
		t.Helper()
		sb.Spec.Network = network
		if _, err := c.Update(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"allowed.test", "a.wild.test"} {
		for _, scheme := range []string{"http", "https"} {
			hold := "exec curl -skN --noproxy '*' " + scheme + "://" + name + "/hold"
			proc, err := agent.Start(t.Context(), client.Command{Name: scheme + strings.ReplaceAll(name, ".", "-"), Command: hold})
			if err != nil {
				t.Fatal(err)
			}
			until(t, "it is held", func() bool {
				logs, err := agent.Logs(t.Context(), proc.Name)
				return err == nil && strings.Contains(logs.Stdout, "host=")
			})
		}
	}
	runs := func(name string) bool {
		proc, err := agent.Process(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return proc.Status == "running"
	}
	began := time.Now()
	set(&doze.Network{Proxy: &doze.Proxy{AllowedDomains: []string{"*.wild.test"}}})
	t.Logf("a change took %v", time.Since(began))
	for _, scheme := range []string{"http", "https"} {
		until(t, "what is forbidden now ends", func() bool { return !runs(scheme + "allowed-test") })
		if !runs(scheme + "a-wild-test") {
			t.Errorf("%s: what is still allowed ended", scheme)
		}
	}
	try(t, agent, map[string]row{
		"forbidden now": {"web", args("allowed.test"), blocked},
		"still allowed": {"web", args("a.wild.test"), "200"},
	})
	set(&doze.Network{Proxy: &doze.Proxy{ForbiddenDomains: []string{"*.wild.test", "evil.test"}}})
	try(t, agent, map[string]row{
		"not forbidden":            {"tls", args("allowed.test", "allowed.test"), secured},
		"forbidden":                {"web", args("evil.test"), blocked},
		"forbidden, at any port":   {"raw", args("evil.test", 9999), "refused"},
		"an address":               {"web", args(otherIP), blocked},
		"another protocol, a port": {"raw", args("ported.test", 8443), greeting},
	})
	set(&doze.Network{AllowedDomains: []string{"evil.test"}, ForbiddenDomains: []string{"evil.test", "allowed.test"}})
	try(t, agent, map[string]row{
		"allowed goes first":            {"web", args("evil.test"), "200"},
		"what is in no list is refused": {"web", args("direct.test"), blocked},
	})
	sealed := &doze.Firewall{Rulesets: []string{doze.RulesetProxy}}
	set(&doze.Network{Firewall: sealed, Proxy: &doze.Proxy{AllowedDomains: []string{"allowed.test"}, Bypass: []string{"direct.test"}}})
	try(t, agent, map[string]row{
		"by the proxy":           {"tunnel", args("allowed.test:443", "allowed.test"), secured},
		"nothing goes past it":   {"tls", args("direct.test", "direct.test"), "refused"},
		"nor by another network": {"raw", args(privateIP, 80), "refused"},
	})
}

// wakes puts the sandbox on disk and wakes it: before it runs again, its rules
// hold.
func wakes(t *testing.T, p *testkit.Platform, c *client.Client, sb doze.Sandbox, agent *client.Agent) {
	t.Helper()
	sb.Spec.Network = &doze.Network{Proxy: &doze.Proxy{AllowedDomains: []string{"allowed.test"}}}
	for _, on := range []bool{false, true} {
		sb.Spec.Enabled = &on
		if _, err := c.Update(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
		if !on {
			if err := p.AwaitTier(t.Context(), sb.Metadata.Name, "disk"); err != nil {
				t.Fatal(err)
			}
		}
	}
	try(t, agent, map[string]row{
		"allowed":      {"tls", args("allowed.test", "allowed.test"), secured},
		"elsewhere":    {"web", args("evil.test"), blocked},
		"the metadata": {"raw", args(metadataIP, 80), "refused"},
	})
}

// archives has the rules change while all that is left of the sandbox is its
// files.
func archives(t *testing.T, c *client.Client, sb doze.Sandbox, agent *client.Agent) {
	t.Helper()
	becomes := func(want string, step func(context.Context, string) (doze.Sandbox, error)) {
		t.Helper()
		if _, err := step(t.Context(), sb.Metadata.Name); err != nil {
			t.Fatal(err)
		}
		until(t, "it is "+want, func() bool {
			now, err := c.Sandbox(t.Context(), sb.Metadata.Name)
			return err == nil && now.Status == want
		})
	}
	becomes("ARCHIVED", c.Archive)
	sb.Spec.Network = &doze.Network{Proxy: &doze.Proxy{AllowedDomains: []string{"allowed.test", "*.wild.test"}}}
	if _, err := c.Update(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	becomes("DEPLOYED", c.Unarchive)
	try(t, agent, map[string]row{
		"allowed by now":  {"web", args("a.wild.test"), "200 host=a.wild.test"},
		"still forbidden": {"web", args("evil.test"), blocked},
		"the metadata":    {"raw", args(metadataIP, 80), "refused"},
	})
}

// crash kills the daemon, and looks at what holds while it is away and after.
func (n *internet) crash(t *testing.T, p *testkit.Platform, agent *client.Agent) {
	t.Helper()
	const loop = `while true; do for u in http://allowed.test http://evil.test http://1.2.3.4; do
		echo "$u $(curl -s --noproxy '*' -m 5 --resolve allowed.test:80:198.18.0.9 --resolve evil.test:80:5.6.7.8 -o /dev/null -w '%{http_code}' $u) $?"; done; sleep 0.2; done`
	proc, err := agent.Start(t.Context(), client.Command{Name: "loop", Command: loop, KeepAlive: true})
	if err != nil {
		t.Fatal(err)
	}
	said := func() string {
		logs, err := agent.Logs(t.Context(), proc.Name)
		if err != nil {
			return ""
		}
		return logs.Stdout
	}
	until(t, "it is allowed", func() bool { return strings.Contains(said(), "http://allowed.test 200 0") })
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := strings.Count(said(), "http://allowed.test 200 0")
	until(t, "it is allowed again", func() bool { return strings.Count(said(), "http://allowed.test 200 0") > before })
	for line := range strings.Lines(said()) {
		if strings.Contains(line, " 200 ") && !strings.Contains(line, "allowed.test") {
			t.Errorf("while the daemon was away: %s", line)
		}
	}
	try(t, agent, map[string]row{
		"allowed":      {"web", args("allowed.test"), reached},
		"elsewhere":    {"web", args("evil.test"), blocked},
		"the metadata": {"raw", args(metadataIP, 80), "refused"},
	})
}

// switches opens and closes the egress of a platform: names are resolved in a
// sandbox from before as in a new one.
func (n *internet) switches(t *testing.T, p *testkit.Platform, c *client.Client) {
	t.Helper()
	restart := func(egress string) {
		t.Helper()
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		p.Arguments("--egress", egress, "--resolver", n.zone.Address, "--pause-after", "1h", "--warm-pool", "0")
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	closed := map[string]row{
		"a name":     {"web", args("free.test"), "error"},
		"a question": {"connected", args("169.254.88.1", 53), "refused"}, // it does not hang
	}
	restart("closed")
	_, agent := create(t, c, named("three", 512))
	try(t, agent, closed)
	restart("open")
	try(t, agent, map[string]row{"a name": {"web", args("free.test"), "200 host=free.test"}})
	restart("closed")
	try(t, agent, closed)
}
