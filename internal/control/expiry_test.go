package control_test

import (
	"database/sql"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/listing"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestClockSteps: what must end when it was unused for a time counts the time
// that passed, and what must end at a moment counts the clock. Virtual time
// cannot jump, so what is on record does, the other way: a clock that was set
// is one by which all that was written down happened at another time.
func TestClockSteps(t *testing.T) {
	t.Parallel()
	const at = 25 * time.Minute // after the create
	policies := func(pairs ...string) string {
		var all []string
		for pair := range slices.Chunk(pairs, 2) {
			all = append(all, `{"action":"delete","type":"`+pair[0]+`","value":"`+pair[1]+`"}`)
		}
		return `"lifecycle":{"expirationPolicies":[` + strings.Join(all, ",") + `]}`
	}
	type moments struct{ on, back time.Duration } // when it ends, if the clock is set by 20 minutes
	byClock, byTime := moments{40 * time.Minute, 80 * time.Minute}, moments{60 * time.Minute, 60 * time.Minute}
	for name, tt := range map[string]struct {
		spec string
		ends moments
	}{
		"ttl":                   {`"runtime":{"ttl":"1h"}`, byClock},
		"expires":               {`"runtime":{"expires":"2000-01-01T01:00:00Z"}`, byClock},
		"ttl-max-age":           {policies("ttl-max-age", "1h"), byClock},
		"date":                  {policies("date", "2000-01-01T01:00:00Z"), byClock},
		"ttl-idle":              {policies("ttl-idle", "1h"), byTime},
		"idle first, then date": {policies("ttl-idle", "1h", "date", "2000-01-01T01:10:00Z"), moments{50 * time.Minute, 60 * time.Minute}},
		"date first, then idle": {policies("ttl-idle", "70m", "date", "2000-01-01T01:00:00Z"), moments{40 * time.Minute, 70 * time.Minute}},
		"over at once":          {`"runtime":{"ttl":"30m"}`, moments{at, 50 * time.Minute}},
	} {
		for direction, how := range map[string]struct{ step, ends time.Duration }{
			"on": {20 * time.Minute, tt.ends.on}, "back": {-20 * time.Minute, tt.ends.back},
		} {
			t.Run(name+"/"+direction, func(t *testing.T) {
				t.Parallel()
				planetest.InBubble(t, func(p *planetest.Platform) {
					t := p.T
					born := time.Now()
					p.Create(`{"metadata":{"name":"a"},"spec":{` + tt.spec + `}}`)
					planetest.After(at)
					setClock(p, how.step)
					planetest.After(time.Until(born.Add(how.ends - 10*time.Millisecond)))
					if sb := p.Get(); how.ends > at && sb.Status != "DEPLOYED" {
						t.Fatalf("before the deadline: %s", sb.Status)
					}
					planetest.After(100 * time.Millisecond)
					if sb := p.Get(); sb.Status != "TERMINATED" {
						t.Fatalf("after the deadline: %s", sb.Status)
					}
				})
			})
		}
	}
}

// setClock makes the record of the sandbox "a" one of a clock that was set by a
// step just now. When it was last used its node knows, which counts the time
// that passes.
func setClock(p *planetest.Platform, step time.Duration) {
	t := p.T
	t.Helper()
	sb, err := p.Store.SandboxByName(t.Context(), "main", "a")
	if err != nil {
		t.Fatal(err)
	}
	shift := func(text *string) {
		if at, err := time.Parse(time.RFC3339, *text); err == nil {
			*text = at.Add(-step).Format(time.RFC3339)
		}
	}
	sb.Metadata.CreatedAt.Time, sb.Deadline = sb.Metadata.CreatedAt.Add(-step), sb.Deadline.Add(-step)
	shift(&sb.Spec.Runtime.Expires)
	if l := sb.Spec.Lifecycle; l != nil {
		for i := range l.ExpirationPolicies {
			shift(&l.ExpirationPolicies[i].Value)
		}
	}
	if _, err := p.Store.Update(t.Context(), sb); err != nil {
		t.Fatal(err)
	}
	p.Rooms.ClockStepped()
}

// TestDeadlinesSurviveARestart: those of every kind, also such that passed while
// nobody looked.
func TestDeadlinesSurviveARestart(t *testing.T) {
	t.Parallel()
	policy := func(kind, value string) string {
		return `"lifecycle":{"terminatedRetention":"10h","expirationPolicies":[{"action":"delete","type":"` + kind + `","value":"` + value + `"}]}`
	}
	runtime := func(text string) string {
		return `"lifecycle":{"terminatedRetention":"10h"},"runtime":{` + text + `}`
	}
	for name, tt := range map[string]struct{ early, late string }{
		"ttl":         {runtime(`"ttl":"1h"`), runtime(`"ttl":"3h"`)},
		"expires":     {runtime(`"expires":"2000-01-01T01:00:00Z"`), runtime(`"expires":"2000-01-01T03:00:00Z"`)},
		"ttl-max-age": {policy("ttl-max-age", "1h"), policy("ttl-max-age", "3h")},
		"date":        {policy("date", "2000-01-01T01:00:00Z"), policy("date", "2000-01-01T03:00:00Z")},
		"ttl-idle":    {policy("ttl-idle", "1h"), policy("ttl-idle", "3h")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planetest.InBubble(t, func(p *planetest.Platform) {
				t := p.T
				for name, spec := range map[string]string{"a": tt.early, "b": tt.late} {
					p.Create(`{"metadata":{"name":"` + name + `"},"spec":{` + spec + `}}`)
					p.Node.With(name, func(uid string, _ *planetest.Machine) { // or it may be in use while nobody looks
						p.Node.Move(uid, doze.Suspending, "")
						p.Node.Move(uid, doze.Standby, "")
					})
				}
				planetest.After(time.Second) // until that is recorded
				p.Stop()
				time.Sleep(2*time.Hour - time.Second)
				p.Open(true)
				if sb := p.Get(); sb.Status == "DEPLOYED" {
					t.Error("the first answer shows what has ended")
				}
				planetest.After(100 * time.Millisecond)
				if sb := p.Get(); sb.Status != "TERMINATED" {
					t.Errorf("its time came while we were away: %s", sb.Status)
				}
				planetest.After(time.Hour - 200*time.Millisecond)
				if sb := planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/b", ""); sb.Status != "DEPLOYED" {
					t.Errorf("before its time: %s", sb.Status)
				}
				planetest.After(200 * time.Millisecond)
				if sb := planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/b", ""); sb.Status != "TERMINATED" {
					t.Errorf("after its time: %s", sb.Status)
				}
			})
		})
	}
}

// TestEveryReadIsTrue: what the platform knows of a sandbox is the same by every
// way to it, at every moment.
func TestEveryReadIsTrue(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a","externalId":"x"},"spec":{"runtime":{"ttl":"1h"},"lifecycle":{"terminatedRetention":"1h"}}}`)
		list := func(query string) func() planetest.Sandbox {
			return func() planetest.Sandbox {
				all := planetest.Want[struct{ Data []planetest.Sandbox }](p, 200, "GET", "/sandboxes?"+query, "", "Blaxel-Version", "2026-04-28").Data
				if len(all) != 1 {
					t.Fatalf("%s lists %d", query, len(all))
				}
				return all[0]
			}
		}
		reads := map[string]func() planetest.Sandbox{
			"get": p.Get,
			"by external id": func() planetest.Sandbox {
				return planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/by-external-id/x", "")
			},
			"list":     list(""),
			"filtered": list("status=DEPLOYED"),
			"bare list": func() planetest.Sandbox {
				return planetest.Want[[]planetest.Sandbox](p, 200, "GET", "/sandboxes", "", "Blaxel-Version", "2026-04-16")[0]
			},
			"update": func() planetest.Sandbox {
				return planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{}`)
			},
			"create again": func() planetest.Sandbox {
				return planetest.Want[planetest.Sandbox](p, 200, "POST", "/sandboxes?createIfNotExist=true", planetest.Named("a"))
			},
		}
		planetest.After(10 * time.Minute)
		used := time.Now()
		p.Node.With("a", func(_ string, m *planetest.Machine) { m.LastUsed = used })
		planetest.After(10*time.Minute + 500*time.Millisecond)
		check := func(how string, sb planetest.Sandbox, left *int64) {
			t.Helper()
			got := doze.Observed{ExpiresIn: sb.ExpiresIn, LastUsedAt: sb.LastUsedAt, NodeGeneration: sb.NodeGeneration}
			if diff := cmp.Diff(doze.Observed{ExpiresIn: left, LastUsedAt: doze.Time{Time: used}, NodeGeneration: doze.Generation}, got); diff != "" {
				t.Errorf("%s: %s", how, diff)
			}
		}
		for how, read := range reads {
			check(how, read(), new(int64(2400)))
		}
		check("delete", planetest.Want[planetest.Sandbox](p, 200, "DELETE", "/sandboxes/a", ""), nil)
		planetest.After(time.Second)
		check("terminated", p.Get(), nil)
		check("terminated, in a list", list("showTerminated=true")(), nil)
	})
}

// TestReadsKnowKeepAlive: what only the agent knows is in every read, whenever
// anybody looked before; and it is true of an update, too.
func TestReadsKnowKeepAlive(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		const policy = `"lifecycle":{"terminatedRetention":"1h","expirationPolicies":[{"action":"delete","type":"ttl-idle","value":"%s"}]}`
		p.Create(`{"metadata":{"name":"a","externalId":"x"},"spec":{` + fmt.Sprintf(policy, "30m") + `}}`)
		ends := time.Now().Add(20 * time.Minute)
		p.Node.With("a", func(_ string, m *planetest.Machine) { m.Alive = ends })
		reads := map[string]func() planetest.Sandbox{
			"get": p.Get,
			"with secrets": func() planetest.Sandbox {
				return planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/a?show_secrets=true", "")
			},
			"by external id": func() planetest.Sandbox {
				return planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/by-external-id/x", "")
			},
			"list": func() planetest.Sandbox {
				return planetest.Want[[]planetest.Sandbox](p, 200, "GET", "/sandboxes", "", "Blaxel-Version", "2026-04-16")[0]
			},
			"update": func() planetest.Sandbox {
				return planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{}`)
			},
			"create again": func() planetest.Sandbox {
				return planetest.Want[planetest.Sandbox](p, 200, "POST", "/sandboxes?createIfNotExist=true", planetest.Named("a"))
			},
		}
		check := func(used time.Time, left int64) {
			t.Helper()
			for how, read := range reads {
				sb := read()
				if diff := cmp.Diff(doze.Observed{ExpiresIn: &left, LastUsedAt: doze.Time{Time: used}}, doze.Observed{ExpiresIn: sb.ExpiresIn, LastUsedAt: sb.LastUsedAt}); diff != "" {
					t.Errorf("%s: %s", how, diff)
				}
			}
		}
		planetest.After(7 * time.Minute)
		check(time.Now(), 30*60)
		planetest.After(7 * time.Minute)
		check(time.Now(), 30*60)
		planetest.After(16 * time.Minute)
		check(ends, 20*60)
		p.Node.With("a", func(_ string, m *planetest.Machine) { m.Alive = time.Now().Add(10 * time.Minute) })
		planetest.After(5 * time.Minute)
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{`+fmt.Sprintf(policy, "1m")+`}}`) // a minute is not over: it is in use
		check(time.Now(), 60)
	})
}

// TestManyEndAtOnce: the moment that ends thousands ends them all for everybody
// who looks, long before the last of their machines is gone.
func TestManyEndAtOnce(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		const many = 3000 // some batches
		fill(p, many, 0)
		p.Create(`{"metadata":{"name":"a"},"spec":{"runtime":{"ttl":"24h","terminationGracePeriodSeconds":600}}}`)
		time.Sleep(24*time.Hour - time.Millisecond)
		if _, ok := p.Dir.Find("main", "a", time.Now()); !ok {
			t.Fatal("its route is gone before its time")
		}
		time.Sleep(time.Millisecond)
		if _, ok := p.Dir.Find("main", "a", time.Now()); ok {
			t.Error("it can still be reached")
		}
		// Whatever is handled already, nobody sees anything else.
		living := planetest.Want[struct{ Data []planetest.Sandbox }](p, 200, "GET", "/sandboxes?status=DEPLOYED", "", "Blaxel-Version", "2026-04-28")
		if n := len(living.Data); n != 0 {
			t.Errorf("a page of %d lives on", n)
		}
		if sb := p.Get(); sb.Status != "DELETING" || p.Node.Count() != 1 {
			t.Errorf("it is %s, with %d machines", sb.Status, p.Node.Count())
		}
		planetest.After(100 * time.Millisecond)
		gone := planetest.Want[struct{ Data []planetest.Sandbox }](p, 200, "GET", "/sandboxes?status=TERMINATED&limit=200", "", "Blaxel-Version", "2026-04-28")
		if n := len(gone.Data); n != 200 {
			t.Errorf("a page of %d has ended", n)
		}
		for _, sb := range gone.Data {
			events := planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/"+sb.Metadata.Name, "").Events
			if diff := cmp.Diff([]string{"DELETING", "TERMINATED"}, planetest.Statuses(planetest.Sandbox{Observed: doze.Observed{Events: events}})); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

// machineOf returns the machine of a sandbox.
func machineOf(p *planetest.Platform, name string) (machine string) {
	p.Node.With(name, func(uid string, _ *planetest.Machine) { machine = uid })
	return machine
}

// TestExpiryOfAway: a sandbox whose node is away ends when the node is back, and keeps no other
// one from its end. A step of the clock meanwhile changes nothing of that.
func TestExpiryOfAway(t *testing.T) {
	t.Parallel()
	for name, stepped := range map[string]bool{"as it is": false, "after a step of the clock": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planetest.InBubble(t, func(p *planetest.Platform) {
				t := p.T
				for name, ttl := range map[string]string{"a": "1h", "b": "1h", "c": "3h"} {
					p.Create(`{"metadata":{"name":"` + name + `"},"spec":{"lifecycle":{"terminatedRetention":"10h"},"runtime":{"ttl":"` + ttl + `"}}}`)
				}
				away := func(err error) {
					for _, name := range []string{"a", "c"} {
						p.Node.Set("statuses "+machineOf(p, name), err)
					}
				}
				status := func(name string) string {
					return planetest.Want[doze.Sandbox](p, 200, "GET", "/sandboxes/"+name, "").Status
				}
				away(doze.Wrap(fleet.ErrUnreachable, doze.Unavailable, "the node cannot be reached"))
				planetest.After(30 * time.Minute)
				if stepped {
					p.Rooms.ClockStepped()
				}
				planetest.After(30*time.Minute + time.Second)
				if a, b, c := status("a"), status("b"), status("c"); a != "DEPLOYED" || b != "TERMINATED" || c != "DEPLOYED" {
					t.Errorf("a is %s, b is %s, c is %s", a, b, c)
				}
				away(nil)
				planetest.After(10 * time.Second)
				if a, c := status("a"), status("c"); a != "TERMINATED" || c != "DEPLOYED" {
					t.Errorf("with its node, a is %s, and c is %s", a, c)
				}
				planetest.After(2 * time.Hour)
				if c := status("c"); c != "TERMINATED" {
					t.Errorf("at its end, c is %s", c)
				}
			})
		})
	}
}

// TestEndIsShown: a read after the deadline shows the end, also when the machine takes
// half a second to end. A read waits for no end that takes longer, and for none that a
// caller asked for.
func TestEndIsShown(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		runtime string
		takes   time.Duration // the machine to end
		deleted bool
		want    string
		within  time.Duration
	}{
		"a slow end":     {`{"ttl":"1s"}`, 500 * time.Millisecond, false, "TERMINATED", 500 * time.Millisecond},
		"an endless end": {`{"ttl":"1s"}`, time.Hour, false, "DELETING", 2 * time.Second},
		"a grace period": {`{"ttl":"1s","terminationGracePeriodSeconds":1}`, time.Second, false, "DELETING", 0},
		"a delete":       {`{"ttl":"1h"}`, 500 * time.Millisecond, true, "DELETING", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planetest.InBubble(t, func(p *planetest.Platform) {
				p.Create(`{"metadata":{"name":"a"},"spec":{"runtime":` + tt.runtime + `}}`)
				p.Node.With("a", func(_ string, m *planetest.Machine) { m.Order.Grace = tt.takes })
				time.Sleep(1100 * time.Millisecond)
				if tt.deleted {
					planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
				}
				asked := time.Now()
				if sb := p.Get(); sb.Status != tt.want || time.Since(asked) > tt.within {
					p.T.Errorf("it is %s after %v", sb.Status, time.Since(asked))
				}
			})
		})
	}
}

// TestKeepAliveIsNotIdle: what only the agent knows keeps a sandbox, for as long
// as it lasts and no longer. Nobody wakes one that sleeps to ask.
func TestKeepAliveIsNotIdle(t *testing.T) {
	t.Parallel()
	const idle = `{"metadata":{"name":"a"},"spec":{"lifecycle":{"expirationPolicies":[{"action":"delete","type":"ttl-idle","value":"30m"}]}}}`
	for name, tt := range map[string]struct {
		alive  time.Duration
		asleep bool
		ends   time.Duration
		asked  int
	}{
		"a process": {45 * time.Minute, false, 75 * time.Minute, 3 + 1}, // the read below asks, too
		"none":      {0, false, 30 * time.Minute, 1 + 1},
		"asleep":    {0, true, 30 * time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planetest.InBubble(t, func(p *planetest.Platform) {
				t := p.T
				born := time.Now()
				p.Create(idle)
				p.Node.With("a", func(uid string, m *planetest.Machine) {
					if m.Alive = born.Add(tt.alive); tt.asleep {
						p.Node.Move(uid, doze.Suspending, "")
						p.Node.Move(uid, doze.Standby, "")
					}
				})
				planetest.After(time.Until(born.Add(tt.ends - 10*time.Millisecond)))
				if sb := p.Get(); sb.Status != "DEPLOYED" {
					t.Fatalf("before the deadline: %s", sb.Status)
				}
				planetest.After(100 * time.Millisecond)
				if sb := p.Get(); sb.Status != "TERMINATED" || p.Node.Asked() != tt.asked {
					t.Fatalf("after the deadline: %s, asked %d times", sb.Status, p.Node.Asked())
				}
			})
		})
	}
}

// TestRequestWinsAgainstIdleness: one that comes while the agent is asked.
func TestRequestWinsAgainstIdleness(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a"},"spec":{"lifecycle":{"expirationPolicies":[{"action":"delete","type":"ttl-idle","value":"30m"}]}}}`)
		p.Node.Hook = sync.OnceFunc(func() {
			time.Sleep(time.Second)
			p.Node.With("a", func(_ string, m *planetest.Machine) { m.LastUsed = time.Now() })
		})
		planetest.After(30*time.Minute + 2*time.Second)
		if n := p.Node.Asked(); n != 1 {
			t.Fatalf("asked %d times", n)
		}
		if sb := p.Get(); sb.Status != "DEPLOYED" {
			t.Fatalf("it is %s", sb.Status)
		}
		planetest.After(30 * time.Minute)
		if sb := p.Get(); sb.Status != "TERMINATED" {
			t.Errorf("it is %s", sb.Status)
		}
	})
}

// fill adds records that end in a day, each with a policy, past the API. They
// are numbered up to n, from after another number.
func fill(p *planetest.Platform, n, from int) {
	p.T.Helper()
	db, err := sql.Open("sqlite", p.File)
	if err != nil {
		p.T.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	now := time.Now().UnixMilli()
	_, err = db.ExecContext(p.T.Context(), `INSERT INTO sandboxes
		(uid, workspace, name, external_id, search, machine, phase, seq, revision, created_at, last_used_at, ended_at, deadline, body)
		WITH RECURSIVE n(i) AS (SELECT $3 + 1 UNION ALL SELECT i + 1 FROM n WHERE i < $1)
		SELECT 'u' || i, 'main', 'n' || i, 'e' || i, 'n' || i, 'u' || i, 'standby', 0, 1, $2 + i, $2, 0, $2 + 86400000,
			'{"metadata":{"name":"n' || i || '","workspace":"main"},"spec":{"lifecycle":{"expirationPolicies":[{"action":"delete","type":"ttl-idle","value":"1d"}]}}}'
		FROM n`, n, now, from)
	if err != nil {
		p.T.Fatal(err)
	}
}

// TestManyRecordsCostNoTimers is not parallel: it counts goroutines and memory.
func TestManyRecordsCostNoTimers(t *testing.T) { //nolint:paralleltest // see above
	const many = 100_000
	p := planetest.Start(t, true)
	measure := func() (goroutines int, bytes uint64) {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc
	}
	fill(p, many/100, 0)
	few := looks(p)
	goroutines, bytes := measure()
	fill(p, many, many/100)
	p.Create(`{"metadata":{"name":"a"},"spec":{"runtime":{"ttl":"1h"}}}`) // makes the loop look
	grown, more := measure()
	if grown > goroutines+8 || more > bytes+(8<<20) {
		t.Errorf("with %d records more: %d goroutines instead of %d, %d bytes instead of %d", many, grown, goroutines, more, bytes)
	}
	// Nor does what one look costs grow with the records that are not due, or not
	// asked for.
	for what, cost := range looks(p) {
		if alone := few[what]; cost > 20*alone {
			t.Errorf("%s takes %v at %d records, and %v at %d", what, cost, many, alone, many/100)
		}
	}
}

// looks are what the loop, and callers, look for in the records, and the least
// that each takes: on a busy machine, others take most of the time.
func looks(p *planetest.Platform) map[string]time.Duration {
	p.T.Helper()
	least := map[string]time.Duration{}
	for i := range 100 {
		now := time.Now()
		for what, look := range map[string]func() error{
			"what is due": func() error {
				due, err := p.Store.Due(p.T.Context(), now, 256)
				if len(due) > 0 {
					p.T.Errorf("%d are due", len(due))
				}
				return err
			},
			"what is over": func() error { _, err := p.Store.Purge(p.T.Context(), now, 256); return err },
			"the deadline": func() error { _, err := p.Store.NextDeadline(p.T.Context()); return err },
			"an external id": func() error {
				_, err := p.Store.LatestByExternalID(p.T.Context(), "main", fmt.Sprint("e", i+1))
				return err
			},
			"a page of a list": func() error {
				_, err := p.Store.List(p.T.Context(), listing.Query{Workspace: "main", Limit: 50}, now)
				return err
			},
		} {
			began := time.Now()
			if err := look(); err != nil {
				p.T.Fatalf("%s: %v", what, err)
			}
			if took := time.Since(began); i == 0 || took < least[what] {
				least[what] = took
			}
		}
	}
	return least
}

// TestIdleTimeSurvivesARestart: a node that adopts a sandbox does not know when
// it was used.
func TestIdleTimeSurvivesARestart(t *testing.T) {
	t.Parallel()
	const policy = `"spec":{"lifecycle":{"expirationPolicies":[{"action":"delete","type":"ttl-idle","value":"30m"}]}}`
	for name, tt := range map[string]struct {
		asleep bool
		ends   time.Duration
	}{
		"asleep":              {true, 30 * time.Minute},
		"perhaps used so far": {false, 50 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planetest.InBubble(t, func(p *planetest.Platform) {
				t := p.T
				born := time.Now()
				p.Create(`{"metadata":{"name":"a"},` + policy + `}`)
				if tt.asleep {
					p.Node.With("a", func(uid string, _ *planetest.Machine) {
						p.Node.Move(uid, doze.Suspending, "")
						p.Node.Move(uid, doze.Standby, "")
					})
				}
				planetest.After(20 * time.Minute)
				p.Node.With("a", func(_ string, m *planetest.Machine) { m.LastUsed = time.Now() }) // as it adopts it
				p.Reopen()
				planetest.After(time.Until(born.Add(tt.ends - 10*time.Millisecond)))
				if sb := p.Get(); sb.Status != "DEPLOYED" || *sb.ExpiresIn != 1 {
					t.Fatalf("before the deadline: %s", sb.Status)
				}
				planetest.After(100 * time.Millisecond)
				if sb := p.Get(); sb.Status != "TERMINATED" {
					t.Fatalf("after the deadline: %s", sb.Status)
				}
			})
		})
	}
}
