package e2e_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// localServers listen on a loopback address alone: one speaks HTTP, on port 3000. The
// other, on port 5432, speaks first, and answers when its client has said all. It counts
// its clients.
const localServers = `
import http.server, socketserver, threading
class Page(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"local")
callers = []
class Line(socketserver.StreamRequestHandler):
    def handle(self):
        callers.append(self.client_address)
        self.wfile.write(b"client %d\n" % len(callers))
        self.wfile.write(self.rfile.read().upper())
socketserver.ThreadingTCPServer.allow_reuse_address = True
line = socketserver.ThreadingTCPServer(("127.0.0.1", 5432), Line)
threading.Thread(target=line.serve_forever, daemon=True).start()
http.server.ThreadingHTTPServer(("127.0.0.1", 3000), Page).serve_forever()
`

// TestLocalServers reaches servers that listen on a loopback address alone, by requests
// and by connections, and after a sleep on disk as well.
func TestLocalServers(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "500ms", "--save-after", "200ms", "--disk-after", "1s")
	sb, agent := create(t, c, named("local", 1024))
	if _, err := agent.WriteFile(t.Context(), "/root/servers.py", strings.NewReader(localServers), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := agent.Start(t.Context(), client.Command{Name: "servers", Command: "python3 /root/servers.py"}); err != nil {
		t.Fatal(err)
	}
	url := sb.Metadata.URL + "/port/3000"
	until(t, "the servers listen", func() bool {
		status, _ := get(t, p, url)
		return status == 200
	})
	// say connects, sends text, and returns the greeting and the answer.
	say := func(text string) string {
		t.Helper()
		conn, err := agent.DialPort(t.Context(), 5432)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		all, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		return string(all)
	}
	if got := say("hello"); got != "client 1\nHELLO" {
		t.Errorf("%q", got)
	}
	if long := strings.Repeat("x", 4<<20); say(long) != "client 2\n"+strings.ToUpper(long) {
		t.Error("4 MiB came back in another form")
	}
	await(t, p, "disk")
	if got := say("again"); got != "client 3\nAGAIN" {
		t.Errorf("after a sleep on disk: %q", got)
	}
	await(t, p, "disk")
	if status, body := get(t, p, url); status != 200 || body != "local" {
		t.Errorf("after a sleep on disk: %d %q", status, body)
	}
	if _, err := agent.DialPort(t.Context(), 5433); doze.Public(err).Kind != doze.Unavailable || !strings.Contains(err.Error(), "nothing listens on port 5433") {
		t.Errorf("where nobody listens: %v", err)
	}
	if _, err := agent.DialPort(t.Context(), doze.AgentPort); doze.Public(err).Kind != doze.Invalid {
		t.Errorf("the port of the agent: %v", err)
	}
}

// forwardConnections reaches a server in the sandbox that speaks no HTTP.
func forwardConnections(t *testing.T, s shell) {
	t.Helper()
	s.ok(t, "doze", "sandbox", "exec", "cli", "-d", "--", `printf 'import socket\ns = socket.create_server(("127.0.0.1", 7000))\nwhile True:\n    c = s.accept()[0]\n    c.sendall(b"ready\\n")\n    c.close()\n' > /srv/line.py && python3 /srv/line.py`)
	cmd := s.command(t, "doze", "sandbox", "port", "cli", "0:7000", "--tcp")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address, ok := strings.CutPrefix(strings.TrimSpace(url), "tcp://")
	if !ok {
		t.Errorf("it listens at %q", url)
	}
	until(t, "the server answers", func() bool {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
		if err != nil {
			return false
		}
		defer conn.Close()
		b, err := io.ReadAll(conn)
		return err == nil && string(b) == "ready\n"
	})
	if err := errors.Join(cmd.Process.Signal(os.Interrupt), cmd.Wait()); err != nil {
		t.Errorf("at an interrupt: %v", err)
	}
}
