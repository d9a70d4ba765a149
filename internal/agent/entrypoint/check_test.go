package entrypoint

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/agent/account"
	"github.com/dozehq/doze/internal/agent/child"
	"github.com/dozehq/doze/internal/agent/environ"
	"github.com/dozehq/doze/internal/agentapi"
)

// TestHealth: a process is healthy with its first check that succeeds, and unhealthy
// after so many failures in a row. Those of its start period do not count.
func TestHealth(t *testing.T) {
	t.Parallel()
	type step struct {
		after time.Duration
		ok    bool
		want  string
		pause time.Duration
	}
	const second = time.Second
	for name, test := range map[string]struct {
		in    agentapi.HealthCheck
		steps []step
	}{
		"defaults": {agentapi.HealthCheck{}, []step{
			{30 * second, false, starting, 30 * second},
			{60 * second, false, starting, 30 * second},
			{90 * second, false, unhealthy, 30 * second},
			{120 * second, true, healthy, 30 * second},
		}},
		"a failure in between": {agentapi.HealthCheck{IntervalMillis: 2000, Retries: 2}, []step{
			{2 * second, true, healthy, 2 * second},
			{4 * second, false, healthy, 2 * second},
			{6 * second, true, healthy, 2 * second},
			{8 * second, false, healthy, 2 * second},
			{10 * second, false, unhealthy, 2 * second},
		}},
		"a start period": {agentapi.HealthCheck{IntervalMillis: 10_000, StartPeriodMillis: 12_000, Retries: 1}, []step{
			{5 * second, false, starting, 5 * second}, {10 * second, false, starting, 5 * second}, {15 * second, false, unhealthy, 10 * second},
		}},
		"a start period that a success ends": {agentapi.HealthCheck{StartPeriodMillis: 60_000, StartIntervalMillis: 2000, Retries: 1}, []step{
			{2 * second, false, starting, 2 * second}, {4 * second, true, healthy, 30 * second}, {34 * second, false, unhealthy, 30 * second},
		}},
		"too often": {agentapi.HealthCheck{IntervalMillis: 1, StartPeriodMillis: 10_000, StartIntervalMillis: 1}, []step{
			{second, false, starting, second}, {11 * second, true, healthy, second},
		}},
	} {
		h, began := newHealth(&test.in), time.Now()
		if h.pause(began) != never {
			t.Errorf("%s: it is checked before it began", name)
		}
		h.begin(began)
		was := starting
		for i, s := range test.steps {
			now := began.Add(s.after)
			if changed := h.take(s.ok, now); changed != (was != s.want) || h.status != s.want || h.pause(now) != s.pause {
				t.Errorf("%s: after step %d it is %s (changed: %t), and checked in %v; want %s and %v", name, i+1, h.status, changed, h.pause(now), s.want, s.pause)
			}
			was = s.want
		}
	}
}

// TestTurn: a check that was due in a sleep gives way to what woke the sandbox.
func TestTurn(t *testing.T) {
	t.Parallel()
	next := newTurn(never)
	defer next.Stop()
	next.in(time.Hour)
	begin := time.Now()
	for after, want := range map[time.Duration]bool{time.Hour: false, time.Hour + sleepSlack/2: false, time.Hour + 2*sleepSlack: true, 0: false} {
		if got := next.slept(begin.Add(after)); got != want {
			t.Errorf("after %v it slept: %t, want %t", after, got, want)
		}
	}
	next.in(0)
	<-next.C
	if next.slept(time.Now()) {
		t.Error("it slept, and was awake")
	}
}

func TestTail(t *testing.T) {
	t.Parallel()
	var said tail
	said.write([]byte("first"))
	said.write([]byte(strings.Repeat("x", outputMax-3)))
	if got := said.text(); len(got) != outputMax || !strings.HasPrefix(got, "rstx") {
		t.Errorf("%d bytes: %.10s", len(got), got)
	}
	said.write([]byte(strings.Repeat("y", 2*outputMax)))
	if got := said.text(); got != strings.Repeat("y", outputMax) {
		t.Errorf("%d bytes: %.10s", len(got), got)
	}
	said.write([]byte("\xff"))
	if got := said.text(); !strings.HasSuffix(got, "y\uFFFD") {
		t.Errorf("no text: %q", got[len(got)-5:])
	}
}

// launcher starts children of this process, and collects them until the end of the test.
func launcher(t *testing.T) child.Launcher {
	t.Helper()
	children := child.New(false)
	ctx, stop := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	tasks.Go(func() { children.Run(ctx) })
	t.Cleanup(func() {
		stop()
		tasks.Wait()
	})
	return child.Launcher{
		Children: children, Vars: environ.New(environ.List{"PATH=/usr/bin:/bin", "WORD=said"}), User: account.New(""), Dir: t.TempDir(),
	}
}

// TestRun: a check runs in the directory and with the variables of the sandbox, within its
// time.
func TestRun(t *testing.T) {
	t.Parallel()
	start := launcher(t)
	for name, test := range map[string]struct {
		test    []string
		timeout time.Duration
		ok      bool
		code    int
		output  string
	}{
		"a line":             {test: []string{"CMD-SHELL", "echo $WORD; pwd"}, ok: true, output: "said\n" + start.Dir + "\n"},
		"a program":          {test: []string{"CMD", "printf", "%s|", "$WORD", "a b"}, ok: true, output: "$WORD|a b|"},
		"a failure":          {test: []string{"CMD-SHELL", "echo no >&2; exit 3"}, code: 3, output: "no\n"},
		"a signal":           {test: []string{"CMD-SHELL", "kill -9 $$"}, code: -1},
		"too late":           {test: []string{"CMD-SHELL", "echo slow; sleep 60"}, timeout: 200 * time.Millisecond, code: -1, output: "slow\nthe health check took longer than 200ms"},
		"no such program":    {test: []string{"CMD", "no-such-program"}, code: -1, output: "could not execute command 'no-such-program' because there is no program 'no-such-program' in the sandbox"},
		"no command":         {test: []string{"CMD"}, code: -1, output: "the image has a health check without a command"},
		"it leaves a child":  {test: []string{"CMD-SHELL", "sleep 0.4 & echo done"}, ok: true, output: "done\n"},
		"it reads its input": {test: []string{"CMD", "cat"}, ok: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCheck(&agentapi.HealthCheck{Test: test.test, TimeoutMillis: test.timeout.Milliseconds()}, start)
			r := c.run(nil)
			if r.ok != test.ok || r.void || r.code != test.code || r.output != test.output || r.at.IsZero() {
				t.Errorf("%+v", r)
			}
		})
	}
	stop := make(chan struct{})
	close(stop)
	c := newCheck(&agentapi.HealthCheck{Test: []string{"CMD", "sleep", "60"}}, start)
	if r := c.run(stop); !r.void || r.ok {
		t.Errorf("with nothing to check: %+v", r)
	}
}

// TestVoid: what a check says that was asleep with its sandbox does not count.
func TestVoid(t *testing.T) {
	t.Parallel()
	c := newCheck(&agentapi.HealthCheck{Retries: 1}, child.Launcher{})
	c.begin(time.Now())
	if c.take(result{void: true, at: time.Now()}) || c.health.status != starting {
		t.Errorf("it is %s", c.health.status)
	}
	if !c.take(result{code: 1, at: time.Now()}) || c.health.status != unhealthy || c.report().ExitCode != 1 {
		t.Errorf("it is %s", c.health.status)
	}
	if c.end(); c.report() != nil {
		t.Error("a process that is over has a health")
	}
}
