package greeting

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

// port is a stream of a test.
type port struct{ untouched, closed bool }

func (p *port) Untouched() bool             { return p.untouched }
func (p *port) Serve(context.Context, Conn) {}
func (p *port) Close()                      { p.closed = true }

// pipe returns both ends of a connection.
func pipe(tb testing.TB) (client, server *net.TCPConn) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _, _ = c.Close(), s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// certificate is that of a server, and who vouches for it.
func certificate(tb testing.TB) (*tls.Config, *x509.CertPool) {
	tb.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return &tls.Config{Certificates: s.TLS.Certificates, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}, roots
}

// question is what libpq sends before TLS.
const question = "\x00\x00\x00\x08\x04\xd2\x16\x2f"

// TestBegin: which name a client asks for, and what it offers, decides who takes the
// connection, and what each side hears.
func TestBegin(t *testing.T) {
	t.Parallel()
	secure, roots := certificate(t)
	private := &doze.Error{Kind: doze.Forbidden, Message: "private"}
	for name, c := range map[string]struct {
		offers    []string
		questions string // before TLS
		port      *port
		refusal   error
		chosen    string // protocol
		alert     string
	}{
		"HTTP":                     {offers: []string{"h2", "http/1.1"}, chosen: "h2"},
		"a port":                   {port: &port{}},
		"by a name of its own":     {port: &port{}, offers: []string{"postgresql"}, chosen: "postgresql"},
		"of two names":             {port: &port{}, offers: []string{"mqtt", "other"}, chosen: "mqtt"},
		"a question of PostgreSQL": {port: &port{}, questions: question, offers: []string{"postgresql"}, chosen: "postgresql"},
		"and of Kerberos":          {port: &port{}, questions: question[:7] + "\x30" + question},
		"PostgreSQL and no port":   {questions: question, alert: "unrecognized name"},
		"a private port":           {refusal: private, alert: "access denied"},
		"a browser":                {refusal: WantsHTTP(private), alert: "no application protocol"},
		"another fault":            {refusal: errors.New("broken"), alert: "internal error"},
		"bytes that pass":          {port: &port{untouched: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near, far := pipe(t)
			var heard Hello
			s := NewServer(secure, func(_ context.Context, h Hello) (Stream, error) {
				heard = h
				if c.port == nil {
					return nil, c.refusal
				}
				return c.port, nil
			})
			type begun struct {
				conn   Conn
				stream Stream
				err    error
			}
			done := make(chan begun, 1)
			go func() { // ends with the connection
				conn, stream, err := s.Begin(t.Context(), far)
				done <- begun{conn, stream, err}
				if err != nil {
					_ = far.CloseWrite()
				}
			}()
			for q := range slices.Chunk([]byte(c.questions), questionBytes) {
				if _, err := near.Write(q); err != nil {
					t.Fatal(err)
				}
				var answer [1]byte
				if _, err := io.ReadFull(near, answer[:]); err != nil || answer[0] != map[bool]byte{true: yes, false: no}[string(q) == question] {
					t.Fatalf("%q is answered %q, %v", q, answer, err)
				}
			}
			client := tls.Client(near, &tls.Config{RootCAs: roots, ServerName: "example.com", NextProtos: c.offers})
			shaken := make(chan error, 1)
			go func() { shaken <- client.HandshakeContext(t.Context()) }() // ends with the connection
			b := <-done
			if want := (Hello{"example.com", c.offers, strings.HasSuffix(c.questions, question), near.LocalAddr().String()}); !cmp.Equal(heard, want) {
				t.Error(cmp.Diff(want, heard))
			}
			switch {
			case c.alert != "":
				if err := <-shaken; err == nil || !strings.Contains(err.Error(), c.alert) || !Told(b.err) {
					t.Errorf("%v; %v", err, b.err)
				}
			case b.err != nil:
				t.Fatal(b.err)
			case c.port != nil && c.port.untouched:
				own := tls.Server(b.conn, secure) // the port makes the handshake itself
				if err := own.HandshakeContext(t.Context()); err != nil || <-shaken != nil {
					t.Error(err)
				}
			default:
				if err := <-shaken; err != nil || client.ConnectionState().NegotiatedProtocol != c.chosen {
					t.Errorf("%v, %q", err, client.ConnectionState().NegotiatedProtocol)
				}
			}
			if c.port != nil && (b.stream != Stream(c.port) || c.port.closed) {
				t.Errorf("%v takes it", b.stream)
			}
		})
	}
}

// TestSessionsAreResumed: a client that comes again needs no second handshake.
func TestSessionsAreResumed(t *testing.T) {
	t.Parallel()
	secure, roots := certificate(t)
	s := NewServer(secure, func(context.Context, Hello) (Stream, error) { return &port{}, nil })
	config := &tls.Config{RootCAs: roots, ServerName: "example.com", ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	for i := range 2 {
		near, far := pipe(t)
		go func() { // ends with the connection
			if conn, _, err := s.Begin(t.Context(), far); err == nil {
				_, _ = conn.Write([]byte("x"))
			}
		}()
		client := tls.Client(near, config)
		if _, err := io.ReadFull(client, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if got := client.ConnectionState().DidResume; got != (i == 1) {
			t.Errorf("connection %d: resumed is %t", i, got)
		}
	}
}

// TestAFailedHandshakeGivesThePortUp: whoever opened the way to it hears that nobody comes.
func TestAFailedHandshakeGivesThePortUp(t *testing.T) {
	t.Parallel()
	secure, _ := certificate(t)
	near, far := pipe(t)
	p := &port{}
	go func() { _ = tls.Client(near, &tls.Config{ServerName: "example.com"}).HandshakeContext(t.Context()) }() // it trusts nobody
	_, _, err := NewServer(secure, func(context.Context, Hello) (Stream, error) { return p, nil }).Begin(t.Context(), far)
	if err == nil || !p.closed {
		t.Errorf("%v, closed: %t", err, p.closed)
	}
}

// words are what a client says, in one piece; what it hears is kept.
type words struct {
	net.Conn

	says  *bytes.Reader
	hears bytes.Buffer
}

func (w *words) Read(p []byte) (int, error)       { return w.says.Read(p) }
func (w *words) Write(p []byte) (int, error)      { return w.hears.Write(p) }
func (w *words) CloseWrite() error                { return nil }
func (w *words) Close() error                     { return nil }
func (w *words) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (w *words) SetDeadline(time.Time) error      { return nil }
func (w *words) SetReadDeadline(time.Time) error  { return nil }
func (w *words) SetWriteDeadline(time.Time) error { return nil }
func (w *words) begin(ctx context.Context, s *Server) (read int, err error) {
	before := w.says.Len()
	_, _, err = s.Begin(ctx, w)
	return before - w.says.Len(), err
}

func say(text string) *words { return &words{says: bytes.NewReader([]byte(text))} }

// TestMistakes: clients that say something else get a word that they know, or none.
func TestMistakes(t *testing.T) {
	t.Parallel()
	secure, _ := certificate(t)
	s := NewServer(secure, func(context.Context, Hello) (Stream, error) { return nil, nil })
	for name, c := range map[string]struct {
		says, hears string
		read        int // at most
	}{
		"nothing":                      {"", "", 0},
		"half a question":              {question[:5], "", 5},
		"the same twice":               {question + question, "S", 16},
		"Kerberos for ever":            {strings.Repeat(question[:7]+"\x30", 9), "NNN", 24},
		"no encryption":                {"\x00\x00\x00\x29\x00\x03\x00\x00user\x00postgres\x00", string(inClear), 8},
		"no encryption any more":       {question + "\x00\x00\x00\x29\x00\x03\x00\x00user\x00postgres\x00", "S", 16},
		"a cancel in clear":            {"\x00\x00\x00\x10\x04\xd2\x16\x2e\x00\x00\x00\x01\x00\x00\x00\x02", "", 8},
		"a long question":              {"\x00\x00\x00\x09\x04\xd2\x16\x2f", "", 8},
		"a ClientHello without an end": {hello(helloMax), "", helloMax + 8<<10},
	} {
		w := say(c.says)
		read, err := w.begin(t.Context(), s)
		if err == nil || read > c.read || w.hears.String() != c.hears && c.hears != "" || len(c.hears) == 0 && strings.HasPrefix(w.hears.String(), "S") {
			t.Errorf("%s: %v; %d bytes are read, and it hears %q", name, err, read, w.hears.String())
		}
	}
}

// hello is the begin of a message that announces n bytes, in records of a few.
func hello(n int) string {
	var all strings.Builder
	message := append([]byte{1, byte(n >> 16), byte(n >> 8), byte(n)}, make([]byte, n)...)
	for part := range slices.Chunk(message, 100) {
		all.Write([]byte{22, 3, 1, 0, byte(len(part))})
		all.Write(part)
	}
	return all.String()
}

// TestAskPostgres: a server that speaks no TLS is no way for a client that wants it.
func TestAskPostgres(t *testing.T) {
	t.Parallel()
	for answer, works := range map[string]bool{"S": true, "N": false, "E": false, "": false} {
		w := say(answer)
		if err := AskPostgres(w); (err == nil) != works || w.hears.String() != question {
			t.Errorf("%q: %v after %q", answer, err, w.hears.String())
		}
	}
}

// FuzzBegin: whatever a client says first, we read a bounded part of it, and answer with
// words of PostgreSQL, alerts, or a handshake.
func FuzzBegin(f *testing.F) {
	secure, _ := certificate(f)
	secure.NextProtos = nil
	s := NewServer(secure, func(_ context.Context, h Hello) (Stream, error) {
		if h.SpeaksHTTP() || h.Challenges() {
			return nil, WantsHTTP(errors.New("http"))
		}
		return &port{untouched: h.Name != ""}, nil
	})
	record := &words{says: bytes.NewReader(nil)}
	_ = tls.Client(record, &tls.Config{ServerName: "example.com", NextProtos: []string{"postgresql"}}).HandshakeContext(f.Context())
	f.Add(record.hears.Bytes())
	f.Add([]byte(question + record.hears.String()))
	f.Add([]byte(hello(helloMax)))
	f.Add([]byte("\x00\x00\x00\x29\x00\x03\x00\x00user\x00postgres\x00"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, says []byte) {
		w := say(string(says))
		read, err := w.begin(t.Context(), s)
		if most := helloMax + (questionsMax+1)*questionBytes + 8<<10; read > most {
			t.Errorf("%d bytes are read", read)
		}
		if err != nil && w.hears.Len() > 4<<10 {
			t.Errorf("a client that is refused hears %d bytes", w.hears.Len())
		}
	})
}
