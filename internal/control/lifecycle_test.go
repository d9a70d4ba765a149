package control_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

func TestExpiry(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		spec string
		used []time.Duration // moments of use
		ends time.Duration
	}{
		"ttl":              {`"runtime":{"ttl":"1h"}`, nil, time.Hour},
		"ttl though used":  {`"runtime":{"ttl":"1h"}`, []time.Duration{59 * time.Minute}, time.Hour},
		"max age":          {`"lifecycle":{"expirationPolicies":[{"action":"delete","type":"ttl-max-age","value":"2h"}]}`, nil, 2 * time.Hour},
		"date":             {`"lifecycle":{"expirationPolicies":[{"action":"delete","type":"date","value":"2000-01-01T03:00:00Z"}]}`, nil, 3 * time.Hour},
		"expires":          {`"runtime":{"expires":"2000-01-01T04:00:00"}`, nil, 4 * time.Hour},
		"idle":             {`"lifecycle":{"expirationPolicies":[{"action":"delete","type":"ttl-idle","value":"30m"}]}`, nil, 30 * time.Minute},
		"idle moves":       {`"lifecycle":{"expirationPolicies":[{"action":"delete","type":"ttl-idle","value":"30m"}]}`, []time.Duration{20 * time.Minute, 45 * time.Minute}, 75 * time.Minute},
		"first one counts": {`"runtime":{"ttl":"1h"},"lifecycle":{"expirationPolicies":[{"action":"delete","type":"ttl-idle","value":"50m"}]}`, []time.Duration{20 * time.Minute}, time.Hour},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planetest.InBubble(t, func(p *planetest.Platform) {
				t := p.T
				born := time.Now()
				p.Create(`{"metadata":{"name":"a"},"spec":{` + tt.spec + `}}`)
				for _, at := range tt.used {
					planetest.After(time.Until(born.Add(at)))
					p.Node.With("a", func(_ string, m *planetest.Machine) { m.LastUsed = time.Now() })
				}
				planetest.After(time.Until(born.Add(tt.ends - 10*time.Millisecond)))
				if sb := p.Get(); sb.Status != "DEPLOYED" || sb.ExpiresIn == nil || *sb.ExpiresIn != 1 {
					t.Fatalf("before the deadline: %s, expires in %v", sb.Status, sb.ExpiresIn)
				}
				planetest.After(100 * time.Millisecond)
				sb := p.Get()
				if sb.Status != "TERMINATED" || sb.ExpiresIn != nil {
					t.Fatalf("after the deadline: %s, expires in %v", sb.Status, sb.ExpiresIn)
				}
				if diff := cmp.Diff([]string{"DEPLOYING", "DEPLOYED", "DELETING", "TERMINATED"}, planetest.Statuses(sb)); diff != "" {
					t.Error(diff)
				}
				if p.Node.Count() != 0 {
					t.Error("its machine is still there")
				}
				if _, ok := p.Dir.Find("main", "a", time.Now()); ok {
					t.Error("its route is still there")
				}
			})
		})
	}
}

func TestInUseIsNotIdle(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a"},"spec":{"lifecycle":{"expirationPolicies":[{"action":"delete","type":"ttl-idle","value":"30m"}]}}}`)
		p.Node.With("a", func(_ string, m *planetest.Machine) { m.InUse = true })
		planetest.After(3 * time.Hour)
		if sb := p.Get(); sb.Status != "DEPLOYED" || *sb.ExpiresIn != 1800 || !sb.LastUsedAt.Equal(time.Now()) {
			t.Fatalf("in use for hours: %s, expires in %d, used %v", sb.Status, *sb.ExpiresIn, sb.LastUsedAt)
		}
		p.Node.With("a", func(_ string, m *planetest.Machine) { m.InUse, m.LastUsed = false, time.Now() })
		planetest.After(30*time.Minute + 100*time.Millisecond)
		if sb := p.Get(); sb.Status != "TERMINATED" {
			t.Fatalf("idle for 30 minutes: %s", sb.Status)
		}
	})
}

func TestRetention(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spec  string
		after time.Duration
	}{
		"default": {`{}`, doze.RetentionDefault},
		"own":     {`{"lifecycle":{"terminatedRetention":"2h"}}`, 2 * time.Hour},
		"most":    {`{"lifecycle":{"terminatedRetention":"90d"}}`, doze.RetentionMax},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planetest.InBubble(t, func(p *planetest.Platform) {
				t := p.T
				p.Create(`{"metadata":{"name":"a"},"spec":` + tt.spec + `}`)
				if sb := planetest.Want[planetest.Sandbox](p, 200, "DELETE", "/sandboxes/a", ""); sb.Status != "DELETING" {
					t.Errorf("delete answers %s", sb.Status)
				}
				planetest.After(time.Second)
				p.Stop() // a platform that is off forgets no deadline, and a test of 90 days is short
				time.Sleep(tt.after - time.Minute)
				p.Open(true)
				planetest.After(59*time.Second - 10*time.Millisecond)
				if sb := p.Get(); sb.Status != "TERMINATED" {
					t.Errorf("during retention: %s", sb.Status)
				}
				planetest.Want[any](p, 404, "DELETE", "/sandboxes/a", "")
				planetest.Want[any](p, 404, "PUT", "/sandboxes/a", "{}")
				planetest.After(110 * time.Millisecond)
				planetest.Want[any](p, 404, "GET", "/sandboxes/a", "")
			})
		})
	}
}

func TestLongerTTLWinsOverTheTimer(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a"},"spec":{"runtime":{"ttl":"1h"}}}`)
		planetest.After(59 * time.Minute)
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"ttl":"2h"}}}`)
		planetest.After(59 * time.Minute)
		if sb := p.Get(); sb.Status != "DEPLOYED" {
			t.Fatalf("%s", sb.Status)
		}
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"ttl":null}}}`)
		planetest.After(5 * time.Hour)
		if sb := p.Get(); sb.Status != "DEPLOYED" || sb.ExpiresIn != nil || sb.Spec.Runtime.TTL != "" {
			t.Fatalf("cleared: %s %v %q", sb.Status, sb.ExpiresIn, sb.Spec.Runtime.TTL)
		}
		planetest.Want[any](p, 400, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"ttl":"1h"}}}`) // long over
		planetest.After(100 * time.Millisecond)
		if sb := p.Get(); sb.Status != "DEPLOYED" {
			t.Fatalf("a ttl in the past: %s", sb.Status)
		}
	})
}

func TestDeleteIsTriedUntilTheNodeAgrees(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		p.Node.Set("delete", errors.New("busy"))
		planetest.Want[planetest.Sandbox](p, 200, "DELETE", "/sandboxes/a", "")
		planetest.Want[planetest.Sandbox](p, 200, "DELETE", "/sandboxes/a", "") // twice is fine
		p.Create(planetest.Named("a"))                                          // the name is free at once
		planetest.After(time.Minute)
		if p.Node.Count() != 2 {
			t.Fatalf("%d machines", p.Node.Count())
		}
		p.Node.Set("delete", nil)
		planetest.After(10 * time.Second)
		if p.Node.Count() != 1 {
			t.Errorf("%d machines", p.Node.Count())
		}
		if sb := p.Get(); sb.Status != "DEPLOYED" {
			t.Errorf("the new one is %s", sb.Status)
		}
	})
}

func TestDeleteEndsACreate(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		release := p.Node.Hold()
		defer release()
		done := make(chan int)
		go func() { done <- p.Do("POST", "/sandboxes", planetest.Named("a")).Code }()
		synctest.Wait()
		if sb := p.Get(); sb.Status != "DEPLOYING" {
			t.Fatalf("during the create: %s", sb.Status)
		}
		w := p.Do("POST", "/sandboxes", planetest.Named("a"))
		if w.Code != 409 || !strings.Contains(w.Body.String(), "CREATION_IN_PROGRESS") {
			t.Errorf("a second create: %d %s", w.Code, w.Body)
		}
		planetest.Want[planetest.Sandbox](p, 200, "DELETE", "/sandboxes/a", "")
		if code := <-done; code != http.StatusConflict {
			t.Errorf("the create answers %d", code)
		}
		synctest.Wait()
		if sb := p.Get(); sb.Status != "TERMINATED" {
			t.Errorf("afterwards: %s", sb.Status)
		}
	})
}

// TestDeleteEndsAChange: what the node was asked for when a sandbox was deleted
// ends with an error that says so.
func TestDeleteEndsAChange(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ method, path, body string }{
		"disable":  {"PUT", "/sandboxes/a", `{"spec":{"enabled":false}}`},
		"redeploy": {"PUT", "/sandboxes/a", `{"spec":{"runtime":{"memory":2048}}}`},
		"snapshot": {"POST", "/sandboxes/a/snapshots", `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := planetest.Start(t, false)
			p.Create(planetest.Named("a"))
			p.Node.Hook = sync.OnceFunc(func() { planetest.Want[planetest.Sandbox](p, 200, "DELETE", "/sandboxes/a", "") })
			w := p.Do(tt.method, tt.path, tt.body)
			if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "the sandbox was deleted meanwhile") {
				t.Errorf("%s %s: %d %s", tt.method, tt.path, w.Code, w.Body)
			}
			if sb := p.Get(); sb.Status != "DELETING" {
				t.Errorf("it is %s", sb.Status)
			}
		})
	}
}

func TestReportsMoveTheRecord(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		steps := []struct {
			to     doze.Phase
			state  string
			status string
		}{
			{doze.Suspending, "RUNNING", "DEPLOYED"},
			{doze.Standby, "STANDBY", "DEPLOYED"},
			{doze.Waking, "STANDBY", "DEPLOYED"},
			{doze.Running, "RUNNING", "DEPLOYED"},
			{doze.Failed, "", "FAILED"},
		}
		for _, s := range steps {
			p.Node.With("a", func(uid string, _ *planetest.Machine) { p.Node.Move(uid, s.to, "because") })
			time.Sleep(time.Second) // until it is recorded
			if sb := p.Get(); sb.State != s.state || sb.Status != s.status {
				t.Errorf("%v: state %q, status %q", s.to, sb.State, sb.Status)
			}
		}
		sb := p.Get()
		if diff := cmp.Diff([]string{"DEPLOYING", "DEPLOYED", "DEPLOYED", "FAILED"}, planetest.Statuses(sb)); diff != "" {
			t.Error(diff)
		}
		// What the node says again and again is said once.
		if said := sb.Events[2]; said.Type != "notice" || said.Message != "because (the last of 4)" || sb.Events[3].Message != "because" {
			t.Errorf("events %+v", sb.Events)
		}
		if _, ok := p.Dir.Find("main", "a", time.Now()); !ok {
			t.Error("nothing leads to the node, which says why it failed")
		}
		// A failed one comes back on a fresh machine.
		if sb := planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{}`); sb.Status != "DEPLOYED" {
			t.Errorf("after a PUT: %s", sb.Status)
		}
		synctest.Wait()
		if p.Node.Count() != 1 {
			t.Errorf("%d machines", p.Node.Count())
		}
	})
}

// TestGraceDelaysNobodyElse: sandboxes that end slowly have their time, and do
// not take that of others.
func TestGraceDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		const slow = 40
		status := func(name string) string {
			return planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/"+name, "").Status
		}
		for i := range slow {
			p.Create(fmt.Sprintf(`{"metadata":{"name":"slow%d"},"spec":{"lifecycle":{"terminatedRetention":"1h"},"runtime":{"terminationGracePeriodSeconds":600}}}`, i))
		}
		p.Create(planetest.Named("quick"))
		for i := range slow {
			planetest.Want[planetest.Sandbox](p, 200, "DELETE", fmt.Sprintf("/sandboxes/slow%d", i), "")
		}
		planetest.Want[planetest.Sandbox](p, 200, "DELETE", "/sandboxes/quick", "")
		planetest.After(time.Second)
		if got := status("quick"); got != "TERMINATED" {
			p.T.Errorf("the quick one is %s", got)
		}
		planetest.After(598 * time.Second)
		if got := status("slow0"); got != "DELETING" || p.Node.Count() != slow {
			p.T.Errorf("the slow one is %s before its time, %d machines", got, p.Node.Count())
		}
		planetest.After(2 * time.Second)
		for i := range slow {
			if got := status(fmt.Sprintf("slow%d", i)); got != "TERMINATED" {
				p.T.Errorf("slow%d is %s", i, got)
			}
		}
	})
}

// TestGraceThatIsChanged counts at once, and after a start of the platform.
func TestGraceThatIsChanged(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		p.Create(`{"metadata":{"name":"a"},"spec":{"lifecycle":{"terminatedRetention":"1h"}}}`)
		planetest.Want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"terminationGracePeriodSeconds":60}}}`)
		p.Node.With("a", func(_ string, m *planetest.Machine) {
			if m.Order.Grace != time.Minute {
				p.T.Errorf("its processes get %v", m.Order.Grace)
			}
			m.Order.Grace = 0 // as after a start of the node
		})
		p.Reopen()
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
		planetest.After(59 * time.Second)
		if sb := p.Get(); sb.Status != "DELETING" {
			p.T.Errorf("within its time it is %s", sb.Status)
		}
		planetest.After(2 * time.Second)
		if sb := p.Get(); sb.Status != "TERMINATED" {
			p.T.Errorf("after its time it is %s", sb.Status)
		}
	})
}

// TestRedeployGrantsGrace: the machine before has its time, and the one after
// has its own.
func TestRedeployGrantsGrace(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		p.Create(`{"metadata":{"name":"a"},"spec":{"runtime":{"terminationGracePeriodSeconds":600}}}`)
		began := time.Now()
		sb := planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"memory":2048}}}`)
		if took := time.Since(began); sb.Status != "DEPLOYED" || took != 600*time.Second || p.Node.Count() != 1 {
			p.T.Errorf("it is %s after %v, %d machines", sb.Status, took, p.Node.Count())
		}
	})
}
