package edge

import (
	"net/http"
	"strings"

	"github.com/dozehq/doze"
)

// tcpProtocol is what a request to a port becomes (RFC 9110, section 7.8): the bytes of
// a connection, in both directions.
const tcpProtocol = "tcp"

// aimTCP decides which port a request leads to that becomes a connection. That of the
// agent is none of them: what we take out of requests, nobody would take out of bytes.
func (v *visit) aimTCP(r *http.Request, path string) error {
	port, rest, _, err := splitPort(path, tcpPrefix)
	switch {
	case err != nil || rest != "/":
		return doze.Errorf(doze.Invalid, "the path must be %s<1 to 65535>", tcpPrefix)
	case port == doze.AgentPort:
		return doze.Errorf(doze.Invalid, "port %d is that of the sandbox API: send it requests", port)
	case r.Method != http.MethodGet || r.ProtoMajor != 1 || !strings.EqualFold(r.Header.Get("Upgrade"), tcpProtocol):
		return doze.Errorf(doze.Invalid, "a connection to a port begins with a GET over HTTP/1.1 that has the headers Connection: Upgrade and Upgrade: %s: "+
			"doze sandbox port NAME %d --tcp sends it", tcpProtocol, port)
	}
	v.port, v.path = port, rest
	return nil
}

// transport carries the request of a visit to its sandbox.
func (e *Edge) transport(v *visit) http.RoundTripper {
	if v.raw {
		return connector{e.gate, v}
	}
	return e.gate.Transport(v.upstream.UID, v.port)
}

// connector answers a request with a connection to a port. Of the request, the server
// on the port gets nothing.
type connector struct {
	gate Gate
	v    *visit
}

// RoundTrip implements [http.RoundTripper].
func (c connector) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close() // a GET has none that counts
	}
	conn, err := c.gate.Dial(r.Context(), c.v.upstream.UID, c.v.port)
	if err != nil {
		return nil, err
	}
	c.v.sent.Store(true)
	return &http.Response{
		StatusCode: http.StatusSwitchingProtocols, ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {tcpProtocol}},
		Body:   conn,
	}, nil
}
