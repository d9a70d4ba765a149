package access_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
)

// TestReplica: a replica that hears every change decides as the original does, at
// once after each.
func TestReplica(t *testing.T) {
	t.Parallel()
	tk := tokens(t, issuer)
	original, replica := credentialsFor(t, tk), access.NewReplica()
	less := 0
	replica.OnLess(func() { less++ })
	apply := func(fn func(string, json.RawMessage) error) func(string, any) {
		return func(key string, value any) {
			var raw json.RawMessage
			if value != nil {
				var err error
				if raw, err = json.Marshal(value); err != nil {
					t.Error(err)
				}
			}
			if err := fn(key, raw); err != nil {
				t.Error(err)
			}
		}
	}
	early, earlyID, hash := access.NewSecret()
	original.Keys.Add(access.Key{ID: earlyID, Workspace: "a", Sub: "u", SubType: doze.SubUser, Scopes: []string{access.Admin}, Hash: hash})
	original.Revoke("old", time.Now())
	original.Tell(access.Told{
		Principals: apply(replica.ApplyPrincipal), Keys: apply(replica.ApplyKey),
		Revoked: apply(replica.ApplyRevoked), Verifier: apply(replica.ApplyVerifier),
	})
	late, lateID, hash := access.NewSecret()
	original.Keys.Add(access.Key{ID: lateID, Workspace: "b", Sub: "u", SubType: doze.SubUser, Scopes: []string{"sandboxes:get"}, Hash: hash, Expires: time.Now().Add(time.Hour)})
	old := claims
	old.Grant = "old"
	credentials := map[string]string{
		"an early key": early.Reveal(), "a late key": late.Reveal(), "a token": sign(t, tk, claims), "a revoked token": sign(t, tk, old),
		"nonsense": "x", "a token of another issuer": sign(t, tokens(t, "https://other.test"), claims),
	}
	same := func(after string) {
		t.Helper()
		for name, text := range credentials {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Authorization", "Bearer "+text)
			want, wantErr := original.Authenticate(r)
			got, err := replica.Authenticate(r)
			if (err == nil) != (wantErr == nil) || got.Sub != want.Sub || got.Workspace != want.Workspace || got.May("sandboxes:control") != want.May("sandboxes:control") || got.Founder != want.Founder {
				t.Errorf("after %s, %s is %+v, %v; the original says %+v, %v", after, name, got, err, want, wantErr)
			}
		}
	}
	same("nothing")
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"a role", func() { original.Join("u", "c", doze.RoleMember) }},
		{"a right", func() { original.Entitle("u", true) }},
		{"fewer scopes", func() { original.Limit("u", []string{"sandboxes:get"}) }},
		{"all scopes", func() { original.Limit("u", nil) }},
		{"a closed workspace", func() { original.Close("b") }},
		{"a removed key", func() { original.RemoveKey(earlyID) }},
		{"a revoked grant", func() { original.Revoke("g", time.Now()) }},
		{"that being long ago", func() { original.Revoke("h", time.Now().Add(2*access.TokenLife)) }},
		{"a new epoch", func() { original.Renew("u", 4) }},
		{"the end", func() { original.Forget("u") }},
	} {
		before := less
		step.do()
		same(step.name)
		if less == before {
			t.Errorf("after %s, nobody was told that somebody may do less", step.name)
		}
	}
	replica.Keys.Touch(lateID, time.Now())
	if len(replica.Keys.Used(time.Time{})) == 0 {
		t.Error("the use of a key is not known")
	}
	private, err := json.Marshal(map[string]any{"keys": []map[string]string{{"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := replica.ApplyVerifier(issuer, private); err == nil {
		t.Error("a private key came over the feed, and nobody minds")
	}
}
