package httpx_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/httpx"
)

func FuzzEscape(f *testing.F) {
	for _, s := range []string{"/", `/a%2fb\`, `/pub/..%2fadmin"x`, "//x/%2F{}|", "/\xff%41 é", "/%", "/%5B[]*"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.ParseRequestURI("/" + path)
		if err != nil {
			return
		}
		sent := httpx.Escape(u)
		out := url.URL{Path: u.Path, RawPath: sent}
		if out.EscapedPath() != sent {
			t.Fatalf("%q is sent as %q instead of %q", path, out.EscapedPath(), sent)
		}
		if plain, err := url.PathUnescape(sent); err != nil || plain != u.Path {
			t.Errorf("%q became %q, which is %q: %v", path, sent, plain, err)
		}
		if was, now := strings.Count(u.RawPath, "/"), strings.Count(sent, "/"); u.RawPath != "" && was != now {
			t.Errorf("%q has %d slashes, and %q %d", u.RawPath, was, sent, now)
		}
	})
}
