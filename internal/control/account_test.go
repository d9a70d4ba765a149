package control_test

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
	"github.com/dozehq/doze/internal/control"
)

type key struct {
	doze.APIKey
	Scopes []string
}

func TestAPIKeysLiveAndDie(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		k := want[key](p, 200, "POST", "/api_keys", `{"name":"ci","expires_in":"1h","scopes":["sandboxes:list","apiKey:list"]}`)
		if k.Key == "" || k.Name != "ci" || k.ExpiresIn != "1h" || k.CreatedBy != "admin" {
			t.Errorf("%+v", k)
		}
		as := []string{"Authorization", "Bearer " + k.Key}
		want[any](p, 200, "GET", "/sandboxes", "", as...)
		want[any](p, 403, "POST", "/sandboxes", "{}", as...)

		p.reopen() // the key is known after a restart, by its hash
		all := want[[]key](p, 200, "GET", "/api_keys", "", as...)
		if len(all) != 2 || all[0].Key+all[1].Key != "" {
			t.Errorf("list: %+v", all)
		}
		for _, file := range []string{p.file, p.file + "-wal"} {
			if b, err := os.ReadFile(file); err == nil && strings.Contains(string(b), k.Key) {
				t.Errorf("the key is in %s", file)
			}
		}
		after(time.Hour)
		want[any](p, 401, "GET", "/sandboxes", "", as...)

		k = want[key](p, 200, "POST", "/api_keys", "")
		as = []string{"Authorization", "Bearer " + k.Key}
		want[any](p, 200, "GET", "/sandboxes", "", as...)
		want[any](p, 200, "DELETE", "/api_keys/"+k.ID, "")
		want[any](p, 401, "GET", "/sandboxes", "", as...)
		want[any](p, 404, "DELETE", "/api_keys/"+k.ID, "")
		p.reopen()
		want[any](p, 401, "GET", "/sandboxes", "", as...)
	})
}

func TestKeysGiveNoMoreThanTheirMakerHas(t *testing.T) {
	t.Parallel()
	p := start(t, false)
	as := []string{"Authorization", "Bearer " + p.keyFor("main", time.Time{}, "apiKey:write", "apiKey:list")}
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
		want[any](p, status, "POST", "/api_keys", body, as...)
	}
	if got := want[key](p, 200, "POST", "/api_keys", "", as...); cmp.Diff([]string{"apiKey:write", "apiKey:list"}, got.Scopes) != "" {
		t.Errorf("inherited %v", got.Scopes)
	}
	whole := want[key](p, 200, "POST", "/api_keys", "")
	part := []string{"Authorization", "Bearer " + want[key](p, 200, "POST", "/api_keys", `{"scopes":["apiKey:write"]}`).Key}
	want[any](p, 403, "DELETE", "/api_keys/"+whole.ID, "", part...)
}

func TestUseOfKeysIsRecorded(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		k := want[key](p, 200, "POST", "/api_keys", "")
		after(2 * time.Second)
		want[any](p, 200, "GET", "/sandboxes", "", "Authorization", "Bearer "+k.Key)
		used := time.Now().Truncate(time.Millisecond)
		shown := func(when string) {
			t.Helper()
			all := want[[]key](p, 200, "GET", "/api_keys", "")
			if i := slices.IndexFunc(all, func(one key) bool { return one.ID == k.ID }); i < 0 || !all[i].LastUsedAt.Equal(used) {
				t.Errorf("%s: %+v, want %v", when, all, used)
			}
		}
		shown("at once")
		after(2 * time.Minute)
		p.reopen()
		shown("after a restart")
		k = want[key](p, 200, "POST", "/api_keys", "")
		used = time.Time{}
		shown("never used")
	})
}

func TestBootstrapHappensOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := start(t, false)
		if _, created, err := p.rooms.Tenancy.Bootstrap(t.Context(), "second", kept); created || err != nil {
			t.Errorf("again: %v, %v", created, err)
		}
		if _, _, err := p.rooms.Tenancy.Bootstrap(t.Context(), "No Name", kept); err == nil {
			t.Error("a bad name is taken")
		}
		// Whoever deleted the last key gets in again after a restart.
		all := want[[]key](p, 200, "GET", "/api_keys", "")
		want[any](p, 200, "DELETE", "/api_keys/"+all[0].ID, "")
		secret, created, err := p.rooms.Tenancy.Bootstrap(t.Context(), "second", kept)
		if !created || err != nil {
			t.Fatalf("%v, %v", created, err)
		}
		p.key = secret.Reveal()
		w := want[[]doze.Workspace](p, 200, "GET", "/workspaces", "")
		if len(w) != 1 || w[0].Name != "main" || w[0].Status != "ready" {
			t.Errorf("%+v", w)
		}
		if got := want[doze.Workspace](p, 200, "GET", "/workspaces/main?countResources=true", ""); got.ID != w[0].ID {
			t.Errorf("%+v", got)
		}
		p.stop()
	})
}

func TestHub(t *testing.T) {
	t.Parallel()
	p := start(t, false)
	hub := want[[]control.HubImage](p, 200, "GET", "/sandbox/hub", "")
	if len(hub) != 1 || hub[0].Image != doze.ImageDefault {
		t.Errorf("%+v", hub)
	}
	if b, _ := json.Marshal(access.Secret{}); string(b) != `"[hidden]"` {
		t.Errorf("%s", b)
	}
}
