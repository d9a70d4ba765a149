package plane_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestNothingIsIgnored: a member that a body does not have is a mistake, under
// its path, and nothing is made or changed.
func TestNothingIsIgnored(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(planetest.Named("a"))
	before := planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/a", "")
	planetest.Want[any](p, 200, "POST", "/volumes", planetest.Named("v"))
	account := planetest.Want[doze.ServiceAccount](p, 200, "POST", "/service_accounts", `{"name":"a"}`)
	for at, body := range map[string][2]string{
		"PUT /workspaces/main":                  {`{"displayName":"x","quotas":{"sandboxes":5}}`, "quotas is not known here"},
		"PUT /workspaces/main?status":           {`{"id":"other"}`, "id cannot be set"},
		"PUT /workspaces/main?at":               {`{"createdAt":"2001-01-01T00:00:00Z"}`, "createdAt cannot be set"},
		"PUT /workspaces/main?null":             {`{"id":null}`, "id cannot be set"},
		"POST /workspaces":                      {`{"name":"w","id":"x"}`, "id is not known here, only displayName, labels, name, region"},
		"POST /api_keys":                        {`{"name":"k","expiresIn":"1h"}`, "expiresIn is not known here, only expires_in, name, scopes"},
		"POST /service_accounts":                {`{"name":"s","scope":["admin"]}`, "scope is not known here"},
		"PUT /service_accounts/{id}":            {`{"client_id":"x"}`, "client_id cannot be set"},
		"PUT /service_accounts/{id}?x":          {`{"role":"x"}`, "role is not known here"},
		"POST /users":                           {`{"email":"a@b.test","roles":["admin"]}`, "roles is not known here"},
		"PUT /workspaces/main/quotas":           {`{"quota":{"sandboxes":5}}`, "quota is not known here, only quotas"},
		"POST /sandboxes":                       {`{"metadata":{"name":"b"},"spec":{"runtime":{"memroy":512}}}`, "spec.runtime.memroy is not known here, only envs,"},
		"POST /sandboxes?case":                  {`{"Metadata":{"name":"b"}}`, "Metadata is not known here"},
		"POST /sandboxes?top":                   {`{"metadata":{"name":"b"},"region":"here-1"}`, "region is not known here"},
		"POST /sandboxes?deep":                  {`{"metadata":{"name":"b"},"spec":{"runtime":{"envs":[{"name":"A","vaule":"1"}]}}}`, "spec.runtime.envs[0].vaule is not known here"},
		"POST /sandboxes?createIfNotExist=true": {`{"metadata":{"name":"b"},"spec":{"runtime":{"memroy":512}}}`, "memroy is not known here"},
		"PUT /sandboxes/a":                      {`{"metadata":{"labels":{"a":"b"}},"spec":{"ttl":"1h"}}`, "spec.ttl is not known here"},
		"POST /volumes":                         {`{"metadata":{"name":"b"},"spec":{"sizeMb":512}}`, "spec.sizeMb is not known here"},
		"PUT /volumes/v":                        {`{"size":2048}`, "size is not known here"},
		"POST /sandboxes/a/previews":            {`{"metadata":{"name":"b"},"spec":{"port":3000,"publik":true}}`, "spec.publik is not known here"},
		"POST /sandboxes/a/snapshots":           {`{"metadata":{"name":"b"}}`, "metadata is not known here, only name, source"},
		"POST /secrets":                         {`{"metadata":{"name":"b"},"values":{}}`, "values is not known here"},
		"POST /sandboxes?long":                  {`{"` + strings.Repeat("x", 500) + `":1}`, "…"},
	} {
		method, path, _ := strings.Cut(at, " ")
		if !strings.Contains(path, "createIfNotExist") {
			path, _, _ = strings.Cut(path, "?")
		}
		w := p.Do(method, strings.ReplaceAll(path, "{id}", account.ClientID), body[0])
		if w.Code != 400 || !strings.Contains(w.Body.String(), body[1]) {
			t.Errorf("%s with %s: %d %s", at, body[0], w.Code, w.Body)
		}
		planetest.CheckError(t, w)
	}
	after := planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/a", "")
	if !after.Metadata.UpdatedAt.Equal(before.Metadata.UpdatedAt.Time) {
		t.Error("a refused update changed the sandbox")
	}
	planetest.Want[any](p, 404, "GET", "/sandboxes/b", "")
	planetest.Want[any](p, 404, "GET", "/volumes/b", "")
}

// TestClientsSendBackWhatTheyGot: every update takes the whole of what GET
// answers, with the members that only we set, and what clients add to it.
func TestClientsSendBackWhatTheyGot(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, true)
	p.Create(`{"metadata":{"name":"a","labels":{"x":"y"}},"spec":{"runtime":{"ttl":"24h","generation":"mk3","snapshotEnabled":true}},"skipBuild":true,"dockerConfig":{}}`)
	planetest.Want[any](p, 200, "POST", "/volumes", planetest.Named("v"))
	planetest.Want[any](p, 200, "POST", "/drives", planetest.Named("d"))
	planetest.Want[any](p, 200, "POST", "/secrets", `{"metadata":{"name":"s"},"data":{"k":"v"}}`)
	planetest.Want[any](p, 200, "POST", "/policies", `{"metadata":{"name":"p"},"spec":{"type":"flavor"}}`)
	planetest.Want[any](p, 200, "POST", "/customdomains", `{"metadata":{"name":"a.test"}}`)
	planetest.Want[any](p, 200, "POST", "/volume_templates", planetest.Named("t"))
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/previews", `{"metadata":{"name":"p"},"spec":{"port":3000}}`)
	planetest.Want[any](p, 200, "POST", "/sandboxes/a/schedules", `{"id":"s","type":"cron","value":"0 0 1 1 *","input":{"command":"a"}}`)
	account := planetest.Want[doze.ServiceAccount](p, 200, "POST", "/service_accounts", `{"name":"a"}`)
	for _, path := range []string{
		"/sandboxes/a", "/volumes/v", "/drives/d", "/secrets/s", "/policies/p", "/customdomains/a.test", "/volume_templates/t",
		"/sandboxes/a/previews/p", "/sandboxes/a/schedules/s", "/workspaces/main", "/workspaces/main?countResources=true",
	} {
		got := planetest.Want[json.RawMessage](p, 200, "GET", path, "")
		path, _, _ = strings.Cut(path, "?")
		planetest.Want[any](p, 200, "PUT", path, string(got))
	}
	all := planetest.Want[[]json.RawMessage](p, 200, "GET", "/service_accounts", "")
	planetest.Want[any](p, 200, "PUT", "/service_accounts/"+account.ClientID, string(all[0]))

	members := planetest.Want[[]json.RawMessage](p, 200, "GET", "/users", "")
	planetest.Want[any](p, 200, "PUT", "/users/admin", string(members[0]))

	// As updateMetadata and others of the clients do it.
	whole := planetest.Want[map[string]any](p, 200, "GET", "/sandboxes/a", "")
	spec, _ := whole["spec"].(map[string]any)
	maps.Copy(whole, spec)
	raw, err := json.Marshal(whole)
	if err != nil || !slices.Contains(slices.Collect(maps.Keys(whole)), "runtime") {
		t.Fatal(err, whole)
	}
	planetest.Want[any](p, 200, "PUT", "/sandboxes/a", string(raw))
}
