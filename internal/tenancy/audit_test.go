package tenancy_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/listing"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// sendFrom sends a request from an address.
func sendFrom(p *planetest.Platform, address, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	p.T.Helper()
	r := httptest.NewRequestWithContext(p.T.Context(), method, "/v0"+path, strings.NewReader(body))
	r.RemoteAddr = address + ":1234"
	r.Header.Set("Authorization", "Bearer "+p.Key)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	p.HTTP.ServeHTTP(w, r)
	return w
}

// linesOf are the whole audit log of a workspace, the oldest first; of the platform
// for the empty name.
func linesOf(p *planetest.Platform, workspace string) (all []doze.AuditLine) {
	p.T.Helper()
	if err := p.Audit.Flush(p.T.Context()); err != nil {
		p.T.Fatal(err)
	}
	err := p.Store.EachAudit(p.T.Context(), listing.Query{Workspace: workspace, Sort: listing.OldestFirst}, time.Now(), func(some []doze.AuditLine) error {
		all = append(all, some...)
		return nil
	})
	if err != nil {
		p.T.Fatal(err)
	}
	return all
}

// of are the lines of a request.
func of(all []doze.AuditLine, id string) (its []doze.AuditLine) {
	for _, l := range all {
		if l.RequestID == id {
			its = append(its, l)
		}
	}
	return its
}

// revealing are the routes whose answers have a credential in them.
var revealing = []string{"GET /sandboxes/{name}/previews/{preview}/tokens"}

// TestEachChangeHasOneLine is made from the route table, so that a new route
// cannot be forgotten: each that may change something writes one line, whatever
// comes of it, and each denied request one, of every route.
func TestEachChangeHasOneLine(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	lacking := func(sub string) string { // each has its own owner
		secret, id, hash := access.NewSecret()
		p.Creds.Set(access.Principal{Sub: sub, Type: doze.SubUser, Roles: map[string]string{"main": doze.RoleAdmin}})
		p.Creds.Keys.Add(access.Key{ID: id, Hash: hash, Workspace: "main", Sub: sub, Scopes: []string{"agents:list"}})
		return secret.Reveal()
	}
	fill := func(pattern string) string {
		for strings.Contains(pattern, "{") {
			before, rest, _ := strings.Cut(pattern, "{")
			_, after, _ := strings.Cut(rest, "}")
			pattern = before + "some" + after
		}
		return pattern
	}
	actions := map[string]string{}
	for i, rt := range plane.Describe().Routes() {
		where := rt.Method + " " + rt.Pattern
		if rt.Action == "" || !strings.Contains(rt.Action, strings.Split(rt.Pattern, "/")[1]) {
			t.Errorf("%s has the action %q", where, rt.Action)
		}
		if other := actions[rt.Action]; other != "" && rt.Method != http.MethodGet {
			t.Errorf("%s and %s are both %s", where, other, rt.Action)
		}
		actions[rt.Action] = where
		source := fmt.Sprintf("10.0.%d.%d", i/200, 1+i%200) // each has its own, lest they are only counted
		for name, test := range map[string]struct {
			credential string
			lines      int // that the request writes
		}{
			"with a credential": {p.Key, 0},
			"without":           {"dz_nonsense", 0},
			"with few scopes":   {lacking(source), 0},
		} {
			w := sendFrom(p, source, rt.Method, fill(rt.Pattern), "{}", "Authorization", "Bearer "+test.credential, "X-Request-Id", "theirs")
			id := w.Header().Get("X-Request-Id")
			if id == "" || id == "theirs" {
				t.Errorf("%s: it is the request %q", where, id)
			}
			if rt.Method != http.MethodGet || w.Code == 401 || w.Code == 403 || slices.Contains(revealing, where) {
				test.lines = 1
			}
			if closed := rt.Scope != "" && name != "with a credential"; closed && rt.Scope != "*" && w.Code != 401 && w.Code != 403 {
				t.Errorf("%s %s: %d", where, name, w.Code)
			}
			its := of(append(linesOf(p, "main"), linesOf(p, "")...), id)
			if len(its) != test.lines {
				t.Errorf("%s %s: %d, and %d lines: %+v", where, name, w.Code, len(its), its)
				continue
			}
			if test.lines == 0 {
				continue
			}
			l := its[0]
			want := map[bool]string{true: doze.AuditDone, false: doze.AuditFailed}[w.Code < 400]
			if w.Code == 401 || w.Code == 403 {
				want = doze.AuditDenied
			}
			if l.Action != rt.Action || l.Outcome != want || l.Status != w.Code || l.Source != source || l.ClientRequestID != "theirs" || l.Route != "/v0"+rt.Pattern {
				t.Errorf("%s %s: %d, %+v", where, name, w.Code, l)
			}
			if w.Code >= 400 && l.Error == "" && !strings.Contains(w.Header().Get("Content-Type"), "html") {
				t.Errorf("%s %s: the line has no error: %+v", where, name, l)
			}
			if (l.Actor.Sub == "") != (rt.Scope == "" || name == "without") {
				t.Errorf("%s %s: it is by %+v", where, name, l.Actor)
			}
		}
	}
}

// TestLinesSayWhat: who, what, on which object, and no secret.
func TestLinesSayWhat(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(planetest.Named("box"))
	planetest.Want[any](p, 200, "POST", "/sandboxes/box/previews", `{"metadata":{"name":"web"},"spec":{"port":3000}}`)
	k := planetest.Want[key](p, 200, "POST", "/api_keys", `{"name":"ci"}`)
	planetest.Want[any](p, 200, "POST", "/secrets", `{"metadata":{"name":"token"},"data":{"a":"hunter2hunter2"}}`)
	planetest.Want[any](p, 200, "GET", "/sandboxes/box", "")
	planetest.Want[any](p, 200, "GET", "/sandboxes/box?show_secrets=true", "")
	planetest.Want[any](p, 200, "GET", "/sandboxes/box/previews/web/tokens", "")
	planetest.Want[any](p, 409, "POST", "/sandboxes", planetest.Named("box"))
	planetest.Want[any](p, 200, "DELETE", "/sandboxes/box", "")
	// A name that is there twice, and one in another case, hide nothing.
	p.Do("POST", "/policies", "{\"metadata\":{\"name\":\"not\",\"Name\":\"x\",\"name\":\"b\\nc\"}}")
	var got []string
	for _, l := range linesOf(p, "main") {
		got = append(got, fmt.Sprintf("%s %s %q %s %d", l.Action, l.Object.Kind, l.Object.Name, l.Outcome, l.Status))
		if l.Actor.Sub != "admin" || l.Actor.Type != doze.SubUser || l.Actor.Key == "" || l.Source != "192.0.2.1" {
			t.Errorf("%+v", l)
		}
		if b, _ := json.Marshal(l); strings.Contains(string(b), "hunter2") || strings.Contains(string(b), k.Key) || strings.ContainsRune(string(b), '\n') {
			t.Errorf("%s", b)
		}
		if l.Action == "api_keys.create" && l.Detail != "id "+k.ID {
			t.Errorf("which key was made? %+v", l)
		}
	}
	wanted := []string{
		`sandboxes.create sandboxes "box" done 200`,
		`sandboxes.previews.create sandboxes/previews "box/web" done 200`,
		`api_keys.create api_keys "ci" done 200`,
		`secrets.create secrets "token" done 200`,
		`sandboxes.read sandboxes "box" done 200`,
		`sandboxes.previews.tokens.read sandboxes/previews/tokens "box/web" done 200`,
		`sandboxes.create sandboxes "box" failed 409`,
		`sandboxes.delete sandboxes "box" done 200`,
		`policies.create policies "b\nc" failed 400`,
	}
	if strings.Join(got, "\n") != strings.Join(wanted, "\n") {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

// TestLinesSayHowMuch: a line of a change says what was set, where the object does
// not, and which name was chosen.
func TestLinesSayHowMuch(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	planetest.Want[any](p, 200, "PUT", "/workspaces/main/quotas", `{"quotas":{"volumes":null,"sandboxes":7}}`)
	if l := linesOf(p, "main"); len(l) != 1 || l[0].Detail != "sandboxes=7 volumes=default" {
		t.Errorf("which quotas? %+v", l)
	}
	sb := planetest.Want[doze.Sandbox](p, 200, "POST", "/sandboxes", `{}`)
	if l := linesOf(p, "main"); len(l) != 2 || l[0].Detail != "name "+sb.Metadata.Name && l[1].Detail != "name "+sb.Metadata.Name {
		t.Errorf("which sandbox? %+v", l)
	}
}

// TestRightsComeFirst: a caller without the right is denied, and nothing else is
// said of the request.
func TestRightsComeFirst(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	planetest.Want[any](p, 200, "POST", "/workspaces", `{"name":"other"}`)
	secret, id, hash := access.NewSecret()
	p.Creds.Set(access.Principal{Sub: "eve", Type: doze.SubUser, Roles: map[string]string{"other": doze.RoleAdmin}})
	p.Creds.Keys.Add(access.Key{ID: id, Hash: hash, Workspace: "other", Sub: "eve"})
	for route, body := range map[string]string{
		"PUT /workspaces/other/quotas": `{"quotas":{"nonsense":1},"stranger":1}`, "PUT /platform/users/eve": `{"stranger":1}`,
	} {
		method, path, _ := strings.Cut(route, " ")
		w := sendFrom(p, "10.1.0.1", method, path, body, "Authorization", "Bearer "+secret.Reveal())
		its := of(linesOf(p, "other"), w.Header().Get("X-Request-Id"))
		if w.Code != http.StatusForbidden || len(its) != 1 || its[0].Outcome != doze.AuditDenied {
			t.Errorf("%s: %d %s: %+v", route, w.Code, w.Body, its)
		}
	}
}

// TestTheLogIsReadByAdmins: in pages, by what they ask for, each of their own
// workspace; that of the platform by operators.
func TestTheLogIsReadByAdmins(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	u, member := joinAs(p, "ann@example.test", doze.RoleMember)
	planetest.Want[any](p, 200, "POST", "/workspaces", `{"name":"other"}`)
	for _, name := range []string{"a", "b", "c"} {
		p.Create(planetest.Named(name))
	}
	planetest.Want[any](p, 403, "GET", "/secrets", "", planetest.As(member)...)
	sendFrom(p, "203.0.113.5", "POST", "/oauth/authorize", `{"name":"ann@example.test","password":"wrong","client_id":"doze","redirect_uri":"http://127.0.0.1:1/callback","response_type":"code","code_challenge_method":"S256","code_challenge":"`+strings.Repeat("a", 43)+`","decision":"allow"}`,
		"Authorization", "", "Content-Type", "application/json")
	type page struct {
		Data []doze.AuditLine
		Meta struct{ NextCursor string }
	}
	paged := []string{"Blaxel-Version", "2026-04-28"}
	var names []string
	for cursor := ""; ; {
		got := planetest.Want[page](p, 200, "GET", "/audit?action=sandboxes.create&limit=2&cursor="+cursor, "", paged...)
		for _, l := range got.Data {
			names = append(names, l.Object.Name)
		}
		if cursor = got.Meta.NextCursor; cursor == "" {
			break
		}
	}
	if strings.Join(names, " ") != "c b a" {
		t.Errorf("pages have %q", names)
	}
	for query, n := range map[string]int{
		"actor=" + u.Sub: 1, "actor=nobody": 0, "object=b": 1, "outcome=denied": 1, "outcome=begun": 0, "source=192.0.2.1&action=sandboxes.create": 3,
		"since=2099-01-01": 0, "until=2001-01-01": 0, "q=sandboxes.cre": 3,
		"platform=true&outcome=denied&source=203.0.113.5": 1, "platform=true&object=ann@example.test": 1,
	} {
		if got := planetest.Want[[]doze.AuditLine](p, 200, "GET", "/audit?"+query, ""); len(got) != n {
			t.Errorf("%s: %+v", query, got)
		}
	}
	planetest.Want[any](p, 400, "GET", "/audit?outcome=nice", "")
	planetest.Want[any](p, 400, "GET", "/audit?since=nice", "")
	planetest.Want[any](p, 403, "GET", "/audit", "", planetest.As(member)...)
	others := p.KeyFor("other", time.Time{}, access.Admin)
	if got := planetest.Want[[]doze.AuditLine](p, 200, "GET", "/audit", "", planetest.As(others)...); len(got) != 0 {
		t.Errorf("another workspace sees %+v", got)
	}
	planetest.Want[any](p, 403, "GET", "/audit?platform=true", "", planetest.As(others)...)
	planetest.Want[any](p, 403, "GET", "/audit/export?platform=true", "", planetest.As(others)...)
	// An export has the same, the oldest first, a line each.
	w := p.Do("GET", "/audit/export?action=sandboxes.create", "")
	if w.Code != 200 || w.Header().Get("Content-Type") != "application/x-ndjson" {
		t.Fatalf("%d %s", w.Code, w.Header())
	}
	names = nil
	for line := range strings.Lines(w.Body.String()) {
		var l doze.AuditLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		names = append(names, l.Object.Name)
	}
	if strings.Join(names, " ") != "a b c" {
		t.Errorf("the export has %q", names)
	}
	// Nothing of the API changes or removes a line.
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
		for _, path := range []string{"/audit", "/audit/1", "/audit/export"} {
			if w := p.Do(method, path, ""); w.Code != 405 && w.Code != 404 {
				t.Errorf("%s %s: %d", method, path, w.Code)
			}
		}
	}
	// The next workspace of this name is another one.
	planetest.Want[any](p, 200, "POST", "/secrets", planetest.Named("s"), "X-Blaxel-Workspace", "other")
	planetest.Want[any](p, 200, "DELETE", "/workspaces/other", "")
	planetest.Want[any](p, 200, "POST", "/workspaces", `{"name":"other"}`)
	if got := planetest.Want[[]doze.AuditLine](p, 200, "GET", "/audit", "", "X-Blaxel-Workspace", "other"); len(got) != 0 {
		t.Errorf("it sees %+v", got)
	}
	if got := planetest.Want[[]doze.AuditLine](p, 200, "GET", "/audit?platform=true&action=secrets.create", ""); len(got) != 1 {
		t.Errorf("the operator sees %+v", got)
	}
}

// TestStrangersFillNothing: a thousand denied requests are a few lines and their
// number.
func TestStrangersFillNothing(t *testing.T) {
	planetest.InBubble(t, func(p *planetest.Platform) {
		for range 1000 {
			want401 := sendFrom(p, "203.0.113.1", "DELETE", "/sandboxes/a", "", "Authorization", "Bearer dz_guess")
			if want401.Code != 401 {
				t.Fatal(want401.Code)
			}
		}
		sendFrom(p, "203.0.113.2", "DELETE", "/sandboxes/a", "", "Authorization", "")
		planetest.After(2 * time.Minute)
		n, counted, other := 0, 0, 0
		for _, l := range linesOf(p, "") {
			switch l.Source {
			case "203.0.113.1":
				n++
				counted += max(1, l.Count)
			case "203.0.113.2":
				other++
			}
		}
		if n != 21 || counted != 1000 || other != 1 {
			t.Errorf("%d lines count %d; another source has %d", n, counted, other)
		}
	})
}

// TestACrashLosesNoLine: the line of a change is on disk before the change is
// made, and says that nobody knows its outcome.
func TestACrashLosesNoLine(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	seen := make(chan []doze.AuditLine, 1)
	p.Node.Hook = func() { // while the sandbox is being made
		select {
		case seen <- storedLines(p, "main"):
		default: // it was heard already
		}
	}
	p.Create(planetest.Named("a"))
	all := <-seen
	if len(all) != 1 || all[0].Action != "sandboxes.create" || all[0].Object.Name != "a" || all[0].Outcome != doze.AuditBegun {
		t.Errorf("%+v", all)
	}
}

// storedLines are the lines that are in the records now.
func storedLines(p *planetest.Platform, workspace string) (all []doze.AuditLine) {
	page, err := p.Store.ListAudit(p.T.Context(), listing.Query{Workspace: workspace, Limit: 100}, time.Now())
	if err != nil {
		p.T.Error(err)
	}
	return page.Records
}

// TestNoLineNoChange: what cannot be written down is not done.
func TestNoLineNoChange(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(planetest.Named("a"))
	p.AuditStore.Fail.Store(true)
	for _, route := range [][2]string{{"DELETE", "/sandboxes/a"}, {"POST", "/sandboxes"}, {"GET", "/sandboxes/a?show_secrets=true"}} {
		e := planetest.Want[map[string]any](p, 503, route[0], route[1], planetest.Named("b"))
		if !strings.Contains(fmt.Sprint(e["message"]), "audit log") {
			t.Errorf("%v", e)
		}
	}
	if w := sendFrom(p, "192.0.2.1", "POST", "/login/device", `{"client_id":"doze"}`, "Content-Type", "application/json"); w.Code != 503 || strings.Contains(w.Body.String(), "device_code") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	planetest.Want[any](p, 200, "GET", "/sandboxes/a", "")
	planetest.Want[any](p, 404, "GET", "/sandboxes/b", "")
	p.AuditStore.Fail.Store(false)
	planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
	// What waited meanwhile is written now.
	for _, l := range linesOf(p, "main") {
		if l.Outcome == doze.AuditBegun {
			t.Errorf("%+v", l)
		}
	}
}

// TestThePlatformActs: what ends by itself has a line, too.
func TestThePlatformActs(t *testing.T) {
	planetest.InBubble(t, func(p *planetest.Platform) {
		p.Create(`{"metadata":{"name":"a"},"spec":{"runtime":{"ttl":"1h"}}}`)
		planetest.After(2 * time.Hour)
		var found []doze.AuditLine
		for _, l := range linesOf(p, "main") {
			if l.Actor.Type == doze.ActorSystem {
				found = append(found, l)
			}
		}
		if len(found) != 1 || found[0].Action != "sandboxes.expire" || found[0].Object.Name != "a" || found[0].Outcome != doze.AuditDone {
			t.Errorf("%+v", found)
		}
		synctest.Wait()
	})
}

// TestTurnedAwayHasALine: requests for a sandbox that were turned away have a line, of
// the workspace of their credential.
func TestTurnedAwayHasALine(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	r := httptest.NewRequestWithContext(t.Context(), "GET", "http://sbx-a-main.test/process", nil)
	r.RemoteAddr = "203.0.113.1:1"
	ann := access.Caller{Sub: "ann", SubType: doze.SubUser, Workspace: "main", Key: "k"}
	p.Rooms.API.Turned(r, "one", ann, "", doze.Errorf(doze.NotFound, "no such sandbox"))
	p.Rooms.API.Turned(r, "two", ann, "a", doze.Errorf(doze.Forbidden, "no scope"))
	p.Rooms.API.Turned(r, "three", access.Caller{}, "", doze.Errorf(doze.Unauthenticated, "no key"))
	p.Rooms.API.Turned(r, "four", ann, "a", doze.Errorf(doze.Unavailable, "it stops")) // nobody was denied
	var got []string
	for _, l := range append(linesOf(p, "main"), linesOf(p, "")...) {
		got = append(got, fmt.Sprintf("%s %s %s %s %s %d %s", l.RequestID, l.Action, l.Actor.Sub, l.Object.Kind, l.Object.Name, l.Status, l.Source))
	}
	wanted := []string{
		"one sandboxes.connect ann host sbx-a-main.test 404 203.0.113.1",
		"two sandboxes.connect ann sandboxes a 403 203.0.113.1",
		"three sandboxes.connect  host sbx-a-main.test 401 203.0.113.1",
	}
	if strings.Join(got, "\n") != strings.Join(wanted, "\n") {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}

// BenchmarkAudit compares creates with the audit log to those without, one caller
// at a time and eight, where a sandbox starts in no time: the records are all
// that they cost.
func BenchmarkAudit(b *testing.B) {
	p := planetest.Start(b, true)
	for _, callers := range []int{1, 8} {
		b.Run(fmt.Sprint("callers=", callers), func(b *testing.B) {
			var took [2]time.Duration
			n := 0
			for b.Loop() {
				for without := range took {
					p.AuditStore.Idle.Store(without == 1)
					began := time.Now()
					var all sync.WaitGroup
					for range callers {
						n++
						name := fmt.Sprintf("%d-%d", callers, n)
						all.Go(func() {
							if w := p.Do("POST", "/sandboxes", planetest.Named(name)); w.Code != 200 {
								b.Errorf("%d %s", w.Code, w.Body)
							}
						})
					}
					all.Wait()
					took[without] += time.Since(began)
				}
			}
			p.AuditStore.Idle.Store(false)
			b.ReportMetric(float64(took[0])/float64(took[1]), "with/without")
			b.ReportMetric(float64(took[0].Microseconds())/float64(b.N*callers), "µs/create")
		})
	}
}
