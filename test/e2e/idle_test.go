package e2e_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// TestKeepAliveIsUse: a keepAlive process is use in every answer, also where the sandbox would
// end for being unused before anybody asks whether it may sleep.
func TestKeepAliveIsUse(t *testing.T) {
	t.Parallel()
	_, c := start(t, "--pause-after", "1h")
	const runs, idle = 4 * time.Second, time.Second
	sb, agent := create(t, c, named("kept", 256))
	forever := 0
	began := time.Now()
	spawn(t, agent, client.Command{Name: "kept", Command: "sleep 4", KeepAlive: true, Timeout: &forever})
	sb.Spec.Lifecycle = &doze.Lifecycle{
		ExpirationPolicies:  []doze.ExpirationPolicy{{Action: "delete", Type: doze.TTLIdle, Value: "1s"}},
		TerminatedRetention: "1h",
	}
	if _, err := c.Update(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	until(t, "it ends for being unused", func() bool {
		asked := time.Now()
		now, err := c.Sandbox(t.Context(), "kept")
		if err != nil {
			t.Fatal(err)
		}
		// Where the agent is slow to say, control shows what it knows.
		prompt := time.Since(asked) < time.Second
		if prompt && time.Since(began) < runs && now.LastUsedAt.Before(asked.Truncate(time.Second)) { // the resolution of our times is finer
			t.Errorf("asked at %v, it was last used at %v, and is in use", asked, now.LastUsedAt)
		}
		sb = now
		return sb.Status == "TERMINATED"
	})
	at := slices.IndexFunc(sb.Events, func(e doze.Event) bool { return e.Status == "DELETING" })
	if at < 0 {
		t.Fatalf("events %+v", sb.Events)
	}
	if e := sb.Events[at]; e.Time.Before(began.Add(runs+idle)) || e.Message != "the sandbox is deleted: nobody used it for 1s" {
		t.Errorf("%v after the start: %s", e.Time.Sub(began), e.Message)
	}
}

// TestComputing: a process that computes keeps its sandbox awake without a request. One that
// waits does not, and nothing does for longer than --busy-max.
func TestComputing(t *testing.T) {
	t.Parallel()
	const pause = 2 * time.Second
	p, c := start(t, "--pause-after", pause.String(), "--save-after", "1h", "--disk-after", "2h", "--idle-cpu", "0.05", "--busy-max", (6 * pause).String())
	forever := 0
	_, agent := create(t, c, named("busy", 2048))
	spawn(t, agent, client.Command{Name: "busy", Command: "while :; do :; done", Timeout: &forever})
	began := time.Now()
	until(t, "it sleeps although it computes", func() bool {
		tier, err := p.Tier(t.Context())
		return err == nil && tier == "paused"
	})
	if awake := time.Since(began); awake < 6*pause {
		t.Errorf("it fell asleep %v after the last request, and may compute for %v", awake, 6*pause)
	}
	if _, err := agent.Kill(t.Context(), "busy"); err != nil {
		t.Fatal(err)
	}
	spawn(t, agent, client.Command{Name: "waits", Command: "while :; do sleep 5; done", Timeout: &forever})
	began = time.Now()
	until(t, "it sleeps", func() bool {
		tier, err := p.Tier(t.Context())
		return err == nil && tier == "paused"
	})
	if awake := time.Since(began); awake > 3*pause {
		t.Errorf("it fell asleep %v after the last request, and does nothing", awake)
	}
}
