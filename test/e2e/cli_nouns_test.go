package e2e_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// TestCLINouns drives what is around a sandbox by the command line.
func TestCLINouns(t *testing.T) {
	t.Parallel()
	p, _ := start(t)
	s := shell{t.TempDir()}
	s.ok(t, "doze", "login", "--address", p.Address, "--data", p.Data)
	s.ok(t, "doze", "secret", "set", "db", "PASSWORD=hunter2")
	if out := s.ok(t, "doze", "secret", "ls", "-o", "json"); strings.Contains(out, "hunter2") || !strings.Contains(out, "PASSWORD") {
		t.Error(out)
	}
	s.ok(t, "doze", "sandbox", "create", "web", "--memory", "512")
	s.ok(t, "doze", "sandbox", "exec", "web", "-d", "--", "python3 -m http.server 3000 --directory /etc")

	fetch := func(address string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b)
	}
	address := strings.TrimSpace(s.ok(t, "doze", "preview", "create", "web", "app", "--port", "3000"))
	if code, _ := fetch(address + "/hostname"); code != http.StatusUnauthorized {
		t.Errorf("without a token: %d", code)
	}
	token := strings.TrimSpace(s.ok(t, "doze", "preview", "token", "web", "app", "--expires", "1h"))
	until(t, "the server listens", func() bool {
		code, body := fetch(address + "/hostname?bl_preview_token=" + token)
		return code == http.StatusOK && strings.TrimSpace(body) == "web"
	})
	if out := s.ok(t, "doze", "preview", "ls", "web"); !strings.Contains(out, address) {
		t.Error(out)
	}
	s.ok(t, "doze", "preview", "rm", "web", "app")

	s.ok(t, "doze", "schedule", "create", "web", "--cron", "0 3 * * *", "--id", "nightly", "--", "true")
	if out := s.ok(t, "doze", "schedule", "ls", "web"); !strings.Contains(out, "nightly") {
		t.Error(out)
	}
	if out := s.ok(t, "doze", "schedule", "runs", "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Error(out)
	}
	s.ok(t, "doze", "schedule", "rm", "web", "nightly")

	s.ok(t, "doze", "snapshot", "create", "web", "n")
	if out := s.ok(t, "doze", "fork", "web", "copy", "--snapshot", "n", "--env", "A=b"); !strings.Contains(out, "copy") {
		t.Error(out)
	}
	if out := s.ok(t, "doze", "sandbox", "exec", "copy", "--", "echo $A; hostname"); out != "b\ncopy\n" {
		t.Errorf("the fork says %q", out)
	}
	s.ok(t, "doze", "snapshot", "restore", "web", "n")
	if out := s.ok(t, "doze", "snapshot", "ls"); !strings.Contains(out, "ready") {
		t.Error(out)
	}
	s.ok(t, "doze", "sandbox", "archive", "web", "copy")
	if out := s.ok(t, "doze", "sandbox", "ls"); strings.Count(out, "ARCHIVED") != 2 {
		t.Error(out)
	}
	s.ok(t, "doze", "sandbox", "unarchive", "web")
	if r := s.run(t, "", "doze", "sandbox", "unarchive", "web"); r.code != 4 || !strings.Contains(r.err, "only one that is ARCHIVED") {
		t.Errorf("it is not archived: %+v", r)
	}
	s.ok(t, "doze", "sandbox", "rm", "copy")
	if out := s.ok(t, "doze", "fork", "--snapshot", "n", "copy"); !strings.Contains(out, "DEPLOYED") {
		t.Error(out)
	}
	s.ok(t, "doze", "snapshot", "rm", "n")

	key := strings.TrimSpace(s.ok(t, "doze", "key", "create", "ci", "--scope", "sandboxes:list"))
	var keys []doze.APIKey
	if err := json.Unmarshal([]byte(s.ok(t, "doze", "key", "ls", "-o", "json")), &keys); err != nil || len(keys) != 2 || keys[1].Name != "ci" {
		t.Fatalf("%+v, %v", keys, err)
	}
	if r := s.run(t, key+"\n", "doze", "login", "--address", p.Address); r.code != 4 || !strings.Contains(r.err, "workspaces:list") {
		t.Errorf("a key that may little: %+v", r)
	}
	s.ok(t, "doze", "key", "rm", keys[1].ID)

	if out := s.ok(t, "doze", "domain", "add", "shop.example"); !strings.Contains(out, "_doze-challenge.shop.example") || strings.Contains(out, "CNAME") {
		t.Error(out)
	}
	s.ok(t, "doze", "domain", "fallback", "shop.example", "www")
	if out := s.ok(t, "doze", "domain", "shares", "shop.example", "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Error(out)
	}
	if r := s.run(t, "", "doze", "domain", "share", "shop.example", "account"); r.code != 2 || !strings.Contains(r.err, "not verified") {
		t.Errorf("it is not verified: %+v", r)
	}
	s.ok(t, "doze", "domain", "rm", "shop.example")
	s.ok(t, "doze", "secret", "rm", "db")
}
