package loopback_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/loopback"
	"github.com/dozehq/doze/internal/agentapi"
)

// agent serves the one call, and tells how it ended.
func agent(t *testing.T) (address string, ended chan error) {
	t.Helper()
	ended = make(chan error, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		port := strings.TrimPrefix(r.URL.Path, agentapi.Prefix+"loopback/")
		err := loopback.Connect(w, r, port)
		if err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		ended <- err
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), ended
}

// TestConnect: a server on either loopback address is reached, and each direction ends
// by itself.
func TestConnect(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		server, err := net.Listen("tcp", at)
		if err != nil {
			t.Skipf("this host has no address %s: %v", at, err)
		}
		go func() {
			c, err := server.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello, ")
			b, _ := io.ReadAll(c)
			_, _ = c.Write(b)
			_ = c.Close()
		}()
		address, ended := agent(t)
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		from, err := agentapi.ConnectLoopbackOver(t.Context(), c, uint16(server.Addr().(*net.TCPAddr).Port))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "server"); err != nil {
			t.Fatal(err)
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(from); string(got) != "hello, server" || err != nil {
			t.Errorf("%s: %q, %v", at, got, err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		_ = c.Close()
		_ = server.Close()
	}
}

// TestMistakes: the caller hears that nobody listens before anything becomes a
// connection.
func TestMistakes(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := strconv.Itoa(free.Addr().(*net.TCPAddr).Port)
	_ = free.Close()
	for port, want := range map[string]doze.Kind{
		nobody: doze.Unavailable, "0": doze.Invalid, "65536": doze.Invalid, "x": doze.Invalid, "8080": doze.Invalid,
	} {
		r := httptest.NewRequest(http.MethodGet, agentapi.Prefix+"loopback/"+port, http.NoBody)
		r.Header.Set("Upgrade", agentapi.LoopbackProtocol)
		if err := loopback.Connect(httptest.NewRecorder(), r, port); doze.Public(err).Kind != want {
			t.Errorf("%s: %v", port, err)
		}
	}
	r := httptest.NewRequest(http.MethodGet, agentapi.Prefix+"loopback/1", http.NoBody)
	if err := loopback.Connect(httptest.NewRecorder(), r, "1"); doze.Public(err).Kind != doze.Invalid {
		t.Errorf("without an upgrade: %v", err)
	}
}

// TestBroken: a server that resets its connection ends that of the node.
func TestBroken(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		c, err := server.Accept()
		if err != nil {
			return
		}
		_, _ = c.Read(make([]byte, 1))
		_ = c.(*net.TCPConn).SetLinger(0)
		_ = c.Close()
	}()
	address, ended := agent(t)
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	from, err := agentapi.ConnectLoopbackOver(t.Context(), c, uint16(server.Addr().(*net.TCPAddr).Port))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, "x")
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := from.ReadByte(); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection goes on: %v", err)
	}
	<-ended
}
