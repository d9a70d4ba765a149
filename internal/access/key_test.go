package access_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
)

// keys returns credentials with API keys of the user "s", an admin of "w".
func keys(tb testing.TB, all ...access.Key) *access.Credentials {
	tb.Helper()
	k, err := access.LoadKeys(tb.Context(), func(context.Context) ([]access.Key, error) { return all, nil })
	if err != nil {
		tb.Fatal(err)
	}
	c := access.NewCredentials(k, nil)
	c.Set(access.Principal{Sub: "s", Type: doze.SubUser, Roles: map[string]string{"w": doze.RoleAdmin}})
	return c
}

func authenticate(k *access.Credentials, token string) (access.Caller, error) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	return k.Authenticate(r)
}

func TestOnlyTheWholeKeyFits(t *testing.T) {
	t.Parallel()
	secret, id, hash := access.NewSecret()
	other, _, _ := access.NewSecret()
	k := keys(t, access.Key{ID: id, Hash: hash, Workspace: "w", Sub: "s", SubType: "user", Scopes: []string{"sandboxes:get"}})

	c, err := authenticate(k, secret.Reveal())
	if err != nil || c.Sub != "s" || c.Workspace != "w" || c.Key != id || !c.May("sandboxes:get") || c.May("sandboxes:list") {
		t.Fatalf("%+v, %v", c, err)
	}
	text := secret.Reveal()
	for name, wrong := range map[string]string{
		"another key":      other.Reveal(),
		"another's secret": text[:20] + other.Reveal()[20:],
		"shorter":          text[:len(text)-1],
		"longer":           text + "a",
		"upper case":       strings.ToUpper(text),
		"prefix only":      "dz_",
		"id only":          "dz_" + id + "_",
	} {
		if _, err := authenticate(k, wrong); doze.Public(err).Kind != doze.Unauthenticated {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := range text {
		b := []byte(text)
		b[i] ^= 1
		if _, err := authenticate(k, string(b)); err == nil {
			t.Errorf("a key with another byte %d fits", i)
		}
	}
	k.RemoveKey(id)
	if _, err := authenticate(k, text); doze.Public(err).Kind != doze.Unauthenticated {
		t.Errorf("removed: %v", err)
	}
	k.Keys.Add(access.Key{ID: id, Hash: hash, Sub: "s"})
	if _, err := authenticate(k, text); err != nil {
		t.Errorf("added: %v", err)
	}
}

func TestKeysExpireAndAreNoted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		secret, id, hash := access.NewSecret()
		k := keys(t, access.Key{ID: id, Hash: hash, Sub: "s", Expires: time.Now().Add(time.Hour)})
		time.Sleep(time.Hour - time.Nanosecond)
		if _, err := authenticate(k, secret.Reveal()); err != nil {
			t.Error(err)
		}
		if used := k.Keys.Used(time.Now().Add(-1)); !used[id].Equal(time.Now()) {
			t.Errorf("used %v", used)
		}
		if used := k.Keys.Used(time.Now()); len(used) != 0 {
			t.Errorf("used again %v", used)
		}
		time.Sleep(time.Nanosecond)
		if _, err := authenticate(k, secret.Reveal()); err == nil {
			t.Error("an expired key fits")
		}
	})
}

func TestSecretsDoNotPrint(t *testing.T) {
	t.Parallel()
	secret, _, _ := access.NewSecret()
	type inside struct{ s access.Secret }
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("made", "key", secret, "in", inside{secret})
	js, err := json.Marshal(map[string]any{"key": secret})
	if err != nil {
		t.Fatal(err)
	}
	all := log.String() + string(js)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%t"} {
		all += fmt.Sprintf(verb, secret) + fmt.Sprintf(verb, &secret) + fmt.Sprintf(verb, inside{secret}) + fmt.Sprintf(verb, []any{secret})
	}
	for _, part := range []string{secret.Reveal(), secret.Reveal()[20:40], fmt.Sprintf("%x", secret.Reveal()[20:40])} {
		if strings.Contains(all, part) {
			t.Errorf("the key got out: %s", all)
		}
	}
}

func TestLoadThatFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	_, err := access.LoadKeys(t.Context(), func(context.Context) ([]access.Key, error) { return nil, broken })
	if !errors.Is(err, broken) {
		t.Error(err)
	}
}

// FuzzToken sends credentials of any form: none but the right one gets in.
func FuzzToken(f *testing.F) {
	secret, id, hash := access.NewSecret()
	k := keys(f, access.Key{ID: id, Hash: hash, Workspace: "w", Sub: "s"})
	f.Add("", "", "")
	f.Add("Bearer dz_"+id+"_x", "", "w")
	f.Add("bearer  "+id, "Bearer", "other")
	f.Fuzz(func(t *testing.T, authorization, blaxel, workspace string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header["Authorization"] = []string{authorization}
		r.Header["X-Blaxel-Authorization"] = []string{blaxel}
		r.Header["X-Blaxel-Workspace"] = []string{workspace}
		token, err := access.Token(r)
		if (err == nil) == (token == "" || token != strings.TrimSpace(token)) {
			t.Errorf("token %q, %v", token, err)
		}
		c, err := k.Authenticate(r)
		if err == nil && token != secret.Reveal() {
			t.Errorf("%q is %+v", token, c)
		}
		if err != nil && doze.Public(err).Kind != doze.Unauthenticated && doze.Public(err).Kind != doze.Forbidden {
			t.Errorf("%v", err)
		}
	})
}
