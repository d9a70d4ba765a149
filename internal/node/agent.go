package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"doze"
)

const (
	// askTimeout bounds what we ask an agent by ourselves. One that does not
	// answer has lost its say.
	askTimeout = 2 * time.Second
	askMax     = 4 << 10
	// keepTimeout is how long an agent may take to say whether its sandbox must
	// stay awake. It shares a small part of a processor with whatever may be
	// the reason.
	keepTimeout = 30 * time.Second

	// bootPoll is the pause between attempts to reach an agent that starts.
	bootPoll = 2 * time.Millisecond
)

// introduce tells the agent of a machine that has just started whose it is, as
// soon as it answers.
func (b *Box) introduce(ctx context.Context, env []string, trust string) error {
	slow := doze.Errorf(doze.Timeout, "its agent did not answer within %v", bootTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, slow)
	defer cancel()
	in := identity{Hostname: b.order.Name, Env: env, Trust: trust}
	var out struct {
		Hostname string `json:"hostname"`
	}
	if err := insist(ctx, b.client, http.MethodPost, "/doze/identity", in, &out); err != nil || out.Hostname == in.Hostname {
		return err
	}
	b.mu.Lock()
	m := b.machine
	b.mu.Unlock()
	if err := m.Rename(ctx, in.Hostname); err != nil {
		return err
	}
	return b.call(ctx, http.MethodPost, "/doze/identity", in, nil) // the name is in files, too
}

// identity is what an agent is told of its sandbox.
type identity struct {
	Hostname string   `json:"hostname"`
	Env      []string `json:"env"`
	Trust    string   `json:"trust,omitempty"` // an authority besides those of the image, in PEM
}

// insist asks the agent of a machine that starts until it answers.
func insist(ctx context.Context, agent http.RoundTripper, method, path string, in, out any) error {
	for {
		err := call(ctx, agent, method, path, in, out)
		if err == nil || errors.As(err, new(refusal)) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(bootPoll):
		}
	}
}

// greet tells the agent that it came back from disk.
func (b *Box) greet() {
	if err := b.ask(askTimeout, http.MethodPost, "/doze/wake", nil, nil); err != nil {
		slog.Warn("an agent does not answer", "sandbox", b.order.UID, "err", err)
	}
}

// ask makes a private request to the agent of a running box, without waking it.
func (b *Box) ask(limit time.Duration, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(b.life, limit)
	defer cancel()
	return b.call(ctx, method, path, in, out)
}

// refusal is an answer that says that asking again is of no use.
type refusal struct{ error }

func (b *Box) call(ctx context.Context, method, path string, in, out any) error {
	return call(ctx, b.client, method, path, in, out)
}

// call makes a private request to an agent. Without out, its answer does not
// matter.
func call(ctx context.Context, agent http.RoundTripper, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(raw)
	}
	return exchange(ctx, agent, method, path, body, askMax, out)
}

// exchange is call with any body, and a bound for the answer.
func exchange(ctx context.Context, agent http.RoundTripper, method, path string, body io.Reader, most int64, out any) error {
	url := "http://sandbox:" + strconv.Itoa(doze.AgentPort) + path
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	resp, err := agent.RoundTrip(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return refusal{fmt.Errorf("%s %s: %s: %.300q", method, path, resp.Status, raw)}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return refusal{fmt.Errorf("%s %s: %w", method, path, err)}
	}
	return nil
}
