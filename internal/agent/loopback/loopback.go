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
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
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
	defer func() { _ = node.Close() }()
	// The reader of the server would end the context of the request with the stream.
	early, _ := sent.Peek(sent.Reader.Buffered())
	relay(r.Context(), node, io.MultiReader(bytes.NewReader(early), node), server)
	return nil
}

// dial connects to a port at the first address where somebody listens.
func dial(ctx context.Context, port string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var failures []error
	for _, address := range addresses {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(address, port))
		if err == nil {
			return c, nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}

// relay copies both directions until both have ended, one broke, or ctx ends.
func relay(ctx context.Context, node net.Conn, sent io.Reader, server net.Conn) {
	cut := func() {
		_ = node.Close()
		_ = server.Close()
	}
	defer context.AfterFunc(ctx, cut)()
	var up sync.WaitGroup
	up.Go(func() { carry(server, sent, cut) })
	carry(node, server, cut)
	up.Wait()
}

// carry copies one direction, and passes its end on. After an error the other direction
// ends, too: nobody could tell the peer otherwise.
func carry(to net.Conn, from io.Reader, cut func()) {
	_, err := io.Copy(to, from)
	half, ok := to.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		cut()
	}
}
