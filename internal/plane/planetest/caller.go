package planetest

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/seal"
)

func opener(file string) (*seal.Opener, error) {
	key, err := seal.Key(file)
	if err != nil {
		return nil, err
	}
	return seal.NewOpener(key)
}

// KeyFor lets a key with scopes in, past the API.
func (p *Platform) KeyFor(workspace string, expires time.Time, scopes ...string) string {
	secret, id, hash := access.NewSecret()
	sub := "test-" + workspace
	p.Creds.Set(access.Principal{Sub: sub, Type: doze.SubUser, Roles: map[string]string{workspace: doze.RoleAdmin}})
	p.Creds.Keys.Add(access.Key{ID: id, Hash: hash, Workspace: workspace, Sub: sub, Scopes: scopes, Expires: expires})
	return secret.Reveal()
}

// CheckError checks that an error has the three members that clients need.
func CheckError(tb testing.TB, w *httptest.ResponseRecorder) {
	tb.Helper()
	var e struct {
		Error   *string
		Code    *int
		Message *string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Error == nil || e.Code == nil || e.Message == nil {
		tb.Errorf("error body %s: %v", w.Body, err)
	} else if *e.Code != w.Code || *e.Error == "" || *e.Message == "" {
		tb.Errorf("error body %s with status %d", w.Body, w.Code)
	}
	if retry := w.Header().Get("x-should-retry"); (w.Code == http.StatusConflict) != (retry == "false") {
		tb.Errorf("x-should-retry %q with status %d", retry, w.Code)
	}
}

// As are the headers of a request with another key.
func As(key string) []string { return []string{"Authorization", "Bearer " + key} }
