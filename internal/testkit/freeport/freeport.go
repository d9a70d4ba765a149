// Package freeport finds ports that nobody listens on, for tests whose programs
// open them later. The kernel gives none of them to anybody meanwhile: they are
// below those that it chooses itself (net.ipv4.ip_local_port_range), for
// connections and for programs that ask for any port.
package freeport

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
)

const (
	first, end = 20000, 32000
	// stride keeps processes apart that were started one after the other.
	stride = 97
)

// taken counts the ports that this process was given or passed over.
var taken atomic.Int64

// Port returns a port that is free on every address, for TCP and UDP. No call in
// this process returns it again before all others.
func Port(ctx context.Context) (int, error) {
	for range end - first {
		port := first + (os.Getpid()*stride+int(taken.Add(1)))%(end-first)
		switch err := try(ctx, ":"+strconv.Itoa(port)); {
		case err == nil:
			return port, nil
		case !errors.Is(err, syscall.EADDRINUSE):
			return 0, err
		}
	}
	return 0, errors.New("every port from 20000 to 31999 is in use: end the programs that listen there")
}

// Address returns one on the loopback interface, with such a port.
func Address(ctx context.Context) (string, error) {
	port, err := Port(ctx)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

// try listens for a moment.
func try(ctx context.Context, address string) error {
	var c net.ListenConfig
	stream, err := c.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	packets, err := c.ListenPacket(ctx, "udp", address)
	if err != nil {
		return err
	}
	return packets.Close()
}
