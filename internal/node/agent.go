package node

import (
	"context"
	"log/slog"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
)

const (
	// askTimeout bounds what we ask an agent by ourselves. One that does not
	// answer has lost its say.
	askTimeout = 2 * time.Second
	// keepTimeout is how long an agent may take to say whether its sandbox must
	// stay awake. It shares a small part of a processor with whatever may be
	// the reason.
	keepTimeout = 30 * time.Second
)

// agent asks the agent of b, without waking b.
func (b *Box) agent() agentapi.Client { return agentapi.Client{Transport: b.client} }

// introduce tells the agent of a machine that has just started whose it is, as
// soon as it answers.
func (b *Box) introduce(ctx context.Context, env []string, trust string) error {
	slow := doze.Errorf(doze.Timeout, "its agent did not answer within %v", bootTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, slow)
	defer cancel()
	in := agentapi.Identity{Hostname: b.order.Name, Env: env, Trust: trust}
	out, err := b.agent().IdentifyFirst(ctx, in)
	if err != nil || out.Hostname == in.Hostname {
		return err
	}
	b.mu.Lock()
	m := b.machine
	b.mu.Unlock()
	if err := m.Rename(ctx, in.Hostname); err != nil {
		return err
	}
	_, err = b.agent().Identify(ctx, in) // the name is in files, too
	return err
}

// greet tells the agent that it came back from disk.
func (b *Box) greet() {
	ctx, cancel := context.WithTimeout(b.life, askTimeout)
	defer cancel()
	if err := b.agent().Woken(ctx); err != nil {
		slog.Warn("an agent does not answer", "sandbox", b.order.UID, "err", err)
	}
}
