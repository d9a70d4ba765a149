package control_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/plane/planetest"
	"github.com/dozehq/doze/internal/testkit/postgres"
)

// routing is a body with two rules: one has a secret.
func routing(destination, secrets string) string {
	return `{"metadata":{"name":"a"},"spec":{"network":{"proxy":{"routing":[
		{"destinations":["*"],"headers":{"X-All":"yes"}},
		{"destinations":["` + destination + `"],"headers":{"Authorization":"Bearer {{SECRET:key}}"}` + secrets + `}]}}}}`
}

// routingSecret is what the node got as the secret of the second rule.
func routingSecret(p *planetest.Platform) (value string) {
	p.T.Helper()
	p.Node.With("a", func(_ string, m *planetest.Machine) {
		rules := m.Order.Network.Rules().Routing
		if len(rules) != 2 || rules[0].Sealed != nil || len(rules[1].Secrets.Reveal()) > 0 {
			p.T.Fatalf("the node got %+v", rules)
		}
		sealed := rules[1].Sealed["key"]
		if bytes.Contains(sealed, []byte("hunter")) {
			p.T.Errorf("the secret is sealed as %q", sealed)
		}
		if _, err := p.Opener.Unseal(sealed, fleet.SecretPlace("other")); err == nil {
			p.T.Error("it opens for another workspace")
		}
		plain, err := p.Opener.Unseal(sealed, fleet.SecretPlace("main"))
		if err != nil {
			p.T.Fatal(err)
		}
		value = string(plain)
	})
	return value
}

// TestRoutingSecrets: they reach the node sealed, no answer and no database has
// them, and a rule that comes back without them keeps them.
func TestRoutingSecrets(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		address func() string
		dump    func(testing.TB, string) []byte
	}{
		"sqlite":   {func() string { return filepath.Join(t.TempDir(), "doze.db") }, dumpFiles},
		"postgres": {func() string { return postgres.Database(t) }, postgres.Dump},
	} {
		t.Run(name, func(t *testing.T) {
			p := planetest.StartOn(t, tt.address(), true)
			routingSecrets(p)
			rows := tt.dump(t, p.File)
			if !bytes.Contains(rows, []byte("SECRET:key")) || bytes.Contains(rows, []byte("hunter")) {
				t.Error("the database has the secret, or not even the rule")
			}
		})
	}
}

// dumpFiles is all that is in the files of a database.
func dumpFiles(tb testing.TB, file string) (all []byte) {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*"))
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			tb.Fatal(err)
		}
		all = append(all, raw...)
	}
	return all
}

// routingSecrets is the course of TestRoutingSecrets.
func routingSecrets(p *planetest.Platform) {
	t := p.T
	const one, two = `,"secrets":{"key":"hunter2","spare":"hunter4"}`, `,"secrets":{"key":"hunter3"}`
	p.Create(routing("api.test", one))
	for _, step := range []struct {
		what, body string
		status     int
		want       string
	}{
		{"as it was made", "", 200, "hunter2"},
		{"what was answered", p.Do("GET", "/sandboxes/a", "").Body.String(), 200, "hunter2"},
		{"the same rule, without secrets", routing("api.test", ""), 200, "hunter2"},
		{"a rule for another destination", routing("evil.test", ""), 400, "hunter2"},
		{"a reference to what is not there", routing("api.test", `,"secrets":{}`), 400, "hunter2"},
		{"another secret", routing("api.test", two), 200, "hunter3"},
		{"a value that is no text", routing("api.test", `,"secrets":{"key":7}`), 400, "hunter3"},
		{"one that no header can have", routing("api.test", `,"secrets":{"key":"hunter\n5"}`), 400, "hunter3"},
	} {
		if step.body != "" {
			w := p.Do("PUT", "/sandboxes/a", step.body)
			if w.Code != step.status || strings.Contains(w.Body.String(), "hunter") {
				t.Errorf("%s: %d %s", step.what, w.Code, w.Body)
			}
		}
		if got := routingSecret(p); got != step.want {
			t.Errorf("%s: the secret is %q", step.what, got)
		}
	}
	for _, path := range []string{"/sandboxes/a", "/sandboxes"} {
		if body := p.Do("GET", path, "").Body.String(); strings.Contains(body, "hunter") || !strings.Contains(body, "SECRET:key") {
			t.Errorf("%s answers %s", path, body)
		}
	}
	p.Reopen()
	if got := routingSecret(p); got != "hunter3" {
		t.Errorf("after a restart the secret is %q", got)
	}
}
