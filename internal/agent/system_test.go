package agent_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/testkit/freeport"
)

// A command of a test may be this binary: "listen <network> <address>" waits
// with an open socket until it is killed.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "listen" {
		var err error
		if network := os.Args[2]; strings.HasPrefix(network, "tcp") {
			_, err = net.Listen(network, os.Args[3])
		} else {
			_, err = net.ListenPacket(network, os.Args[3])
		}
		if err != nil {
			panic(err)
		}
		time.Sleep(time.Hour)
	}
	time.Local = time.FixedZone("elsewhere", 5*60*60) // answers are in UTC
	m.Run()
}

func TestHealth(t *testing.T) {
	t.Parallel()
	s := start(t)
	got := get[map[string]any](t, s, "GET", "/health", "")
	startedAt, _ := got["startedAt"].(string)
	if at, err := time.Parse(time.RFC3339, startedAt); err != nil || time.Since(at).Abs() > time.Minute {
		t.Errorf("startedAt: %v, %v", got["startedAt"], err)
	}
	for _, k := range []string{"startedAt", "uptime", "uptimeSeconds", "gitCommit", "buildTime"} {
		if got[k] == nil {
			t.Errorf("no %s", k)
		}
		delete(got, k)
	}
	want := map[string]any{
		"status": "ok", "version": "1.2.3", "goVersion": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH,
		"upgradeCount": 0.0, "wakeCount": 0.0, "lastUpgrade": map[string]any{"status": "idle", "step": "none", "version": "1.2.3"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	if _, body := s.call(t, "POST", "/doze/wake", ""); body != "{}\n" {
		t.Errorf("wake: %s", body)
	}
	got = get[map[string]any](t, s, "GET", "/health", "")
	if got["wakeCount"] != 1.0 || got["lastWake"] == nil {
		t.Errorf("after a wake: %v", got)
	}
}

func TestWelcome(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, method := range []string{"GET", "POST", "PUT", "DELETE", "PATCH"} {
		got := get[map[string]string](t, s, method, "/", "")
		if len(got) != 3 || got["message"] == "" || got["documentation"] == "" || got["description"] == "" {
			t.Errorf("%s: %v", method, got)
		}
	}
}

// freePort returns a port that nobody else gets.
func freePort(t *testing.T) int {
	t.Helper()
	port, err := freeport.Port(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

func TestPortsAreFound(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := start(t)
	for name, test := range map[string]struct {
		network, host  string
		prefix, suffix string
		want           int
	}{
		"wildcard":      {"tcp", "", "", "", 200},
		"IPv4":          {"tcp4", "0.0.0.0", "", "", 200},
		"UDP":           {"udp4", "0.0.0.0", "", "", 200},
		"in background": {"tcp", "", "", " & exit", 200},
		"orphan":        {"tcp", "", "( ", " & ) & exit", 200},
		"loopback":      {"tcp", "127.0.0.1", "", "", 422},
		"loopback 6":    {"tcp6", "[::1]", "", "", 422},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			port := freePort(t)
			pid := filepath.Join(s.dir, strings.ReplaceAll(name, " ", "-"))
			command := fmt.Sprintf("%ssh -c 'echo $$ > %s; exec %s listen %s %s:%d'%s", test.prefix, pid, self, test.network, test.host, port, test.suffix)
			t.Cleanup(func() { // the agent leaves alone what a process left behind
				b, _ := os.ReadFile(pid)
				if n, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && n > 1 {
					_ = syscall.Kill(n, syscall.SIGKILL)
				}
			})
			timeout := 15
			if test.want != 200 {
				timeout = 1
			}
			body, _ := json.Marshal(map[string]any{"command": command, "waitForPorts": []int{port}, "timeout": timeout})
			status, answer := s.call(t, "POST", "/process", string(body))
			if status != test.want {
				t.Errorf("status %d: %s", status, answer)
			}
		})
	}
}

func TestTiming(t *testing.T) {
	t.Parallel()
	header := regexp.MustCompile(`^total;dur=\d+\.\d\d;desc="[^"]*"$`)
	on, off := start(t, "ENABLE_PROCESSING_TIME=true"), start(t, "ENABLE_PROCESSING_TIME=1")
	for _, path := range []string{"/health", "/none", "/process/none"} {
		if got := on.do(t, "GET", path, "").Header.Get("Server-Timing"); !header.MatchString(got) {
			t.Errorf("%s: %q", path, got)
		}
		if got := off.do(t, "GET", path, "").Header.Get("Server-Timing"); got != "" {
			t.Errorf("%s, switched off: %q", path, got)
		}
	}
	// Streams and sockets work behind it.
	if resp := on.do(t, "POST", "/process", `{"command":"echo x"}`, "Accept: text/event-stream"); !header.MatchString(resp.Header.Get("Server-Timing")) {
		t.Errorf("a stream: %v", resp.Header)
	}
	v := on.look(t, "shell=sh")
	v.enter(t, "echo $((40+2))")
	v.await(t, "42")
}
