package e2e_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/dnstest"
)

// A squid is the proxy of that name, in the network outside.
type squid struct {
	t    *testing.T
	log  string // of what it was asked
	read int    // lines of it
}

// squidConfig is what a squid of a test differs in from that of Debian: where it listens, who
// may use it, and which names it knows. No way leads to its DNS. The rules come before
// those of Debian.
const squidConfig = `http_port %s
hosts_file %s/hosts
dns_nameservers 203.0.113.1
dns_timeout 1 second
auth_param basic program /usr/lib/squid/basic_ncsa_auth %[2]s/passwd
acl users proxy_auth REQUIRED
%s
acl SSL_ports port 443
acl Safe_ports port 80 443
http_access deny !Safe_ports
http_access deny CONNECT !SSL_ports
http_access allow users
http_access deny all
logformat asked %%rm %%ru %%>Hs
access_log stdio:%[2]s/asked logformat=asked
cache_log %[2]s/cache
pid_filename %[2]s/pid
coredump_dir %[2]s
cache deny all
cache_mem 8 MB
max_filedescriptors 1024
pinger_enable off
netdb_filename none
visible_hostname proxy.test
shutdown_lifetime 1 second
`

// startSquid starts one with rules of ours, until stop or the end of the test.
func startSquid(t *testing.T, n *internet, rules string) (s *squid, stop func()) {
	t.Helper()
	program, err := exec.LookPath("squid")
	if err != nil {
		program = "/usr/sbin/squid"
	}
	dir, err := os.MkdirTemp("", "doze-squid-") //nolint:usetesting // squid gives up its rights, and has to get there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	at := net.JoinHostPort(upstreamIP, upstreamPort)
	sum := strings.TrimSpace(run(t, "openssl", "passwd", "-apr1", upstreamWord))
	for name, text := range map[string]string{
		"passwd": "doze:" + sum + "\n", "conf": fmt.Sprintf(squidConfig, at, dir, rules),
		// A name of a tenant that leads to the network of the operator is known to the proxy alone.
		"hosts": "5.6.7.8 direct.test evil.test\n" + privateIP + " sneaky.test\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "nsenter", "--net="+n.outside, program, "-N", "-f", filepath.Join(dir, "conf"))
	said := &strings.Builder{}
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait()
		}
	}
	t.Cleanup(func() {
		stop()
		if t.Failed() {
			cache, _ := os.ReadFile(filepath.Join(dir, "cache"))
			asked, _ := os.ReadFile(filepath.Join(dir, "asked"))
			t.Logf("squid: %s\n%s\n%s", said, cache, asked)
		}
	})
	until(t, "squid listens", func() bool {
		c, err := net.DialTimeout("tcp", at, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return &squid{t: t, log: filepath.Join(dir, "asked")}, stop
}

// settled is how long squid may take to write a line of its log, after the end of a tunnel.
const settled = time.Second

// Asked implements [upstream]. Squid writes a line when a tunnel has ended.
func (s *squid) Asked() (asked []string) {
	s.t.Helper()
	time.Sleep(settled)
	raw, err := os.ReadFile(s.log)
	if err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(raw), "\n"), "\n")
	for _, line := range lines[min(s.read, len(lines)):] {
		method, rest, _ := strings.Cut(line, " ")
		address, status, _ := strings.Cut(rest, " ")
		if status == "407" || method == "NONE" || method == "" { // a test connection; a look of the doctor has a password
			continue
		}
		host, _, _ := strings.Cut(strings.TrimPrefix(address, "http://"), "/")
		if host != "doctor.invalid:443" {
			asked = append(asked, method+" "+host)
		}
	}
	s.read = len(lines)
	return asked
}

// printedRules are those that the page for operators prints for squid.
func printedRules(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(testkit.Root(), "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	rules := regexp.MustCompile("(?s)```\n(acl inside dst .*?)```").FindSubmatch(page)
	if rules == nil {
		t.Fatal("docs/operations.md has no rules for squid")
	}
	return string(rules[1])
}

// TestSquid: the scenario of [TestUpstreamProxy] with a real squid, by addresses and by
// names, with the rules that the documentation prints.
func TestSquid(t *testing.T) {
	if _, err := os.Stat("/usr/sbin/squid"); err != nil {
		t.Skip("SKIPPED: there is no squid: run make deps-test")
	}
	if !ownNetwork(t) {
		return
	}
	n := behindProxy(t)
	// Addresses are checked by dozed. The proxy allows tunnels to all ports.
	s, stop := startSquid(t, n, "http_access allow CONNECT users")
	file := filepath.Join(t.TempDir(), "upstream")
	if err := os.WriteFile(file, []byte("http://doze:"+upstreamWord+"@"+net.JoinHostPort(upstreamIP, upstreamPort)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--egress", "open", "--upstream-proxy-file", file, "--pause-after", "1h"}
	p, c := start(t, append(slices.Clone(flags), "--resolver", n.zone.Address)...)
	_, free := create(t, c, named("free", 1024))
	sb := named("ruled", 1024)
	sb.Spec.Network = &doze.Network{Proxy: &doze.Proxy{AllowedDomains: []string{"direct.test"}}}
	_, ruled := create(t, c, sb)

	t.Run("addresses", func(t *testing.T) {
		byAddresses(t, s, free, ruled)
		pulls(t, c, s, otherIP+":443")
		doctors(t, c, "")
	})
	stop()

	t.Run("names", func(t *testing.T) {
		s, _ := startSquid(t, n, printedRules(t))
		dark := dnstest.Serve(t)
		dark.A("inner.test", [4]byte{192, 168, 77, 1})
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		p.Arguments(append(slices.Clone(flags), "--upstream-resolves", "--resolver", dark.Address)...)
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		byNames(t, s, dark, free, ruled)
		pulls(t, c, s, "direct.test:443")
		doctors(t, c, "")
		if out := sh(t, free, "curl -s http://sneaky.test/; curl -s https://sneaky.test/ || echo refused"); !strings.Contains(out, "Access Denied") && !strings.Contains(out, "(403)") || !strings.HasSuffix(out, "refused") {
			t.Errorf("a name that only the proxy knows as private: %s", out)
		}
	})
	if n.leaked.Load() != 0 || n.datagrams.Load() != 0 {
		t.Errorf("%d connections and %d packets went where nothing may go", n.leaked.Load(), n.datagrams.Load())
	}
}
