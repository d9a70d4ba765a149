package greeting

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// A client of PostgreSQL may ask for TLS, or for the encryption of Kerberos, before it
// begins. Each question has 8 bytes: its length, and a number. The answer is one byte.
const (
	questionBytes   = 8
	sslRequest      = 80877103
	kerberosRequest = 80877104
	yes, no         = 'S', 'N'
	// questionsMax is each of them once.
	questionsMax = 2
)

// startup is the first number of a client that wants no encryption: version 3.
const startup = 3

// inClear answers that client: an error of the protocol, in the form that each version has.
var inClear = errorResponse("08P01", "this address speaks TLS: connect with sslmode=require")

// errorResponse is the message by which a server of PostgreSQL refuses a client.
func errorResponse(code, message string) []byte {
	var fields []byte
	for _, f := range []string{"SFATAL", "VFATAL", "C" + code, "M" + message} {
		fields = append(append(fields, f...), 0)
	}
	fields = append(fields, 0)
	const lengthBytes = 4
	whole := binary.BigEndian.AppendUint32([]byte{'E'}, uint32(len(fields)+lengthBytes)) //nolint:gosec // G115: a short text
	return append(whole, fields...)
}

var errInClear = errors.New("a client of PostgreSQL wants no encryption")

// request answers what a client of PostgreSQL asks before TLS begins. Other clients begin
// TLS with a byte that no question has. Their bytes stay to be read.
func (o *opening) request() error {
	for range questionsMax + 1 {
		var head [questionBytes]byte
		if _, err := io.ReadFull(o.Conn, head[:1]); err != nil {
			return err
		}
		if head[0] != 0 {
			o.early = head[:1]
			return nil
		}
		if _, err := io.ReadFull(o.Conn, head[1:]); err != nil {
			return err
		}
		answer, err := o.answer(binary.BigEndian.Uint32(head[:]), binary.BigEndian.Uint32(head[questionBytes/2:]))
		if len(answer) > 0 {
			if _, err := o.Conn.Write(answer); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
	return errors.New("it asks the same again")
}

// answer is what a client gets that begins with a length and a number.
func (o *opening) answer(length, number uint32) ([]byte, error) {
	switch {
	case o.asked:
	case number>>16 == startup && length > questionBytes:
		return inClear, toldError{errInClear}
	case length != questionBytes:
	case number == sslRequest:
		o.asked = true
		return []byte{yes}, nil
	case number == kerberosRequest:
		return []byte{no}, nil
	}
	return nil, fmt.Errorf("%d is no question of PostgreSQL", number)
}

// AskPostgres asks a server of PostgreSQL to begin TLS, as its client asked us. The server
// gets the ClientHello next.
func AskPostgres(server io.ReadWriter) error {
	question := binary.BigEndian.AppendUint32([]byte{0, 0, 0, questionBytes}, sslRequest)
	if _, err := server.Write(question); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(server, answer[:]); err != nil {
		return err
	}
	if answer[0] != yes {
		return errors.New("the server in the sandbox speaks no TLS: set its certificate, or declare the port TCP")
	}
	return nil
}
