package agent_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// serve starts a process with a server in its background for each address,
// see TestMain, and returns its pid and their ports.
func (s *sandbox) serve(t *testing.T, name string, addresses ...string) (pid int, ports []int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var command strings.Builder
	for _, addr := range addresses {
		network, host, _ := strings.Cut(addr, "/")
		ports = append(ports, freePort(t))
		fmt.Fprintf(&command, "%s listen %s %s:%d & ", self, network, host, ports[len(ports)-1])
	}
	p := s.spawn(t, name, command.String()+"wait")
	if pid, err = strconv.Atoi(p.PID); err != nil {
		t.Fatal(err)
	}
	return pid, ports
}

type port struct {
	PID                        int
	Protocol, LocalAddr, State string
	LocalPort, RemotePort      int
	ProcessName, RemoteAddr    string
}

func TestPorts(t *testing.T) {
	t.Parallel()
	s := start(t)
	pid, ports := s.serve(t, "server", "tcp/127.0.0.1", "udp/127.0.0.1", "tcp4/0.0.0.0")
	var got struct {
		PID   int
		Ports []port
	}
	until(t, "all serve", func() bool {
		got.Ports = nil
		_, body := s.call(t, "GET", fmt.Sprintf("/network/process/%d/ports", pid), "")
		return json.Unmarshal([]byte(body), &got) == nil && len(got.Ports) == len(ports)
	})
	if got.PID != pid {
		t.Errorf("pid %d, want %d", got.PID, pid)
	}
	want := []port{
		{Protocol: "tcp", LocalAddr: "127.0.0.1", State: "LISTEN", LocalPort: ports[0], RemoteAddr: "0.0.0.0"},
		{Protocol: "udp", LocalAddr: "127.0.0.1", State: "UNCONN", LocalPort: ports[1], RemoteAddr: "0.0.0.0"},
		{Protocol: "tcp", LocalAddr: "0.0.0.0", State: "LISTEN", LocalPort: ports[2], RemoteAddr: "0.0.0.0"},
	}
	opts := cmp.Options{
		cmpopts.IgnoreFields(port{}, "PID", "ProcessName"),
		cmpopts.SortSlices(func(a, b port) bool { return a.LocalPort < b.LocalPort }),
	}
	for i := range got.Ports {
		if got.Ports[i].PID == 0 || got.Ports[i].ProcessName == "" {
			t.Errorf("nobody owns %+v", got.Ports[i])
		}
	}
	if diff := cmp.Diff(want, got.Ports, opts); diff != "" {
		t.Error(diff)
	}
	if status, body := s.call(t, "GET", "/network/process/4194305/ports", ""); status != 200 || body != `{"pid":4194305,"ports":[]}`+"\n" {
		t.Errorf("nobody: status %d: %s", status, body)
	}
	for _, pid := range []string{"server", "1x", "-1", "0", "99999999999999999999"} {
		s.fails(t, 400, "invalid PID", "GET", "/network/process/"+pid+"/ports", "")
		s.fails(t, 400, "invalid PID", "POST", "/network/process/"+pid+"/monitor", `{"callback":"http://x"}`)
		s.fails(t, 400, "invalid PID", "DELETE", "/network/process/"+pid+"/monitor", "")
	}
}

func TestMonitor(t *testing.T) {
	t.Parallel()
	s := start(t)
	told := make(chan string, 100)
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		told <- r.Method + " " + r.URL.Path + " " + string(b)
		http.Redirect(w, r, "/again", http.StatusTemporaryRedirect) // is not followed
	}))
	t.Cleanup(listener.Close)
	pid, ports := s.serve(t, "server", "tcp/127.0.0.1", "tcp4/127.0.0.1")
	url := fmt.Sprintf("/network/process/%d/monitor", pid)
	for range 2 { // the same twice is one
		got := get[map[string]string](t, s, "POST", url, object(t, map[string]string{"callback": listener.URL + "/ports"}))
		if got["message"] != "Port monitoring started" || got["path"] != "" {
			t.Errorf("answer %v", got)
		}
	}
	want := map[string]bool{}
	for _, port := range ports {
		want[fmt.Sprintf(`POST /ports {"pid":%d,"port":%d}`, pid, port)] = true
	}
	for len(want) > 0 {
		select {
		case call := <-told:
			if !want[call] {
				t.Fatalf("told %s, want one of %v", call, want)
			}
			delete(want, call)
		case <-time.After(patience):
			t.Fatalf("not told: %v", want)
		}
	}
	for range 2 {
		if got := get[map[string]string](t, s, "DELETE", url, ""); got["message"] != "Port monitoring stopped" {
			t.Errorf("answer %v", got)
		}
	}
	for _, body := range []string{"", "{}", `{"callback":"x"}`, `{"callback":"file:///etc/passwd"}`, `{"callback":7}`} {
		if status, b := s.call(t, "POST", url, body); status != 400 {
			t.Errorf("%s: status %d: %s", body, status, b)
		}
	}
	// Of a process that is not, there is nothing to report.
	get[map[string]string](t, s, "POST", "/network/process/4194305/monitor", `{"callback":"http://127.0.0.1:1/"}`)
	for i := range 70 {
		if status, body := s.call(t, "POST", url, fmt.Sprintf(`{"callback":"http://127.0.0.1:1/%d"}`, i)); status != 200 {
			if i < 10 || status != 422 || !strings.Contains(body, "which is the most") {
				t.Errorf("monitor %d: status %d: %s", i, status, body)
			}
			return
		}
	}
	t.Error("there is no end to monitors")
}

func TestTunnel(t *testing.T) {
	t.Parallel()
	s := start(t)
	key := base64.StdEncoding.EncodeToString(make([]byte, 32))
	config := func(over map[string]any) string {
		c := map[string]any{
			"local_ip": "10.0.0.2/32", "peer_endpoint": "vpn.example.com:51820", "peer_public_key": key, "private_key": key,
			"mtu": 1420, "allowed_ips": []string{"0.0.0.0/0", "::/0"}, "unknown": 1,
		}
		maps.Copy(c, over)
		b, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return object(t, map[string]string{"config": base64.StdEncoding.EncodeToString(b)})
	}
	s.fails(t, 500, "failed to apply tunnel config", "PUT", "/network/tunnel/config", config(nil))
	for _, body := range []string{`{}`, `{"config":""}`} {
		s.fails(t, 400, "config is required", "PUT", "/network/tunnel/config", body)
	}
	for _, body := range []string{
		`{"config":"?"}`, `{"config":"e30"}`, `{"config":"e30="}`, `{"config":"W10="}`,
		config(map[string]any{"local_ip": "10.0.0.2"}), config(map[string]any{"peer_endpoint": "x"}), config(map[string]any{"peer_endpoint": "x:0"}),
		config(map[string]any{"private_key": "AAAA"}), config(map[string]any{"mtu": 67}), config(map[string]any{"mtu": 65536}), config(map[string]any{"mtu": "x"}),
		config(map[string]any{"listen_port": -1}), config(map[string]any{"persistent_keepalive": 70000}), config(map[string]any{"interface_name": "a-name-that-is-too-long"}),
		config(map[string]any{"allowed_ips": []string{"all"}}),
	} {
		s.fails(t, 422, "invalid tunnel config", "PUT", "/network/tunnel/config", body)
	}
	s.fails(t, 422, "invalid tunnel config: local_ip must be like 10.0.0.2/32; mtu must be 68 to 65535", "PUT", "/network/tunnel/config",
		config(map[string]any{"local_ip": "x", "mtu": 67}))
	s.fails(t, 400, "no WireGuard client is running", "DELETE", "/network/tunnel", "")
}
