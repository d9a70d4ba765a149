package egress

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// streamRate and streamBurst bound how many it may begin in a second.
	streamRate, streamBurst = 256, streamsMax
	// auditRate and auditBurst bound the lines about one sandbox in a second.
	auditRate, auditBurst = 20, 200
)

// Guest is a sandbox as its neighbours in the log know it.
type Guest struct {
	UID, Workspace, Name string
	IP                   netip.Addr // from which its packets come
}

// A guest is what we have of a sandbox.
type guest struct {
	Guest
	*names
	*sockets
	transport *requests
	begins    *rate.Limiter
	lines     *rate.Limiter
	limit     *rate.Limiter
	refusals  *refusals
	seen      *seen
	traffic   *Traffic
	barred    func(Guest) (why string)

	mu      sync.Mutex
	policy  *Policy            // guarded by mu; replaced as a whole
	flows   map[*flow]struct{} // guarded by mu
	omitted uint64             // guarded by mu; lines that were not written
	gone    bool               // guarded by mu
}

// A flow is something on its way to an allowed destination.
type flow struct {
	to    Destination
	rules []int
	end   func()       // does not wait
	idle  atomic.Int64 // since when, in nanoseconds of the epoch; 0 if it ends by itself
}

// rules returns the policy in force.
func (g *guest) rules() *Policy {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.policy
}

// begin decides about a destination and, if it is allowed, takes note of what
// goes there: a later policy that forbids it calls end.
func (g *guest) begin(to Destination, end func()) (Verdict, *flow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	v := g.decide(to)
	if !v.Allow {
		return v, nil
	}
	f := &flow{to: to, rules: v.Rules, end: end}
	g.flows[f] = struct{}{}
	return v, f
}

// verdict is what holds for a destination now.
func (g *guest) verdict(to Destination) Verdict {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.decide(to)
}

// Preconditions: mu is held.
func (g *guest) decide(to Destination) Verdict {
	if g.gone {
		return Verdict{Rule: ruleClosed}
	}
	if why := g.barred(g.Guest); why != "" {
		return Verdict{Rule: ruleBarred, Why: why}
	}
	return g.policy.Decide(to)
}

// enforce ends what the sandbox has open if it is barred.
func (g *guest) enforce() {
	if g.barred(g.Guest) == "" {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for f := range g.flows {
		f.end()
	}
	g.transport.CloseIdleConnections()
}

func (g *guest) done(f *flow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.flows, f)
}

// obey puts a policy in force and ends what it does not allow any more, or not
// in the same way.
func (g *guest) obey(p *Policy) {
	g.mu.Lock()
	defer g.mu.Unlock()
	same := p.leavesLike(g.policy)
	g.policy = p
	for f := range g.flows {
		if v := p.Decide(f.to); !same || !v.Allow || !slices.Equal(v.Rules, f.rules) {
			f.end()
		}
	}
	if !same {
		g.transport.CloseIdleConnections()
	}
}

// leave ends everything of a sandbox.
func (g *guest) leave() {
	g.sockets.leave()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone = true
	for f := range g.flows {
		f.end()
	}
	g.transport.CloseIdleConnections()
}

// enter counts a connection of the sandbox, or returns why it may not have one
// more. Near its bound, each new one ends the one that is idle for longest.
func (g *guest) enter(c *net.TCPConn) (why string) {
	if !g.begins.Allow() {
		return fmt.Sprintf("it begins more than %d connections in a second: wait before the next", streamRate)
	}
	if g.tight() {
		g.endIdle(time.Now())
	}
	return g.sockets.enter(c)
}

// endIdle ends what the sandbox has open and does not use.
func (g *guest) endIdle(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.transport.CloseIdleConnections()
	var idlest *flow
	var since int64
	for f := range g.flows {
		if at := f.idle.Load(); at != 0 && (idlest == nil || at < since) {
			idlest, since = f, at
		}
	}
	if idlest != nil && now.Sub(time.Unix(0, since)) >= idleLeast {
		idlest.end()
	}
}

// omit counts lines that nobody can write any more.
func (g *guest) omit(lines uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.omitted += lines
}

// audit writes down one decision, and remembers it.
func (g *guest) audit(protocol string, to Destination, v Verdict) {
	g.seen.add(protocol, to, v, time.Now())
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.lines.Allow() {
		g.omitted++
		return
	}
	line := slog.With("sandbox", g.UID, "workspace", g.Workspace, "name", g.Name,
		"protocol", protocol, "host", to.host(), "port", to.Port, "verdict", verdictName(v.Allow), "rule", v.Rule, "secrets", v.Secrets, "omitted", g.omitted)
	if v.Why != "" {
		line = line.With("why", v.Why)
	}
	line.Info("egress")
	g.omitted = 0
}
