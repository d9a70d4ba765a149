package egress

import (
	"encoding/binary"
	"errors"
)

// Parts of TLS (RFC 8446) that say where the name of the server is.
const (
	recordHandshake  = 22
	recordHeader     = 5
	recordMax        = 1<<14 + 256
	handshakeHello   = 1
	handshakeHeader  = 4
	extServerName    = 0
	serverNameIsHost = 0
)

var errHello = errors.New("this is no ClientHello")

// serverName returns the name in the ClientHello at the beginning of b; empty if
// it has none. More says that b is too short.
func serverName(b []byte) (name string, more bool, err error) {
	message, more, err := firstMessage(b)
	if more || err != nil {
		return "", more, err
	}
	r := reader(message)
	r.skip(2 + 32) // version, random
	r.skip(int(r.uint8()))
	r.skip(int(r.uint16())) // cipher suites
	r.skip(int(r.uint8()))  // compression
	if r.empty() && !r.bad() {
		return "", false, nil // without extensions
	}
	extensions := r.take(int(r.uint16()))
	for !extensions.empty() && !extensions.bad() {
		kind := extensions.uint16()
		body := extensions.take(int(extensions.uint16()))
		if kind != extServerName {
			continue
		}
		names := body.take(int(body.uint16()))
		kindOfName := names.uint8()
		host := names.take(int(names.uint16()))
		if names.bad() || host.bad() || kindOfName != serverNameIsHost || !names.empty() || name != "" || host.empty() {
			return "", false, errHello // one name, once
		}
		name = string(host)
	}
	if r.bad() || extensions.bad() {
		return "", false, errHello
	}
	return name, false, nil
}

// firstMessage returns the body of the first handshake message in the records
// of b, which must be a ClientHello.
func firstMessage(b []byte) (message []byte, more bool, err error) {
	for {
		if len(b) < recordHeader {
			return nil, true, nil
		}
		length := int(binary.BigEndian.Uint16(b[3:]))
		if b[0] != recordHandshake || b[1] != 3 || length == 0 || length > recordMax {
			return nil, false, errHello
		}
		have := min(length, len(b)-recordHeader)
		message = append(message, b[recordHeader:recordHeader+have]...)
		if len(message) >= handshakeHeader {
			want := int(message[1])<<16 | int(message[2])<<8 | int(message[3])
			if message[0] != handshakeHello || want > headMax {
				return nil, false, errHello
			}
			if len(message) >= handshakeHeader+want {
				return message[handshakeHeader : handshakeHeader+want], false, nil
			}
		}
		if have < length {
			return nil, true, nil
		}
		b = b[recordHeader+length:]
	}
}

// reader reads numbers and vectors. What is too short makes it bad: nil, and for
// ever empty.
type reader []byte

func (r *reader) take(n int) reader {
	if *r == nil || n > len(*r) {
		*r = nil
		return nil
	}
	part := (*r)[:n:n]
	*r = (*r)[n:]
	return part
}

func (r *reader) skip(n int) { r.take(n) }

func (r *reader) uint8() uint8 {
	b := r.take(1)
	if b == nil {
		return 0
	}
	return b[0]
}

func (r *reader) uint16() uint16 {
	b := r.take(2)
	if b == nil {
		return 0
	}
	return binary.BigEndian.Uint16(b)
}

func (r *reader) empty() bool { return len(*r) == 0 }
func (r *reader) bad() bool   { return *r == nil }
