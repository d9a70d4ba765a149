package control_test

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/plane/planetest"
)

type snapshot = doze.Snapshot

// remember gives the machine of a sandbox a memory.
func remember(p *planetest.Platform, name, memory string) {
	p.Node.With(name, func(_ string, m *planetest.Machine) { m.Memory = memory })
}

// recall returns the memory of the machine of a sandbox.
func recall(p *planetest.Platform, name string) (memory string) {
	p.Node.With(name, func(_ string, m *planetest.Machine) { memory = m.Memory })
	return memory
}

// source is a sandbox with everything that a fork may or may not inherit.
const source = `{"metadata":{"name":"a","externalId":"ext","displayName":"A","labels":{"k":"v"}},
	"spec":{"lifecycle":{"terminatedRetention":"1h","expirationPolicies":[
			{"action":"delete","type":"ttl-max-age","value":"2h"},{"action":"delete","type":"date","value":"2999-01-01"}]},
		"runtime":{"memory":512,"ttl":"3h","expires":"2999-01-01","terminationGracePeriodSeconds":0,"ports":[{"target":3000}],"envs":[
			{"name":"PLAIN","value":"old"},{"name":"KEPT","value":"kept"},{"name":"HIDDEN","value":"hunter2","secret":true},
			{"name":"REF","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}},{"name":"NAME","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]}}}`

func TestSnapshots(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		planetest.Want[any](p, 200, "POST", "/secrets", `{"metadata":{"name":"s"},"data":{"k":"hunter3"}}`)
		p.Create(source)
		remember(p, "a", "one")
		one := planetest.Want[snapshot](p, 200, "POST", "/sandboxes/a/snapshots", `{"name":"one"}`)
		if one.ID == "" || one.CreatedAt.IsZero() {
			t.Errorf("it has no id or time: %+v", one)
		}
		expected := snapshot{
			ID: one.ID, Name: "one", Status: doze.SnapshotReady, Workspace: "main", CreatedAt: one.CreatedAt, CreatedBy: "admin",
			SandboxName: "a", Source: doze.SnapshotSource{Name: "a", Kind: "sandbox"}, Bytes: planetest.CheckpointSize,
			Spec: doze.SnapshotSpec{Generation: doze.Generation, Image: doze.ImageDefault, Memory: 512, Region: "here-1", Ports: []doze.Port{{Target: 3000}}},
		}
		if diff := cmp.Diff(expected, one); diff != "" {
			t.Errorf("snapshot (-want +got):\n%s", diff)
		}
		planetest.After(time.Second)
		two := planetest.Want[snapshot](p, 200, "POST", "/snapshots", `{"source":{"name":"a"}}`)
		if two.Name == "" || two.Name == one.Name {
			t.Errorf("the generated name is %q", two.Name)
		}
		for _, path := range []string{"/snapshots/" + one.ID, "/snapshots/one"} {
			if got := planetest.Want[snapshot](p, 200, "GET", path, ""); got.ID != one.ID {
				t.Errorf("%s is %s", path, got.ID)
			}
		}
		ids := func(all []snapshot) (list []string) {
			for _, n := range all {
				list = append(list, n.ID)
			}
			return list
		}
		if got := ids(planetest.Want[[]snapshot](p, 200, "GET", "/sandboxes/a/snapshots", "")); !slices.Equal(got, []string{two.ID, one.ID}) {
			t.Errorf("of the sandbox: %q", got)
		}
		for query, found := range map[string][]string{
			"":                    {two.ID, one.ID},
			"?sort=createdAt:asc": {one.ID, two.ID},
			"?q=ONE":              {one.ID},
			"?status=ready":       {two.ID, one.ID},
			"?status=failed":      nil,
			"?externalId=none":    {two.ID, one.ID}, // they have none
		} {
			if got := ids(planetest.Want[[]snapshot](p, 200, "GET", "/snapshots"+query, "")); !slices.Equal(got, found) {
				t.Errorf("%q: %q", query, got)
			}
		}
		type page struct {
			Data []snapshot
			Meta struct {
				HasMore    bool
				NextCursor string
				Total      int
			}
		}
		first := planetest.Want[page](p, 200, "GET", "/snapshots?limit=1", "", "Blaxel-Version", "2026-04-28")
		if len(first.Data) != 1 || !first.Meta.HasMore || first.Meta.Total != 2 {
			t.Fatalf("the first page is %+v", first)
		}
		cursor := url.QueryEscape(first.Meta.NextCursor)
		last := planetest.Want[page](p, 200, "GET", "/snapshots?limit=1&cursor="+cursor, "", "Blaxel-Version", "2026-04-28")
		if !slices.Equal(ids(last.Data), []string{one.ID}) || last.Meta.HasMore {
			t.Errorf("the last page is %+v", last)
		}
		planetest.Want[any](p, 400, "GET", "/sandboxes?cursor="+cursor, "")
		planetest.Want[any](p, 400, "GET", "/snapshots?status=DEPLOYED", "")
		planetest.Want[any](p, 409, "POST", "/sandboxes/a/snapshots", `{"name":"one"}`)

		planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
		planetest.After(time.Minute)
		if got := planetest.Want[snapshot](p, 200, "GET", "/snapshots/one", ""); !got.Source.Deleted || got.Status != doze.SnapshotReady {
			t.Errorf("after the end of its sandbox: %+v", got)
		}
		p.Create(planetest.Named("a"))
		planetest.Want[snapshot](p, 200, "POST", "/sandboxes/a/snapshots", `{"name":"one"}`)
		planetest.Want[any](p, 409, "GET", "/snapshots/one", "") // which one?
		planetest.Want[any](p, 404, "POST", "/sandboxes/a/snapshots/"+two.ID+"/restore", "")
		planetest.Want[any](p, 409, "DELETE", "/workspaces/main", "")

		if w := p.Do("DELETE", "/snapshots/"+two.ID, ""); w.Code != 204 || w.Body.Len() != 0 {
			t.Errorf("delete: %d %s", w.Code, w.Body)
		}
		planetest.Want[any](p, 404, "DELETE", "/snapshots/"+two.ID, "")
		if w := p.Do("DELETE", "/sandboxes/a/snapshots/one", ""); w.Code != 204 {
			t.Errorf("delete below the sandbox: %d %s", w.Code, w.Body)
		}
		if ids := slices.Collect(maps.Keys(p.Node.Saved)); !slices.Equal(ids, []string{one.ID}) {
			t.Errorf("the node has %q", ids)
		}
	})
}

func TestSnapshotsThatFail(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		for body, status := range map[string]int{
			`{}`: 400, `{"source":{"kind":"sandbox"}}`: 400, `{"source":{"name":"a","kind":"volume"}}`: 400,
			`{"source":{"name":"none","kind":"sandbox"}}`: 404, `{"name":"No Name","source":{"name":"a","kind":"sandbox"}}`: 400,
			`{"name":1,"source":{"name":"a","kind":"sandbox"}}`: 400,
		} {
			planetest.Want[any](p, status, "POST", "/snapshots", body)
		}
		p.Node.Set("snapshot", doze.Errorf(doze.Exhausted, "the disk is full"))
		planetest.Want[any](p, 429, "POST", "/sandboxes/a/snapshots", `{"name":"x"}`)
		p.Node.Set("snapshot", nil)
		if got := planetest.Want[[]snapshot](p, 200, "GET", "/snapshots", ""); len(got) != 0 {
			t.Errorf("what failed left %+v", got)
		}

		// Its sandbox is deleted while it is made; meanwhile it is pending.
		release := p.Node.Hold()
		var wg sync.WaitGroup
		wg.Go(func() { planetest.Want[any](p, 409, "POST", "/sandboxes/a/snapshots", `{"name":"late"}`) })
		synctest.Wait()
		if got := planetest.Want[snapshot](p, 200, "GET", "/snapshots/late", ""); got.Status != doze.SnapshotPending {
			t.Errorf("it is %s", got.Status)
		}
		planetest.Want[any](p, 409, "DELETE", "/snapshots/late", "")
		planetest.Want[any](p, 409, "POST", "/snapshots/late/fork", `{"targetName":"b","targetType":"sandbox"}`)
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
		wg.Wait()
		release()
		planetest.After(time.Minute)
		planetest.Want[any](p, 404, "GET", "/snapshots/late", "")

		// Files that cannot be removed at once are removed later.
		p.Create(`{"metadata":{"name":"b"},"spec":{"enabled":false}}`)
		planetest.Want[snapshot](p, 200, "POST", "/sandboxes/b/snapshots", `{"name":"n"}`)
		p.Node.Set("drop", errors.New("busy"))
		if w := p.Do("DELETE", "/snapshots/n", ""); w.Code != 204 {
			t.Errorf("delete: %d", w.Code)
		}
		planetest.Want[any](p, 404, "GET", "/snapshots/n", "")
		p.Node.Set("drop", nil)
		settled(t, "at the end", p)
	})
}

func TestForks(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		planetest.Want[any](p, 200, "POST", "/secrets", `{"metadata":{"name":"s"},"data":{"k":"hunter3"}}`)
		p.Create(source)
		planetest.Want[any](p, 200, "POST", "/sandboxes/a/previews", `{"metadata":{"name":"v"},"spec":{"port":3000}}`)
		remember(p, "a", "one")
		n := planetest.Want[snapshot](p, 200, "POST", "/sandboxes/a/snapshots", `{"name":"n"}`)
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
		planetest.After(time.Hour)

		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() {
				got := planetest.Want[doze.ForkResponse](p, 200, "POST", "/snapshots/"+n.ID+"/fork",
					fmt.Sprintf(`{"targetName":"f%d","targetType":"sandbox","memory":512,"envs":[{"name":"PLAIN","value":"new"},{"name":"MORE","value":"m","secret":true}]}`, i))
				if got.Name != fmt.Sprint("f", i) || got.Type != "sandbox" || got.SnapshotID != n.ID {
					t.Errorf("%+v", got)
				}
			})
		}
		wg.Wait()
		for i := range 5 {
			name := fmt.Sprint("f", i)
			sb := planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/"+name+"?show_secrets=true", "")
			if sb.Status != "DEPLOYED" || recall(p, name) != "one" {
				t.Errorf("%s is %s and remembers %q", name, sb.Status, recall(p, name))
			}
			if sb.Origin == nil || *sb.Origin != (doze.Origin{SandboxName: "a", SnapshotID: n.ID, SnapshotName: "n"}) {
				t.Errorf("its origin is %+v", sb.Origin)
			}
			if m := sb.Metadata; m.ExternalID != "" || len(m.Labels) != 0 || m.DisplayName != "" {
				t.Errorf("it inherits %+v", m)
			}
			if *sb.ExpiresIn != 7200 || len(sb.Spec.Lifecycle.ExpirationPolicies) != 1 || sb.Spec.Runtime.Expires != "" {
				t.Errorf("it ends in %d, %+v", *sb.ExpiresIn, sb.Spec)
			}
			var env []string
			p.Node.With(name, func(_ string, m *planetest.Machine) { env = m.Order.Env })
			if expected := []string{"KEPT=kept", "NAME=" + name, "PLAIN=new", "MORE=m"}; !slices.Equal(env, expected) {
				t.Errorf("environment %q, want %q", env, expected)
			}
			if got := planetest.Want[[]any](p, 200, "GET", "/sandboxes/"+name+"/previews", ""); len(got) != 0 {
				t.Errorf("it has the previews %v", got)
			}
		}
		// A fresh machine is one out of the image.
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/f0", `{"spec":{"runtime":{"memory":1024}}}`)
		if got := recall(p, "f0"); got != "" {
			t.Errorf("redeployed, it remembers %q", got)
		}

		const good = `{"targetName":"g","targetType":"sandbox"`
		for body, status := range map[string]int{
			`{"targetName":"f1","targetType":"sandbox"}`: 409, `{"targetName":"g","targetType":"application"}`: 501,
			`{}`: 400, `{"targetName":"g"}`: 400, `{"targetName":"g","targetType":"vm"}`: 400, `{"targetName":"G","targetType":"sandbox"}`: 400,
			good + `,"memory":1024}`: 400, good + `,"traffic":10}`: 400, good + `,"port":80}`: 400, good + `,"prefix":"x"}`: 400,
			good + `,"customDomain":"x.test"}`: 400, good + `,"envs":[{"name":"1"}]}`: 400, good + `,"envs":{}}`: 400,
			good + `,"envs":[{"name":"E","valueFrom":{"secretKeyRef":{"name":"none","key":"k"}}}]}`: 400,
			good + `,"snapshotId":"other"}`: 400,
		} {
			for _, path := range []string{"/snapshots/" + n.ID, "/sandboxes/f1"} {
				if strings.HasPrefix(path, "/sandboxes") && strings.Contains(body, "snapshotId") {
					status = 404
				}
				planetest.Want[any](p, status, "POST", path+"/fork", body)
			}
		}
		if got := planetest.Want[[]snapshot](p, 200, "GET", "/snapshots", ""); len(got) != 1 {
			t.Errorf("a fork that is refused takes a snapshot: %+v", got)
		}

		// Of the sandbox as it is now.
		remember(p, "f1", "two")
		got := planetest.Want[doze.ForkResponse](p, 200, "POST", "/sandboxes/f1/fork", good+`}`)
		if recall(p, "g") != "two" || planetest.Want[snapshot](p, 200, "GET", "/snapshots/"+got.SnapshotID, "").Source.Name != "f1" {
			t.Errorf("%+v remembers %q", got, recall(p, "g"))
		}
		planetest.Want[doze.ForkResponse](p, 200, "POST", "/sandboxes/f1/fork", `{"targetName":"h","targetType":"sandbox","snapshotId":"`+got.SnapshotID+`"}`)
		p.Node.Set("create", errors.New("no"))
		planetest.Want[any](p, 500, "POST", "/sandboxes/f1/fork", `{"targetName":"i","targetType":"sandbox"}`)
		p.Node.Set("create", nil)
		if got := planetest.Want[[]snapshot](p, 200, "GET", "/sandboxes/f1/snapshots", ""); len(got) != 1 {
			t.Errorf("a fork that failed leaves its snapshot: %+v", got)
		}
		p.Create(planetest.Named("i")) // the name is free

		// The files vanish under a fork.
		p.Node.Mu.Lock()
		delete(p.Node.Saved, n.ID)
		p.Node.Mu.Unlock()
		planetest.Want[any](p, 404, "POST", "/snapshots/"+n.ID+"/fork", `{"targetName":"k","targetType":"sandbox"}`)
		planetest.Want[any](p, 404, "GET", "/sandboxes/k", "")
	})
}

// TestForksOfRules: a fork has the rules that its source has today, or had at its
// end, whatever it had when the snapshot was taken; and none with a secret, which
// an event says.
func TestForksOfRules(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, true)
	p.Create(`{"metadata":{"name":"a"},"spec":{"lifecycle":{"terminatedRetention":"1h"}}}`)
	planetest.Want[snapshot](p, 200, "POST", "/sandboxes/a/snapshots", `{"name":"n"}`)
	check := func(fork, body string, allowed []string, rules int) {
		t.Helper()
		planetest.Want[any](p, 200, "POST", "/snapshots/n/fork", `{"targetName":"`+fork+`","targetType":"sandbox"}`)
		sb := planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/"+fork, "")
		var order *doze.Network
		p.Node.With(fork, func(_ string, m *planetest.Machine) { order = m.Order.Network })
		for _, n := range []*doze.Network{sb.Spec.Network, order} {
			if got := n.Rules(); !slices.Equal(got.AllowedDomains, allowed) || len(got.Routing) != rules {
				t.Errorf("%s, %s: it has %+v", fork, body, got)
			}
		}
		said := slices.ContainsFunc(sb.Events, func(e doze.Event) bool {
			return strings.Contains(e.Message, "routing rules with secrets are not inherited: the source has 1")
		})
		if said != (rules > 0) {
			t.Errorf("%s: the events are %+v", fork, sb.Events)
		}
	}
	check("none", "no rules", nil, 0)
	for i, step := range []struct {
		network string
		allowed []string
		rules   int
	}{
		{`{"allowedDomains":["allowed.test"]}`, []string{"allowed.test"}, 0},
		{`{"allowedDomains":["api.test"],"proxy":{"routing":[{"destinations":["*"],"headers":{"X-All":"yes"}},
			{"destinations":["api.test"],"headers":{"X-Key":"{{SECRET:key}}"},"secrets":{"key":"hunter22"}}]}}`, []string{"api.test"}, 1},
	} {
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"network":`+step.network+`}}`)
		check(fmt.Sprint("f", i), step.network, step.allowed, step.rules)
	}
	planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
	check("orphan", "deleted", []string{"api.test"}, 1)
	p.Reopen()
	check("later", "reopened", []string{"api.test"}, 1)
}

// TestAuthorities: each sandbox has its own authority for as long as it lives, and
// a copy that of its source, whose certificates are in its memory.
func TestAuthorities(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, true)
	of := func(name string) (authority string) {
		t.Helper()
		p.Node.With(name, func(_ string, m *planetest.Machine) { authority = m.Order.Authority })
		if authority == "" {
			t.Errorf("%s has none", name)
		}
		return authority
	}
	fork := func(from, name string) {
		t.Helper()
		planetest.Want[any](p, 200, "POST", from+"/fork", `{"targetName":"`+name+`","targetType":"sandbox"}`)
	}
	for _, name := range []string{"a", "b"} {
		p.Create(`{"metadata":{"name":"` + name + `"},"spec":{"runtime":{"memory":512},"network":{"proxy":{}}}}`)
	}
	a, b := of("a"), of("b")
	planetest.Want[snapshot](p, 200, "POST", "/sandboxes/a/snapshots", `{"name":"n"}`)
	fork("/sandboxes/a", "fork")
	fork("/sandboxes/fork", "grandchild")
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/snapshots/n/restore", "")
	planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/b", `{"spec":{"runtime":{"memory":1024}}}`) // on a fresh machine
	check := func() {
		t.Helper()
		for name, want := range map[string]string{"a": a, "fork": a, "grandchild": a, "b": b} {
			if got := of(name); got != want {
				t.Errorf("%s has the authority %q, want %q", name, got, want)
			}
		}
	}
	if a == b {
		t.Errorf("two sandboxes have the authority %q", a)
	}
	check()
	p.Reopen()
	for _, name := range []string{"a", "fork"} {
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/"+name, "")
	}
	fork("/snapshots/n", "a")
	fork("/snapshots/n", "fork")
	check()
}

func TestRestore(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a"},"spec":{"runtime":{"memory":512,"envs":[{"name":"S","value":"hunter2","secret":true}]}}}`)
		v := planetest.Want[doze.Preview](p, 200, "POST", "/sandboxes/a/previews", `{"metadata":{"name":"v"},"spec":{"port":3000}}`)
		remember(p, "a", "one")
		n := planetest.Want[snapshot](p, 200, "POST", "/sandboxes/a/snapshots", `{"name":"n"}`)
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"memory":1024}}}`)
		remember(p, "a", "two")
		before, _ := p.Dir.Find("main", "a", time.Now())

		p.Node.Set("create", doze.Errorf(doze.Unavailable, "memory is short"))
		planetest.Want[any](p, 503, "POST", "/sandboxes/a/snapshots/n/restore", "")
		p.Node.Set("create", nil)
		if now, _ := p.Dir.Find("main", "a", time.Now()); !cmp.Equal(now, before) || recall(p, "a") != "two" || p.Get().Spec.Runtime.Memory != 1024 {
			t.Errorf("what did not work changed it: %+v, %q", now, recall(p, "a"))
		}
		settled(t, "after a failed restore", p)

		got := planetest.Want[doze.RestoreResponse](p, 200, "POST", "/sandboxes/a/snapshots/n/restore", "")
		if got.Name != "a" || got.SnapshotID != n.ID {
			t.Errorf("%+v", got)
		}
		settled(t, "after a restore", p)
		sb := p.Get()
		if recall(p, "a") != "one" || sb.Spec.Runtime.Memory != 512 || sb.Status != "DEPLOYED" || sb.State != "RUNNING" {
			t.Errorf("it is %s with %q, %+v", sb.Status, recall(p, "a"), sb.Spec.Runtime)
		}
		if last := sb.Events[len(sb.Events)-1]; !strings.Contains(last.Message, "restored from the snapshot n") {
			t.Errorf("the last event is %+v", last)
		}
		var env []string
		p.Node.With("a", func(_ string, m *planetest.Machine) { env = m.Order.Env })
		if !slices.Equal(env, []string{"S=hunter2"}) { // it is the same sandbox
			t.Errorf("environment %q", env)
		}
		if got := planetest.Want[[]doze.Preview](p, 200, "GET", "/sandboxes/a/previews", ""); len(got) != 1 || got[0].Spec.URL != v.Spec.URL {
			t.Errorf("its previews are %+v", got)
		}

		p.Node.With("a", func(uid string, _ *planetest.Machine) { p.Node.Move(uid, doze.Failed, "chance") })
		planetest.After(time.Second)
		planetest.Want[any](p, 409, "POST", "/sandboxes/a/snapshots", "")
		planetest.Want[any](p, 200, "POST", "/sandboxes/a/snapshots/"+n.ID+"/restore", "")
		if sb := p.Get(); sb.Status != "DEPLOYED" || recall(p, "a") != "one" {
			t.Errorf("a failed one is %s", sb.Status)
		}
		planetest.Want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":false}}`)
		planetest.Want[any](p, 409, "POST", "/sandboxes/a/snapshots/n/restore", "")
		planetest.Want[any](p, 404, "POST", "/sandboxes/a/snapshots/none/restore", "")
		settled(t, "at the end", p)

		// One that failed before it was disabled is disabled, too.
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":true}}`)
		p.Node.With("a", func(uid string, _ *planetest.Machine) { p.Node.Move(uid, doze.Failed, "chance") })
		planetest.After(time.Second)
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":false}}`)
		planetest.Want[any](p, 409, "POST", "/sandboxes/a/snapshots/n/restore", "")
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":true}}`)
		planetest.Want[any](p, 200, "POST", "/sandboxes/a/snapshots/n/restore", "")
		settled(t, "after all", p)
	})
}

// TestSnapshotsAfterAStop is about what a process finds that another one left.
func TestSnapshotsAfterAStop(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(planetest.Named("a"))
	n := planetest.Want[snapshot](p, 200, "POST", "/sandboxes/a/snapshots", `{"name":"n"}`)
	p.Node.Saved["stray"] = ""
	delete(p.Node.Saved, n.ID)
	p.Reopen()
	if got := planetest.Want[snapshot](p, 200, "GET", "/snapshots/"+n.ID, ""); got.Status != doze.SnapshotFailed || got.Message == "" {
		t.Errorf("without its files it is %+v", got)
	}
	planetest.Want[any](p, 409, "POST", "/snapshots/n/fork", `{"targetName":"b","targetType":"sandbox"}`)
	again := planetest.Want[snapshot](p, 200, "POST", "/sandboxes/a/snapshots", `{"name":"n"}`) // the name is free
	if got := planetest.Want[snapshot](p, 200, "GET", "/snapshots/n", ""); got.ID != again.ID {
		t.Errorf("the name leads to %+v", got)
	}
	if _, there := p.Node.Saved["stray"]; there {
		t.Error("files of no record are left")
	}
}

func TestArchive(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		const archive, unarchive = "/sandboxes/a/archive", "/sandboxes/a/unarchive"
		p.Create(`{"metadata":{"name":"a"},"spec":{"runtime":{"envs":[{"name":"A","value":"1"}]}}}`)
		planetest.Want[any](p, 404, "POST", "/sandboxes/none/archive", "")
		planetest.Want[any](p, 409, "POST", unarchive, "")
		if sb := planetest.Want[planetest.Sandbox](p, 200, "POST", archive, ""); sb.Status != "ARCHIVING" || sb.Archive.StartedAt.IsZero() || !sb.Archive.CreatedAt.IsZero() {
			t.Errorf("%s, %+v", sb.Status, sb.Archive)
		}
		planetest.After(time.Second)
		sb := p.Get()
		if a := sb.Archive; sb.Status != "ARCHIVED" || sb.State != "" || a.Size != planetest.CheckpointSize || a.CreatedAt.IsZero() || a.Key == "" || a.Generation == "" {
			t.Errorf("%s, %+v", sb.Status, a)
		}
		if _, ok := p.Dir.Find("main", "a", time.Now()); !ok {
			t.Error("the edge does not find it, and cannot say why it does not answer")
		}
		for _, path := range []string{archive, "/sandboxes/a/snapshots"} {
			planetest.Want[any](p, 409, "POST", path, "")
		}
		planetest.Want[any](p, 409, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"memory":1024}}}`)
		planetest.Want[any](p, 409, "PUT", "/sandboxes/a", `{"spec":{"enabled":false}}`)
		planetest.Want[any](p, 200, "PUT", "/sandboxes/a", `{"metadata":{"displayName":"in place"}}`)
		planetest.Want[any](p, 409, "POST", "/sandboxes", planetest.Named("a"))
		if got := planetest.Want[[]planetest.Sandbox](p, 200, "GET", "/sandboxes?status=archived", ""); len(got) != 1 {
			t.Errorf("found %+v", got)
		}

		p.Node.Set("unarchive", doze.Errorf(doze.Unavailable, "memory is short"))
		planetest.Want[any](p, 200, "POST", unarchive, "")
		planetest.After(time.Second)
		if sb := p.Get(); sb.Status != "ARCHIVED" || sb.Archive.Restore.State != doze.RestoreFailed || !strings.Contains(sb.Events[len(sb.Events)-1].Message, "memory is short") {
			t.Errorf("%s, %+v, %+v", sb.Status, sb.Archive.Restore, sb.Events)
		}
		p.Node.Set("unarchive", nil)
		if sb := planetest.Want[planetest.Sandbox](p, 200, "POST", unarchive, ""); sb.Status != "UNARCHIVING" || sb.Archive.Restore.State != doze.RestoreExtracting || sb.Archive.RestoreStartedAt.IsZero() {
			t.Errorf("%s, %+v", sb.Status, sb.Archive)
		}
		planetest.After(time.Second)
		sb = p.Get()
		if r := sb.Archive.Restore; sb.Status != "DEPLOYED" || r.State != doze.RestoreSucceeded || r.RestoredBytes != planetest.CheckpointSize || r.TotalBytes != planetest.CheckpointSize {
			t.Errorf("%s, %+v", sb.Status, r)
		}
		if got := planetest.Statuses(sb); !slices.Equal(got, []string{"DEPLOYING", "DEPLOYED", "ARCHIVING", "ARCHIVED", "UNARCHIVING", "ARCHIVED", "UNARCHIVING", "DEPLOYED"}) {
			t.Errorf("events %q", got)
		}
		var env []string
		p.Node.With("a", func(_ string, m *planetest.Machine) { env = m.Order.Env })
		if !slices.Equal(env, []string{"A=1"}) {
			t.Errorf("environment %q", env)
		}

		p.Node.Set("archive", fleet.ErrStopping)
		planetest.Want[any](p, 200, "POST", archive, "")
		planetest.After(time.Second)
		if sb := p.Get(); sb.Status != "ARCHIVING" {
			t.Errorf("while the node stops it is %s", sb.Status)
		}
		already := planetest.Want[map[string]any](p, 409, "POST", archive, "")
		p.Node.Set("archive", nil)
		planetest.After(10 * time.Second) // the next node goes on
		if sb := p.Get(); sb.Status != "ARCHIVED" {
			t.Errorf("then it is %s", sb.Status)
		}
		p.Node.Set("unarchive", fleet.ErrStopping)
		planetest.Want[any](p, 200, "POST", unarchive, "")
		planetest.After(time.Second)
		again := planetest.Want[map[string]any](p, 409, "POST", unarchive, "")
		if already["message"] != "the sandbox is ARCHIVING already" || again["message"] != "the sandbox is UNARCHIVING already" {
			t.Errorf("%v, %v", already, again)
		}
		p.Node.Set("unarchive", nil)
		planetest.After(10 * time.Second)

		p.Node.Set("archive", doze.Errorf(doze.Exhausted, "the disk is full"))
		planetest.Want[any](p, 200, "POST", archive, "")
		planetest.After(time.Second)
		if sb := p.Get(); sb.Status != "DEPLOYED" || sb.Events[len(sb.Events)-1].Message != "it could not be archived and runs on: the disk is full" {
			t.Errorf("%s, %+v", sb.Status, sb.Events)
		}
		p.Node.With("a", func(uid string, _ *planetest.Machine) { p.Node.Move(uid, doze.Standby, "") })
		planetest.Want[any](p, 200, "POST", archive, "")
		planetest.After(time.Second)
		if sb := p.Get(); sb.Events[len(sb.Events)-1].Message != "it could not be archived and sleeps on: the disk is full" {
			t.Errorf("%+v", sb.Events)
		}
		p.Node.Set("archive", nil)
		planetest.Want[any](p, 200, "POST", archive, "")
		planetest.After(time.Second)
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
		settled(t, "at the end", p)
	})
}
