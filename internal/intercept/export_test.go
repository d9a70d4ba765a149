package intercept

import (
	"crypto/tls"
	"io"
	"net/http"
	"time"
)

// Leaf is leaf, for the servers of tests.
func (a *Authorities) Leaf(authority, host string, now time.Time) (*tls.Certificate, error) {
	return a.leaf(authority, host, now)
}

// AddMembers is addMembers.
var AddMembers = addMembers

// Call calls a function.
func Call(name string, now time.Time) string { return functions[name](now) }

// Redacted is a body without secrets.
func Redacted(body io.ReadCloser, secrets ...string) io.ReadCloser {
	return &redacted{ReadCloser: body, traces: tracesOf(secrets), ended: func() {}}
}

// Frames is what a server sends over a WebSocket, without secrets.
func Frames(conn io.ReadWriteCloser, secrets ...string) io.Reader {
	return &frames{ReadWriteCloser: conn, traces: tracesOf(secrets)}
}

func tracesOf(secrets []string) (traces []*trace) {
	for _, s := range secrets {
		traces = append(traces, newTraces(s)...)
	}
	return traces
}

// Bounds of what Undo makes of a body.
const (
	RatioMax  = ratioMax
	RatioFree = ratioFree
)

// Undo is undo, of the codings in a header.
func Undo(body io.Reader, header string) (io.Reader, bool) {
	return undo(body, codingsOf([]string{header}))
}

// FillHeaders is what the headers of an injection become in a request.
func FillHeaders(in *Injection, method, path string, now time.Time) (map[string]string, error) {
	c := in.at(method, path)
	f, err := c.fill(now)
	return f.headers, err
}

// ResolveBody is a body with its references resolved.
func ResolveBody(b []byte, contentType string, secrets map[string]string) []byte {
	return references(secrets).body(b, contentType)
}

// Functions are the names of all functions.
func Functions() (names []string) {
	for name := range functions {
		names = append(names, name)
	}
	return names
}

// Escapes are the names of all ways to write a character that are undone.
func Escapes() (names []string) {
	for _, e := range escapes {
		names = append(names, e.name)
	}
	return names
}

// EntityNames are the names of HTML that are undone.
var EntityNames = names

// RedactHeader masks secrets in headers.
func RedactHeader(h http.Header, secrets ...string) { redactHeader(h, tracesOf(secrets)) }
