package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/dozehq/doze"
)

// inputChunk is how many bytes of input one request carries. It is below what a
// sandbox takes (8 MiB), and worth a round trip.
const inputChunk = 256 << 10

// unwritten is the header in which a sandbox says how many bytes of a request
// did not reach the process.
const unwritten = "Doze-Unwritten"

// InputError is the end of a command's input before its end: it could not be
// read here, or not be written there.
type InputError struct{ Err error }

func (e *InputError) Error() string { return "standard input: " + e.Err.Error() }

func (e *InputError) Unwrap() error { return e.Err }

// WriteInput writes to the standard input of a process that was started with
// Stdin. It waits for one that reads slowly until ctx ends. It is a Conflict if
// the process has closed its input, and NotFound or a Conflict if it is over.
func (b *Agent) WriteInput(ctx context.Context, id string, p []byte) error {
	for len(p) > 0 {
		part := p[:min(len(p), inputChunk)]
		left, err := b.write(ctx, id, part)
		p = p[len(part)-left:]
		if err != nil && (left == 0 || doze.Public(err).Kind != doze.Unavailable) {
			return err
		}
	}
	return nil
}

// write sends one request and returns how many bytes the process did not take.
// With an error, 0 means that nobody knows.
func (b *Agent) write(ctx context.Context, id string, p []byte) (left int, err error) {
	resp, err := b.c.do(ctx, call{
		method: http.MethodPost, url: b.process(id) + "/stdin", body: bytes.NewReader(p),
		header: http.Header{"Content-Type": {"application/octet-stream"}},
	})
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	if err := readError(resp); err != nil {
		n, bad := strconv.Atoi(resp.Header.Get(unwritten))
		if bad != nil || n < 0 || n > len(p) {
			n = 0
		}
		return n, err
	}
	_, err = decode[Done](ctx, resp)
	return 0, err
}

// CloseInput ends the standard input of a process. Closing it twice is fine.
func (b *Agent) CloseInput(ctx context.Context, id string) (Done, error) {
	return exchange[Done](ctx, b.c, http.MethodDelete, b.process(id)+"/stdin", nil)
}

// sendInput writes in to a process, up to its end or until the process wants no more.
func (b *Agent) sendInput(ctx context.Context, id string, in io.Reader) error {
	buf := make([]byte, inputChunk)
	for {
		n, err := in.Read(buf)
		if err := b.WriteInput(ctx, id, buf[:n]); err != nil {
			return wanted(err)
		}
		if errors.Is(err, io.EOF) {
			_, err := b.CloseInput(ctx, id)
			return wanted(err)
		}
		if err != nil {
			return err
		}
	}
}

// wanted drops an error that only says that nobody reads any more, as a pipe in
// a shell does.
func wanted(err error) error {
	switch doze.Public(err).Kind { //nolint:exhaustive // all others are errors
	case doze.NotFound, doze.Conflict:
		return nil
	}
	return err
}
