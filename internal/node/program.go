package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
)

const (
	// programPause is between two answers about a program at least: one that fails at
	// once has many.
	programPause = 250 * time.Millisecond
	// programRetryMax is the longest pause after a question that did not work.
	programRetryMax = 30 * time.Second
	// programNotePause is between two events of one kind about a program, at least.
	programNotePause = 10 * time.Minute
	// programTextMax bounds what is remembered of the words of an agent.
	programTextMax = 1 << 10
	// excerptMax is how much of them an event has.
	excerptMax = 200
)

// What an agent may say of a program and of its health.
var (
	programStatuses = []string{"", "running", "completed", programFailed, "stopped", "killed"}
	healthStatuses  = []string{"", "starting", "healthy", healthFailed}
)

const (
	programFailed = "failed"
	healthFailed  = "unhealthy"
)

// programOf is what an agent is told of an image; false if there is nothing to tell.
func programOf(i *Image) (in agentapi.Image, ok bool) {
	in.Program = i.Program()
	in.StopSignal, _ = doze.ParseSignal(i.StopSignal) // without one it is 0
	if h := i.Health; h != nil {
		millis := func(seconds float64) int64 { return int64(seconds * 1000) }
		in.Health = &agentapi.HealthCheck{
			Test: h.Test, IntervalMillis: millis(h.Interval), TimeoutMillis: millis(h.Timeout),
			StartPeriodMillis: millis(h.StartPeriod), StartIntervalMillis: millis(h.StartInterval), Retries: h.Retries,
		}
	}
	return in, len(in.Program) > 0 || in.Health != nil
}

// beginProgram has the agent of a fresh machine run the program of its image, unless it
// waits for its name. One that does not start costs the program, and not the sandbox.
// Preconditions: the turn is held, or the box is.
func (n *Node) beginProgram(ctx context.Context, b *Box, waits bool) {
	in, ok := programOf(&b.made.image)
	if !ok || b.order.NoEntrypoint {
		return
	}
	in.Waits = waits
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	if err := b.agent().BeginImage(ctx, in); err != nil && context.Cause(b.life) == nil {
		slog.Error("begin the program of an image", "sandbox", b.order.UID, "err", err)
		b.mu.Lock()
		defer b.mu.Unlock()
		b.note("the program of its image could not be started: the log of the platform says why")
	}
}

// program is how the program of the image of a box is, as its agent says. While the box
// runs, it asks the agent for each change. It holds nobody awake: every sleep ends its
// request.
type program struct {
	b     *Box
	since time.Time // what happened before is no news

	// What follows is guarded by mu of the box.
	follows bool     // there is a program or a check
	off     bool     // the caller wants none
	ports   []string // that the image exposes
	serving bool     // run is under way
	refused bool     // the agent does not know how
	last    agentapi.ImageState
	noted   map[string]time.Time // the last event of a kind
}

// of makes it that of an image. Preconditions: mu of the box is held.
func (p *program) of(i *Image, o *fleet.Order) {
	_, p.follows = programOf(i)
	p.ports = i.Ports
	if p.off = o.NoEntrypoint && p.follows; p.off {
		p.follows = false
	}
}

// serve begins to follow the program if the box runs. Preconditions: mu of the box is
// held.
func (p *program) serve() {
	if !p.follows || p.serving || p.refused || !p.b.state.Is(doze.Running) {
		return
	}
	p.serving = p.b.life.spawn(p.run)
}

// goesOn reports whether the box runs. If not, the next wake may begin again.
func (p *program) goesOn() bool {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	if p.b.state.Is(doze.Running) && p.b.life.Err() == nil && !p.refused {
		return true
	}
	p.serving = false
	return false
}

func (p *program) run() {
	wait := min(collectDelay, p.b.n.PauseAfter/2) // nothing is in the way of what woke it
	for failures := 0; ; {
		select {
		case <-time.After(wait):
		case <-p.b.life.Done():
		}
		if !p.goesOn() {
			return
		}
		p.b.mu.Lock()
		change := p.last.Change
		p.b.mu.Unlock()
		state, err := p.b.agent().AwaitImage(p.b.life, change)
		if err != nil {
			failures++
			p.heed(err)
			wait = min(programPause<<min(failures, 16), programRetryMax)
			continue
		}
		failures = 0
		p.b.mu.Lock()
		p.take(state, time.Now())
		p.b.mu.Unlock()
		wait = programPause
	}
}

// heed takes note of what an agent answered. One that is too old is not asked again.
func (p *program) heed(err error) {
	refusal, ok := errors.AsType[*agentapi.RefusalError](err)
	if !ok || refusal.Status != http.StatusNotFound {
		slog.Debug("nobody says how a program is", "sandbox", p.b.order.UID, "err", err)
		return
	}
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.refused = true
}

// take takes an answer in, and reports what its owner wants to hear. Preconditions: mu of
// the box is held.
func (p *program) take(s agentapi.ImageState, now time.Time) {
	if !slices.Contains(programStatuses, s.Status) || !slices.Contains(healthStatuses, s.Health) {
		s.Status, s.Health = "", "" // no agent of ours says so
	}
	s.Message, s.Output = clipped(s.Message, programTextMax), clipped(s.Output, programTextMax)
	was := p.last
	p.last = s
	if time.UnixMilli(s.At).Before(p.since.Truncate(time.Millisecond)) {
		return // an earlier process of the node, or the sandbox that was copied, has reported it
	}
	if s.Status == programFailed && was.Status != programFailed {
		p.note(programFailed, now, p.failure())
	}
	if s.Health == healthFailed && was.Health != healthFailed {
		message := "the health check of its image fails"
		if said := strings.TrimSpace(s.Output); said != "" {
			message += fmt.Sprintf(": %q", clipped(said, excerptMax))
		}
		p.note(healthFailed, now, message)
	}
}

// failure says how the program failed.
func (p *program) failure() string {
	if p.last.Message != "" {
		return fmt.Sprintf("the program of its image could not be started: %q", clipped(p.last.Message, excerptMax))
	}
	return fmt.Sprintf("the program of its image failed with the exit code %d, after %d restarts: see the logs of the process %s",
		p.last.ExitCode, p.last.Restarts, doze.EntrypointProcess)
}

// note reports something of a kind, unless the same was reported just now: what an agent
// says is the word of the sandbox.
func (p *program) note(kind string, now time.Time, message string) {
	if last, ok := p.noted[kind]; ok && now.Sub(last) < programNotePause {
		return
	}
	if p.noted == nil {
		p.noted = map[string]time.Time{}
	}
	p.noted[kind] = now
	p.b.note(message)
}

// shown is what callers see of it; nil if the image says nothing. Preconditions: mu of the
// box is held.
func (p *program) shown() *doze.Entrypoint {
	if !p.follows && !p.off && len(p.ports) == 0 {
		return nil
	}
	if p.off {
		return &doze.Entrypoint{Status: doze.EntrypointDisabled, Ports: p.ports}
	}
	s := p.last
	return &doze.Entrypoint{
		Status: s.Status, ExitCode: s.ExitCode, RestartCount: s.Restarts, Message: s.Message,
		Health: s.Health, HealthOutput: s.Output, Ports: p.ports,
	}
}

// clipped is the beginning of a text, which stays text.
func clipped(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "")
}
