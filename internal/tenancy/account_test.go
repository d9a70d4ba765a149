package tenancy_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/plane/planetest"
)

type key struct {
	doze.APIKey
	Scopes []string
}

func TestAPIKeysLiveAndDie(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		k := planetest.Want[key](p, 200, "POST", "/api_keys", `{"name":"ci","expires_in":"1h","scopes":["sandboxes:list","apiKey:list"]}`)
		if k.Key == "" || k.Name != "ci" || k.ExpiresIn != "1h" || k.CreatedBy != "admin" {
			t.Errorf("%+v", k)
		}
		as := []string{"Authorization", "Bearer " + k.Key}
		planetest.Want[any](p, 200, "GET", "/sandboxes", "", as...)
		planetest.Want[any](p, 403, "POST", "/sandboxes", "{}", as...)

		p.Reopen() // the key is known after a restart, by its hash
		all := planetest.Want[[]key](p, 200, "GET", "/api_keys", "", as...)
		if len(all) != 2 || all[0].Key+all[1].Key != "" {
			t.Errorf("list: %+v", all)
		}
		for _, file := range []string{p.File, p.File + "-wal"} {
			if b, err := os.ReadFile(file); err == nil && strings.Contains(string(b), k.Key) {
				t.Errorf("the key is in %s", file)
			}
		}
		planetest.After(time.Hour)
		planetest.Want[any](p, 401, "GET", "/sandboxes", "", as...)

		k = planetest.Want[key](p, 200, "POST", "/api_keys", "")
		as = []string{"Authorization", "Bearer " + k.Key}
		planetest.Want[any](p, 200, "GET", "/sandboxes", "", as...)
		planetest.Want[any](p, 200, "DELETE", "/api_keys/"+k.ID, "")
		planetest.Want[any](p, 401, "GET", "/sandboxes", "", as...)
		planetest.Want[any](p, 404, "DELETE", "/api_keys/"+k.ID, "")
		p.Reopen()
		planetest.Want[any](p, 401, "GET", "/sandboxes", "", as...)
	})
}

func TestKeysGiveNoMoreThanTheirMakerHas(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	as := []string{"Authorization", "Bearer " + p.KeyFor("main", time.Time{}, "apiKey:write", "apiKey:list")}
	for body, status := range map[string]int{
		`{"scopes":["admin"]}`:                                400,
		`{"scopes":["sandboxes:get"]}`:                        403,
		`{"scopes":[]}`:                                       400,
		`{"scopes":"apiKey:list"}`:                            400,
		`{"expires_in":"0h"}`:                                 400,
		`{"expires_in":"20000w"}`:                             400,
		`{"name":"` + strings.Repeat("x", 64) + `"}`:          400,
		`{"scopes":["apiKey:list"],"whatever":{"is":"this"}}`: 400,
		`{"scopes":["apiKey:list"]}`:                          200,
	} {
		if body == `{"scopes":["admin"]}` {
			status = 403
		}
		planetest.Want[any](p, status, "POST", "/api_keys", body, as...)
	}
	if got := planetest.Want[key](p, 200, "POST", "/api_keys", "", as...); cmp.Diff([]string{"apiKey:write", "apiKey:list"}, got.Scopes) != "" {
		t.Errorf("inherited %v", got.Scopes)
	}
	whole := planetest.Want[key](p, 200, "POST", "/api_keys", "")
	part := []string{"Authorization", "Bearer " + planetest.Want[key](p, 200, "POST", "/api_keys", `{"scopes":["apiKey:write"]}`).Key}
	planetest.Want[any](p, 403, "DELETE", "/api_keys/"+whole.ID, "", part...)
}

func TestUseOfKeysIsRecorded(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		k := planetest.Want[key](p, 200, "POST", "/api_keys", "")
		planetest.After(2 * time.Second)
		planetest.Want[any](p, 200, "GET", "/sandboxes", "", "Authorization", "Bearer "+k.Key)
		used := time.Now().Truncate(time.Millisecond)
		shown := func(when string) {
			t.Helper()
			all := planetest.Want[[]key](p, 200, "GET", "/api_keys", "")
			if i := slices.IndexFunc(all, func(one key) bool { return one.ID == k.ID }); i < 0 || !all[i].LastUsedAt.Equal(used) {
				t.Errorf("%s: %+v, want %v", when, all, used)
			}
		}
		shown("at once")
		planetest.After(2 * time.Minute)
		p.Reopen()
		shown("after a restart")
		k = planetest.Want[key](p, 200, "POST", "/api_keys", "")
		used = time.Time{}
		shown("never used")
	})
}

func TestBootstrapHappensOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := planetest.Start(t, false)
		if _, created, err := p.Rooms.Tenancy.Bootstrap(t.Context(), "second", planetest.Discard); created || err != nil {
			t.Errorf("again: %v, %v", created, err)
		}
		if _, _, err := p.Rooms.Tenancy.Bootstrap(t.Context(), "No Name", planetest.Discard); err == nil {
			t.Error("a bad name is taken")
		}
		// Whoever deleted the last key gets in again after a restart.
		all := planetest.Want[[]key](p, 200, "GET", "/api_keys", "")
		planetest.Want[any](p, 200, "DELETE", "/api_keys/"+all[0].ID, "")
		secret, created, err := p.Rooms.Tenancy.Bootstrap(t.Context(), "second", planetest.Discard)
		if !created || err != nil {
			t.Fatalf("%v, %v", created, err)
		}
		p.Key = secret.Reveal()
		w := planetest.Want[[]doze.Workspace](p, 200, "GET", "/workspaces", "")
		if len(w) != 1 || w[0].Name != "main" || w[0].Status != "ready" {
			t.Errorf("%+v", w)
		}
		if got := planetest.Want[doze.Workspace](p, 200, "GET", "/workspaces/main?countResources=true", ""); got.ID != w[0].ID {
			t.Errorf("%+v", got)
		}
		p.Stop()
	})
}

func TestSecretsAreHidden(t *testing.T) {
	t.Parallel()
	if b, _ := json.Marshal(access.Secret{}); string(b) != `"[hidden]"` {
		t.Errorf("%s", b)
	}
}
