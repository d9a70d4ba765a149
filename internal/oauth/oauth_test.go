package oauth_test

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/oauth"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/store"
)

const (
	base     = "https://doze.test/v0"
	password = "correct horse"
	callback = "https://app.test/done?x=1"
	verifier = "a-verifier-of-enough-length-that-nobody-can-guess"
)

func challenge() string {
	sum := sha256.Sum256([]byte(verifier))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// world is an authorization server with the user "ann", the client "app" and
// the service account "ci".
type world struct {
	t      *testing.T
	store  *store.Store
	creds  *access.Credentials
	http   http.Handler
	secret string // of "ci"
}

func start(t *testing.T) *world {
	t.Helper()
	cipher, err := seal.New()
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "doze.db"), cipher)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	keys, err := access.LoadKeys(t.Context(), func(context.Context) ([]access.Key, error) { return nil, nil })
	if err != nil {
		t.Fatal(err)
	}
	_, key, _ := ed25519.GenerateKey(nil)
	tokens, err := access.NewTokens(base, key)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, store: st, creds: access.NewCredentials(keys, tokens), secret: access.NewCode(access.ClientPrefix, "ci")}
	hash, err := access.HashPassword(t.Context(), password)
	if err != nil {
		t.Fatal(err)
	}
	roles := map[string]string{"w": doze.RoleAdmin}
	w.must(st.InsertWorkspace(t.Context(), doze.Workspace{ID: "w", Name: "w"}))
	w.must(st.InsertUser(t.Context(), store.User{User: doze.User{Sub: "ann", Email: "ann@example.test"}, Password: hash}, store.Member{Workspace: "w", Sub: "ann", Role: doze.RoleAdmin}))
	w.must(st.InsertOAuthClient(t.Context(), "w", doze.OAuthClient{ClientID: "app", Name: "App <b>", RedirectURIs: []string{callback}}))
	w.must(st.InsertServiceAccount(t.Context(), store.ServiceAccount{
		ServiceAccount: doze.ServiceAccount{ClientID: "ci", Scopes: []string{"sandboxes:list", "sandboxes:get"}}, Workspace: "w", Hash: access.HashCode(w.secret),
	}))
	w.creds.Set(access.Principal{Sub: "ann", Type: doze.SubUser, Roles: roles})
	w.creds.Set(access.Principal{Sub: "ci", Type: doze.SubServiceAccount, Roles: roles})
	server, mux := oauth.New(oauth.Config{Store: st, Credentials: w.creds, Base: base}), http.NewServeMux()
	for _, rt := range oauth.Routes() {
		mux.HandleFunc(rt.Method+" "+rt.Path, func(rw http.ResponseWriter, r *http.Request) { rt.Serve(server, rw, r) })
	}
	w.http = mux
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) do(method, path, kind, body string, headers ...string) *httptest.ResponseRecorder {
	w.t.Helper()
	return w.from("192.0.2.1", method, path, kind, body, headers...)
}

// from is do from an address.
func (w *world) from(address, method, path, kind, body string, headers ...string) *httptest.ResponseRecorder {
	w.t.Helper()
	r := httptest.NewRequestWithContext(w.t.Context(), method, path, strings.NewReader(body))
	r.RemoteAddr = net.JoinHostPort(address, "1234")
	r.Header.Set("Content-Type", kind)
	for pair := range slices.Chunk(headers, 2) {
		r.Header.Set(pair[0], pair[1])
	}
	rec := httptest.NewRecorder()
	w.http.ServeHTTP(rec, r)
	return rec
}

func form(pairs map[string]string) url.Values {
	v := url.Values{}
	for name, value := range pairs {
		v.Set(name, value)
	}
	return v
}

// with is a copy of a form with other values; empty ones are left out.
func with(v url.Values, pairs ...string) url.Values {
	c := url.Values{}
	for name := range v {
		c.Set(name, v.Get(name))
	}
	for pair := range slices.Chunk(pairs, 2) {
		c.Set(pair[0], pair[1])
		if pair[1] == "" {
			c.Del(pair[0])
		}
	}
	return c
}

type tokens struct {
	Access      string `json:"access_token"`
	Refresh     string `json:"refresh_token"`
	Type        string `json:"token_type"`
	Scope       string `json:"scope"`
	Error       string `json:"error"`
	Description string `json:"error_description"`
	ExpiresIn   int    `json:"expires_in"`
}

// token asks for a token in the form of a form, or of JSON.
func (w *world) token(status int, v url.Values) (out tokens) {
	w.t.Helper()
	rec := w.do("POST", "/oauth/token", "application/x-www-form-urlencoded", v.Encode())
	if err := json.Unmarshal(rec.Body.Bytes(), &out); err != nil || rec.Code != status {
		w.t.Fatalf("%v: %d %s, want %d", v, rec.Code, rec.Body, status)
	}
	if rec.Header().Get("Cache-Control") != "no-store" {
		w.t.Errorf("an answer with tokens may be stored")
	}
	return out
}

// caller is whose token it is; ok is whether it is good.
func (w *world) caller(token string) (access.Caller, bool) {
	c, err := w.creds.Identify(token, time.Now())
	return c, err == nil
}

var request = form(map[string]string{
	"response_type": "code", "client_id": "app", "redirect_uri": callback, "state": "s t", "scope": "sandboxes:get sandboxes:list",
	"code_challenge": challenge(), "code_challenge_method": "S256",
})

// agree is the answer to a form that the user sent.
func (w *world) agree(v url.Values) *httptest.ResponseRecorder {
	return w.do("POST", "/oauth/authorize", "application/x-www-form-urlencoded", v.Encode())
}

// code is what the client gets when ann agrees.
func (w *world) code(v url.Values) string {
	w.t.Helper()
	rec := w.agree(with(v, "name", "Ann@example.test", "password", password, "decision", "allow"))
	to, err := url.Parse(rec.Header().Get("Location"))
	if err != nil || rec.Code != http.StatusSeeOther {
		w.t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	if q := to.Query(); q.Get("state") != "s t" || q.Get("iss") != base || q.Get("x") != "1" || !strings.HasPrefix(to.String(), "https://app.test/done?") {
		w.t.Errorf("sent to %s", to)
	}
	return to.Query().Get("code")
}

func exchange(code string) url.Values {
	return form(map[string]string{
		"grant_type": "authorization_code", "code": code, "client_id": "app", "redirect_uri": callback, "code_verifier": verifier,
	})
}

func TestAuthorizationCode(t *testing.T) {
	t.Parallel()
	w := start(t)
	page := w.do("GET", "/oauth/authorize?"+request.Encode(), "", "")
	if page.Code != 200 || !strings.Contains(page.Body.String(), "App &lt;b&gt;") || !strings.Contains(page.Body.String(), "app.test") {
		t.Errorf("%d %s", page.Code, page.Body)
	}
	if csp := page.Header().Get("Content-Security-Policy"); !strings.Contains(csp, "frame-ancestors 'none'") {
		t.Errorf("policy %s", csp)
	}
	got := w.token(200, exchange(w.code(request)))
	if got.Type != "Bearer" || got.ExpiresIn != 7200 || got.Refresh == "" || got.Scope != "sandboxes:get sandboxes:list" {
		t.Errorf("%+v", got)
	}
	c, ok := w.caller(got.Access)
	if !ok || c.Sub != "ann" || !c.May("sandboxes:get") || c.May("sandboxes:delete") || c.May(access.Admin) {
		t.Errorf("%+v", c)
	}
}

func TestRequestsThatGoNowhere(t *testing.T) {
	t.Parallel()
	w := start(t)
	for name, change := range map[string][]string{
		"another client":      {"client_id", "other"},
		"no client":           {"client_id", ""},
		"no redirect":         {"redirect_uri", ""},
		"another redirect":    {"redirect_uri", "https://evil.test/"},
		"longer redirect":     {"redirect_uri", callback + "/more"},
		"redirect in case":    {"redirect_uri", strings.Replace(callback, "done", "Done", 1)},
		"redirect with dots":  {"redirect_uri", "https://app.test/x/../done?x=1"},
		"redirect with user":  {"redirect_uri", "https://app.test@evil.test/done?x=1"},
		"another's loopback":  {"redirect_uri", "http://127.0.0.1:9/callback"},
		"doze beyond its own": {"client_id", "doze", "redirect_uri", "http://127.0.0.1.evil.test:9/callback"},
	} {
		rec := w.do("GET", "/oauth/authorize?"+with(request, change...).Encode(), "", "")
		if rec.Code < 400 || rec.Header().Get("Location") != "" {
			t.Errorf("%s: %d to %s", name, rec.Code, rec.Header().Get("Location"))
		}
	}
	for name, tt := range map[string]struct {
		change []string
		error  string
	}{
		"no challenge":       {[]string{"code_challenge", ""}, "invalid_request"},
		"plain challenge":    {[]string{"code_challenge_method", "plain"}, "invalid_request"},
		"no method":          {[]string{"code_challenge_method", ""}, "invalid_request"},
		"implicit":           {[]string{"response_type", "token"}, "unsupported_response_type"},
		"unknown scope":      {[]string{"scope", "sandboxes:own"}, "invalid_scope"},
		"the user says no":   {[]string{"decision", "deny"}, "access_denied"},
		"no decision at all": {[]string{"decision", ""}, "access_denied"},
	} {
		rec := w.agree(with(with(request, "name", "ann", "password", password, "decision", "allow"), tt.change...))
		to, _ := url.Parse(rec.Header().Get("Location"))
		if rec.Code != 303 || to.Query().Get("error") != tt.error || to.Query().Get("state") != "s t" || to.Query().Has("code") {
			t.Errorf("%s: %d to %s", name, rec.Code, to)
		}
	}
	twice := request.Encode() + "&client_id=doze"
	if rec := w.do("GET", "/oauth/authorize?"+twice, "", ""); rec.Code != 400 || rec.Header().Get("Location") != "" {
		t.Errorf("a parameter twice: %d", rec.Code)
	}
	// Programs on the loopback interface choose their port.
	rec := w.agree(with(request, "client_id", "doze", "redirect_uri", "http://127.0.0.1:4711/callback", "name", "ann", "password", password, "decision", "allow"))
	if to := rec.Header().Get("Location"); !strings.HasPrefix(to, "http://127.0.0.1:4711/callback?") {
		t.Errorf("%d to %s", rec.Code, to)
	}
}

func TestCodesWorkOnce(t *testing.T) {
	t.Parallel()
	w := start(t)
	code := w.code(request)
	first := w.token(200, exchange(code))
	if got := w.token(400, exchange(code)); got.Error != "invalid_grant" {
		t.Errorf("%+v", got)
	}
	// One of the two stole the code: both lose.
	if _, ok := w.caller(first.Access); ok {
		t.Error("the token of a code that was used twice is good")
	}
	w.token(400, form(map[string]string{"grant_type": "refresh_token", "refresh_token": first.Refresh}))

	for name, change := range map[string][]string{
		"another verifier": {"code_verifier", verifier + "x"},
		"another client":   {"client_id", "doze"},
		"another redirect": {"redirect_uri", "https://app.test/done"},
	} {
		code := w.code(request)
		if got := w.token(400, with(exchange(code), change...)); got.Error != "invalid_grant" {
			t.Errorf("%s: %+v", name, got)
		}
		w.token(400, exchange(code)) // no second guess
	}
	w.token(400, exchange("dzc_x_y"))
}

// TestMissingParametersAreNamed: whoever forgot one has not guessed wrong, so
// that the code stays good.
func TestMissingParametersAreNamed(t *testing.T) {
	t.Parallel()
	w := start(t)
	code := w.code(request)
	for name, tt := range map[string]struct {
		in      url.Values
		lacking string
	}{
		"nothing":               {url.Values{}, "grant_type"},
		"code alone":            {with(exchange(code), "client_id", "", "redirect_uri", "", "code_verifier", ""), "client_id, redirect_uri, code_verifier"},
		"no code":               {with(exchange(code), "code", ""), "code"},
		"no verifier":           {with(exchange(code), "code_verifier", ""), "code_verifier"},
		"no redirect":           {with(exchange(code), "redirect_uri", ""), "redirect_uri"},
		"nothing but a refresh": {form(map[string]string{"grant_type": "refresh_token"}), "refresh_token"},
		"no device":             {form(map[string]string{"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "client_id": "doze"}), "device_code"},
	} {
		got := w.token(400, tt.in)
		if got.Error != "invalid_request" || got.Description != "the request lacks "+tt.lacking {
			t.Errorf("%s: %+v", name, got)
		}
	}
	w.token(200, exchange(code))
}

func TestCodesAreOverSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		code := w.code(request)
		time.Sleep(time.Minute)
		w.token(400, exchange(code))
		w.must(w.store.Close())
	})
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	w := start(t)
	first := w.token(200, exchange(w.code(request)))
	ask := form(map[string]string{"grant_type": "refresh_token", "refresh_token": first.Refresh})
	for _, scope := range []string{"admin", "sandboxes:delete", "sandboxes:get sandboxes:delete"} {
		if got := w.token(400, with(ask, "scope", scope)); got.Error != "invalid_scope" {
			t.Errorf("%s: %+v", scope, got)
		}
	}
	w.token(400, with(ask, "client_id", "doze"))
	second := w.token(200, with(ask, "scope", "sandboxes:get"))
	if c, ok := w.caller(second.Access); !ok || c.May("sandboxes:list") || second.Refresh == first.Refresh {
		t.Errorf("%+v", c)
	}
	// A narrower token does not make the grant narrower.
	third := w.token(200, form(map[string]string{"grant_type": "refresh_token", "refresh_token": second.Refresh}))
	if c, ok := w.caller(third.Access); !ok || !c.May("sandboxes:list") {
		t.Errorf("%+v", c)
	}
	// An old refresh token was stolen: the grant ends.
	w.token(400, ask)
	if _, ok := w.caller(third.Access); ok {
		t.Error("the tokens of a stolen grant are good")
	}
	w.token(400, form(map[string]string{"grant_type": "refresh_token", "refresh_token": third.Refresh}))
}

// TestTokensStayInTheirWorkspace: those of a grant are where the user was when
// they agreed, however often it is refreshed and wherever else they are by then.
func TestTokensStayInTheirWorkspace(t *testing.T) {
	t.Parallel()
	w := start(t)
	token := w.token(200, exchange(w.code(request)))
	in := func(workspace string) {
		t.Helper()
		if c, ok := w.caller(token.Access); !ok || c.Workspace != workspace || c.May("sandboxes:get") != (workspace != "") {
			t.Errorf("in %q, not in %q", c.Workspace, workspace)
		}
	}
	refresh := func() {
		t.Helper()
		token = w.token(200, form(map[string]string{"grant_type": "refresh_token", "refresh_token": token.Refresh}))
	}
	in("w")
	w.creds.Join("ann", "a", doze.RoleAdmin) // which comes before w
	refresh()
	in("w")
	w.creds.Join("ann", "w", "")
	in("")
	refresh()
	in("")
	// Who was nowhere, or agreed before grants had a workspace, is bound by the
	// next refresh.
	w.creds.Join("ann", "a", "")
	token = w.token(200, exchange(w.code(request)))
	in("")
	w.creds.Join("ann", "w", doze.RoleMember)
	in("")
	refresh()
	in("w")
}

func TestRevoke(t *testing.T) {
	t.Parallel()
	w := start(t)
	got := w.token(200, exchange(w.code(request)))
	if rec := w.do("POST", "/oauth/revoke", "application/x-www-form-urlencoded", "client_id=blaxel"); rec.Code != 400 || !strings.Contains(rec.Body.String(), `"invalid_request"`) {
		t.Errorf("no token: %d %s", rec.Code, rec.Body)
	}
	for _, token := range []string{"dzr_x_y", got.Refresh + "x"} {
		if rec := w.do("POST", "/oauth/revoke", "application/x-www-form-urlencoded", "token="+token); rec.Code != 200 {
			t.Errorf("%q: %d", token, rec.Code)
		}
	}
	if _, ok := w.caller(got.Access); !ok {
		t.Error("somebody else revoked it")
	}
	w.do("POST", "/oauth/revoke", "application/json", `{"token":"`+got.Refresh+`"}`)
	if _, ok := w.caller(got.Access); ok {
		t.Error("a revoked token is good")
	}
	w.token(400, form(map[string]string{"grant_type": "refresh_token", "refresh_token": got.Refresh}))

	// An access token takes its grant with it, but for one that has none.
	got = w.token(200, exchange(w.code(request)))
	if rec := w.do("POST", "/oauth/revoke", "application/json", `{"token":"`+got.Access+`"}`); rec.Code != 200 {
		t.Error(rec.Code, rec.Body)
	}
	if _, ok := w.caller(got.Access); ok {
		t.Error("a revoked access token is good")
	}
	w.token(400, form(map[string]string{"grant_type": "refresh_token", "refresh_token": got.Refresh}))
	got = w.token(200, form(map[string]string{"grant_type": "client_credentials", "client_id": "ci", "client_secret": w.secret}))
	if rec := w.do("POST", "/oauth/revoke", "application/json", `{"token":"`+got.Access+`"}`); rec.Code != 400 || !strings.Contains(rec.Body.String(), "unsupported_token_type") {
		t.Error(rec.Code, rec.Body)
	}
}

func TestClientCredentials(t *testing.T) {
	t.Parallel()
	w := start(t)
	ask := func(body, kind string, headers ...string) (int, tokens) {
		rec := w.do("POST", "/oauth/token", kind, body, headers...)
		var out tokens
		w.must(json.Unmarshal(rec.Body.Bytes(), &out))
		return rec.Code, out
	}
	basic := []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("ci:"+w.secret))}
	const js, f = "application/json", "application/x-www-form-urlencoded"
	for name, tt := range map[string]struct {
		body, kind string
		header     []string
		status     int
	}{
		"JSON and Basic":    {`{"grant_type":"client_credentials"}`, js, basic, 200},
		"JSON":              {`{"grant_type":"client_credentials","client_id":"ci","client_secret":"` + w.secret + `"}`, js, nil, 200},
		"form and Basic":    {`grant_type=client_credentials`, f, basic, 200},
		"form":              {`grant_type=client_credentials&client_id=ci&client_secret=` + w.secret, f, nil, 200},
		"fewer scopes":      {`grant_type=client_credentials&scope=sandboxes:list`, f, basic, 200},
		"more scopes":       {`grant_type=client_credentials&scope=admin`, f, basic, 400},
		"two secrets":       {`grant_type=client_credentials&client_secret=x`, f, basic, 400},
		"wrong secret":      {`grant_type=client_credentials&client_id=ci&client_secret=x`, f, nil, 401},
		"no secret":         {`grant_type=client_credentials&client_id=ci`, f, nil, 401},
		"another account":   {`grant_type=client_credentials&client_id=cj&client_secret=` + w.secret, f, nil, 401},
		"another grant":     {`grant_type=password&username=ann&password=` + password, f, nil, 400},
		"no JSON":           {`{`, js, nil, 400},
		"numbers":           {`{"grant_type":7}`, js, nil, 400},
		"a parameter twice": {`grant_type=client_credentials&grant_type=refresh_token`, f, basic, 400},
	} {
		status, out := ask(tt.body, tt.kind, tt.header...)
		if status != tt.status || (status == 200) != (out.Access != "") || (status == 200) == (out.Error != "") || out.Refresh != "" {
			t.Errorf("%s: %d %+v, want %d", name, status, out, tt.status)
		}
		if c, ok := w.caller(out.Access); status == 200 && (!ok || c.Sub != "ci" || c.Workspace != "w" || !c.May("sandboxes:list") || c.May("sandboxes:get") == (name == "fewer scopes") || c.May(access.Admin)) {
			t.Errorf("%s: %+v", name, c)
		}
	}
}

func TestDeviceFlow(t *testing.T) {
	t.Parallel()
	for _, decision := range []string{"allow", "deny"} {
		t.Run(decision, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := start(t)
				rec := w.do("POST", "/login/device", "application/json", `{"client_id":"blaxel","scope":"offline_access"}`)
				var d struct {
					Code     string `json:"device_code"`
					User     string `json:"user_code"`
					Complete string `json:"verification_uri_complete"`
					Interval int    `json:"interval"`
				}
				w.must(json.Unmarshal(rec.Body.Bytes(), &d))
				if d.Complete != base+"/login/verify?user_code="+d.User || d.Interval != 3 {
					t.Errorf("%s", rec.Body)
				}
				poll := form(map[string]string{"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "client_id": "blaxel", "device_code": d.Code})
				if got := w.token(400, poll); got.Error != "authorization_pending" {
					t.Errorf("%+v", got)
				}
				if got := w.token(400, poll); got.Error != "slow_down" {
					t.Errorf("at once: %+v", got)
				}
				time.Sleep(3 * time.Second)
				if got := w.token(400, poll); got.Error != "authorization_pending" {
					t.Errorf("later: %+v", got)
				}
				if got := w.token(400, with(poll, "client_id", "doze")); got.Error != "expired_token" {
					t.Errorf("another client: %+v", got)
				}
				if page := w.do("GET", "/login/verify?user_code="+strings.ToLower(d.User), "", ""); !strings.Contains(page.Body.String(), d.User) {
					t.Errorf("%s", page.Body)
				}
				confirm := form(map[string]string{"user_code": strings.ReplaceAll(d.User, "-", " "), "name": "ann", "password": password, "decision": decision})
				const kind = "application/x-www-form-urlencoded"
				if page := w.do("POST", "/login/verify", kind, with(confirm, "password", "wrong").Encode()); page.Code != 403 {
					t.Errorf("a wrong password: %d", page.Code)
				}
				if page := w.do("POST", "/login/verify", kind, with(confirm, "user_code", "BBBB-BBBB").Encode()); page.Code != 403 {
					t.Errorf("a wrong code: %d", page.Code)
				}
				if page := w.do("POST", "/login/verify", kind, confirm.Encode()); page.Code != 200 {
					t.Errorf("%d %s", page.Code, page.Body)
				}
				time.Sleep(3 * time.Second)
				if decision == "deny" {
					if got := w.token(400, poll); got.Error != "access_denied" {
						t.Errorf("%+v", got)
					}
					w.must(w.store.Close())
					return
				}
				got := w.token(200, poll)
				if c, ok := w.caller(got.Access); !ok || c.Sub != "ann" || c.Workspace != "w" || !c.May(access.Admin) {
					t.Errorf("%+v", c)
				}
				if again := w.token(400, poll); again.Error != "expired_token" {
					t.Errorf("%+v", again)
				}
				// Some clients keep no new refresh token: the device code stands for them.
				refresh := form(map[string]string{"grant_type": "refresh_token", "refresh_token": got.Refresh, "device_code": d.Code})
				for range 2 {
					if again := w.token(200, refresh); again.Refresh != got.Refresh {
						t.Errorf("%+v", again)
					}
				}
				if again := w.token(200, with(refresh, "device_code", "")); again.Refresh == got.Refresh {
					t.Error("without the device code it keeps its refresh token")
				}
				w.must(w.store.Close())
			})
		})
	}
}

func TestGuessingSlowsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		try := func(name, password string) *httptest.ResponseRecorder {
			return w.agree(with(request, "name", name, "password", password, "decision", "allow"))
		}
		for range 5 {
			if rec := try("ann", "wrong"); !strings.Contains(rec.Body.String(), "is wrong") {
				t.Fatalf("%s", rec.Body)
			}
		}
		// The right one has to wait too, by either name.
		for _, name := range []string{"ann", "ann@example.test"} {
			if rec := try(name, password); rec.Code != 403 || !strings.Contains(rec.Body.String(), "too many wrong passwords") {
				t.Errorf("%d %s", rec.Code, rec.Body)
			}
		}
		time.Sleep(2 * time.Second)
		if rec := try("ann", password); rec.Code != 303 {
			t.Errorf("%d %s", rec.Code, rec.Body)
		}
		// Who is not there is told nothing else.
		if rec := try("nobody", password); !strings.Contains(rec.Body.String(), "the name or the password is wrong") {
			t.Errorf("%s", rec.Body)
		}
		w.must(w.store.Close())
	})
}

const formType = "application/x-www-form-urlencoded"

// try is a log-in from an address.
func (w *world) try(address, name, password string) *httptest.ResponseRecorder {
	w.t.Helper()
	return w.from(address, "POST", "/oauth/authorize", formType, with(request, "name", name, "password", password, "decision", "allow").Encode())
}

// TestNobodyLocksTheOwnerOut: wrong passwords from one network, or from many,
// leave the owner of the account where they have logged in before.
func TestNobodyLocksTheOwnerOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		const home, cafe = "192.0.2.1", "198.51.100.7"
		if rec := w.try(home, "ann", password); rec.Code != 303 {
			t.Fatalf("%d %s", rec.Code, rec.Body)
		}
		// One network guesses until it has to wait; another one has not.
		for n := 0; ; n++ {
			if rec := w.try("203.0.113.1", "ann", "wrong"); strings.Contains(rec.Body.String(), "too many") {
				break
			}
			if n > 10 {
				t.Fatal("it may guess for ever")
			}
		}
		if rec := w.try(cafe, "ann", password); rec.Code != 303 {
			t.Errorf("another network: %d %s", rec.Code, rec.Body)
		}
		// Many networks guess, until no new one may.
		for n := 0; ; n++ {
			if rec := w.try(fmt.Sprintf("203.0.113.%d", 2+n), "ann", "wrong"); strings.Contains(rec.Body.String(), "too many") {
				break
			}
			if n > 200 {
				t.Fatal("they may guess for ever")
			}
		}
		if rec := w.try("198.51.100.8", "ann", password); rec.Code != 403 || !strings.Contains(rec.Body.String(), "for this account") {
			t.Errorf("a network that is new: %d %s", rec.Code, rec.Body)
		}
		for _, known := range []string{home, cafe} {
			for _, name := range []string{"ann", "ann@example.test"} {
				if rec := w.try(known, name, password); rec.Code != 303 {
					t.Errorf("from %s: %d %s", known, rec.Code, rec.Body)
				}
			}
		}
		w.must(w.store.Close())
	})
}

// TestOneNetworkGuessesSlowly: of many accounts, too, and what others do there
// with their own passwords does not count.
func TestOneNetworkGuessesSlowly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		for n := range 50 {
			if rec := w.try("2001:db8::1", "ann", password); rec.Code != 303 {
				t.Fatalf("log-in %d: %d %s", n, rec.Code, rec.Body)
			}
		}
		guesses := 0
		for ; guesses < 100; guesses++ { // every address of its own network
			if rec := w.try(fmt.Sprintf("2001:db8::%x", 1+guesses), fmt.Sprint("user", guesses), "wrong"); strings.Contains(rec.Body.String(), "from this address") {
				break
			}
		}
		if guesses != 30 {
			t.Errorf("it may guess %d times at once", guesses)
		}
		time.Sleep(time.Hour + time.Second)
		if rec := w.try("2001:db8::1", "ann", password); rec.Code != 303 {
			t.Errorf("later: %d %s", rec.Code, rec.Body)
		}
		w.must(w.store.Close())
	})
}

// TestDevicesOfOneNetworkTakeNobodysPlace: whatever one network asks for, the
// device of another one can log in.
func TestDevicesOfOneNetworkTakeNobodysPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := start(t)
		type device struct {
			Code string `json:"device_code"`
			User string `json:"user_code"`
		}
		begin := func(address string) (d device, rec *httptest.ResponseRecorder) {
			rec = w.from(address, "POST", "/login/device", "application/json", `{"client_id":"doze"}`)
			_ = json.Unmarshal(rec.Body.Bytes(), &d)
			return d, rec
		}
		mine, _ := begin("192.0.2.1")
		var first, last device
		made, refused := 0, 0
		for range 1000 {
			time.Sleep(time.Millisecond)
			d, rec := begin("203.0.113.9")
			switch rec.Code {
			case 200:
				if made++; made == 1 {
					first = d
				}
				last = d
			case 429:
				refused++
				if rec.Header().Get("Retry-After") == "" {
					t.Fatal("it does not say when to come back")
				}
			default:
				t.Fatalf("%d %s", rec.Code, rec.Body)
			}
		}
		if made != 30 || refused != 970 {
			t.Errorf("%d made, %d refused", made, refused)
		}
		state := func(d device) string {
			return w.token(400, form(map[string]string{"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "device_code": d.Code, "client_id": "doze"})).Error
		}
		if got := state(first); got != "expired_token" {
			t.Errorf("its oldest is %s", got)
		}
		if got := state(last); got != "authorization_pending" {
			t.Errorf("its newest is %s", got)
		}
		if got := state(mine); got != "authorization_pending" {
			t.Errorf("that of another network is %s", got)
		}
		if _, rec := begin("192.0.2.1"); rec.Code != 200 {
			t.Errorf("another network: %d %s", rec.Code, rec.Body)
		}
		w.must(w.store.Close())
	})
}

// TestAnybodyCanCheckTokens: with the documents that are public, and nothing
// else.
func TestAnybodyCanCheckTokens(t *testing.T) {
	t.Parallel()
	w := start(t)
	var about struct {
		Issuer string `json:"issuer"`
		JWKS   string `json:"jwks_uri"`
		Token  string `json:"token_endpoint"`
	}
	w.must(json.Unmarshal(w.do("GET", "/.well-known/openid-configuration", "", "").Body.Bytes(), &about))
	if about.Issuer != base || about.JWKS != base+"/oauth/jwks" || about.Token != base+"/oauth/token" {
		t.Errorf("%+v", about)
	}
	raw := w.do("GET", "/oauth/jwks", "", "").Body.Bytes()
	if strings.Contains(string(raw), `"d"`) {
		t.Errorf("the private key got out: %s", raw)
	}
	var set jose.JSONWebKeySet
	w.must(json.Unmarshal(raw, &set))
	got := w.token(200, exchange(w.code(request)))
	token, err := jwt.ParseSigned(got.Access, []jose.SignatureAlgorithm{jose.EdDSA})
	w.must(err)
	var claims struct {
		Sub   string `json:"sub"`
		Scope string `json:"scope"`
	}
	w.must(token.Claims(set.Key(token.Headers[0].KeyID)[0], &claims))
	if claims.Sub != "ann" || claims.Scope != "sandboxes:get sandboxes:list" {
		t.Errorf("%+v", claims)
	}
}

// FuzzRequests sends bodies and queries to every way in: each is answered, none
// is our fault, and no browser is sent where the client did not say.
func FuzzRequests(f *testing.F) {
	f.Add(0, request.Encode(), "application/json")
	f.Add(1, request.Encode()+"&decision=allow&name=a&password=b", "application/x-www-form-urlencoded")
	f.Add(2, `{"grant_type":"refresh_token","refresh_token":"dzr_a_b"}`, "application/json")
	f.Add(2, "grant_type=client_credentials&client_id=%00", "text/plain")
	f.Add(5, `{"client_id":"doze","scope":"admin admin"}`, "")
	f.Add(7, "user_code=bbbb-bbbb&name=%ff", "a/b; c")
	f.Fuzz(func(t *testing.T, route int, text, kind string) {
		synctest.Test(t, func(t *testing.T) {
			w := start(t)
			all := oauth.Routes()
			rt := all[max(route, 0)%len(all)]
			r := httptest.NewRequestWithContext(t.Context(), rt.Method, "/", strings.NewReader(text))
			r.URL.Path, r.URL.RawQuery, r.Pattern = rt.Path, text, rt.Method+" "+rt.Path
			r.Header.Set("Content-Type", kind)
			rec := httptest.NewRecorder()
			w.http.ServeHTTP(rec, r)
			if rec.Code >= 500 {
				t.Errorf("%d %s", rec.Code, rec.Body)
			}
			if to := rec.Header().Get("Location"); to != "" && !strings.HasPrefix(to, callback[:20]) && !strings.HasPrefix(to, "http://127.0.0.1") && !strings.HasPrefix(to, "http://[::1]") {
				t.Errorf("sent to %s", to)
			}
			w.must(w.store.Close())
		})
	})
}
