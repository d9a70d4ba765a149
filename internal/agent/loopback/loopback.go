// Package loopback connects the node to servers that listen on the loopback addresses
// of the sandbox alone, where nothing outside leads.
package loopback

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/relay"
)

// timeout bounds a connection to a server. Nothing leaves the sandbox for it.
const timeout = 2 * time.Second

// addresses are those that programs call localhost.
var addresses = []string{"127.0.0.1", "::1"}

// Connect makes the connection of its request one to a port, until both directions have
// ended. The error of a port where nobody listens is [doze.Unavailable].
func Connect(w http.ResponseWriter, r *http.Request, port string) error {
	if r.Header.Get("Upgrade") != agentapi.LoopbackProtocol {
		return doze.Errorf(doze.Invalid, "this is for the host alone")
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 || n == doze.AgentPort {
		return doze.Errorf(doze.Invalid, "the port must be 1 to 65535, and not %d", doze.AgentPort)
	}
	server, err := dial(r.Context(), strconv.FormatUint(n, 10))
	if err != nil {
		return doze.Wrap(err, doze.Unavailable, "nothing listens on port %d", n)
	}
	defer func() { _ = server.Close() }()
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", agentapi.LoopbackProtocol)
	w.WriteHeader(http.StatusSwitchingProtocols)
	node, sent, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil // an answer was written
	}
	// The reader of the server would end the context of the request with the stream.
	early, _ := sent.Peek(sent.Reader.Buffered())
	from := io.MultiReader(bytes.NewReader(early), node)
	to, ok := node.(relay.Conn)
	if !ok {
		return node.Close() // an answer was written; the node sees the end
	}
	relay.Join(r.Context(), to, from, server, server)
	return nil
}

// dial connects to a port at the first address where somebody listens.
func dial(ctx context.Context, port string) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var failures []error
	for _, address := range addresses {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(address, port))
		if tcp, ok := c.(*net.TCPConn); ok && err == nil {
			return tcp, nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}
