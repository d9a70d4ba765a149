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
			inBubble(t, func(p *platform) {
				t := p.t
				born := time.Now()
				p.create(`{"metadata":{"name":"a"},"spec":{` + tt.spec + `}}`)
				for _, at := range tt.used {
					after(time.Until(born.Add(at)))
					p.node.with("a", func(_ string, m *machine) { m.lastUsed = time.Now() })
				}
				after(time.Until(born.Add(tt.ends - 10*time.Millisecond)))
				if sb := p.get(); sb.Status != "DEPLOYED" || sb.ExpiresIn == nil || *sb.ExpiresIn != 1 {
					t.Fatalf("before the deadline: %s, expires in %v", sb.Status, sb.ExpiresIn)
				}
				after(100 * time.Millisecond)
				sb := p.get()
				if sb.Status != "TERMINATED" || sb.ExpiresIn != nil {
					t.Fatalf("after the deadline: %s, expires in %v", sb.Status, sb.ExpiresIn)
				}
				if diff := cmp.Diff([]string{"DEPLOYING", "DEPLOYED", "DELETING", "TERMINATED"}, statuses(sb)); diff != "" {
					t.Error(diff)
				}
				if p.node.count() != 0 {
					t.Error("its machine is still there")
				}
				if _, ok := p.dir.Find("main", "a", time.Now()); ok {
					t.Error("its route is still there")
				}
			})
		})
	}
}

func TestInUseIsNotIdle(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		p.create(`{"metadata":{"name":"a"},"spec":{"lifecycle":{"expirationPolicies":[{"action":"delete","type":"ttl-idle","value":"30m"}]}}}`)
		p.node.with("a", func(_ string, m *machine) { m.inUse = true })
		after(3 * time.Hour)
		if sb := p.get(); sb.Status != "DEPLOYED" || *sb.ExpiresIn != 1800 || !sb.LastUsedAt.Equal(time.Now()) {
			t.Fatalf("in use for hours: %s, expires in %d, used %v", sb.Status, *sb.ExpiresIn, sb.LastUsedAt)
		}
		p.node.with("a", func(_ string, m *machine) { m.inUse, m.lastUsed = false, time.Now() })
		after(30*time.Minute + 100*time.Millisecond)
		if sb := p.get(); sb.Status != "TERMINATED" {
			t.Fatalf("idle for 30 minutes: %s", sb.Status)
		}
	})
}

func TestRetention(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spec string
		kept time.Duration
	}{
		"default": {`{}`, doze.RetentionDefault},
		"own":     {`{"lifecycle":{"terminatedRetention":"2h"}}`, 2 * time.Hour},
		"most":    {`{"lifecycle":{"terminatedRetention":"90d"}}`, doze.RetentionMax},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(p *platform) {
				t := p.t
				p.create(`{"metadata":{"name":"a"},"spec":` + tt.spec + `}`)
				if sb := want[sandbox](p, 200, "DELETE", "/sandboxes/a", ""); sb.Status != "DELETING" {
					t.Errorf("delete answers %s", sb.Status)
				}
				after(tt.kept - 10*time.Millisecond)
				if sb := p.get(); sb.Status != "TERMINATED" {
					t.Errorf("during retention: %s", sb.Status)
				}
				want[any](p, 404, "DELETE", "/sandboxes/a", "")
				want[any](p, 404, "PUT", "/sandboxes/a", "{}")
				after(110 * time.Millisecond)
				want[any](p, 404, "GET", "/sandboxes/a", "")
			})
		})
	}
}

func TestLongerTTLWinsOverTheTimer(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		p.create(`{"metadata":{"name":"a"},"spec":{"runtime":{"ttl":"1h"}}}`)
		after(59 * time.Minute)
		want[sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"ttl":"2h"}}}`)
		after(59 * time.Minute)
		if sb := p.get(); sb.Status != "DEPLOYED" {
			t.Fatalf("%s", sb.Status)
		}
		want[sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"ttl":null}}}`)
		after(5 * time.Hour)
		if sb := p.get(); sb.Status != "DEPLOYED" || sb.ExpiresIn != nil || sb.Spec.Runtime.TTL != "" {
			t.Fatalf("cleared: %s %v %q", sb.Status, sb.ExpiresIn, sb.Spec.Runtime.TTL)
		}
		want[any](p, 400, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"ttl":"1h"}}}`) // long over
		after(100 * time.Millisecond)
		if sb := p.get(); sb.Status != "DEPLOYED" {
			t.Fatalf("a ttl in the past: %s", sb.Status)
		}
	})
}

func TestDeleteIsTriedUntilTheNodeAgrees(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		p.create(named("a"))
		p.node.set("delete", errors.New("busy"))
		want[sandbox](p, 200, "DELETE", "/sandboxes/a", "")
		want[sandbox](p, 200, "DELETE", "/sandboxes/a", "") // twice is fine
		p.create(named("a"))                                // the name is free at once
		after(time.Minute)
		if p.node.count() != 2 {
			t.Fatalf("%d machines", p.node.count())
		}
		p.node.set("delete", nil)
		after(10 * time.Second)
		if p.node.count() != 1 {
			t.Errorf("%d machines", p.node.count())
		}
		if sb := p.get(); sb.Status != "DEPLOYED" {
			t.Errorf("the new one is %s", sb.Status)
		}
	})
}

func TestDeleteEndsACreate(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		release := p.node.hold()
		defer release()
		done := make(chan int)
		go func() { done <- p.do("POST", "/sandboxes", named("a")).Code }()
		synctest.Wait()
		if sb := p.get(); sb.Status != "DEPLOYING" {
			t.Fatalf("during the create: %s", sb.Status)
		}
		w := p.do("POST", "/sandboxes", named("a"))
		if w.Code != 409 || !strings.Contains(w.Body.String(), "CREATION_IN_PROGRESS") {
			t.Errorf("a second create: %d %s", w.Code, w.Body)
		}
		want[sandbox](p, 200, "DELETE", "/sandboxes/a", "")
		if code := <-done; code != http.StatusConflict {
			t.Errorf("the create answers %d", code)
		}
		synctest.Wait()
		if sb := p.get(); sb.Status != "TERMINATED" {
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
			p := start(t, false)
			p.create(named("a"))
			p.node.hook = sync.OnceFunc(func() { want[sandbox](p, 200, "DELETE", "/sandboxes/a", "") })
			w := p.do(tt.method, tt.path, tt.body)
			if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "the sandbox was deleted meanwhile") {
				t.Errorf("%s %s: %d %s", tt.method, tt.path, w.Code, w.Body)
			}
			if sb := p.get(); sb.Status != "DELETING" {
				t.Errorf("it is %s", sb.Status)
			}
		})
	}
}

func TestReportsMoveTheRecord(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		p.create(named("a"))
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
			p.node.with("a", func(uid string, _ *machine) { p.node.move(uid, s.to, "because") })
			time.Sleep(time.Second) // until it is recorded
			if sb := p.get(); sb.State != s.state || sb.Status != s.status {
				t.Errorf("%v: state %q, status %q", s.to, sb.State, sb.Status)
			}
		}
		sb := p.get()
		if diff := cmp.Diff([]string{"DEPLOYING", "DEPLOYED", "DEPLOYED", "FAILED"}, statuses(sb)); diff != "" {
			t.Error(diff)
		}
		// What the node says again and again is said once.
		if said := sb.Events[2]; said.Type != "notice" || said.Message != "because (the last of 4)" || sb.Events[3].Message != "because" {
			t.Errorf("events %+v", sb.Events)
		}
		if _, ok := p.dir.Find("main", "a", time.Now()); !ok {
			t.Error("nothing leads to the node, which says why it failed")
		}
		// A failed one comes back on a fresh machine.
		if sb := want[sandbox](p, 200, "PUT", "/sandboxes/a", `{}`); sb.Status != "DEPLOYED" {
			t.Errorf("after a PUT: %s", sb.Status)
		}
		synctest.Wait()
		if p.node.count() != 1 {
			t.Errorf("%d machines", p.node.count())
		}
	})
}

// TestGraceKeepsNobodyElse: sandboxes that end slowly have their time, and do
// not take that of others.
func TestGraceKeepsNobodyElse(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		const slow = 40
		status := func(name string) string {
			return want[sandbox](p, 200, "GET", "/sandboxes/"+name, "").Status
		}
		for i := range slow {
			p.create(fmt.Sprintf(`{"metadata":{"name":"slow%d"},"spec":{"lifecycle":{"terminatedRetention":"1h"},"runtime":{"terminationGracePeriodSeconds":600}}}`, i))
		}
		p.create(named("quick"))
		for i := range slow {
			want[sandbox](p, 200, "DELETE", fmt.Sprintf("/sandboxes/slow%d", i), "")
		}
		want[sandbox](p, 200, "DELETE", "/sandboxes/quick", "")
		after(time.Second)
		if got := status("quick"); got != "TERMINATED" {
			p.t.Errorf("the quick one is %s", got)
		}
		after(598 * time.Second)
		if got := status("slow0"); got != "DELETING" || p.node.count() != slow {
			p.t.Errorf("the slow one is %s before its time, %d machines", got, p.node.count())
		}
		after(2 * time.Second)
		for i := range slow {
			if got := status(fmt.Sprintf("slow%d", i)); got != "TERMINATED" {
				p.t.Errorf("slow%d is %s", i, got)
			}
		}
	})
}

// TestGraceThatIsChanged counts at once, and after a start of the platform.
func TestGraceThatIsChanged(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		p.create(`{"metadata":{"name":"a"},"spec":{"lifecycle":{"terminatedRetention":"1h"}}}`)
		want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"terminationGracePeriodSeconds":60}}}`)
		p.node.with("a", func(_ string, m *machine) {
			if m.order.Grace != time.Minute {
				p.t.Errorf("its processes get %v", m.order.Grace)
			}
			m.order.Grace = 0 // as after a start of the node
		})
		p.reopen()
		want[any](p, 200, "DELETE", "/sandboxes/a", "")
		after(59 * time.Second)
		if sb := p.get(); sb.Status != "DELETING" {
			p.t.Errorf("within its time it is %s", sb.Status)
		}
		after(2 * time.Second)
		if sb := p.get(); sb.Status != "TERMINATED" {
			p.t.Errorf("after its time it is %s", sb.Status)
		}
	})
}

// TestRedeployGrantsGrace: the machine before has its time, and the one after
// has its own.
func TestRedeployGrantsGrace(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		p.create(`{"metadata":{"name":"a"},"spec":{"runtime":{"terminationGracePeriodSeconds":600}}}`)
		began := time.Now()
		sb := want[sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"memory":2048}}}`)
		if took := time.Since(began); sb.Status != "DEPLOYED" || took != 600*time.Second || p.node.count() != 1 {
			p.t.Errorf("it is %s after %v, %d machines", sb.Status, took, p.node.count())
		}
	})
}
