package edge

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// TestTCP: a request becomes a connection to a port, each of whose directions ends by
// itself. Of the request, the server gets no byte.
func TestTCP(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	w.gate.backend = server.Addr().String()
	go func() { // ends with the listener
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			all, _ := io.ReadAll(c) // until the client has said all
			fmt.Fprintf(c, "%d bytes: %s", len(all), all)
			_ = c.Close()
		}
	}()
	c, err := w.dial(t.Context(), "tcp", w.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /tcp/5432 HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer acme\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n\x00\x01", host)
	from := bufio.NewReader(c)
	resp, err := http.ReadResponse(from, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Upgrade") != "tcp" {
		t.Fatalf("%v, %v", resp, err)
	}
	w.gate.awaitHeld(t, 1)
	if _, err := io.WriteString(c, "\x02"); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(from); string(rest) != "3 bytes: \x00\x01\x02" || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
	w.gate.awaitHeld(t, 0)
	if got := w.gate.seen; len(got) != 1 || got[0] != "u-acme-web:5432" {
		t.Errorf("the connection led to %v", got)
	}
}

// TestMistakesInTCP: what leads nowhere wakes nothing, and the error says what to do.
func TestMistakesInTCP(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	for name, c := range map[string]struct {
		method, path, key, protocol string
		status                      int
		want                        string
	}{
		"no credential":    {"GET", "/tcp/5432", "", "tcp", 401, "Authorization"},
		"another tenant":   {"GET", "/tcp/5432", "corp", "tcp", 404, "no such sandbox"},
		"a weak one":       {"GET", "/tcp/5432", "weak", "tcp", 403, "scope"},
		"no port":          {"GET", "/tcp/", "acme", "tcp", 400, "/tcp/<1 to 65535>"},
		"not a port":       {"GET", "/tcp/65536", "acme", "tcp", 400, "/tcp/<1 to 65535>"},
		"more than a port": {"GET", "/tcp/5432/x", "acme", "tcp", 400, "/tcp/<1 to 65535>"},
		"the agent":        {"GET", "/tcp/8080", "acme", "tcp", 400, "sandbox API"},
		"another method":   {"POST", "/tcp/5432", "acme", "tcp", 400, "begins with a GET"},
		"no upgrade":       {"GET", "/tcp/5432", "acme", "", 400, "Upgrade: tcp"},
		"a WebSocket":      {"GET", "/tcp/5432", "acme", "websocket", 400, "Upgrade: tcp"},
	} {
		var header []string
		if c.protocol != "" {
			header = []string{"Connection", "Upgrade", "Upgrade", c.protocol}
		}
		resp := w.do(t, c.method, host, c.path, c.key, nil, header...)
		if e := platformError(t, resp); resp.StatusCode != c.status || !strings.Contains(e["message"].(string)+e["action"].(string), c.want) {
			t.Errorf("%s: %d %v", name, resp.StatusCode, e["message"])
		}
	}
	if n := w.gate.wakes.Load(); n != 0 {
		t.Errorf("%d of them woke a sandbox", n)
	}
	w.gate.err = doze.Errorf(doze.Unavailable, "nothing listens on port 5432")
	resp := w.do(t, "GET", host, "/tcp/5432", "acme", nil, "Connection", "Upgrade", "Upgrade", "tcp")
	if e := platformError(t, resp); resp.StatusCode != http.StatusServiceUnavailable || e["message"] != "nothing listens on port 5432" {
		t.Errorf("%d %v", resp.StatusCode, e)
	}
}
