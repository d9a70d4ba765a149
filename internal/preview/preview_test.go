package preview_test

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

func expose(p *planetest.Platform, body string) doze.Preview {
	p.T.Helper()
	return planetest.Want[doze.Preview](p, 200, "POST", "/sandboxes/a/previews", body)
}

// label is the first of the host of a preview.
func label(v doze.Preview) string {
	label, _, _ := strings.Cut(strings.TrimPrefix(v.Spec.URL, "http://"), ".")
	return label
}

// TestPreviewsOfPorts: what the sandbox declares of a port decides how its preview is
// reached, and the edge learns of each change.
func TestPreviewsOfPorts(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, true)
	planetest.Want[any](p, 200, "POST", "/sandboxes", `{"metadata":{"name":"a"},"spec":{"runtime":{"ports":[{"target":5432,"protocol":"TCP"},{"target":3000},{"target":8080,"protocol":"TLS"}]}}}`)
	for port, prefix := range map[string]string{"5432": "tls://db", "3000": "http://", "4000": "http://", "8080": "http://"} {
		v := expose(p, `{"metadata":{"name":"p`+port+`"},"spec":{"port":`+port+`,"prefixUrl":"db`+port+`"}}`)
		if !strings.HasPrefix(v.Spec.URL, prefix) {
			t.Errorf("port %s is at %s", port, v.Spec.URL)
		}
	}
	if to, _ := p.Dir.Find("main", "a", time.Now()); !cmp.Equal(to.Streams, map[int]string{5432: doze.ProtocolTCP}) {
		t.Errorf("the edge knows %v", to.Streams)
	}
	planetest.Want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"ports":[{"target":5432}]}}}`)
	if v := planetest.Want[doze.Preview](p, 200, "GET", "/sandboxes/a/previews/p5432", ""); v.Spec.URL != "http://db5432-main.preview.test" {
		t.Errorf("it is at %s", v.Spec.URL)
	}
	if to, _ := p.Dir.Find("main", "a", time.Now()); len(to.Streams) > 0 {
		t.Errorf("the edge knows %v", to.Streams)
	}
}

func TestPreviewsAreMadeAndChanged(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, true)
	p.Create(planetest.Named("a"))
	v := expose(p, `{"metadata":{"name":"web"},"spec":{"port":3000,"public":true,"responseHeaders":{"X-A":"b"},"url":"http://evil.test","region":"mars"}}`)
	if v.Metadata.ResourceName != "a" || v.Metadata.ResourceType != "sandbox" || v.Metadata.Workspace != "main" || v.Status != "DEPLOYED" || v.Spec.Region != "here-1" || v.Metadata.CreatedBy != "admin" {
		t.Errorf("%+v", v)
	}
	if !regexp.MustCompile(`^http://[a-z2-7]{16}\.preview\.test$`).MatchString(v.Spec.URL) {
		t.Errorf("address %s", v.Spec.URL)
	}
	if diff := cmp.Diff(v, planetest.Want[doze.Preview](p, 200, "GET", "/sandboxes/a/previews/web", "")); diff != "" {
		t.Error(diff)
	}
	known, ok := p.Previews.Find(label(v), time.Now())
	if !ok || !known.Public || known.Port != 3000 || known.Sandbox != "a" || known.ResponseHeaders["X-A"] != "b" {
		t.Errorf("the edge knows %+v", known)
	}
	// Deleted and made again, it has its address again.
	planetest.Want[doze.Preview](p, 200, "DELETE", "/sandboxes/a/previews/web", "")
	planetest.Want[any](p, 404, "GET", "/sandboxes/a/previews/web", "")
	if _, ok := p.Previews.Find(label(v), time.Now()); ok {
		t.Error("the edge still knows it")
	}
	if again := expose(p, `{"metadata":{"name":"web"},"spec":{"port":3000,"public":true}}`); again.Spec.URL != v.Spec.URL {
		t.Errorf("its address is %s, and was %s", again.Spec.URL, v.Spec.URL)
	}
	// A prefix moves it; what is not said stays.
	moved := planetest.Want[doze.Preview](p, 200, "PUT", "/sandboxes/a/previews/web", `{"spec":{"prefixUrl":"shop","public":false}}`)
	if label(moved) != "shop-main" || moved.Spec.Port != 3000 || moved.Spec.Public {
		t.Errorf("%+v", moved)
	}
	if _, ok := p.Previews.Find(label(v), time.Now()); ok {
		t.Error("the edge still knows the address before")
	}
	// Somebody else wants the prefix.
	p.Create(planetest.Named("b"))
	const rival = `{"metadata":{"name":"web"},"spec":{"port":4000,"prefixUrl":"shop"}}`
	planetest.Want[any](p, 409, "POST", "/sandboxes/b/previews", rival)
	token := planetest.Want[doze.PreviewToken](p, 200, "POST", "/sandboxes/a/previews/web/tokens", "{}").Spec.Token
	planetest.Want[doze.Preview](p, 200, "POST", "/sandboxes/b/previews?force=true", rival)
	if known, _ := p.Previews.Find("shop-main", time.Now()); known.Sandbox != "b" {
		t.Errorf("the edge knows %+v", known)
	}
	// The other one goes on where it was before it had the prefix.
	yielded := planetest.Want[doze.Preview](p, 200, "GET", "/sandboxes/a/previews/web", "")
	known, ok = p.Previews.Find(label(v), time.Now())
	if yielded.Spec.URL != v.Spec.URL || yielded.Spec.PrefixURL != "" || !ok || known.Sandbox != "a" || known.Port != 3000 || !known.Opens(token, time.Now()) {
		t.Errorf("it is %+v, and the edge knows %+v", yielded, known)
	}
	// Two workspaces can spell one label; force does not reach over.
	planetest.Want[any](p, 200, "POST", "/workspaces", `{"name":"x-main"}`)
	in := []string{"X-Blaxel-Workspace", "x-main"}
	planetest.Want[any](p, 200, "POST", "/sandboxes", planetest.Named("c"), in...)
	planetest.Want[any](p, 200, "PUT", "/sandboxes/b/previews/web", `{"spec":{"prefixUrl":"shop-x"}}`)
	const foreign = "a preview that is not of this workspace has the address that web would have: choose another prefixUrl"
	if got, _ := planetest.Want[map[string]any](p, 409, "POST", "/sandboxes/c/previews?force=true", `{"metadata":{"name":"web"},"spec":{"port":1,"prefixUrl":"shop"}}`, in...)["message"].(string); got != foreign {
		t.Errorf("force says %q", got)
	}

	p.Reopen()
	if known, ok := p.Previews.Find("shop-x-main", time.Now()); !ok || known.Port != 4000 {
		t.Errorf("after a restart the edge knows %+v", known)
	}
	planetest.Want[planetest.Sandbox](p, 200, "DELETE", "/sandboxes/b", "")
	if _, ok := p.Previews.Find("shop-x-main", time.Now()); ok {
		t.Error("a preview outlives its sandbox")
	}
	planetest.Want[any](p, 404, "GET", "/sandboxes/b/previews", "")
}

func TestPreviewMistakes(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(planetest.Named("a"))
	expose(p, `{"metadata":{"name":"there"},"spec":{"port":3000}}`)
	for body, tt := range map[string]struct {
		status int
		says   string
	}{
		`{}`: {400, "metadata.name"},
		`{"metadata":{"name":"X"},"spec":{"port":70000,"prefixUrl":"A_","ttl":"soon","expires":"soon","requestHeaders":{"a b":"c","Host":"d","X-E":"f\r\ng"}}}`: {400, "X-E"},
		`{"metadata":{"name":"x"},"spec":{"port":80}}`:                                     {400, "spec.port"},
		`{"metadata":{"name":"x"},"spec":{"port":443,"public":true}}`:                      {400, "everybody"},
		`{"metadata":{"name":"x"},"spec":{"port":8080,"public":true}}`:                     {400, "everybody"},
		`{"metadata":{"name":"x"},"spec":{"port":"3000"}}`:                                 {400, "whole number"},
		`{"metadata":{"name":"x"},"spec":{"port":1,"expires":"2001-01-01"}}`:               {400, "already"},
		`{"metadata":{"name":"x"},"spec":{"port":1,"customDomain":"a.test"}}`:              {400, "customDomain"},
		`{"metadata":{"name":"there"},"spec":{"port":1}}`:                                  {409, "has a preview there already"},
		`{"metadata":{"name":"x"},"spec":{"port":1,"responseHeaders":{"X-Blaxel-A":"b"}}}`: {400, "platform"},
	} {
		w := p.Do("POST", "/sandboxes/a/previews", body)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.says) {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
		planetest.CheckError(t, w)
	}
	planetest.Want[any](p, 400, "PUT", "/sandboxes/a/previews/there", `{"metadata":{"name":"other"}}`)
	planetest.Want[any](p, 400, "PUT", "/sandboxes/a/previews/there", `{"spec":{"port":0}}`)
	planetest.Want[any](p, 404, "POST", "/sandboxes/none/previews", `{}`)
	p.Create(planetest.Named("b"))
	planetest.Want[any](p, 200, "POST", "/sandboxes/b/previews", `{"metadata":{"name":"first"},"spec":{"port":3000,"prefixUrl":"web"}}`)
	e := planetest.Want[map[string]any](p, 409, "PUT", "/sandboxes/a/previews/there", `{"spec":{"prefixUrl":"web"}}`)
	if says, _ := e["message"].(string); !strings.Contains(says, "prefixUrl") || strings.Contains(says, "already") {
		t.Errorf("%v", e)
	}
	if all := planetest.Want[[]doze.Preview](p, 200, "GET", "/sandboxes/a/previews", ""); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

func TestPreviewsEnd(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		v := expose(p, `{"metadata":{"name":"s"},"spec":{"port":443,"expires":"2000-01-01T02:00:00Z","ttl":"1h"}}`)
		planetest.After(time.Hour - time.Millisecond)
		planetest.Want[doze.Preview](p, 200, "GET", "/sandboxes/a/previews/s", "")
		planetest.After(2 * time.Millisecond)
		planetest.Want[any](p, 404, "GET", "/sandboxes/a/previews/s", "")
		if _, ok := p.Previews.Find(label(v), time.Now()); ok {
			t.Error("the edge knows it beyond its time")
		}
		expose(p, `{"metadata":{"name":"s"},"spec":{"port":443}}`) // name and address are free
	})
}

func TestPreviewTokens(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		v := expose(p, `{"metadata":{"name":"s"},"spec":{"port":443}}`)
		const path = "/sandboxes/a/previews/s/tokens"
		opens := func(token string) bool {
			known, ok := p.Previews.Find(label(v), time.Now())
			return ok && known.Opens(token, time.Now())
		}
		first := planetest.Want[doze.PreviewToken](p, 200, "POST", path, `{"metadata":{"name":"t"},"spec":{"expiresAt":"2000-01-01T01:00:00Z"}}`)
		second := planetest.Want[doze.PreviewToken](p, 200, "POST", path, `{"metadata":{"name":"t"}}`) // names need not be unique
		third := planetest.Want[doze.PreviewToken](p, 200, "POST", path, `{}`)
		if first.Metadata.PreviewName != "s" || first.Metadata.ResourceName != "a" || !regexp.MustCompile(`^[A-Za-z0-9_-]{50,}$`).MatchString(first.Spec.Token) {
			t.Errorf("%+v", first)
		}
		for _, token := range []string{first.Spec.Token, second.Spec.Token, third.Spec.Token} {
			if !opens(token) {
				t.Error("a new token does not open")
			}
		}
		planetest.After(time.Hour)
		all := planetest.Want[[]doze.PreviewToken](p, 200, "GET", path, "")
		if len(all) != 3 || opens(first.Spec.Token) {
			t.Errorf("an expired token opens, of %+v", all)
		}
		for _, token := range all {
			if token.Spec.Token == "" || token.Spec.Expired != (token.Spec.Token == first.Spec.Token) {
				t.Errorf("%+v", token)
			}
		}
		p.Reopen()
		if !opens(second.Spec.Token) {
			t.Error("it does not open after a restart")
		}
		for _, file := range []string{p.File, p.File + "-wal"} {
			if b, err := os.ReadFile(file); err == nil && bytes.Contains(b, []byte(second.Spec.Token)) {
				t.Errorf("a token is in %s", file)
			}
		}
		planetest.Want[any](p, 200, "DELETE", path+"/"+third.Spec.Token, "") // by value
		planetest.Want[any](p, 200, "DELETE", path+"/t", "")                 // by name
		planetest.Want[any](p, 404, "DELETE", path+"/t", "")
		if opens(second.Spec.Token) || opens(third.Spec.Token) {
			t.Error("a deleted token opens")
		}
		for _, at := range []string{"soon", "1999-12-31T23:59:59Z", time.Now().UTC().Format(time.RFC3339)} {
			e := planetest.Want[map[string]any](p, 400, "POST", path, `{"metadata":{"name":"T"},"spec":{"expiresAt":"`+at+`"}}`)
			if says := e["message"].(string); !strings.Contains(says, "metadata.name") || !strings.Contains(says, "spec.expiresAt") {
				t.Errorf("%s: %s", at, says)
			}
		}
		planetest.Want[any](p, 404, "GET", "/sandboxes/a/previews/none/tokens", "")
		looks := p.KeyFor("main", time.Time{}, "sandboxes:get")
		planetest.Want[any](p, 403, "GET", path, "", planetest.As(looks)...)
	})
}
