package access_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
)

const issuer = "https://doze.test/v0"

func tokens(tb testing.TB, name string) *access.Tokens {
	tb.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	all, err := access.NewTokens(name, key)
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

// credentialsFor knows the user "u", an admin of "a" and a member of "b".
func credentialsFor(tb testing.TB, tk *access.Tokens) *access.Credentials {
	tb.Helper()
	c := keys(tb)
	c.Tokens = tk
	c.Set(access.Principal{Sub: "u", Type: doze.SubUser, Epoch: 3, Roles: map[string]string{"a": doze.RoleAdmin, "b": doze.RoleMember}})
	return c
}

func sign(tb testing.TB, tk *access.Tokens, c access.Claims) string {
	tb.Helper()
	text, err := tk.Sign(c, time.Now())
	if err != nil {
		tb.Fatal(err)
	}
	return text
}

var claims = access.Claims{Sub: "u", SubType: doze.SubUser, Epoch: 3, Grant: "g", Scope: "admin", Workspace: "a"}

// TestScopesAreThoseOfTheSpecification reads the table in the specification.
func TestScopesAreThoseOfTheSpecification(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/spec.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(b), "| Resource | Actions |")
	table, _, _ = strings.Cut(table, "\n\n")
	var want []string
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 4 || strings.HasPrefix(cells[1], "---") {
			continue
		}
		text, _, _ := strings.Cut(cells[2], "(")
		for resource := range strings.SplitSeq(cells[1], ",") {
			for action := range strings.SplitSeq(text, ",") {
				want = append(want, strings.TrimSpace(resource)+":"+strings.TrimSpace(action))
			}
		}
	}
	if diff := cmp.Diff(want, access.Scopes()); diff != "" || len(want) < 50 {
		t.Error(diff)
	}
}

func TestRolesBoundScopes(t *testing.T) {
	t.Parallel()
	c := access.Caller{Workspace: "a", Roles: map[string]string{"a": doze.RoleAdmin, "b": doze.RoleMember}, Scopes: []string{access.Admin}}
	b, ok := c.In("b")
	if _, entered := c.In("c"); !ok || entered {
		t.Error("it enters what it may not")
	}
	for scope, may := range map[string][2]bool{
		"admin":             {true, false},
		"workspaces:invite": {true, false},
		"workspaces:get":    {true, true},
		"sandboxes:delete":  {true, true},
		"unknown:get":       {true, false},
	} {
		if got := [2]bool{c.May(scope), b.May(scope)}; got != may {
			t.Errorf("%s: %v, want %v", scope, got, may)
		}
	}
	for _, scope := range b.Granted() {
		if scope == access.Admin || !b.May(scope) {
			t.Errorf("a member hands on %s", scope)
		}
	}
	if diff := cmp.Diff([]string{access.Admin}, c.Granted()); diff != "" {
		t.Error(diff)
	}
	c.Scopes = []string{"sandboxes:get"}
	if diff := cmp.Diff([]string{"sandboxes:get"}, c.Granted()); diff != "" || c.May(access.Admin) {
		t.Error(diff)
	}
	none := access.Caller{Workspace: "z", Roles: c.Roles, Scopes: []string{access.Admin}}
	if none.May("sandboxes:get") {
		t.Error("it may where it has no role")
	}
}

func TestTokens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tk := tokens(t, issuer)
		c := credentialsFor(t, tk)
		text := sign(t, tk, claims)
		caller, err := authenticate(c, text)
		if err != nil || caller.Sub != "u" || caller.Workspace != "a" || !caller.May(access.Admin) {
			t.Fatalf("%+v, %v", caller, err)
		}
		// Clients read exp and iat as whole numbers.
		var numbers struct{ Exp, Iat int64 }
		b, _ := base64.RawURLEncoding.DecodeString(strings.Split(text, ".")[1])
		if err := json.Unmarshal(b, &numbers); err != nil || numbers.Exp-numbers.Iat != int64(access.TokenLife.Seconds()) {
			t.Errorf("%s: %v", b, err)
		}
		time.Sleep(access.TokenLife - time.Second)
		if _, err := authenticate(c, text); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if _, err := authenticate(c, text); err == nil {
			t.Error("an expired token fits")
		}
	})
}

func TestForgedTokens(t *testing.T) {
	t.Parallel()
	tk := tokens(t, issuer)
	c := credentialsFor(t, tk)
	good := sign(t, tk, claims)
	parts := strings.Split(good, ".")
	b64 := base64.RawURLEncoding.EncodeToString
	for name, text := range map[string]string{
		"another key":    sign(t, tokens(t, issuer), claims),
		"another issuer": sign(t, tokens(t, "https://evil.test/v0"), claims),
		"no algorithm":   b64([]byte(`{"alg":"none","typ":"at+jwt"}`)) + "." + parts[1] + ".",
		"symmetric":      b64([]byte(`{"alg":"HS256","typ":"at+jwt"}`)) + "." + parts[1] + "." + parts[2],
		"another type":   b64([]byte(`{"alg":"EdDSA","typ":"JWT"}`)) + "." + parts[1] + "." + parts[2],
		"other claims":   parts[0] + "." + b64([]byte(`{"sub":"u"}`)) + "." + parts[2],
		"no signature":   parts[0] + "." + parts[1] + ".",
		"dots":           "..",
		"long":           strings.Repeat("a", 1<<20) + ".b.c",
	} {
		if _, err := authenticate(c, text); doze.Public(err).Kind != doze.Unauthenticated {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatIsTakenAwayIsGoneAtOnce(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(*access.Credentials){
		"the grant":    func(c *access.Credentials) { c.Revoke("g", time.Now()) },
		"the user":     func(c *access.Credentials) { c.Forget("u") },
		"the password": func(c *access.Credentials) { c.Renew("u", 4) },
	} {
		tk := tokens(t, issuer)
		c := credentialsFor(t, tk)
		told := 0
		c.OnLess(func() { told++ })
		text := sign(t, tk, claims)
		if _, err := authenticate(c, text); err != nil {
			t.Fatal(err)
		}
		take(c)
		if _, err := authenticate(c, text); doze.Public(err).Kind != doze.Unauthenticated || told != 1 {
			t.Errorf("%s: %v, told %d times", name, err, told)
		}
	}
	tk := tokens(t, issuer)
	c := credentialsFor(t, tk)
	text := sign(t, tk, claims)
	before, _ := authenticate(c, text)
	c.Join("u", "a", doze.RoleMember)
	if now, err := authenticate(c, text); err != nil || now.May(access.Admin) || !before.May(access.Admin) {
		t.Errorf("an admin no more: %v", err)
	}
	c.Close("a")
	if now, err := authenticate(c, text); err != nil || now.Workspace != "" || now.May("sandboxes:get") {
		t.Errorf("out of a: %+v, %v", now, err)
	}
	r := httptest.NewRequest(http.MethodGet, "/?workspace=a", nil)
	r.Header.Set("Authorization", "Bearer "+text)
	if _, err := c.Authenticate(r); doze.Public(err).Kind != doze.Forbidden {
		t.Errorf("into a: %v", err)
	}
}

// TestWorkspaceOfARequest: what names none is where its credential is bound to,
// and nowhere else, however many workspaces its owner has.
func TestWorkspaceOfARequest(t *testing.T) {
	t.Parallel()
	tk := tokens(t, issuer)
	for name, tt := range map[string]struct {
		bound, left, asked string
		want               string // empty is nowhere
		kind               doze.Kind
	}{
		"bound":                     {"b", "", "", "b", 0},
		"bound, asks":               {"b", "", "a", "a", 0},
		"bound, asks for another's": {"b", "", "c", "", doze.Forbidden},
		"bound, has left":           {"b", "b", "", "", 0},
		"bound, has left, asks":     {"b", "b", "a", "a", 0},
		"bound, asks for what left": {"a", "b", "b", "", doze.Forbidden},
		"not bound":                 {"", "", "", "", 0},
		"not bound, has one":        {"", "b", "", "", 0},
		"not bound, asks":           {"", "", "b", "b", 0},
	} {
		c, of := credentialsFor(t, tk), claims
		of.Workspace = tt.bound
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer "+sign(t, tk, of))
		r.Header.Set("X-Blaxel-Workspace", tt.asked)
		c.Join("u", tt.left, "")
		got, err := c.Authenticate(r)
		if got.Workspace != tt.want || (err != nil) != (tt.kind != 0) || err != nil && doze.Public(err).Kind != tt.kind {
			t.Errorf("%s: in %q, %v", name, got.Workspace, err)
		}
		if err == nil && got.May("sandboxes:get") != (tt.want != "") {
			t.Errorf("%s: it may do what it likes: %v", name, got.May("sandboxes:get"))
		}
	}
	c := credentialsFor(t, tk)
	for _, home := range []string{"a", "b", ""} { // as they leave one after the other
		if got := c.Home("u"); got != home {
			t.Errorf("home is %q, not %q", got, home)
		}
		c.Close(home)
	}
	if got := c.Home("nobody"); got != "" {
		t.Errorf("the home of nobody is %q", got)
	}
}

func TestPasswords(t *testing.T) {
	t.Parallel()
	hash, err := access.HashPassword(t.Context(), "correct horse")
	if err != nil || strings.Contains(hash, "horse") {
		t.Fatalf("%s, %v", hash, err)
	}
	again, err := access.HashPassword(t.Context(), "correct horse")
	if err != nil || hash == again {
		t.Error("two hashes are equal")
	}
	for password, fits := range map[string]bool{"correct horse": true, "correct horsf": false, "": false} {
		if ok, err := access.CheckPassword(t.Context(), hash, password); ok != fits || err != nil {
			t.Errorf("%q: %v, %v", password, ok, err)
		}
		if ok, err := access.CheckPassword(t.Context(), "", password); ok || err != nil {
			t.Errorf("%q without a hash: %v, %v", password, ok, err)
		}
	}
	for _, damaged := range []string{"x", "$argon2id$v=19$m=1", strings.Replace(hash, "m=", "m=9999", 1), strings.Replace(hash, "t=1", "t=999", 1)} {
		if ok, err := access.CheckPassword(t.Context(), damaged, "correct horse"); ok || err == nil {
			t.Errorf("%s fits", damaged)
		}
	}
}

// FuzzTokens sends texts in the form of tokens: none gets in but the right one,
// which has several spellings.
func FuzzTokens(f *testing.F) {
	tk := tokens(f, issuer)
	c := credentialsFor(f, tk)
	good := sign(f, tk, claims)
	f.Add(good)
	f.Add("a.b.c")
	f.Add(strings.Replace(good, ".", "=.", 1))
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := authenticate(c, text); err == nil && !strings.HasPrefix(text, good[:strings.LastIndex(good, ".")]) {
			t.Errorf("%q gets in", text)
		}
	})
}
