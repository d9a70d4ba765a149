package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/relay"
)

const (
	portMax = 1<<16 - 1
	// headerTimeout is what a program here has to send the head of a request.
	headerTimeout = 30 * time.Second
	// shutdownTimeout is what requests have to end at an interrupt.
	shutdownTimeout = time.Second
)

func (a *app) port() *cobra.Command {
	var address string
	var tcp bool
	cmd := &cobra.Command{
		Use: "port NAME [LOCAL:]PORT", Short: "Forward a local port to a port of a sandbox",
		Long: `Forward a local port to a port of a sandbox, until an interrupt. Without LOCAL,
the local port is the same. 0 picks a free port.

doze forwards HTTP, with streams and WebSockets. The server does not see an
Authorization header: doze sends your key in it, and the platform removes it.
With --tcp, doze forwards connections, byte for byte, for each other protocol
over TCP.

A request or a connection wakes the sandbox. An open connection keeps it awake
until no byte has passed for 15 minutes. Forwarding alone does not. Everybody who reaches the local address uses the server with your key. So doze listens on
this host only, unless you pass --address. For HTTP it refuses host names other
than localhost, so that no web page can reach the port by DNS rebinding.`,
		Example: "  doze sandbox port web 3000\n  doze sandbox port web 8080:80 --address 0.0.0.0\n  doze sandbox port db 15432:5432 --tcp",
		Args:    takes(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			local, remote, err := parsePorts(args[1])
			if err != nil {
				return err
			}
			agent, err := a.enter(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			var h http.Handler
			if !tcp {
				if h, err = agent.Port(remote); err != nil {
					return err
				}
			}
			l, err := new(net.ListenConfig).Listen(cmd.Context(), "tcp", net.JoinHostPort(address, strconv.Itoa(local)))
			if err != nil {
				return fmt.Errorf("%w: choose another local port, such as 0:%d", err, remote)
			}
			scheme := "http://"
			if tcp {
				scheme = "tcp://"
			}
			if err := a.printPort(scheme + l.Addr().String()); err != nil {
				return errors.Join(err, l.Close())
			}
			if tcp {
				a.noteStream(cmd.Context(), args[0], remote)
				return a.relay(cmd.Context(), l, func(ctx context.Context) (client.PortConn, error) { return agent.DialPort(ctx, remote) })
			}
			return forward(cmd.Context(), l, namesHere(h))
		},
	}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1", "local `address` to listen on")
	cmd.Flags().BoolVar(&tcp, "tcp", false, "forward connections instead of requests")
	return cmd
}

// noteStream tells of a preview by which others reach a port without doze, if there is one.
func (a *app) noteStream(ctx context.Context, sandbox string, port int) {
	c, err := a.connect()
	if err != nil {
		return
	}
	all, err := c.Previews(ctx, sandbox) // who may not list them sees no note
	if err != nil {
		return
	}
	for _, p := range all {
		if address, raw := streamAddress(p); raw && p.Spec.Public && p.Spec.Port == port {
			fmt.Fprintf(a.err, "The preview %s is at %s, by TLS and without doze.\n", printable(p.Metadata.Name), printable(address))
		}
	}
}

func (a *app) printPort(url string) error {
	if a.whole() {
		return a.printWhole(map[string]string{"url": url})
	}
	return copyOut(a.out, url+"\n")
}

// parsePorts reads [LOCAL:]PORT.
func parsePorts(text string) (local, remote int, err error) {
	here, there, two := strings.Cut(text, ":")
	if !two {
		there = here
	}
	local, err1 := strconv.Atoi(here)
	remote, err2 := strconv.Atoi(there)
	if err1 != nil || err2 != nil || local < 0 || local > portMax || remote < 1 || remote > portMax {
		return 0, 0, usagef("the port must be like 3000 or 8080:3000, not %q", text)
	}
	return local, remote, nil
}

// declared reads PORT[/PROTOCOL] arguments. The server knows the protocols.
func declared(args []string) (ports []doze.Port, err error) {
	for _, arg := range args {
		number, protocol, named := strings.Cut(arg, "/")
		target, err := strconv.Atoi(number)
		if err != nil || named && protocol == "" {
			return nil, usagef("--port must be like 3000 or 5432/tcp, not %q", arg)
		}
		ports = append(ports, doze.Port{Target: target, Protocol: strings.ToUpper(protocol)})
	}
	return ports, nil
}

// namesHere lets requests through that ask for this host by an address, or as
// localhost.
func namesHere(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		_, err := netip.ParseAddr(strings.Trim(host, "[]"))
		if err != nil && host != "localhost" && !strings.HasSuffix(host, ".localhost") {
			w.Header().Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusMisdirectedRequest)
			_, _ = io.WriteString(w, "ask for this address by its number, or as localhost\n")
			return
		}
		h.ServeHTTP(w, r)
	})
}

// forward serves until ctx ends.
func forward(ctx context.Context, l net.Listener, h http.Handler) error {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx }, // WebSockets end with it
		ErrorLog:    slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // ends when s is closed
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if s.Shutdown(end) != nil {
		_ = s.Close()
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// connectionsMax bounds the connections that are forwarded at the same time.
const connectionsMax = 256

// relay forwards connections until ctx ends. One that cannot be made is told, and closed.
func (a *app) relay(ctx context.Context, l net.Listener, dial func(context.Context) (client.PortConn, error)) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var all sync.WaitGroup
	defer all.Wait()
	room := make(chan struct{}, connectionsMax)
	for {
		c, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = c.Close()
			}
			return nil // an interrupt ends it
		case err != nil:
			return err
		}
		select {
		case room <- struct{}{}:
		default:
			_ = c.Close()
			fmt.Fprintf(a.err, "%v is refused: %d connections are open\n", c.RemoteAddr(), connectionsMax)
			continue
		}
		all.Go(func() { // ends with the connection, or with ctx
			defer func() { <-room }()
			if err := join(ctx, c, dial); err != nil && ctx.Err() == nil {
				fmt.Fprintf(a.err, "%v: %v\n", c.RemoteAddr(), err)
			}
		})
	}
}

// join connects one caller, until both directions have ended or ctx ends.
func join(ctx context.Context, c net.Conn, dial func(context.Context) (client.PortConn, error)) error {
	here, ok := c.(relay.Conn)
	if !ok {
		return c.Close()
	}
	to, err := dial(ctx)
	if err != nil {
		return errors.Join(err, c.Close())
	}
	relay.Join(ctx, here, c, to, to)
	return nil
}
