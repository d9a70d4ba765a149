// Command raw tries to get out of a sandbox as code does that wants nothing of it:
// linked statically, with its own resolver and its own sockets, and deaf to every
// variable. It prints what came of it.
package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// patience is for what is answered, on a busy machine.
	patience = 60 * time.Second
	// silence is how long it waits for what must not come.
	silence = 1500 * time.Millisecond
)

func main() {
	out, err := try(os.Args[1], os.Args[2], os.Args[3])
	switch {
	case err == nil:
		fmt.Println(out)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF):
		fmt.Println("refused")
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, os.ErrDeadlineExceeded):
		fmt.Println("nothing")
	default:
		fmt.Println("error", err)
	}
}

// try asks a name or an address for something; server is the one that it asks for
// names.
func try(how, to, server string) (string, error) {
	switch how {
	case "web":
		return web(to, server)
	case "tls":
		return secure(to, server)
	case "packet":
		return packet(to)
	}
	return "", errors.New("there is no such way")
}

// lookup asks a server of its own choice.
func lookup(name, server string) (a netip.Addr, err error) {
	if a, err = netip.ParseAddr(name); err == nil {
		return a, nil
	}
	own := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(server, "53"))
	}}
	all, err := own.LookupNetIP(context.Background(), "ip4", name+".")
	if err != nil {
		return a, err
	}
	return all[0], nil
}

// web speaks HTTP over a socket of the kernel's, without package net.
func web(name, server string) (string, error) {
	a, err := lookup(name, server)
	if err != nil {
		return "", err
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		return "", err
	}
	defer syscall.Close(fd)
	if err := syscall.Connect(fd, &syscall.SockaddrInet4{Addr: a.As4(), Port: 80}); err != nil {
		return "", err
	}
	f := os.NewFile(uintptr(fd), name)
	return ask(f, name)
}

func secure(name, server string) (string, error) {
	a, err := lookup(name, server)
	if err != nil {
		return "", err
	}
	c, err := net.DialTimeout("tcp4", netip.AddrPortFrom(a, 443).String(), patience)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return ask(tls.Client(c, &tls.Config{ServerName: name, InsecureSkipVerify: true}), name)
}

// ask returns the status of an answer, with what was blocked or the body.
func ask(c io.ReadWriter, host string) (string, error) {
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	if err != nil {
		return "", err
	}
	head, body, _ := strings.Cut(string(b), "\r\n\r\n")
	fields := strings.Fields(head)
	if len(fields) < 2 {
		return "", io.EOF
	}
	if _, blocked, ok := strings.Cut(head, "Proxy-Error: "); ok {
		body, _, _ = strings.Cut(blocked, "\r\n")
	}
	return fields[1] + " " + strings.TrimSpace(body), nil
}

// packet makes a packet of UDP by itself, a question of the DNS, and waits for an
// answer.
func packet(to string) (string, error) {
	address, err := netip.ParseAddrPort(to)
	if err != nil {
		return "", err
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_UDP)
	if err != nil {
		return "", err
	}
	defer syscall.Close(fd)
	const header, port = 8, 40053
	question := "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07allowed\x04test\x00\x00\x01\x00\x01"
	b := binary.BigEndian.AppendUint16(nil, port)
	b = binary.BigEndian.AppendUint16(b, address.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(header+len(question)))
	b = append(append(b, 0, 0), question...)
	wait := syscall.NsecToTimeval(int64(silence))
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &wait); err != nil {
		return "", err
	}
	for range 3 { // one may be lost
		if err = syscall.Sendto(fd, b, 0, &syscall.SockaddrInet4{Addr: address.Addr().As4()}); err != nil {
			return "", err
		}
		var n int
		if n, err = receive(fd, address); err == nil {
			return "answered with " + strconv.Itoa(n), nil
		}
	}
	return "", err
}

// receive waits for a packet from an address. Of what others get, the socket has a
// copy too.
func receive(fd int, from netip.AddrPort) (n int, err error) {
	const source, unit, least = 12, 4, 28
	in := make([]byte, 1500)
	for {
		if n, _, err = syscall.Recvfrom(fd, in, 0); err != nil {
			return 0, err
		}
		header := int(in[0]&0xf) * unit
		if n >= least && netip.AddrFrom4([4]byte(in[source:])) == from.Addr() && binary.BigEndian.Uint16(in[header:]) == from.Port() {
			return n, nil
		}
	}
}
