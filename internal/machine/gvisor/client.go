package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"

	"doze/internal/machine"
)

var (
	errNoLauncher = errors.New("no launcher listens")
	errGone       = errors.New("the launcher has no such machine")
	errTaken      = errors.New("the launcher has such a machine already")
)

// answerMax bounds what we read of a launcher's answer.
const answerMax = 16 << 20

// client speaks to a launcher. Connections are kept: a wake must not wait for
// a new one.
type client struct {
	socket string
	http   *http.Client
}

func newClient(socket string) *client {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
		MaxIdleConnsPerHost: 64,
	}
	return &client{socket: socket, http: &http.Client{Transport: transport}}
}

func (c *client) ping(ctx context.Context) error {
	return c.get(ctx, PathVersion, &Version{})
}

func (c *client) get(ctx context.Context, path string, out any) error {
	return c.do(ctx, http.MethodGet, path, nil, out)
}

func (c *client) post(ctx context.Context, path string, in, out any) error {
	return c.do(ctx, http.MethodPost, path, in, out)
}

func (c *client) do(ctx context.Context, method, path string, in, out any) error {
	resp, err := c.send(ctx, method, path, in)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		return fmt.Errorf("launcher %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		var f Failure
		if err := json.Unmarshal(raw, &f); err != nil {
			return fmt.Errorf("launcher %s: %s", path, resp.Status)
		}
		switch {
		case f.Gone:
			return fmt.Errorf("%w: %w: %s", machine.ErrGone, errGone, f.Error)
		case f.Taken:
			return fmt.Errorf("%w: %s", errTaken, f.Error)
		}
		return errors.New(f.Error)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

func (c *client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://launcher"+path, body)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", errNoLauncher, err)
	case err != nil:
		return nil, fmt.Errorf("launcher %s: %w", path, err)
	}
	return resp, nil
}

// events returns what the launcher tells until it goes or ctx ends; then the
// channel is closed.
func (c *client) events(ctx context.Context) (<-chan machine.Event, error) {
	resp, err := c.send(ctx, http.MethodGet, PathEvents, nil) //nolint:bodyclose // the goroutine below does
	if err != nil {
		return nil, err
	}
	out := make(chan machine.Event)
	go func() { // ends with the stream
		defer close(out)
		defer func() { _ = resp.Body.Close() }()
		decoder := json.NewDecoder(resp.Body)
		for {
			var e machine.Event
			if decoder.Decode(&e) != nil {
				return
			}
			select {
			case out <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}
