package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
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

func TestCreateAnswersAReadySandbox(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		sb := p.Create(`{"metadata":{"name":"a","labels":{"x-blaxel-auto-generated":"true"},"workspace":7,"createdAt":{}},
			"status":"FAILED","events":"none","spec":{"runtime":{"generation":"mk3","snapshotEnabled":true,
			"envs":[{"name":"A","value":"x\ny\"ü"},{"name":"S","value":"hunter2","secret":true}],"ports":[{"target":8080}]}}}`)
		synctest.Wait() // the node's report changes nothing
		now := doze.Time{Time: time.Now().UTC()}
		wantSB := planetest.Sandbox{
			Metadata: doze.Metadata{
				Name: "a", Labels: map[string]string{"x-blaxel-auto-generated": "true"}, Plan: doze.Plan, Workspace: "main",
				URL: "http://a.main.test", CreatedAt: now, UpdatedAt: now, CreatedBy: "admin", UpdatedBy: "admin",
			},
			Spec: doze.SandboxSpec{Region: "here-1", Runtime: doze.Runtime{
				Image: doze.ImageDefault, Memory: 4096,
				Envs:  []doze.Env{{Name: "A", Value: new("x\ny\"ü")}, {Name: "S", Value: new(doze.MaskedValue), Secret: true}},
				Ports: []doze.Port{{Target: 8080}},
			}},
			Observed: doze.Observed{
				Events: []doze.Event{
					{Type: "deployment", Status: "DEPLOYING", Message: "the sandbox is being started", Time: now, Revision: "1", CanaryRevision: "1"},
					{Type: "deployment", Status: "DEPLOYED", Message: "the sandbox is ready", Time: now, Revision: "1", CanaryRevision: "1"},
				},
				LastUsedAt: now, NodeGeneration: doze.Generation, State: "RUNNING", Status: "DEPLOYED",
			},
		}
		if diff := cmp.Diff(wantSB, sb); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff(wantSB, p.Get()); diff != "" {
			t.Error(diff)
		}
		p.Node.With("a", func(_ string, m *planetest.Machine) {
			if diff := cmp.Diff([]string{"A=x\ny\"ü", "S=hunter2"}, m.Order.Env); diff != "" {
				t.Error(diff)
			}
		})
		if r, ok := p.Dir.Find("main", "a", time.Now()); !ok || !r.Enabled {
			t.Errorf("route %+v", r)
		}
	})
}

func TestCreateMistakes(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	for name, tt := range map[string]struct {
		body   string
		status int
		says   []string
	}{
		"no JSON":       {`{`, 400, []string{"not valid JSON"}},
		"two values":    {`{} {}`, 400, []string{"something after"}},
		"a list":        {`[]`, 400, []string{"must be a JSON object"}},
		"wrong types":   {`{"metadata":{"name":7,"labels":{"a":1}},"spec":{"enabled":"yes","runtime":{"memory":"4G","envs":{},"ports":[{"target":1.5}]},"lifecycle":[]}}`, 400, []string{"metadata.name must be a string", "metadata.labels.a must be a string", "spec.enabled must be true or false", "spec.runtime.memory must be a whole", "spec.runtime.envs must be an array", "spec.runtime.ports[0].target must be a whole", "spec.lifecycle must be an object"}},
		"not objects":   {`{"metadata":[],"spec":"x"}`, 400, []string{"metadata must be an object", "spec must be an object"}},
		"all mistakes":  {`{"metadata":{"name":"A","labels":{"doze.x":"y"}},"spec":{"region":"mars","runtime":{"memory":1,"ttl":"soon"}}}`, 400, []string{"metadata.name", "reserved", "spec.region", "here-1", "spec.runtime.memory", "spec.runtime.ttl"}},
		"image":         {`{"spec":{"runtime":{"image":"nonsense"}}}`, 400, []string{"INVALID_IMAGE", "spec.runtime.image"}},
		"image and ttl": {`{"spec":{"runtime":{"image":"nonsense","ttl":"zz"}}}`, 400, []string{"INVALID_IMAGE", "spec.runtime.image", "cannot be run", "spec.runtime.ttl"}},

		"ports":          {`{"spec":{"runtime":{"ports":[{"target":1},{"target":0},{"target":0,"protocol":"X"}]}}}`, 400, []string{"ports[1].target is 0", "ports[2].target is 0", "ports[2].protocol is"}},
		"name of an env": {`{"spec":{"runtime":{"envs":[{"name":"my.va-r"},{"name":"1A"}]}}}`, 400, []string{"letters, digits, _, . and - only"}},
		"vpc":            {`{"spec":{"vpc":"mine"}}`, 400, []string{"spec.vpc"}},
		"network":        {`{"spec":{"network":{"subnet":"Other"}}}`, 400, []string{"spec.network"}},
		"extra args":     {`{"spec":{"runtime":{"extraArgs":{"nfs":"enabled"}}}}`, 400, []string{`"unsupported"`, "extraArgs.nfs", "mk3.1"}},
		"body too large": {`{"x":"` + strings.Repeat("x", 1<<20) + `"}`, 413, []string{"larger than"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := p.Do("POST", "/sandboxes", tt.body)
			if w.Code != tt.status {
				t.Errorf("%d %s, want %d", w.Code, w.Body, tt.status)
			}
			planetest.CheckError(t, w)
			for _, s := range tt.says {
				if !strings.Contains(w.Body.String(), s) {
					t.Errorf("%s does not say %q", w.Body, s)
				}
			}
			if strings.Contains(w.Body.String(), "hunter2") {
				t.Error("a secret came back")
			}
		})
	}
	if all := planetest.Want[[]planetest.Sandbox](p, 200, "GET", "/sandboxes?showTerminated=true", ""); len(all) != 0 {
		t.Errorf("records remain: %v", all)
	}
	for _, body := range []string{"", "null", "{}", `{"metadata":null,"spec":null}`, `{"spec":{"network":{},"vpc":"default","region":"","runtime":{"memory":2048.0,"extraArgs":{"tun":"disabled"}}}}`} {
		if sb := p.Create(body); !strings.HasPrefix(sb.Metadata.Name, "sandbox-") || sb.Status != "DEPLOYED" {
			t.Errorf("%s: %q is %s", body, sb.Metadata.Name, sb.Status)
		}
	}
}

func TestNameTaken(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(planetest.Named("a"))
	w := p.Do("POST", "/sandboxes", planetest.Named("a"))
	planetest.CheckError(t, w)
	var got map[string]any
	_ = json.Unmarshal(w.Body.Bytes(), &got)
	if w.Code != 409 || got["error"] != "SANDBOX_ALREADY_EXISTS" || got["code"] != 409.0 || !strings.Contains(got["message"].(string), "already exists") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

func TestCreateIfNotExist(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		const path = "/sandboxes?createIfNotExist=true"
		first := planetest.Want[planetest.Sandbox](p, 200, "POST", path, planetest.Named("a"))
		// The body is ignored, whatever is wrong with it.
		again := planetest.Want[planetest.Sandbox](p, 200, "POST", path, `{"metadata":{"name":"a","labels":7},"spec":{"region":"mars"}}`)
		if !again.Metadata.CreatedAt.Equal(first.Metadata.CreatedAt.Time) || p.Node.Ordered() != 1 {
			t.Error("a second sandbox was made")
		}
		synctest.Wait()
		time.Sleep(time.Second)
		p.Node.With("a", func(uid string, _ *planetest.Machine) { p.Node.Move(uid, doze.Failed, "") })
		synctest.Wait()
		if w := p.Do("POST", "/sandboxes", planetest.Named("a")); w.Code != 409 || !strings.Contains(w.Body.String(), "createIfNotExist") {
			t.Errorf("create over a failed one: %d %s", w.Code, w.Body)
		}
		fresh := planetest.Want[planetest.Sandbox](p, 200, "POST", path, planetest.Named("a"))
		if !fresh.Metadata.CreatedAt.After(first.Metadata.CreatedAt.Time) || fresh.Status != "DEPLOYED" {
			t.Error("the failed one is still there")
		}
		synctest.Wait()
		if p.Node.Count() != 1 {
			t.Errorf("%d machines", p.Node.Count())
		}
		planetest.Want[planetest.Sandbox](p, 200, "DELETE", "/sandboxes/a", "")
		planetest.Want[planetest.Sandbox](p, 200, "POST", path, planetest.Named("a"))
		planetest.Want[planetest.Sandbox](p, 200, "POST", path, "{}") // without a name it always creates
	})
}

func TestManyCreatesOfOneName(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/sandboxes", "/sandboxes?createIfNotExist=true"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			planetest.InBubble(t, func(p *planetest.Platform) {
				t := p.T
				release := p.Node.Hold()
				var wg sync.WaitGroup
				var mu sync.Mutex
				codes := map[int]int{}
				for range 50 {
					wg.Go(func() {
						w := p.Do("POST", path, planetest.Named("a"))
						mu.Lock()
						defer mu.Unlock()
						codes[w.Code]++
						if w.Code == 200 && !strings.Contains(w.Body.String(), `"DEPLOYED"`) {
							t.Errorf("not ready: %s", w.Body)
						}
					})
				}
				synctest.Wait()
				release()
				wg.Wait()
				wantCodes := map[int]int{200: 50}
				if path == "/sandboxes" {
					wantCodes = map[int]int{200: 1, 409: 49}
				}
				if diff := cmp.Diff(wantCodes, codes); diff != "" {
					t.Error(diff)
				}
				if n := p.Node.Ordered(); n != 1 {
					t.Errorf("%d machines were made", n)
				}
			})
		})
	}
}

func TestCreateOutlivesItsCaller(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		release := p.Node.Hold()
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.DoAs(ctx, "POST", "/sandboxes", planetest.Named("a"))
		}()
		synctest.Wait()
		leave()
		synctest.Wait()
		release()
		<-done
		if sb := p.Get(); sb.Status != "DEPLOYED" {
			t.Errorf("%s", sb.Status)
		}
	})
}

func TestCreateThatFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err    error
		status int
		after  string // status of the record; empty for none
	}{
		"unknown":     {errors.New("disk sda is on fire"), 500, "FAILED"},
		"ours":        {doze.Errorf(doze.Invalid, "bad order"), 500, "FAILED"},
		"exhausted":   {doze.Errorf(doze.Exhausted, "the node is full"), 429, ""},
		"unavailable": {doze.Errorf(doze.Unavailable, "the registry cannot be reached"), 503, ""},
		"too slow":    {context.DeadlineExceeded, 504, ""},
		"too large":   {doze.Errorf(doze.TooLarge, "the image has 500 layers"), 413, ""},
		"unsupported": {doze.Errorf(doze.Unsupported, "the node has no loop devices"), 501, ""},
		"image":       {&doze.Error{Kind: doze.Invalid, Name: "INVALID_IMAGE", Message: "no such image"}, 400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planetest.InBubble(t, func(p *planetest.Platform) {
				t := p.T
				p.Node.Set("create", tt.err)
				w := p.Do("POST", "/sandboxes", planetest.Named("a"))
				planetest.CheckError(t, w)
				if w.Code != tt.status || strings.Contains(w.Body.String(), "sda") {
					t.Errorf("%d %s", w.Code, w.Body)
				}
				synctest.Wait()
				if tt.after == "" {
					planetest.Want[any](p, 404, "GET", "/sandboxes/a", "")
					if all := planetest.Want[[]planetest.Sandbox](p, 200, "GET", "/sandboxes?showTerminated=true", ""); len(all) != 0 {
						t.Errorf("it left %+v", all)
					}
				} else if sb := p.Get(); sb.Status != tt.after {
					t.Errorf("record is %s", sb.Status)
				}
				if left, err := p.Store.Leftovers(t.Context(), 10); err != nil || len(left) != 0 {
					t.Errorf("leftovers %v, %v", left, err)
				}
				p.Node.Set("create", nil)
				planetest.Want[planetest.Sandbox](p, 200, "POST", "/sandboxes?createIfNotExist=true", planetest.Named("a"))
			})
		})
	}
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	const body = `{"metadata":{"name":"a","externalId":"ext","labels":{"k":"v"}},"spec":{"runtime":{"ports":[{"target":3000}],
		"envs":[{"name":"A","value":"1"},{"name":"S","value":"hunter2","secret":true},{"name":"D","value":"x"},{"name":"D","value":"y"}],
		"extraArgs":{"tun":"disabled"}}}}`
	for name, tt := range map[string]struct {
		body   string
		fresh  bool // a fresh machine
		status int
		check  func(planetest.Sandbox) bool
	}{
		"nothing":       {`{}`, false, 200, func(s planetest.Sandbox) bool { return s.Metadata.ExternalID == "ext" && s.Metadata.Labels["k"] == "v" }},
		"labels":        {`{"metadata":{"labels":{"z":"1"}}}`, false, 200, func(s planetest.Sandbox) bool { return cmp.Equal(s.Metadata.Labels, map[string]string{"z": "1"}) }},
		"display name":  {`{"metadata":{"displayName":"My Box!"}}`, false, 200, func(s planetest.Sandbox) bool { return s.Metadata.DisplayName == "My Box!" }},
		"external id":   {`{"metadata":{"externalId":"new"}}`, false, 200, func(s planetest.Sandbox) bool { return s.Metadata.ExternalID == "new" }},
		"lifecycle":     {`{"spec":{"lifecycle":{"terminatedRetention":"1h"}}}`, false, 200, func(s planetest.Sandbox) bool { return s.Spec.Lifecycle.TerminatedRetention == "1h" }},
		"too long kept": {`{"spec":{"lifecycle":{"terminatedRetention":"90d"}}}`, false, 200, func(s planetest.Sandbox) bool { return s.Spec.Lifecycle.TerminatedRetention == "30d" }},
		"ttl":           {`{"spec":{"runtime":{"ttl":"1h"}}}`, false, 200, func(s planetest.Sandbox) bool { return *s.ExpiresIn == 3600 }},
		"stray members": {`{"runtime":{"image":"x"},"lifecycle":{},"status":"FAILED","metadata":{"url":7}}`, false, 200, nil},
		"envs masked": {`{"spec":{"runtime":{"envs":[{"name":"A","value":"1"},{"name":"S","value":"********"},{"name":"D"},{"name":"D"}]}}}`, false, 200, func(s planetest.Sandbox) bool {
			return s.Spec.Runtime.Envs[1].Secret && s.Spec.Runtime.Envs[3].Text() == "y"
		}},
		"env changed": {`{"spec":{"runtime":{"envs":[{"name":"A","value":"2"},{"name":"S","value":"********","secret":true}]}}}`, true, 200, func(s planetest.Sandbox) bool { return s.Spec.Runtime.Envs[0].Text() == "2" }},
		"env emptied": {`{"spec":{"runtime":{"envs":[{"name":"A","value":""},{"name":"S"}]}}}`, true, 200, func(s planetest.Sandbox) bool {
			return cmp.Equal(s.Spec.Runtime.Envs[0], doze.Env{Name: "A", Value: new("")})
		}},
		"envs cleared":   {`{"spec":{"runtime":{"envs":[]}}}`, true, 200, func(s planetest.Sandbox) bool { return len(s.Spec.Runtime.Envs) == 0 }},
		"image":          {`{"spec":{"runtime":{"image":"other:1"}}}`, true, 200, func(s planetest.Sandbox) bool { return s.Spec.Runtime.Image == "other:1" }},
		"memory":         {`{"spec":{"runtime":{"memory":2048}}}`, true, 200, func(s planetest.Sandbox) bool { return s.Spec.Runtime.Memory == 2048 }},
		"no ports":       {`{"spec":{"runtime":{"ports":[]}}}`, false, 200, func(s planetest.Sandbox) bool { return len(s.Spec.Runtime.Ports) == 0 }},
		"other ports":    {`{"spec":{"runtime":{"ports":[{"target":3000,"protocol":"TCP"},{"target":4000,"name":"api"}]}}}`, false, 200, func(s planetest.Sandbox) bool { return s.Spec.Runtime.Ports[1].Name == "api" }},
		"name":           {`{"metadata":{"name":"b"}}`, false, 400, nil},
		"region":         {`{"spec":{"region":"mars"}}`, false, 400, nil},
		"extra args":     {`{"spec":{"runtime":{"extraArgs":{"tun":"enabled"}}}}`, false, 400, nil},
		"unknown masked": {`{"spec":{"runtime":{"envs":[{"name":"N","value":"********"}]}}}`, false, 400, nil},
		"bad image":      {`{"spec":{"runtime":{"image":"nonsense"}}}`, false, 400, nil},
		"network":        {`{"spec":{"network":{"allowedDomains":["x.test"]}}}`, false, 200, func(s planetest.Sandbox) bool { return s.Spec.Network.AllowedDomains[0] == "x.test" }},
		"network wrong":  {`{"spec":{"network":{"allowedDomains":["1.2.3.4"]}}}`, false, 400, nil},
		"network odd":    {`{"spec":{"network":{"egress":{"mode":"dedicated"}}}}`, false, 400, nil},
		"wrong type":     {`{"spec":{"runtime":{"ttl":5}}}`, false, 400, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planetest.InBubble(t, func(p *planetest.Platform) {
				t := p.T
				born := p.Create(body)
				time.Sleep(time.Millisecond)
				if tt.status != 200 {
					planetest.Want[any](p, tt.status, "PUT", "/sandboxes/a", tt.body)
					if sb := p.Get(); !cmp.Equal(born.Metadata, sb.Metadata) || sb.Status != "DEPLOYED" || p.Node.Ordered() != 1 {
						t.Errorf("a refused change changed something: %+v", sb)
					}
					return
				}
				sb := planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", tt.body)
				synctest.Wait()
				if sb.Status != "DEPLOYED" || !sb.Metadata.UpdatedAt.After(born.Metadata.UpdatedAt.Time) || !sb.Metadata.CreatedAt.Equal(born.Metadata.CreatedAt.Time) {
					t.Errorf("%s, updated %v, created %v", sb.Status, sb.Metadata.UpdatedAt, sb.Metadata.CreatedAt)
				}
				if tt.check != nil && !tt.check(sb) {
					t.Errorf("%+v", sb)
				}
				wantEvents, machines := []string{"DEPLOYING", "DEPLOYED"}, 1
				if tt.fresh {
					wantEvents, machines = append(wantEvents, wantEvents...), 2
				}
				if last := sb.Events[len(sb.Events)-1]; last.Revision != strconv.Itoa(machines) || last.CanaryRevision != last.Revision {
					t.Errorf("after %d machines the last event is %+v", machines, last)
				}
				sb.Events = slices.DeleteFunc(sb.Events, func(e doze.Event) bool { return e.Type == doze.EventNotice }) // see TestRulesOfClosedPlatform
				if diff := cmp.Diff(wantEvents, planetest.Statuses(sb)); diff != "" || p.Node.Ordered() != machines || p.Node.Count() != 1 {
					t.Errorf("%s, %d machines made, %d there", diff, p.Node.Ordered(), p.Node.Count())
				}
				p.Node.With("a", func(uid string, m *planetest.Machine) {
					if r, _ := p.Dir.Find("main", "a", time.Now()); r.UID != uid {
						t.Errorf("the route leads to %s, not %s", r.UID, uid)
					}
					if !strings.Contains(fmt.Sprint(m.Order.Env), "S=hunter2") && tt.body != `{"spec":{"runtime":{"envs":[]}}}` {
						t.Errorf("the secret is lost: %v", m.Order.Env)
					}
				})
				// Sending back what was answered changes nothing.
				whole, _ := json.Marshal(sb)
				planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", string(whole))
				if p.Node.Ordered() != machines {
					t.Error("sending back the answer redeployed it")
				}
			})
		})
	}
}

func TestSecretsAreMasked(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(`{"metadata":{"name":"a","externalId":"e"},"spec":{"runtime":{"envs":[{"name":"S","value":"hunter2","secret":true}]}}}`)
	for _, path := range []string{"/sandboxes", "/sandboxes/a", "/sandboxes/by-external-id/e"} {
		if w := p.Do("GET", path, ""); w.Code != 200 || strings.Contains(w.Body.String(), "hunter2") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if sb := planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/a?show_secrets=true", ""); sb.Spec.Runtime.Envs[0].Text() != "hunter2" {
		t.Errorf("an admin sees %+v", sb.Spec.Runtime.Envs)
	}
	reader := p.KeyFor("main", time.Time{}, "sandboxes:get", "sandboxes:update")
	planetest.Want[any](p, 403, "GET", "/sandboxes/a?show_secrets=true", "", "Authorization", "Bearer "+reader)
	// Nobody unmasks a secret by calling it none.
	sb := planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"envs":[{"name":"S","secret":false}]}}}`, "Authorization", "Bearer "+reader)
	if e := sb.Spec.Runtime.Envs[0]; e.Text() != doze.MaskedValue || !e.Secret {
		t.Errorf("%+v", e)
	}
}

// TestMaskIsNoValue: who creates a sandbox from what an answer showed would
// start it with the mask.
func TestMaskIsNoValue(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	w := p.Do("POST", "/sandboxes", `{"metadata":{"name":"a"},"spec":{"runtime":{"envs":[{"name":"NEW","value":"********","secret":true}]}}}`)
	if w.Code != 400 || !strings.Contains(w.Body.String(), "NEW") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	planetest.Want[any](p, 404, "GET", "/sandboxes/a", "")
	p.Create(planetest.Named("a"))
	w = p.Do("POST", "/sandboxes/a/fork", `{"targetName":"b","targetType":"sandbox","envs":[{"name":"NEW","value":"********"}]}`)
	if w.Code != 400 || !strings.Contains(w.Body.String(), "NEW") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestEntrypoint: a sandbox says how the program of its image is, and a client may send
// that back.
func TestEntrypoint(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(`{"metadata":{"name":"a"}}`)
	if w := p.Do("GET", "/sandboxes/a", ""); strings.Contains(w.Body.String(), "entrypoint") {
		t.Errorf("one whose image says nothing says %s", w.Body)
	}
	p.Node.With("a", func(_ string, m *planetest.Machine) {
		m.Entry = &doze.Entrypoint{Status: "running", Health: "unhealthy", HealthOutput: "refused", RestartCount: 2, Ports: []string{"80/tcp"}}
	})
	const says = `"entrypoint":{"status":"running","restartCount":2,"health":"unhealthy","healthOutput":"refused","ports":["80/tcp"]}`
	shown := p.Do("GET", "/sandboxes/a", "").Body.String()
	for name, body := range map[string]string{
		"it": shown, "the list": p.Do("GET", "/sandboxes", "").Body.String(), "an update": p.Do("PUT", "/sandboxes/a", shown).Body.String(),
	} {
		if !strings.Contains(body, says) {
			t.Errorf("%s does not say %s: %s", name, says, body)
		}
	}
	if orders := p.Node.Orders(); len(orders) != 1 || len(orders[0].Env) != 0 {
		t.Errorf("ordered %+v", orders)
	}
}

// TestRecovery: a sandbox that went back to a checkpoint says when, wherever it is
// shown, and a client may send that back.
func TestRecovery(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a"}}`)
		if w := p.Do("GET", "/sandboxes/a", ""); strings.Contains(w.Body.String(), "recovery") {
			t.Errorf("one that lost nothing says %s", w.Body)
		}
		made := time.Now()
		time.Sleep(time.Hour)
		p.Node.With("a", func(_ string, m *planetest.Machine) { m.Setback = &fleet.Setback{Checkpoint: made, At: time.Now()} })
		const says = `"recovery":{"at":"2000-01-01T01:00:00.000Z","checkpointAt":"2000-01-01T00:00:00.000Z"}`
		shown := p.Do("GET", "/sandboxes/a", "").Body.String()
		for name, body := range map[string]string{
			"it": shown, "the list": p.Do("GET", "/sandboxes", "").Body.String(), "an update": p.Do("PUT", "/sandboxes/a", shown).Body.String(),
		} {
			if !strings.Contains(body, says) {
				t.Errorf("%s does not say %s: %s", name, says, body)
			}
		}
	})
}

// TestUpdateEndsNothing: a deadline that has passed is a mistake.
func TestUpdateEndsNothing(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		p.Create(planetest.Named("a"))
		planetest.After(time.Minute)
		for body, says := range map[string]string{
			`{"spec":{"runtime":{"expires":"2000-01-01T00:00:00Z"}}}`:                                                "it expired at",
			`{"spec":{"runtime":{"ttl":"30s"}}}`:                                                                     "its ttl of 30s is over",
			`{"spec":{"lifecycle":{"expirationPolicies":[{"type":"ttl-max-age","value":"30s","action":"delete"}]}}}`: "its maximum age of 30s is over",
			`{"spec":{"lifecycle":{"expirationPolicies":[{"type":"ttl-idle","value":"30s","action":"delete"}]}}}`:    "nobody used it for 30s",
		} {
			if w := p.Do("PUT", "/sandboxes/a", body); w.Code != 400 || !strings.Contains(w.Body.String(), says) {
				p.T.Errorf("%s: %d %s", body, w.Code, w.Body)
			}
		}
		if sb := planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"ttl":"90s"}}}`); sb.Status != "DEPLOYED" || *sb.ExpiresIn != 30 {
			p.T.Errorf("%+v", sb)
		}
	})
}

// TestEmptyVariables: nothing is not the same as no value, and an answer adds
// nothing to what came.
func TestEmptyVariables(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	given := func(envs string) []doze.Env {
		sb := planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"envs":`+envs+`}}}`)
		return sb.Spec.Runtime.Envs
	}
	masked := new(doze.MaskedValue)
	const bare = `[{"name":"A","value":""},{"name":"B"},{"name":"C","secret":true},{"name":"D","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]`
	p.Create(`{"metadata":{"name":"a"},"spec":{"runtime":{"envs":` + bare + `}}}`)
	for how, w := range map[string]string{
		"get":          p.Do("GET", "/sandboxes/a", "").Body.String(),
		"with secrets": p.Do("GET", "/sandboxes/a?show_secrets=true", "").Body.String(),
		"sent back":    p.Do("PUT", "/sandboxes/a", `{"spec":{"runtime":{"envs":`+bare+`}}}`).Body.String(),
		"list":         p.Do("GET", "/sandboxes", "").Body.String(),
	} {
		if !strings.Contains(w, `"envs":`+bare) {
			t.Errorf("%s: %s", how, w)
		}
	}
	if diff := cmp.Diff([]string{"A=", "B=", "C=", "D=a"}, environment(p)); diff != "" || p.Node.Ordered() != 1 {
		t.Errorf("%d machines, %s", p.Node.Ordered(), diff)
	}
	given(`[{"name":"A","value":"a"},{"name":"S","value":"s","secret":true}]`)
	if diff := cmp.Diff([]doze.Env{{Name: "A", Value: new("a")}, {Name: "S", Value: masked, Secret: true}}, given(`[{"name":"A"},{"name":"S","value":null}]`)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"A=a", "S=s"}, environment(p)); diff != "" {
		t.Error(diff)
	}
	given(`[{"name":"A","value":""},{"name":"S","value":"","secret":true},{"name":"N"}]`)
	if diff := cmp.Diff([]string{"A=", "S=", "N="}, environment(p)); diff != "" {
		t.Error(diff)
	}
	if w := p.Do("GET", "/sandboxes/a?show_secrets=true", ""); !strings.Contains(w.Body.String(), `{"name":"S","value":"","secret":true}`) {
		t.Errorf("%s", w.Body)
	}
	if w := p.Do("GET", "/sandboxes/a", ""); !strings.Contains(w.Body.String(), `{"name":"S","value":"********","secret":true}`) {
		t.Errorf("%s", w.Body)
	}
}

func TestEnabled(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		p.Node.With("a", func(uid string, _ *planetest.Machine) { p.Node.Move(uid, doze.Suspending, "") }) // recorded late
		synctest.Wait()
		sb := planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":false}}`)
		if r, ok := p.Dir.Find("main", "a", time.Now()); sb.Status != "DEACTIVATED" || !ok || r.Enabled {
			t.Errorf("disabled: %s, route %+v", sb.Status, r)
		}
		planetest.Want[any](p, 409, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"memory":2048}}}`)
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"metadata":{"labels":{"a":"b"}}}`)
		sb = planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":true}}`)
		if r, _ := p.Dir.Find("main", "a", time.Now()); sb.Status != "DEPLOYED" || !r.Enabled || p.Node.Ordered() != 1 {
			t.Errorf("enabled: %s, route %+v", sb.Status, r)
		}
		p.Node.Set("disable", errors.New("busy"))
		if sb = planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":false}}`); sb.Status != "DEACTIVATING" {
			t.Errorf("while the node is busy: %s", sb.Status)
		}
		p.Node.Set("disable", nil)
		planetest.After(10 * time.Second)
		if sb = p.Get(); sb.Status != "DEACTIVATED" {
			t.Errorf("later: %s", sb.Status)
		}
		if sb = p.Create(`{"metadata":{"name":"b"},"spec":{"enabled":false}}`); sb.Status != "DEACTIVATED" {
			t.Errorf("created disabled: %s", sb.Status)
		}
	})
}

// TestImageThatDoesNotCome: a sandbox is not given up for an image that cannot
// be pulled.
func TestImageThatDoesNotCome(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		p.Node.Set("fetch", doze.Errorf(doze.Unavailable, "the registry cannot be reached"))
		for _, enabled := range []string{"true", "false"} {
			before := planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":`+enabled+`}}`)
			planetest.Want[any](p, 503, "PUT", "/sandboxes/a", `{"spec":{"enabled":true,"runtime":{"image":"hub.test/a:1"}}}`)
			if diff := cmp.Diff(before, p.Get()); diff != "" || p.Node.Ordered() != 1 {
				t.Errorf("with enabled %s: %s", enabled, diff)
			}
		}
		p.Node.Set("fetch", nil)
		if sb := planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":true,"runtime":{"image":"hub.test/a:1"}}}`); sb.Status != "DEPLOYED" || p.Node.Ordered() != 2 {
			t.Errorf("%s", sb.Status)
		}
	})
}

// TestCreatesBehindOneThatFails: those who wait for it make theirs, or fail in
// the same way.
func TestCreatesBehindOneThatFails(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		release := p.Node.Hold()
		p.Node.Set("create", doze.Errorf(doze.Unavailable, "the registry cannot be reached"))
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if w := p.Do("POST", "/sandboxes?createIfNotExist=true", planetest.Named("a")); w.Code != 503 {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
		synctest.Wait()
		release()
		wg.Wait()
	})
}

func TestRedeployThatFails(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		p.Node.Set("create", errors.New("no memory"))
		planetest.Want[any](p, 500, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"memory":2048}}}`)
		planetest.After(10 * time.Second)
		if sb := p.Get(); sb.Status != "FAILED" || p.Node.Count() != 0 {
			t.Errorf("%s with %d machines", sb.Status, p.Node.Count())
		}
		if r, ok := p.Dir.Find("main", "a", time.Now()); !ok || !r.Failed {
			t.Errorf("its address leads to %+v, %t", r, ok)
		}
		p.Node.Set("create", nil)
		if sb := planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{}`); sb.Status != "DEPLOYED" || sb.Spec.Runtime.Memory != 2048 {
			t.Errorf("%s with %d", sb.Status, sb.Spec.Runtime.Memory)
		}
		if r, ok := p.Dir.Find("main", "a", time.Now()); !ok || r.Failed {
			t.Errorf("then its address leads to %+v, %t", r, ok)
		}
	})
}

// TestRedeployGoesOnAfterAStop: what a stop of the node cut short has not failed.
func TestRedeployGoesOnAfterAStop(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		p.Node.Set("create", fleet.ErrStopping)
		planetest.Want[any](p, 503, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"memory":2048}}}`)
		if sb := p.Get(); sb.Status != "DEPLOYING" {
			t.Errorf("after the stop: %s", sb.Status)
		}
		p.Node.Set("create", nil)
		p.Reopen()
		planetest.After(10 * time.Second)
		if sb := p.Get(); sb.Status != "DEPLOYED" || sb.Spec.Runtime.Memory != 2048 || p.Node.Count() != 1 {
			t.Errorf("%s with %d, %d machines", sb.Status, sb.Spec.Runtime.Memory, p.Node.Count())
		}
	})
}

func TestByExternalID(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		for _, name := range []string{"a", "b"} {
			p.Create(`{"metadata":{"name":"` + name + `","externalId":"ext"}}`)
			time.Sleep(time.Second)
		}
		const path = "/sandboxes/by-external-id/ext"
		for _, name := range []string{"b", "a"} {
			if sb := planetest.Want[planetest.Sandbox](p, 200, "GET", path, ""); sb.Metadata.Name != name {
				t.Errorf("got %s, want %s", sb.Metadata.Name, name)
			}
			planetest.Want[planetest.Sandbox](p, 200, "DELETE", "/sandboxes/"+name, "")
		}
		planetest.Want[any](p, 404, "GET", path, "")
	})
}

type list struct {
	Data []planetest.Sandbox
	Meta struct {
		HasMore    bool
		NextCursor string
		Total      int
	}
}

func TestList(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		paged := []string{"Blaxel-Version", "2026-04-28"}
		if got := p.Do("GET", "/sandboxes", "").Body.String(); got != "[]\n" {
			t.Errorf("empty bare list %q", got)
		}
		for i := range 7 {
			p.Create(fmt.Sprintf(`{"metadata":{"name":"n%d","displayName":"Box 100%%_%d","labels":{"team":"Blue%d"}}}`, 6-i, i, i%2))
			time.Sleep(time.Second)
		}
		planetest.Want[planetest.Sandbox](p, 200, "DELETE", "/sandboxes/n3", "")
		synctest.Wait()
		for query, names := range map[string]string{
			"":                                  "n0 n1 n2 n4 n5 n6",
			"sort=createdAt:asc":                "n6 n5 n4 n2 n1 n0",
			"sort=name:desc":                    "n6 n5 n4 n2 n1 n0",
			"sort=name:asc&showTerminated=true": "n0 n1 n2 n3 n4 n5 n6",
			"status=terminated":                 "n3",
			"status=Deployed,%20FAILED":         "n0 n1 n2 n4 n5 n6",
			"status=BUILT":                      "",
			"q=BLUE1":                           "n1 n5",
			"q=100%25_2":                        "n4",
			"q=%25%25":                          "",
			"q=x":                               "n0 n1 n2 n4 n5 n6", // too short
			"labels=team%3DBlue1":               "n1 n5",
			"labels=team=Blue1&q=n5":            "n5",
			"labels=team=Blue1&labels=a=b":      "",
			"labels=team=blue1":                 "",
			"externalId=none":                   "",
			"anchor=end":                        "n0 n1 n2 n4 n5 n6",
		} {
			for _, limit := range []int{1, 2, 3, 200} {
				var got []string
				pages := 0
				for cursor := ""; ; pages++ {
					q := fmt.Sprintf("/sandboxes?limit=%d&cursor=%s&%s", limit, url.QueryEscape(cursor), query)
					l := planetest.Want[list](p, 200, "GET", q, "", paged...)
					for _, sb := range l.Data {
						got = append(got, sb.Metadata.Name)
						if sb.Events != nil || sb.Metadata.URL == "" {
							t.Errorf("%s: %+v", query, sb)
						}
					}
					if l.Meta.HasMore != (l.Meta.NextCursor != "") || l.Meta.Total != 6 {
						t.Errorf("%s: meta %+v", query, l.Meta)
					}
					if cursor = l.Meta.NextCursor; cursor == "" {
						break
					}
				}
				wantNames := strings.Fields(names)
				if query == "anchor=end" {
					wantNames = wantNames[max(0, len(wantNames)-limit):]
				}
				if diff := cmp.Diff(wantNames, append([]string{}, got...)); diff != "" {
					t.Errorf("%s, limit %d: %s", query, limit, diff)
				}
			}
		}
		for _, limit := range []string{"201", "99999999999999999999"} { // as much as there may be
			if l := planetest.Want[list](p, 200, "GET", "/sandboxes?limit="+limit, "", paged...); len(l.Data) != 6 {
				t.Errorf("limit %s: %d sandboxes", limit, len(l.Data))
			}
		}
		next := planetest.Want[list](p, 200, "GET", "/sandboxes?limit=1", "", paged...).Meta.NextCursor
		for query, says := range map[string]string{
			"limit=0": "limit", "limit=x": "limit", "limit=-99999999999999999999": "limit", "limit=1.5": "limit",
			"sort=size:asc": "sort", "sort=evil;drop": "the query", "sort=%zz": "the query", "limit=1;": "the query",
			"status=ASLEEP": "status", "anchor=middle": "anchor",
			"anchor=end&sort=name:asc": "anchor", "q=" + strings.Repeat("x", 201): "q is", "externalId=%20": "externalId",
			"cursor=nonsense": "cursor", "limit=1&q=blue&cursor=" + next: "cursor", "limit=1&labels=a=b&cursor=" + next: "cursor", "sort=name:asc&cursor=" + next: "cursor",
		} {
			if e := planetest.Want[map[string]any](p, 400, "GET", "/sandboxes?"+query, "", paged...); !strings.HasPrefix(e["message"].(string), says) {
				t.Errorf("%s: %v", query, e)
			}
		}
		if bare := planetest.Want[[]planetest.Sandbox](p, 200, "GET", "/sandboxes", ""); len(bare) != 6 {
			t.Errorf("bare list of %d", len(bare))
		}
	})
}

// TestExtraArgs: a sandbox gets what it asked for, as long as it lives.
func TestExtraArgs(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args                             string
		iptables, tun, containers, entry bool
	}{
		"none":       {`{}`, false, false, false, true},
		"disabled":   {`{"containers":"disabled","iptables":"disabled","nfs":"disabled","tun":"disabled"}`, false, false, false, true},
		"iptables":   {`{"iptables":"enabled"}`, true, false, false, true},
		"both":       {`{"iptables":"enabled","tun":"enabled","entrypoint":"enabled"}`, true, true, false, true},
		"containers": {`{"containers":"enabled"}`, false, false, true, true},
		"no program": {`{"entrypoint":"disabled"}`, false, false, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planetest.InBubble(t, func(p *planetest.Platform) {
				t := p.T
				p.Create(`{"metadata":{"name":"a"},"spec":{"runtime":{"extraArgs":` + tt.args + `}}}`)
				planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"memory":2048}}}`)
				planetest.Want[any](p, 400, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"extraArgs":{"nfs":"enabled"}}}}`)
				for value, allowed := range map[string]bool{"enabled": tt.entry, "disabled": !tt.entry, "off": false} {
					status := map[bool]int{true: 200, false: 400}[allowed]
					planetest.Want[any](p, status, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"extraArgs":{"entrypoint":"`+value+`"}}}}`)
				}
				orders := p.Node.Orders()
				if len(orders) != 2 {
					t.Fatalf("%d orders", len(orders))
				}
				for _, o := range orders {
					if o.IPTables != tt.iptables || o.Tun != tt.tun || o.Containers != tt.containers || o.NoEntrypoint == tt.entry {
						t.Errorf("ordered %+v", o)
					}
				}
			})
		})
	}
}

// TestMemoryOfTheHostIsTheMost: nobody gets what is not there, but for the default,
// and who has more from before keeps it.
func TestMemoryOfTheHostIsTheMost(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(`{"metadata":{"name":"before"},"spec":{"runtime":{"memory":10000}}}`)
	for host, most := range map[doze.Megabytes]int{8192: 8192, 2048: 4096} {
		p.Memory = host
		p.Reopen()
		name := "on-" + strconv.Itoa(int(host))
		of := func(name string, memory int) string {
			return `{"metadata":{"name":"` + name + `"},"spec":{"runtime":{"memory":` + strconv.Itoa(memory) + `}}}`
		}
		says := "one sandbox can have " + strconv.Itoa(most) + " megabytes on this host"
		for _, at := range []string{"POST /sandboxes", "PUT /sandboxes/before"} {
			method, path, _ := strings.Cut(at, " ")
			if w := p.Do(method, path, of("before", most+1)); w.Code != 400 || !strings.Contains(w.Body.String(), says) {
				t.Errorf("%s with %d: %d %s", at, host, w.Code, w.Body)
			}
		}
		p.Create(of(name, most))
		p.Create(planetest.Named(name + "-default"))
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/before", `{"metadata":{"labels":{"host":"`+strconv.Itoa(int(host))+`"}},"spec":{"runtime":{"memory":10000}}}`)
	}
}
