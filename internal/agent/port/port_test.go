package port_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

type port struct {
	PID                        int
	Protocol, LocalAddr, State string
	LocalPort, RemotePort      int
	ProcessName, RemoteAddr    string
}

func TestPorts(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	pid, ports := s.Serve(t, "server", "tcp/127.0.0.1", "udp/127.0.0.1", "tcp4/0.0.0.0")
	var got struct {
		PID   int
		Ports []port
	}
	agenttest.Until(t, "all serve", func() bool {
		got.Ports = nil
		_, body := s.Call(t, "GET", fmt.Sprintf("/network/process/%d/ports", pid), "")
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
	if status, body := s.Call(t, "GET", "/network/process/4194305/ports", ""); status != 200 || body != `{"pid":4194305,"ports":[]}`+"\n" {
		t.Errorf("nobody: status %d: %s", status, body)
	}
	for _, pid := range []string{"server", "1x", "-1", "0", "99999999999999999999"} {
		s.Fails(t, 400, "invalid PID", "GET", "/network/process/"+pid+"/ports", "")
		s.Fails(t, 400, "invalid PID", "POST", "/network/process/"+pid+"/monitor", `{"callback":"http://x"}`)
		s.Fails(t, 400, "invalid PID", "DELETE", "/network/process/"+pid+"/monitor", "")
	}
}

func TestMonitor(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	told := make(chan string, 100)
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		told <- r.Method + " " + r.URL.Path + " " + string(b)
		http.Redirect(w, r, "/again", http.StatusTemporaryRedirect) // is not followed
	}))
	t.Cleanup(listener.Close)
	pid, ports := s.Serve(t, "server", "tcp/127.0.0.1", "tcp4/127.0.0.1")
	url := fmt.Sprintf("/network/process/%d/monitor", pid)
	for range 2 { // the same twice is one
		got := agenttest.Get[map[string]string](t, s, "POST", url, agenttest.Object(t, map[string]string{"callback": listener.URL + "/ports"}))
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
		case <-time.After(agenttest.Patience):
			t.Fatalf("not told: %v", want)
		}
	}
	for range 2 {
		if got := agenttest.Get[map[string]string](t, s, "DELETE", url, ""); got["message"] != "Port monitoring stopped" {
			t.Errorf("answer %v", got)
		}
	}
	for _, body := range []string{"", "{}", `{"callback":"x"}`, `{"callback":"file:///etc/passwd"}`, `{"callback":7}`} {
		if status, b := s.Call(t, "POST", url, body); status != 400 {
			t.Errorf("%s: status %d: %s", body, status, b)
		}
	}
	// Of a process that is not, there is nothing to report.
	agenttest.Get[map[string]string](t, s, "POST", "/network/process/4194305/monitor", `{"callback":"http://127.0.0.1:1/"}`)
	for i := range 70 {
		if status, body := s.Call(t, "POST", url, fmt.Sprintf(`{"callback":"http://127.0.0.1:1/%d"}`, i)); status != 200 {
			if i < 10 || status != 422 || !strings.Contains(body, "which is the most") {
				t.Errorf("monitor %d: status %d: %s", i, status, body)
			}
			return
		}
	}
	t.Error("there is no end to monitors")
}
