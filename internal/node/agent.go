package node

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/conn"
)

const (
	// bootTimeout bounds the time from the first instruction until the agent
	// answers.
	bootTimeout = 60 * time.Second
	// askTimeout bounds what we ask an agent by ourselves. One that does not
	// answer has lost its say.
	askTimeout = 2 * time.Second
	// idleAskTimeout is how long an agent may take to say whether its sandbox must
	// stay awake. It shares a small part of a processor with whatever may be
	// the reason.
	idleAskTimeout = 30 * time.Second
)

// agentOf asks the agent of a machine that nobody else can reach yet.
func agentOf(ctx context.Context, m machine.Machine) agentapi.Client {
	return agentapi.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, conn.Timeout)
		defer cancel()
		return m.Dial(ctx, doze.AgentPort)
	}}}
}

// intend asks an agent what it intends, without waking its sandbox.
func intend(ctx context.Context, agent agentapi.Client) (in agentapi.State, err error) {
	ctx, cancel := context.WithTimeout(ctx, idleAskTimeout)
	defer cancel()
	return agent.State(ctx)
}

// introduce tells the agent of a machine that has just started whose it is, as
// soon as it answers.
func introduce(ctx context.Context, agent agentapi.Client, m machine.Machine, in agentapi.Identity) error {
	slow := doze.Errorf(doze.Timeout, "its agent did not answer within %v", bootTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, slow)
	defer cancel()
	out, err := agent.IdentifyFirst(ctx, in)
	if err != nil || out.Hostname == in.Hostname {
		return err
	}
	if err := m.Rename(ctx, in.Hostname); err != nil {
		return err
	}
	_, err = agent.Identify(ctx, in) // the name is in files, too
	return err
}

// greet tells the agent of a sandbox that it came back from disk.
func greet(life context.Context, agent agentapi.Client, uid string) {
	ctx, cancel := context.WithTimeout(life, askTimeout)
	defer cancel()
	if err := agent.Woken(ctx); err != nil {
		slog.Warn("an agent does not answer", "sandbox", uid, "err", err)
	}
}
