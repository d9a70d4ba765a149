package control

import (
	"context"
	"sync"
	"time"

	"doze"
	"doze/internal/store"
)

// How long a read waits for agents to say whether their sandboxes are in use,
// which takes them some milliseconds. Of one that is too busy to answer, it shows
// what is known: in a list for the sake of all the others, and soon.
const (
	learnTimeout    = 2 * time.Second
	learnAllTimeout = 250 * time.Millisecond
)

// learn brings what the node knows of the use of sandboxes up to date: a
// keepAlive process is known to the agent alone. Sandboxes that sleep have none,
// and are not woken.
func (s *Server) learn(ctx context.Context, patience time.Duration, all ...store.Sandbox) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	places := make(chan struct{}, consultsMax)
	var asks sync.WaitGroup
	defer asks.Wait()
	for _, sb := range all {
		if st, ok := s.Node.Status(sb.Machine); !ok || st.Phase != doze.Running {
			continue
		}
		places <- struct{}{}
		asks.Go(func() {
			defer func() { <-places }()
			s.Node.Consult(ctx, sb.Machine)
		})
	}
}

// lastUsed is when a sandbox was last used: now, if it is in use. The node
// knows best, but not what was before it, and us, began; the record does.
func (s *Server) lastUsed(sb store.Sandbox, now time.Time) time.Time {
	st, ok := s.Node.Status(sb.Machine)
	switch {
	case ok && st.InUse:
		return now
	case ok && st.LastUsed.After(s.began):
		return st.LastUsed
	}
	return sb.LastUsed
}
