package plane_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestMistakesAreReportedTogether: a caller reads all that is wrong with a
// request at once, under the names that its members have, and nothing is made.
func TestMistakesAreReportedTogether(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Node.Set("builders", doze.Errorf(doze.Unsupported, "there is no doze-builder"))
	p.Create(planetest.Named("a"))
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/snapshots", `{"name":"n"}`)
	planetest.Want[any](p, 200, "POST", "/volume_templates", planetest.Named("t"))
	planetest.Want[any](p, 200, "POST", "/volumes", `{"metadata":{"name":"v"},"spec":{"size":1024}}`)
	planetest.Want[any](p, 200, "POST", "/secrets", planetest.Named("s"))
	planetest.Want[any](p, 200, "POST", "/policies", `{"metadata":{"name":"p"},"spec":{"type":"flavor"}}`)
	planetest.Want[any](p, 200, "POST", "/customdomains", `{"metadata":{"name":"a.test"}}`)
	planetest.Want[any](p, 200, "POST", "/vpcs", planetest.Named("v"))
	planetest.Want[any](p, 200, "POST", "/vpcs/v/egressgateways", `{"metadata":{"name":"g"},"spec":{"region":"here-1"}}`)
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/previews", `{"metadata":{"name":"p"},"spec":{"port":3000}}`)
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/schedules", `{"id":"s","type":"cron","value":"0 0 1 1 *","input":{"command":"a"}}`)
	const unknown = `"envs":[{"name":"1","value":"x"},{"name":"S","valueFrom":{"secretKeyRef":{"name":"none","key":"k"}}}]`
	for at, tt := range map[string]struct {
		body string
		says []string
	}{
		"POST /sandboxes": {
			`{"metadata":{"name":"A"},"spec":{"region":"mars","volumes":[{"name":"none","mountPath":"/x"},{"name":"other","mountPath":"/y"}],
				"runtime":{"image":"nonsense","extraArgs":{"nfs":"enabled"},` + unknown + `}}}`,
			[]string{"INVALID_IMAGE", "metadata.name must", "spec.region is", `spec.volumes[0].name is \"none\"`, `spec.volumes[1].name is \"other\"`, `spec.runtime.envs has the name \"1\"`, `the secret \"none\"`, "extraArgs.nfs is", "spec.runtime.image: "},
		},
		"POST /sandboxes?": {
			`{"metadata":{"displayName":7},"spec":{"vpc":"mine","runtime":{"envs":[{"name":"M","valueFrom":{"resourceFieldRef":{"resource":"limits.disk","divisor":"7x"}}}],"extraArgs":{"nfs":"enabled"}}}}`,
			[]string{`"unsupported"`, "metadata.displayName must", "limits.disk", `divisor \"7x\"`, "extraArgs.nfs is"},
		},
		"POST /sandboxes?createIfNotExist=yes":         {`{"metadata":{"name":"a"},"spec":{"runtime":{"memory":1}}}`, []string{"createIfNotExist is", "spec.runtime.memory is"}},
		"POST /sandboxes/a/previews?force=1":           {`{"metadata":{"name":"A"},"spec":{"port":0}}`, []string{"force is", "metadata.name", "spec.port"}},
		"PUT /sandboxes/a/previews/p?force=1":          {`{"metadata":{"name":"A"},"spec":{"port":0}}`, []string{"force is", "metadata.name", "spec.port"}},
		"POST /workspaces/availability?withReason=1":   {`{"name":"A"}`, []string{"withReason is", "name must"}},
		"POST /volume_templates?upload=yes&version=._": {`{"metadata":{"name":"A"}}`, []string{"upload is", "version is", "metadata.name"}},
		"PUT /volume_templates/t?upload=yes":           {`{"spec":{"defaultSize":1}}`, []string{"upload is", "spec.defaultSize"}},
		"POST /sandboxes?the=NUL":                      {`{"metadata":{"name":"A","displayName":"a\u0000b","labels":{"a\u0000":"b"}}}`, []string{"metadata.name must", "metadata.displayName must not have a NUL", "metadata.labels must not have a NUL"}},
		"PUT /secrets/s?force=yes":                     {`{}`, []string{"force is"}},
		"DELETE /secrets/s?force=yes":                  {``, []string{"force is"}},
		"POST /sandboxes?upload=true":                  {`{"metadata":{"name":"A"},"spec":{"region":"mars"}}`, []string{"metadata.name", "spec.region", "builds no images"}},
		"PUT /sandboxes/a?upload=true":                 {`{"metadata":{"labels":7}}`, []string{"metadata.labels", "builds no images"}},
		"POST /images?upload=true":                     {`{"name":"A","resourceType":"agent"}`, []string{"name must", "builds no images", "sandboxes only"}},
		"POST /snapshots/n/fork?":                      {`{"targetName":"A","targetType":"application","port":80}`, []string{"targetName must", "no applications"}},
		"POST /sandboxes?the=network": {
			`{"metadata":{"name":"b"},"spec":{"vpc":"none","network":{"subnet":"A b","firewall":{"rulesets":["nope"]},"egress":{"gateway":"none"},
				"allowedDomain":["a.test"],"proxy":{"bypass":["1.2.3.4:80"],"routing":[{"destinations":["[METHOD:GET]a.test/b"],"headers":{"A":"{{SECRET:k}}"}}]}}}}`,
			[]string{"spec.vpc is", "spec.network.subnet", `has \"nope\"`, "egress.gateway is", "spec.network.allowedDomain is not known", `bypass has \"1.2.3.4:80\"`, `destinations has \"[METHOD:GET]a.test/b\"`, "routing[0].headers refers to the secret"},
		},
		"PUT /sandboxes/a": {
			`{"metadata":{"displayName":7},"spec":{"runtime":{"image":"nonsense",` + unknown + `}}}`,
			[]string{"INVALID_IMAGE", "metadata.displayName", `the name \"1\"`, `the secret \"none\"`, "spec.runtime.image: "},
		},
		"POST /sandboxes/a/fork": {
			`{"targetName":"A","targetType":"sandbox","memory":7,"port":7,` + unknown + `}`,
			[]string{"targetName must", "memory is 7", "port is", `envs has the name \"1\"`, `envs S refers to the key \"k\" of the secret \"none\"`},
		},
		"POST /snapshots/n/fork": {
			`{"targetName":7,"targetType":"vm","snapshotId":"other",` + unknown + `}`,
			[]string{"targetName must be a string", "targetType is", "snapshotId is", `envs has the name \"1\"`, `the secret \"none\"`},
		},
		"POST /sandboxes/a/fork?": {
			`{"targetName":"A","targetType":"vm","snapshotId":"none","traffic":5,` + unknown + `}`,
			[]string{"targetName must", "targetType is", "traffic is", `envs has the name \"1\"`, `the secret \"none\"`, "snapshotId: there is no snapshot"},
		},
		"PUT /sandboxes/a?the=ends":                    {`{"spec":{"runtime":{"expires":"2020-01-01"},"lifecycle":{"expirationPolicies":[{"action":"delete","type":"date","value":"2020-01-02"}]}}}`, []string{"it expired at 2020-01-01, and its date 2020-01-02 has come"}},
		"GET /schedule-executions?sort=size&since=x":   {``, []string{"sort must", "is not a time"}},
		"GET /pending-image-shares?direction=sideways": {``, []string{"direction must be incoming or outgoing"}},
		"GET /snapshots?anchor=x&sort=y":               {``, []string{"anchor must", "sort must"}},
		"POST /snapshots":                              {`{"name":"N","source":{"kind":"vm"}}`, []string{"name must", "source.name is", "source.kind is"}},
		"POST /sandboxes/a/snapshots":                  {`{"name":"N","source":7}`, []string{"name must", "source must be an object"}},
		"POST /sandboxes/a/previews": {
			`{"metadata":{"name":"A"},"spec":{"port":80,"prefixUrl":"A","ttl":"soon","expires":"then","customDomain":"none.test"}}`,
			[]string{"metadata.name", "spec.port", "spec.prefixUrl", "spec.ttl", "spec.expires", "spec.customDomain"},
		},
		"PUT /sandboxes/a/previews/p":         {`{"metadata":{"name":"q"},"spec":{"port":80}}`, []string{"metadata.name", "spec.port"}},
		"POST /sandboxes/a/previews/p/tokens": {`{"metadata":{"name":"A"},"spec":{"expiresAt":"2001-01-01"}}`, []string{"metadata.name", "spec.expiresAt"}},
		"POST /sandboxes/a/schedules": {
			`{"id":"A","type":"at","value":"2001-01-01T00:00:00Z","maxExecutions":-1,"input":{"timeout":-1}}`,
			[]string{"id must", "value is in the past", "maxExecutions", "input.command", "input.timeout"},
		},
		"PUT /sandboxes/a/schedules/s": {
			`{"id":"q","type":"cron","value":"0 0 31 2 *","input":{"command":"","env":{"S":"********"}}}`,
			[]string{"id cannot", "a day that never comes", "input.command", "input.env"},
		},
		"POST /volumes":                     {`{"metadata":{"name":"A"},"spec":{"size":1,"region":"mars","template":"none"}}`, []string{"metadata.name", "spec.size", "spec.region", "spec.template"}},
		"PUT /volumes/v":                    {`{"metadata":{"name":"q"},"spec":{"size":1,"region":"mars","template":"none"}}`, []string{"metadata.name", "spec.size", "spec.region", "spec.template"}},
		"POST /drives":                      {`{"metadata":{"name":"A"},"spec":{"region":"mars","permissions":7}}`, []string{"metadata.name", "spec.region", "spec.permissions"}},
		"POST /volume_templates?version=._": {`{"metadata":{"name":"A","labels":7},"spec":{"defaultSize":1}}`, []string{"version is", "metadata.name", "metadata.labels", "spec.defaultSize"}},
		"PUT /volume_templates/t?version=._": {
			`{"metadata":{"name":"q","labels":7},"spec":{"defaultSize":1}}`,
			[]string{"version is", "metadata.name", "metadata.labels", "spec.defaultSize"},
		},
		"POST /customdomains": {
			`{"metadata":{"name":"x","labels":7},"spec":{"domainType":"x","region":"mars","fallbackPreviewId":"A"}}`,
			[]string{"metadata.name", "metadata.labels", "spec.domainType", "spec.region", "spec.fallbackPreviewId"},
		},
		"PUT /customdomains/a.test":                       {`{"metadata":{"name":"b.test"},"spec":{"region":"mars"}}`, []string{"metadata.name", "spec.region"}},
		"POST /images":                                    {`{"name":"A","resourceType":"vm","image":"nonsense"}`, []string{"INVALID_IMAGE", "name must", "resourceType must", "image: "}},
		"POST /policies":                                  {`{"metadata":{"name":"A"},"spec":{"type":"x","resourceTypes":["x"]}}`, []string{"metadata.name", "spec.type", "spec.resourceTypes[0]"}},
		"PUT /policies/p":                                 {`{"metadata":{"name":"q"},"spec":{"type":"x"}}`, []string{"metadata.name", "spec.type"}},
		"POST /vpcs":                                      {`{"metadata":{"name":"A","displayName":7}}`, []string{"metadata.name", "metadata.displayName"}},
		"POST /vpcs/v/egressgateways":                     {`{"metadata":{"name":"A"},"spec":{"region":"mars"}}`, []string{"metadata.name", "spec.region"}},
		"POST /vpcs/v/egressgateways/g/ips":               {`{"metadata":{"name":"A"},"spec":{"ipFamily":"IPv5"}}`, []string{"metadata.name", "spec.ipFamily"}},
		"POST /secrets":                                   {`{"metadata":{"name":"A"},"data":{"a b":"x"}}`, []string{"metadata.name", "data has"}},
		"PUT /secrets/s":                                  {`{"metadata":{"name":"q"},"data":{"a b":"x","n":"********"}}`, []string{"metadata.name", "data has the key", "masked value"}},
		"POST /api_keys":                                  {`{"name":7,"expires_in":"soon","scopes":["x:y"]}`, []string{"name must", "expires_in", "scopes"}},
		"POST /service_accounts":                          {`{"description":7,"scopes":["x:y"]}`, []string{"name must", "description must", "scopes"}},
		"POST /oauth/clients":                             {`{"redirect_uris":["ftp://x"]}`, []string{"client_name", "redirect_uris"}},
		"POST /workspaces":                                {`{"name":"A","displayName":7,"labels":7,"region":"mars"}`, []string{"; name must", `"displayName must`, "; labels must", "region is"}},
		"POST /workspaces?":                               {`{"name":"-","displayName":"` + strings.Repeat("x", 64) + `"}`, []string{`"name must`, "; displayName is 64"}},
		"PUT /workspaces/main":                            {`{"name":"q","region":"mars"}`, []string{`"name cannot`, "region cannot"}},
		"POST /users":                                     {`{"email":"x","role":"x"}`, []string{"email must", "role must"}},
		"POST /invitations/accept":                        {`{"password":"x","given_name":7}`, []string{"token is required", "password must", "given_name must"}},
		"POST /invitations/decline":                       {`{}`, []string{"token is required"}},
		"PUT /sandboxes/a?the=volumes":                    {`{"spec":{"volumes":[{"name":"v","mountPath":"/v"}]}}`, []string{"spec.volumes cannot"}},
		"GET /schedules/metrics?until=x&since=2001-01-01": {``, []string{"until", "since is"}},
		"GET /sandboxes?cursor=x&limit=0&sort=size&anchor=middle&status=asleep&externalId=%20&q=" + strings.Repeat("x", 201): {
			``, []string{"cursor is", "limit must", "sort must", "anchor must", "status has", "externalId must", "q is"},
		},
	} {
		t.Run(at, func(t *testing.T) {
			method, path, _ := strings.Cut(at, " ")
			w := p.Do(method, path, tt.body)
			if w.Code != 400 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			planetest.CheckError(t, w)
			for _, s := range tt.says {
				if !strings.Contains(w.Body.String(), s) {
					t.Errorf("%s does not say %q", w.Body, s)
				}
			}
		})
	}
	// A snapshot that is missing is the only mistake; and what is unreadable is one.
	planetest.Want[any](p, 404, "POST", "/sandboxes/a/fork", `{"targetName":"b","targetType":"sandbox","snapshotId":"none","memory":8192}`)
	const (
		unreadable = `{"spec":{"runtime":{"envs":[{"name":"D","value":"x"},7,{"name":5}],"ports":["x"]},"lifecycle":{"expirationPolicies":[[]]}}}`
		those      = "spec.runtime.envs[1] must be an object; spec.runtime.envs[2].name must be a string; spec.runtime.ports[0] must be an object; spec.lifecycle.expirationPolicies[0] must be an object"
		nameless   = `{"metadata":{"name":5}}`
		name       = "metadata.name must be a string"
	)
	for at, tt := range map[string]struct{ body, says string }{
		"PUT /sandboxes/a":            {unreadable, those},
		"POST /sandboxes":             {unreadable, those},
		"POST /drives":                {nameless, name},
		"POST /secrets":               {nameless, name},
		"POST /policies":              {`{"metadata":{"name":5},"spec":{"type":5}}`, name + "; spec.type must be a string"},
		"POST /volumes":               {`{"metadata":{"name":5},"spec":{"size":"x"}}`, name + "; spec.size must be a whole number"},
		"POST /volume_templates":      {`{"metadata":{"name":5},"spec":{"defaultSize":"x"}}`, name + "; spec.defaultSize must be a whole number"},
		"POST /sandboxes/a/previews":  {`{"metadata":{"name":5},"spec":{"port":"x"}}`, name + "; spec.port must be a whole number"},
		"POST /vpcs":                  {nameless, name},
		"POST /customdomains":         {nameless, name},
		"POST /vpcs/v/egressgateways": {`{"metadata":{"name":5},"spec":{"region":"auto"}}`, name},
	} {
		method, path, _ := strings.Cut(at, " ")
		got, _ := planetest.Want[map[string]any](p, 400, method, path, tt.body)["message"].(string)
		mistakes, expected := strings.Split(got, "; "), strings.Split(tt.says, "; ")
		slices.Sort(mistakes)
		slices.Sort(expected)
		if !slices.Equal(mistakes, expected) {
			t.Errorf("%s: %s", at, got)
		}
	}
	for path, n := range map[string]int{
		"/sandboxes?showTerminated=true": 1, "/snapshots": 1, "/volumes": 1, "/volume_templates": 1, "/secrets": 1, "/policies": 1, "/customdomains": 1,
		"/vpcs": 2, "/egressgateways": 1, "/egressips": 0, "/images": 0, "/workspaces": 1, "/service_accounts": 0, "/oauth/clients": 0, "/api_keys": 1,
		"/sandboxes/a/previews": 1, "/sandboxes/a/previews/p/tokens": 0, "/sandboxes/a/schedules": 1, "/invitations": 0,
	} {
		if all := planetest.Want[[]any](p, 200, "GET", path, ""); len(all) != n {
			t.Errorf("%s has %d, not %d", path, len(all), n)
		}
	}
}

// TestNoNameHidesAnother is made from the route table: where a row has a name of
// ours in the place of a resource's name, no resource can have that.
func TestNoNameHidesAnother(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(planetest.Named("a"))
	makers := map[string]string{ // a request, with NAME in its body
		"/sandboxes/{}":  `POST /sandboxes {"metadata":{"name":"NAME"}}`,
		"/volumes/{}":    `POST /volumes {"metadata":{"name":"NAME"}}`,
		"/drives/{}":     `POST /drives {"metadata":{"name":"NAME"}}`,
		"/workspaces/{}": `POST /workspaces {"name":"NAME"}`,
	}
	joined := []string{"/platform/nodes/tokens", "/platform/nodes/settle"} // of nodes, which nobody makes: see roster.TestRoster
	values := map[string]bool{}                                            // paths that end in a value
	for _, rt := range plane.Describe().Routes() {
		path := ""
		for segment := range strings.SplitSeq(rt.Pattern[1:], "/") {
			if strings.HasPrefix(segment, "{") {
				segment = "{}"
			}
			path += "/" + segment
			values[path] = segment == "{}"
		}
	}
	found := 0
	for path, isValue := range values {
		at, name := path[:strings.LastIndex(path, "/")+1]+"{}", path[strings.LastIndex(path, "/")+1:]
		if isValue || !values[at] || slices.Contains(joined, path) {
			continue
		}
		found++
		method, rest, _ := strings.Cut(makers[at], " ")
		to, body, ok := strings.Cut(rest, " ")
		if !ok {
			t.Errorf("%s hides a resource of that name: refuse it with api.Siblings, and add a request to this test", path)
			continue
		}
		w := p.Do(method, to, strings.ReplaceAll(body, "NAME", name))
		if w.Code != 400 || !strings.Contains(w.Body.String(), "name") || !strings.Contains(w.Body.String(), name) {
			t.Errorf("%s %s as %s: %d %s", method, to, name, w.Code, w.Body)
		}
	}
	if found < 3 {
		t.Errorf("only %d names are found in the table", found)
	}
	if w := p.Do("POST", "/sandboxes/a/fork", `{"targetName":"by-external-id","targetType":"sandbox"}`); w.Code != 400 || !strings.Contains(w.Body.String(), "targetName is") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	free := planetest.Want[map[string]any](p, 200, "POST", "/workspaces/availability?withReason=true", `{"name":"availability"}`)
	if free["reason"] != "forbidden_reserved" {
		t.Errorf("%v", free)
	}
	if names := planetest.Want[[]planetest.Sandbox](p, 200, "GET", "/sandboxes?showTerminated=true", ""); slices.ContainsFunc(names, func(sb planetest.Sandbox) bool { return sb.Metadata.Name != "a" }) {
		t.Errorf("%+v", names)
	}
}
