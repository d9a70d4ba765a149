// Package greeting has what a client says before we answer it in TLS: the request of a
// PostgreSQL client, and the ClientHello. These alone say who takes the connection. The
// package parses no ClientHello: crypto/tls does.
//
// What must always hold: a client gets no answer before it has said which name it wants, but
// for the bytes of PostgreSQL. What was read until then can be read again.
package greeting

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze"
)

// helloMax bounds what is read until a client has said which name it asks for, in bytes. A
// ClientHello with the keys of today has 2 KB, and one with a large session ticket 16 KB.
const helloMax = 32 << 10

// A Hello is what a client says before we answer.
type Hello struct {
	Name      string   // of the host that it asks for, as it came; empty without one
	Protocols []string // that it offers by ALPN
	Postgres  bool     // it asked in the words of PostgreSQL whether we speak TLS
	From      string   // its address, as host:port
}

// speaksHTTP are the names of HTTP in ALPN, each with what may follow it.
var speaksHTTP = []string{"h2", "h3", "http/", "spdy/"}

// challenge is the protocol by which an authority of certificates asks whether a name is
// ours.
const challenge = "acme-tls/1"

// SpeaksHTTP reports whether a client offers to speak HTTP, as each browser does.
func (h Hello) SpeaksHTTP() bool {
	return slices.ContainsFunc(h.Protocols, func(offered string) bool {
		return slices.ContainsFunc(speaksHTTP, func(p string) bool { return strings.HasPrefix(offered, p) })
	})
}

// Challenges reports whether the client is an authority of certificates.
func (h Hello) Challenges() bool { return slices.Contains(h.Protocols, challenge) }

// A Conn is a connection of which one direction can end before the other.
type Conn interface {
	net.Conn
	CloseWrite() error
}

// A Stream is a connection that leads to a port.
type Stream interface {
	// Untouched reports whether the port speaks TLS itself: it gets what the client sent,
	// from its first byte on.
	Untouched() bool
	// Serve carries bytes until the connection or ctx ends, and closes both ends.
	Serve(ctx context.Context, client Conn)
	// Close gives up the way to the port, if Serve is not called.
	Close()
}

// A Choice says who takes a connection. Without a stream it is HTTP. ctx ends with the
// time for the handshake. The client is told of the error as far as TLS can.
type Choice func(ctx context.Context, h Hello) (Stream, error)

// A Server makes handshakes. It is safe for concurrent use.
type Server struct {
	secure *tls.Config // of HTTP
	first  *tls.Config // the same, with the choice
	choose Choice
}

// NewServer returns a server whose connections are HTTP as secure says, or what choose
// says.
func NewServer(secure *tls.Config, choose Choice) *Server {
	s := &Server{secure: secure, first: secure.Clone(), choose: choose}
	s.first.GetConfigForClient = s.configure
	return s
}

// errUntouched ends our part of a handshake that the port makes itself.
var errUntouched = errors.New("the port speaks TLS itself")

// errNotPostgres is why a client of PostgreSQL gets no HTTP.
var errNotPostgres = &doze.Error{Kind: doze.NotFound, Message: "no port of this name speaks another protocol than HTTP"}

// A toldError is one of which the client was told.
type toldError struct{ error }

func (t toldError) Unwrap() error { return t.error }

// Told reports whether the client was told of an error of [Server.Begin]. It needs a
// moment to read that before the connection is closed.
func Told(err error) bool {
	_, ok := errors.AsType[toldError](err)
	return ok
}

// Begin makes the handshake with a client, within ctx. It returns the connection, and the
// stream that takes it, which is nil for HTTP. Then the connection is a [tls.Conn]. The
// caller closes raw after an error. What raw has for a deadline of reads is that of the
// ClientHello.
func (s *Server) Begin(ctx context.Context, raw Conn) (Conn, Stream, error) {
	o := &opening{Conn: raw}
	if err := o.request(); err != nil {
		return nil, nil, err
	}
	conn := tls.Server(o, s.first)
	err := conn.HandshakeContext(ctx)
	switch {
	case errors.Is(err, errUntouched):
		return &again{raw, o.seen}, o.taken, nil
	case err != nil:
		if o.taken != nil {
			o.taken.Close()
		}
		return nil, nil, err
	}
	return conn, o.taken, nil
}

// configure decides how a handshake goes on whose client has said what it wants.
func (s *Server) configure(info *tls.ClientHelloInfo) (*tls.Config, error) {
	o, ok := info.Conn.(*opening)
	if !ok {
		return nil, errors.New("a handshake that nobody began")
	}
	o.done = true
	_ = o.SetReadDeadline(time.Time{}) // it has begun, and a certificate may have to be got now
	stream, err := s.choose(info.Context(), Hello{info.ServerName, info.SupportedProtos, o.asked, o.RemoteAddr().String()})
	if err == nil && stream == nil && o.asked {
		err = errNotPostgres
	}
	switch {
	case err != nil:
		return nil, o.refuse(err)
	case stream == nil && s.secure.GetConfigForClient != nil:
		return s.secure.GetConfigForClient(info)
	case stream == nil:
		return nil, nil //nolint:nilnil // what it means to crypto/tls
	}
	o.taken = stream
	if stream.Untouched() {
		o.silent.Store(true)
		return nil, errUntouched
	}
	own := s.secure.Clone()
	own.GetConfigForClient = nil
	own.NextProtos = info.SupportedProtos[:min(len(info.SupportedProtos), 1)] // the first that it offers: the port has one
	return own, nil
}

// opening is a connection until its client has said which name it asks for. What is read
// by then is remembered.
type opening struct {
	Conn

	early  []byte // read already, and next
	seen   []byte // of TLS, until done
	asked  bool   // in the words of PostgreSQL
	done   bool   // we know what it wants
	taken  Stream
	silent atomic.Bool // crypto/tls has nothing to say
}

// Raw returns the connection that [Server.Begin] got, of what is below its TLS.
func Raw(c net.Conn) net.Conn {
	if o, ok := c.(*opening); ok {
		return o.Conn
	}
	return c
}

// Read implements [net.Conn].
func (o *opening) Read(p []byte) (n int, err error) {
	if len(o.early) > 0 {
		n = copy(p, o.early)
		o.early = o.early[n:]
	} else if n, err = o.Conn.Read(p); n == 0 {
		return n, err
	}
	if o.done {
		return n, err
	}
	if len(o.seen)+n > helloMax {
		return 0, errTooLong
	}
	o.seen = append(o.seen, p[:n]...)
	return n, err
}

var errTooLong = errors.New("the client said too much before it asked for a name")

// Write implements [net.Conn].
func (o *opening) Write(p []byte) (int, error) {
	if o.silent.Load() {
		return len(p), nil
	}
	return o.Conn.Write(p)
}

// again is a connection whose first bytes are read a second time.
type again struct {
	Conn

	early []byte
}

// Read implements [net.Conn].
func (a *again) Read(p []byte) (int, error) {
	if len(a.early) == 0 {
		return a.Conn.Read(p)
	}
	n := copy(p, a.early)
	if a.early = a.early[n:]; len(a.early) == 0 {
		a.early = nil
	}
	return n, nil
}

// Alerts of TLS (RFC 8446, section 6.2) that say why a client is refused.
const (
	accessDenied  = 49
	internalError = 80
	unknownName   = 112
	noProtocol    = 120

	// An alert is a record with a level and a reason.
	alertRecord   = 21
	alertFatal    = 2
	alertBytes    = 2
	legacyVersion = 3 // major and minor alike
)

// An alertError is an error with an alert of its own.
type alertError struct {
	error

	alert byte
}

// Unwrap returns what it is about.
func (a *alertError) Unwrap() error { return a.error }

// WantsHTTP refuses a client that offers to speak HTTP.
func WantsHTTP(err error) error { return &alertError{err, noProtocol} }

// alertOf is what tells a client of an error.
func alertOf(err error) byte {
	if a, ok := errors.AsType[*alertError](err); ok {
		return a.alert
	}
	switch doze.Public(err).Kind {
	case doze.Unauthenticated, doze.Forbidden:
		return accessDenied
	case doze.NotFound:
		return unknownName
	default:
		return internalError
	}
}

// refuse tells the client why it gets nothing, in place of crypto/tls, which has one word
// for all reasons.
func (o *opening) refuse(err error) error {
	_, _ = o.Conn.Write([]byte{alertRecord, legacyVersion, legacyVersion, 0, alertBytes, alertFatal, alertOf(err)})
	o.silent.Store(true)
	return toldError{err}
}
