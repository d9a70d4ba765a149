package e2e_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// failure is the body of an error of the control API.
type failure struct {
	Error   string `json:"error"`
	Code    any    `json:"code"`
	Message string `json:"message"`
	Reason  string `json:"reason"`
}

// leavesNothing fails if there is anything of a sandbox.
func leavesNothing(t *testing.T, p *testkit.Platform) {
	t.Helper()
	for _, leak := range p.Leaks() {
		t.Errorf("left over: %s", leak)
	}
	if sb := p.Address + "/v0/sandboxes?showTerminated=true"; (call{url: sb}).want(t, p, 200).body != "[]\n" {
		t.Errorf("a record is left: %s", call{url: sb}.do(t, p).body)
	}
}

// TestMistakes sends what is wrong to the control API. Every answer has the
// form of the contract and names all mistakes, and nothing is left.
func TestMistakes(t *testing.T) {
	t.Parallel()
	p, _ := start(t)
	for _, path := range []string{"/v0/sandboxes", "/v0/nothing", "/v0/", "/v0/sandboxes/a/b"} {
		for _, method := range []string{"GET", "PATCH", "POST"} {
			if a := (call{method: method, url: p.Address + path, key: none}).want(t, p, 401); a.header.Get("Allow") != "" {
				t.Errorf("%s %s: a stranger learns of %s", method, path, a.header.Get("Allow"))
			}
		}
	}
	long := strings.Repeat("a", 50)
	for name, row := range map[string]struct {
		method, path, body string
		status             int
		kind               string
		says               []string
	}{
		"no JSON":          {"POST", "/sandboxes", `{`, 400, "invalid", nil},
		"an array":         {"POST", "/sandboxes", `[]`, 400, "invalid", nil},
		"a wrong type":     {"POST", "/sandboxes", `{"metadata":{"name":7}}`, 400, "invalid", []string{"metadata.name"}},
		"text for memory":  {"POST", "/sandboxes", `{"spec":{"runtime":{"memory":"big"}}}`, 400, "invalid", []string{"spec.runtime.memory"}},
		"a body too large": {"POST", "/sandboxes", `{"metadata":{"displayName":"` + strings.Repeat("x", 1<<20) + `"}}`, 413, "too_large", nil},
		"a name": {
			"POST", "/sandboxes", `{"metadata":{"name":"Upper_Case"}}`, 400, "invalid",
			[]string{"metadata.name"},
		},
		"a long name": {
			"POST", "/sandboxes", `{"metadata":{"name":"` + long + `"}}`, 400, "invalid",
			[]string{"metadata.name", "49"},
		},
		"a region": {"POST", "/sandboxes", `{"spec":{"region":"the-moon"}}`, 400, "invalid", []string{"spec.region"}},
		"an image that is not shipped": {
			"POST", "/sandboxes", `{"metadata":{"name":"x"},"spec":{"runtime":{"image":"blaxel/lightpanda:latest"}}}`, 400, "INVALID_IMAGE",
			[]string{"Lightpanda"},
		},
		"an unknown image of the platform": {"POST", "/sandboxes", `{"metadata":{"name":"x"},"spec":{"runtime":{"image":"blaxel/nothing:latest"}}}`, 400, "INVALID_IMAGE", nil},
		"an image with a space":            {"POST", "/sandboxes", `{"spec":{"runtime":{"image":"a b"}}}`, 400, "INVALID_IMAGE", []string{"spec.runtime.image"}},
		"an image without a name":          {"POST", "/sandboxes", `{"spec":{"runtime":{"image":":latest"}}}`, 400, "INVALID_IMAGE", []string{"spec.runtime.image"}},
		"an image with half a digest":      {"POST", "/sandboxes", `{"spec":{"runtime":{"image":"x@sha256:12"}}}`, 400, "INVALID_IMAGE", []string{"spec.runtime.image", "digest"}},
		"an image that is a path":          {"POST", "/sandboxes", `{"spec":{"runtime":{"image":"../../etc"}}}`, 400, "INVALID_IMAGE", []string{"spec.runtime.image"}},
		"an image and a ttl":               {"POST", "/sandboxes", `{"spec":{"runtime":{"image":"nope","ttl":"zz"}}}`, 400, "INVALID_IMAGE", []string{"spec.runtime.image", "spec.runtime.ttl"}},
		"everything at once": {
			"POST", "/sandboxes", `{"metadata":{"name":"-","displayName":"` + long + long + `","externalId":"no spaces","labels":{"":"x"}},
			"spec":{"runtime":{"image":"no image","memory":1,"ttl":"soon","expires":"someday","terminationGracePeriodSeconds":-1,"ports":[{"target":0,"protocol":"ICMP"}],
			"envs":[{"name":"1A","value":"x"}],"extraArgs":{"turbo":"enabled","tun":"maybe"}},
			"lifecycle":{"terminatedRetention":"5","expirationPolicies":[{"action":"pause","type":"never","value":"x"},{"action":"delete","type":"ttl-idle","value":"5 minutes"},{"action":"delete","type":"date","value":"x"}]}}}`,
			400, "INVALID_IMAGE",
			[]string{
				"metadata.name", "metadata.displayName", "metadata.externalId", "metadata.labels", "spec.runtime.image", "spec.runtime.memory", "spec.runtime.ttl", "spec.runtime.expires",
				"spec.runtime.terminationGracePeriodSeconds", "spec.runtime.ports", "ICMP", "spec.runtime.envs", "turbo", "spec.runtime.extraArgs.tun", "terminatedRetention",
				"expirationPolicies[0].action", "expirationPolicies[0].type", "expirationPolicies[1].value", "expirationPolicies[2].value",
			},
		},
		"a volume":               {"POST", "/sandboxes", `{"spec":{"volumes":[{"name":"none","mountPath":"/v"}]}}`, 400, "invalid", []string{"spec.volumes", "create it first"}},
		"nfs":                    {"POST", "/sandboxes", `{"spec":{"runtime":{"extraArgs":{"nfs":"enabled"}}}}`, 400, "unsupported", []string{"spec.runtime.extraArgs.nfs", "mk3.1"}},
		"a network":              {"POST", "/sandboxes", `{"spec":{"network":{"egress":{"mode":"dedicated"}}}}`, 400, "invalid", []string{"spec.network.egress.gateway"}},
		"an unknown name":        {"GET", "/sandboxes/none", ``, 404, "not_found", nil},
		"to delete none":         {"DELETE", "/sandboxes/none", ``, 404, "not_found", nil},
		"to update none":         {"PUT", "/sandboxes/none", `{}`, 404, "not_found", nil},
		"an unknown external id": {"GET", "/sandboxes/by-external-id/none", ``, 404, "not_found", nil},
		"an unknown path":        {"GET", "/nothing", ``, 404, "not_found", nil},
		"an unknown key":         {"DELETE", "/api_keys/none", ``, 404, "not_found", nil},
		"a wrong method":         {"PATCH", "/sandboxes", ``, 405, "method_not_allowed", nil},
		"a wrong limit":          {"GET", "/sandboxes?limit=x", ``, 400, "invalid", []string{"limit"}},
		"a wrong cursor":         {"GET", "/sandboxes?cursor=x", ``, 400, "invalid", []string{"cursor"}},
		"a wrong status":         {"GET", "/sandboxes?status=ASLEEP", ``, 400, "invalid", []string{"status"}},
		"a wrong sort":           {"GET", "/sandboxes?sort=size:up", ``, 400, "invalid", []string{"sort"}},
		"a sort cut in two":      {"GET", "/sandboxes?sort=name:asc;drop", ``, 400, "invalid", []string{"the query"}},
		"an unknown tag": {
			"POST", "/sandboxes", `{"metadata":{"name":"x"},"spec":{"runtime":{"image":"blaxel/base-image:doesnotexist"}}}`, 400, "INVALID_IMAGE",
			[]string{"blaxel/base-image:latest"},
		},
		"a wrong key": {"POST", "/api_keys", `{"expires_in":"soon","scopes":[]}`, 400, "invalid", []string{"expires_in", "scope"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := call{method: row.method, url: p.Address + "/v0" + row.path, body: row.body}.want(t, p, row.status)
			var said failure
			a.into(t, &said)
			if row.kind != "" && said.Error != row.kind || said.Error == "" || said.Message == "" {
				t.Errorf("%s", a.body)
			}
			if code, ok := said.Code.(float64); ok && int(code) != row.status {
				t.Errorf("the code is %v", said.Code)
			}
			if !strings.HasPrefix(a.header.Get("Content-Type"), "application/json") {
				t.Errorf("Content-Type %q", a.header.Get("Content-Type"))
			}
			for _, part := range row.says {
				if !strings.Contains(said.Message, part) {
					t.Errorf("no word of %s: %s", part, said.Message)
				}
			}
		})
	}
	for path, status := range map[string]int{"/v0/nothing": 401, "/v0": 401, "/v0/health": 200, "/health": 200, "/openapi.json": 200, "/v0/openapi.json": 200, "/openapi.json/": 404, "/nothing": 404, "/v00/sandboxes": 404, "/run/main/sandboxes/none": 401} {
		call{url: p.Address + path, key: none}.want(t, p, status)
	}
	for name, header := range map[string]map[string]string{
		"none": nil, "a wrong key": {"Authorization": "Bearer x"}, "another scheme": {"Authorization": "Basic x"}, "an empty one": {"Authorization": "Bearer "},
	} {
		a := call{url: p.Address + "/v0/sandboxes", key: none, header: header}.want(t, p, 401)
		var said failure
		if a.into(t, &said); said.Error != "unauthenticated" || a.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: %s", name, a.body)
		}
	}
	a := call{url: p.Address + "/v0/sandboxes", header: map[string]string{"Blaxel-Version": "2020-01-01"}}.want(t, p, 400)
	if !strings.Contains(a.body, "invalid_api_version") {
		t.Error(a.body)
	}
	leavesNothing(t, p)
}

func TestControl(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "300ms", "--save-after", "100ms", "--disk-after", "300ms")
	api := p.Address + "/v0/sandboxes"

	t.Run("record", func(t *testing.T) {
		t.Parallel()
		body := `{"metadata":{"name":"full","displayName":"Für alle","externalId":"ext-1","labels":{"team":"a"},"url":"http://forged.example","createdBy":"forged"},
			"spec":{"runtime":{"memory":512,"image":"blaxel/base:latest","ttl":"24h","ports":[{"target":3000}],"envs":[{"name":"A","value":"1\n2"},{"name":"S","value":"hidden","secret":true}]}},
			"status":"FAILED","state":"STANDBY"}`
		// What only the platform sets is not read. What nobody knows is a mistake.
		unknown := strings.Replace(body, `"state"`, `"unknown":{"x":1},"state"`, 1)
		call{method: "POST", url: api, body: unknown}.want(t, p, 400)
		var sb doze.Sandbox
		a := call{method: "POST", url: api, body: body}.want(t, p, 200)
		a.into(t, &sb)
		m, r := sb.Metadata, sb.Spec.Runtime
		if m.Name != "full" || m.DisplayName != "Für alle" || m.ExternalID != "ext-1" || m.Labels["team"] != "a" || m.Workspace != "main" || m.CreatedBy == "forged" || !strings.HasPrefix(m.URL, p.Address+"/run/") || m.CreatedAt.IsZero() {
			t.Errorf("metadata %+v", m)
		}
		if r.Image != "blaxel/base:latest" || r.Memory != 512 || len(r.Ports) != 1 || r.Ports[0].Protocol != "" || len(r.Envs) != 2 {
			t.Errorf("runtime %+v", r)
		}
		if sb.Status != "DEPLOYED" || sb.State != "RUNNING" || sb.NodeGeneration != "mk3.1" || sb.Spec.Region != "local" || sb.ExpiresIn == nil || *sb.ExpiresIn > 86400 || *sb.ExpiresIn < 86000 {
			t.Errorf("it is %s, %s, %s, %s, %v", sb.Status, sb.State, sb.NodeGeneration, sb.Spec.Region, sb.ExpiresIn)
		}
		if strings.Contains(a.body, "hidden") {
			t.Error("a secret came back")
		}
		var last doze.Event
		for _, last = range sb.Events {
		}
		if last.Status != "DEPLOYED" || last.Type != "deployment" {
			t.Errorf("events %+v", sb.Events)
		}
		agent, err := c.Agent(sb)
		if err != nil {
			t.Fatal(err)
		}
		if out := sh(t, agent, `printf '%s|%s|%s' "$A" "$S" "$BL_NAME"`); out != "1\n2|hidden|full" {
			t.Errorf("inside, the variables are %q", out)
		}
		// The name is taken.
		a = call{method: "POST", url: api, body: `{"metadata":{"name":"full"}}`}.want(t, p, 409)
		var said failure
		a.into(t, &said)
		if said.Error != "SANDBOX_ALREADY_EXISTS" || !strings.Contains(said.Message, "already exists") || a.header.Get("X-Should-Retry") != "false" {
			t.Errorf("%s", a.body)
		}
		// Looking for it.
		if found, err := c.ByExternalID(t.Context(), "ext-1"); err != nil || found.Metadata.Name != "full" {
			t.Errorf("by its external id: %s, %v", found.Metadata.Name, err)
		}
		for _, f := range []client.Filter{{Query: "für al"}, {Query: "TEAM"}, {Status: "deployed", ExternalID: "ext-1"}} {
			n := 0
			for found, err := range c.Sandboxes(t.Context(), f) {
				if n++; err != nil || found.Metadata.Name != "full" {
					t.Errorf("%+v: %s, %v", f, found.Metadata.Name, err)
				}
			}
			if n != 1 {
				t.Errorf("%+v: %d found", f, n)
			}
		}
	})

	t.Run("update", func(t *testing.T) {
		t.Parallel()
		sb, agent := create(t, c, named("change", 512))
		sh(t, agent, "echo kept >/root/file")
		// Labels: in place, nothing restarts, and the masked secret of nobody.
		sb.Metadata.Labels = map[string]string{"new": "yes"}
		sb, err := c.Update(t.Context(), sb)
		if err != nil || sb.Metadata.Labels["new"] != "yes" {
			t.Fatalf("%+v, %v", sb.Metadata, err)
		}
		if out := sh(t, agent, "cat /root/file"); out != "kept" {
			t.Errorf("after new labels: %q", out)
		}
		// Variables: a fresh machine.
		events := len(sb.Events)
		sb.Spec.Runtime.Envs = []doze.Env{{Name: "COLOUR", Value: new("blue")}}
		if sb, err = c.Update(t.Context(), sb); err != nil {
			t.Fatal(err)
		}
		if len(sb.Events) <= events || sb.Status != "DEPLOYED" {
			t.Errorf("it is %s, with %d events", sb.Status, len(sb.Events))
		}
		if out := sh(t, agent, "echo $COLOUR; cat /root/file 2>/dev/null || echo fresh"); out != "blue\nfresh" {
			t.Errorf("after new variables: %q", out)
		}
		// What cannot change.
		for _, body := range []string{`{"metadata":{"name":"other"}}`, `{"spec":{"region":"elsewhere"}}`} {
			call{method: "PUT", url: api + "/change", body: body}.want(t, p, 400)
		}
	})

	t.Run("enabled", func(t *testing.T) {
		t.Parallel()
		sb, agent := create(t, c, named("switch", 512))
		spawn(t, agent, client.Command{Command: "sleep 1000", Name: "alive"})
		call{method: "PUT", url: api + "/switch", body: `{"spec":{"enabled":false}}`}.want(t, p, 200).into(t, &sb)
		if sb.Status != "DEACTIVATED" {
			t.Errorf("it is %s", sb.Status)
		}
		awaitTier(t, p, "switch", "disk")
		var said refusal
		a := call{url: sb.Metadata.URL + "/health"}.want(t, p, 404)
		if a.into(t, &said); said.Error.Code != "WORKLOAD_UNAVAILABLE" || !said.Error.Retryable {
			t.Error(a.body)
		}
		stays(t, p, "switch", "disk", 100*time.Millisecond)
		call{method: "PUT", url: api + "/switch", body: `{"spec":{"enabled":true}}`}.want(t, p, 200).into(t, &sb)
		if sb.Status != "DEPLOYED" {
			t.Errorf("it is %s", sb.Status)
		}
		if proc, err := agent.Process(t.Context(), "alive"); err != nil || proc.Status != "running" {
			t.Errorf("its process is %s, %v", proc.Status, err)
		}
	})

	t.Run("delete", func(t *testing.T) {
		t.Parallel()
		for _, tier := range []string{"running", "paused", "disk"} {
			sb, agent := create(t, c, named("end-"+tier, 256))
			awaitTier(t, p, sb.Metadata.Name, tier)
			uid, err := p.UID(sb.Metadata.Name)
			if err != nil {
				t.Fatal(err)
			}
			gone, err := c.Delete(t.Context(), sb.Metadata.Name)
			if err != nil || gone.Status != "DELETING" {
				t.Errorf("%s: %s, %v", tier, gone.Status, err)
			}
			// The name is free at once.
			sb, _ = create(t, c, named(sb.Metadata.Name, 256))
			if _, err := c.Delete(t.Context(), sb.Metadata.Name); err != nil {
				t.Error(err)
			}
			until(t, "nothing is left of "+tier, func() bool { return !strings.Contains(strings.Join(p.Leaks(), "\n"), uid) })
			if _, err := agent.Processes(t.Context()); kind(err) != doze.NotFound {
				t.Errorf("%s: a request after the end says %v", tier, err)
			}
		}
		a := call{url: api + "?showTerminated=true&status=TERMINATED,DELETING"}.want(t, p, 200)
		if !strings.Contains(a.body, `"end-disk"`) {
			t.Errorf("no record is kept: %s", a.body)
		}
	})

	t.Run("grace", func(t *testing.T) {
		t.Parallel()
		sb := named("grace", 256)
		sb.Spec.Runtime.Grace = 6 // a busy machine takes seconds to end a process
		_, agent := create(t, c, sb)
		// One that has left its session, and one that does not care.
		sh(t, agent, `setsid sh -c 'trap "touch /tmp/asked" TERM; echo; while :; do sleep 0.01; done' >/tmp/up & until [ -s /tmp/up ]; do sleep 0.01; done`)
		var said strings.Builder
		ended := make(chan client.Process, 1)
		go func() {
			defer close(ended)
			proc, err := agent.Run(t.Context(), client.Command{
				Name: "tidy", Command: `trap 'until [ -e /tmp/asked ]; do sleep 0.01; done; echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done`,
			}, func(_ client.Channel, data string) error {
				if said.WriteString(data); data == "ready\n" {
					_, err := c.Delete(t.Context(), "grace")
					return err
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			ended <- proc
		}()
		if proc := <-ended; proc.ExitCode != 7 || !strings.Contains(said.String(), "bye\n") {
			t.Errorf("it ended with %d and said %q", proc.ExitCode, said.String())
		}
		until(t, "it has ended", func() bool {
			sb, err := c.Sandbox(t.Context(), "grace")
			return err == nil && sb.Status == "TERMINATED"
		})
		sb, err := c.Sandbox(t.Context(), "grace")
		if err != nil {
			t.Fatal(err)
		}
		asked, over := sb.Events[len(sb.Events)-2], sb.Events[len(sb.Events)-1]
		if took := over.Time.Sub(asked.Time.Time); asked.Status != "DELETING" || took < 5900*time.Millisecond { // a test of package node knows when
			t.Errorf("from %s to %s in %v", asked.Status, over.Status, took)
		}
	})

	t.Run("expiry", func(t *testing.T) {
		t.Parallel()
		for name, spec := range map[string]string{
			"ttl":  `{"runtime":{"memory":256,"ttl":"2s"}}`,
			"date": `{"runtime":{"memory":256},"lifecycle":{"expirationPolicies":[{"action":"delete","type":"date","value":"SOON"}]}}`,
			"idle": `{"runtime":{"memory":256},"lifecycle":{"expirationPolicies":[{"action":"delete","type":"ttl-idle","value":"1s"}]}}`,
		} {
			spec = strings.Replace(spec, "SOON", time.Now().Add(3*time.Second).UTC().Format(time.RFC3339), 1)
			// A host that is busy may take longer than that to start it.
			a := call{method: "POST", url: api, body: `{"metadata":{"name":"until-` + name + `"},"spec":` + spec + `}`}.do(t, p)
			if a.status == 409 && strings.Contains(a.body, "deleted meanwhile") {
				continue
			}
			var sb doze.Sandbox
			a.into(t, &sb)
			if a.status != 200 || sb.ExpiresIn == nil || *sb.ExpiresIn > 3 {
				t.Errorf("%s: %d %s", name, a.status, a.body)
			}
		}
		for _, name := range []string{"ttl", "date", "idle"} {
			until(t, name+" has ended", func() bool {
				sb, err := c.Sandbox(t.Context(), "until-"+name)
				return err == nil && sb.Status == "TERMINATED"
			})
		}
		a := call{url: api + "?showTerminated=true&q=until-"}.want(t, p, 200)
		if strings.Count(a.body, `"name":"until-`) != 3 {
			t.Errorf("the records are %s", a.body)
		}
	})

	t.Run("crowd", func(t *testing.T) {
		t.Parallel()
		const callers = 10
		var made sync.Map
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				sb, err := c.Create(t.Context(), named("crowd", 256), true)
				if err != nil || sb.Status != "DEPLOYED" {
					t.Errorf("%s, %v", sb.Status, err)
				}
				made.Store(sb.Metadata.CreatedAt.String(), true)
			})
		}
		all.Wait()
		n := 0
		made.Range(func(any, any) bool { n++; return true })
		if n != 1 {
			t.Errorf("%d sandboxes were made", n)
		}
		// Without the flag, one wins.
		var won, lost atomic.Int32
		for range callers {
			all.Go(func() {
				switch _, err := c.Create(t.Context(), named("race", 256), false); {
				case err == nil:
					won.Add(1)
				case kind(err) == doze.Conflict:
					lost.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 || lost.Load() != callers-1 {
			t.Errorf("%d won, %d lost", won.Load(), lost.Load())
		}
	})

	t.Run("keys", func(t *testing.T) {
		t.Parallel()
		var key doze.APIKey
		call{method: "POST", url: p.Address + "/v0/api_keys", body: `{"name":"robot","expires_in":"1s"}`}.want(t, p, 200).into(t, &key)
		if key.Key == "" || key.Name != "robot" || key.ID == "" {
			t.Errorf("%+v", key)
		}
		a := call{url: p.Address + "/v0/api_keys"}.want(t, p, 200)
		if !strings.Contains(a.body, key.ID) || strings.Contains(a.body, key.Key) {
			t.Errorf("the list is %s", a.body)
		}
		until(t, "the key expired", func() bool { return call{url: api, key: key.Key}.do(t, p).status == 401 })
		// A key must not make a stronger one.
		var weak doze.APIKey
		call{method: "POST", url: p.Address + "/v0/api_keys", body: `{"name":"weak","scopes":["apiKey:write"]}`}.want(t, p, 200).into(t, &weak)
		call{method: "POST", url: p.Address + "/v0/api_keys", key: weak.Key, body: `{"name":"strong","scopes":["admin"]}`}.want(t, p, 403)
	})
}
