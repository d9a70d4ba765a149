package control

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

// How long a read waits for agents to say whether their sandboxes are in use, which
// takes them some milliseconds. If an agent is too busy to answer, the read shows the
// last known state. A list waits less, since it asks many agents.
const (
	learnTimeout    = 2 * time.Second
	learnAllTimeout = 250 * time.Millisecond
)

// seen is what the node knows of sandboxes at a moment, by their machines. Those
// that are not in it the node does not have, or it has not answered.
type seen map[string]fleet.Status

// look asks the node about sandboxes.
func (s *Server) look(ctx context.Context, all ...store.Sandbox) (seen, error) {
	if len(all) == 0 {
		return nil, nil
	}
	uids := make([]string, len(all))
	for i, sb := range all {
		uids[i] = sb.Machine
	}
	return s.Node.Statuses(ctx, uids)
}

// glance is look for those who show what is known: without an answer of the node,
// that is what is on record.
func (s *Server) glance(ctx context.Context, all ...store.Sandbox) seen {
	now, err := s.look(ctx, all...)
	if err != nil && ctx.Err() == nil {
		slog.WarnContext(ctx, "the node does not say how its sandboxes are", "err", err)
	}
	return now
}

// learn is glance after the agents of sandboxes that are awake were asked: a
// keepAlive process is known to the agent alone. Sandboxes that sleep have none,
// and are not woken.
func (s *Server) learn(ctx context.Context, patience time.Duration, all ...store.Sandbox) seen {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	now := s.glance(bounded, all...)
	places := make(chan struct{}, consultsMax)
	var asks sync.WaitGroup
	asked := false
	for _, sb := range all {
		if now[sb.Machine].Phase != doze.Running {
			continue
		}
		asked = true
		places <- struct{}{}
		asks.Go(func() {
			defer func() { <-places }()
			if err := s.Node.Consult(bounded, sb.Machine); err != nil && bounded.Err() == nil {
				slog.WarnContext(ctx, "nobody says whether a sandbox is in use", "sandbox", sb.UID, "err", err)
			}
		})
	}
	asks.Wait()
	if !asked {
		return now
	}
	return s.glance(ctx, all...)
}

// lastUsed is when a sandbox was last used: now, if it is in use. The node
// knows best, but not what was before it, and us, began; the record does.
func (s *Server) lastUsed(sb store.Sandbox, by seen, now time.Time) time.Time {
	st, ok := by[sb.Machine]
	switch {
	case ok && st.InUse:
		return now
	case ok && st.LastUsed.After(s.began):
		return st.LastUsed
	}
	return sb.LastUsed
}
