// Package dnstest is a DNS server on the loopback interface, for tests. It knows
// what a test tells it, by UDP and TCP.
package dnstest

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// questionTime bounds one question by TCP.
const questionTime = 10 * time.Second

// Zone is the server. It is safe for concurrent use.
type Zone struct {
	Address string // host:port, of both protocols

	mu     sync.Mutex
	txt    map[string]string   // guarded by mu; by name with a dot at its end
	cname  map[string]string   // guarded by mu
	a      map[string][4]byte  // guarded by mu
	aaaa   map[string][16]byte // guarded by mu
	mx     map[string]string   // guarded by mu; the host that takes mail
	srv    map[string]string   // guarded by mu; the host of the service
	silent bool                // guarded by mu; it refuses every question
	lame   string              // guarded by mu; a name that it refuses questions about
	asked  map[string]bool     // guarded by mu; names that somebody asked for
}

// Serve starts a server that knows nothing yet, for as long as tb lasts.
func Serve(tb testing.TB) *Zone {
	tb.Helper()
	z := &Zone{txt: map[string]string{}, cname: map[string]string{}, a: map[string][4]byte{}, aaaa: map[string][16]byte{}, mx: map[string]string{}, srv: map[string]string{}, asked: map[string]bool{}}
	packets, streams := listen(tb)
	z.Address = packets.LocalAddr().String()
	var servers sync.WaitGroup
	servers.Go(func() { z.servePackets(packets) })
	servers.Go(func() { z.serveStreams(streams) })
	tb.Cleanup(func() {
		_ = packets.Close()
		_ = streams.Close()
		servers.Wait()
	})
	return z
}

// listen finds a port that is free in both protocols.
func listen(tb testing.TB) (net.PacketConn, net.Listener) {
	tb.Helper()
	var config net.ListenConfig
	for range 10 {
		packets, err := config.ListenPacket(tb.Context(), "udp", "127.0.0.1:0")
		if err != nil {
			tb.Fatal(err)
		}
		streams, err := config.Listen(tb.Context(), "tcp", packets.LocalAddr().String())
		if err == nil {
			return packets, streams
		}
		_ = packets.Close()
	}
	tb.Fatal("no port is free in both protocols")
	return nil, nil
}

// Resolver asks the server.
func (z *Zone) Resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, z.Address)
	}}
}

// TXT makes value the text of a name.
func (z *Zone) TXT(name, value string) { z.set(func() { z.txt[dotted(name)] = value }) }

// CNAME makes a name an alias of another one.
func (z *Zone) CNAME(name, to string) { z.set(func() { z.cname[dotted(name)] = dotted(to) }) }

// A gives a name an address.
func (z *Zone) A(name string, ip [4]byte) { z.set(func() { z.a[dotted(name)] = ip }) }

// AAAA gives a name an address of version 6.
func (z *Zone) AAAA(name string, ip [16]byte) { z.set(func() { z.aaaa[dotted(name)] = ip }) }

// MX makes a host the one that takes mail for a name.
func (z *Zone) MX(name, host string) { z.set(func() { z.mx[dotted(name)] = dotted(host) }) }

// SRV makes a host the one of a service, at the port 5060.
func (z *Zone) SRV(name, host string) { z.set(func() { z.srv[dotted(name)] = dotted(host) }) }

// ForgetTXT removes all texts.
func (z *Zone) ForgetTXT() { z.set(func() { clear(z.txt) }) }

// Silence makes it refuse every question, or answer again.
func (z *Zone) Silence(on bool) { z.set(func() { z.silent = on }) }

// Refuse makes it refuse the questions about one name; an empty one is none.
func (z *Zone) Refuse(name string) { z.set(func() { z.lame = dotted(name) }) }

// Asked reports whether somebody asked for a name.
func (z *Zone) Asked(name string) (yes bool) {
	z.set(func() { yes = z.asked[dotted(name)] })
	return yes
}

func (z *Zone) set(fn func()) {
	z.mu.Lock()
	defer z.mu.Unlock()
	fn()
}

func dotted(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) + "." }

func (z *Zone) servePackets(conn net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if out, err := z.answer(buf[:n]); err == nil {
			_, _ = conn.WriteTo(out, from)
		}
	}
}

func (z *Zone) serveStreams(l net.Listener) {
	var open sync.WaitGroup
	defer open.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		open.Go(func() {
			_ = z.serveStream(conn)
			_ = conn.Close()
		})
	}
}

// serveStream answers questions, each with its length in front (RFC 1035,
// section 4.2.2), until an error.
func (z *Zone) serveStream(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(questionTime)); err != nil {
		return err
	}
	for {
		var size uint16
		if err := binary.Read(conn, binary.BigEndian, &size); err != nil {
			return err
		}
		in := make([]byte, size)
		if _, err := io.ReadFull(conn, in); err != nil {
			return err
		}
		out, err := z.answer(in)
		if err != nil {
			return err
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(out))), out...)); err != nil { //nolint:gosec // G115: a few records
			return err
		}
	}
}

// answer makes a message with the answer out of one with a question.
func (z *Zone) answer(in []byte) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(in); err != nil {
		return nil, err
	}
	if len(m.Questions) != 1 {
		return nil, errors.New("not one question")
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	m.Response, m.Authoritative, m.Additionals = true, true, nil
	q := m.Questions[0]
	name := strings.ToLower(q.Name.String())
	z.asked[name] = true
	if z.silent || name == z.lame {
		m.RCode = dnsmessage.RCodeRefused
		return m.Pack()
	}
	add := func(kind dnsmessage.Type, body dnsmessage.ResourceBody) {
		header := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: body})
	}
	if to, ok := z.cname[name]; ok && q.Type != dnsmessage.TypeTXT {
		add(dnsmessage.TypeCNAME, &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(to)})
		name = to
	}
	text, hasText := z.txt[name]
	ip, hasIP := z.a[name]
	six, hasSix := z.aaaa[name]
	mail, hasMail := z.mx[name]
	service, hasService := z.srv[name]
	switch {
	case hasText && q.Type == dnsmessage.TypeTXT:
		add(q.Type, &dnsmessage.TXTResource{TXT: []string{text}})
	case hasIP && q.Type == dnsmessage.TypeA:
		add(q.Type, &dnsmessage.AResource{A: ip})
	case hasSix && q.Type == dnsmessage.TypeAAAA:
		add(q.Type, &dnsmessage.AAAAResource{AAAA: six})
	case hasMail && q.Type == dnsmessage.TypeMX:
		add(q.Type, &dnsmessage.MXResource{Pref: 10, MX: dnsmessage.MustNewName(mail)})
	case hasService && q.Type == dnsmessage.TypeSRV:
		add(q.Type, &dnsmessage.SRVResource{Port: 5060, Target: dnsmessage.MustNewName(service)})
	case !hasText && !hasIP && !hasSix && !hasMail && !hasService && len(m.Answers) == 0:
		m.RCode = dnsmessage.RCodeNameError
	}
	return m.Pack()
}
