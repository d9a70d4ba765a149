package disk

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dozehq/doze"
)

func TestParseMirrors(t *testing.T) {
	t.Parallel()
	got, err := ParseMirrors([]string{"docker.io=mirror.example.com/docker", "quay.io:443=10.1.2.3:5000"})
	if diff := cmp.Diff(Mirrors{"index.docker.io": "mirror.example.com/docker", "quay.io:443": "10.1.2.3:5000"}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	for _, bad := range [][]string{
		{"docker.io"},
		{"=mirror.example.com"},
		{"docker.io="},
		{"docker.io=https://mirror.example.com"},
		{"docker.io=mirror"},
		{"docker.io=mirror.example.com/UPPER"},
		{"docker.io=a.example.com", "docker.io=b.example.com"},
		{"doc ker=a.example.com"},
		{"docker.io=u:p@a.example.com"},
	} {
		if got, err := ParseMirrors(bad); err == nil {
			t.Errorf("%q is %v", bad, got)
		}
	}
}

func TestMirrorOf(t *testing.T) {
	t.Parallel()
	m, err := ParseMirrors([]string{"docker.io=mirror.example.com/docker"})
	if err != nil {
		t.Fatal(err)
	}
	digest := "sha256:" + strings.Repeat("0", 64)
	for ref, want := range map[string]string{
		"docker.io/alpine:3.20":         "mirror.example.com/docker/library/alpine:3.20",
		"docker.io/team/app@" + digest:  "mirror.example.com/docker/team/app@" + digest,
		"registry.example.com/a/b:1":    "",
		"index.docker.io/team/app:v1.0": "mirror.example.com/docker/team/app:v1.0",
	} {
		parsed, err := name.ParseReference(ref)
		if err != nil {
			t.Fatal(err)
		}
		got, mirrored, err := m.of(parsed)
		if err != nil || mirrored != (want != "") || mirrored && got.Name() != want {
			t.Errorf("%s is %v, %v", ref, got, err)
		}
	}
}

// counted is a registry that counts requests, and those with credentials.
func counted(t *testing.T) (h *hub, requests, logins *atomic.Int32) {
	t.Helper()
	requests, logins = new(atomic.Int32), new(atomic.Int32)
	inner := registry.New()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.Header.Get("Authorization") != "" {
			logins.Add(1)
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return &hub{host: strings.TrimPrefix(s.URL, "http://")}, requests, logins
}

// TestMirrored: what a Dockerfile names comes from a mirror if its registry has one.
func TestMirrored(t *testing.T) {
	t.Parallel()
	mirrors, err := ParseMirrors([]string{"docker.io=mirror.example.com/docker", "quay.io=mirror.example.com/quay"})
	if err != nil {
		t.Fatal(err)
	}
	l := library(t, Options{Mirrors: mirrors})
	for image, want := range map[string][2]string{
		"alpine":                       {"index.docker.io/library/alpine:latest", "docker.io"},
		"docker.io/library/alpine:3":   {"index.docker.io/library/alpine:3", "docker.io"},
		"quay.io/team/app:1":           {"quay.io/team/app:1", "quay.io"},
		"registry.example.com/app:1":   {},
		"mirror.example.com/docker/a":  {},
		"not an image":                 {},
		"quay.io.evil.example/team/ap": {},
	} {
		ref, registry, ok := l.Mirrored(image)
		if ref != want[0] || registry != want[1] || ok != (want[0] != "") {
			t.Errorf("%s: %s of %s, %t", image, ref, registry, ok)
		}
	}
}

// TestMirror: an image comes from the mirror of its registry, which may be private, and from
// nowhere else. Credentials go to the registry that they are for.
func TestMirror(t *testing.T) {
	t.Parallel()
	mirror, asked, logins := counted(t)
	origin, originAsked, _ := counted(t)
	tar := layer(t, entry{'f', 0o600, 0, "f", "text"})
	mirror.push(t, "cache/team/a", v1.Config{}, tar)
	origin.push(t, "team/b", v1.Config{}, tar)
	asked.Store(0)
	originAsked.Store(0)
	mirrors, err := ParseMirrors([]string{"docker.io=" + mirror.host + "/cache", origin.host + "=" + mirror.host + "/cache"})
	if err != nil {
		t.Fatal(err)
	}
	l := library(t, Options{Mirrors: mirrors}) // without private registries
	for _, ref := range []string{"docker.io/team/a", origin.host + "/team/a"} {
		if img, err := l.Ensure(t.Context(), ref, nil); err != nil || img.Path == "" {
			t.Errorf("%s: %+v, %v", ref, img, err)
		}
	}
	if asked.Load() == 0 || originAsked.Load() != 0 || logins.Load() != 0 {
		t.Errorf("the mirror had %d requests, %d of them with credentials, and the registry %d", asked.Load(), logins.Load(), originAsked.Load())
	}
	_, err = l.Ensure(t.Context(), origin.host+"/team/b", nil)
	if public := doze.Public(err); public.Name != doze.NameInvalidImage || !strings.Contains(public.Message, mirror.host) || originAsked.Load() != 0 {
		t.Errorf("what the mirror does not have: %v, %d requests to the registry", err, originAsked.Load())
	}
	if _, err := l.Ensure(t.Context(), mirror.host+"/cache/team/a", nil); doze.Public(err).Name != doze.NameInvalidImage {
		t.Errorf("a caller reaches the private address of the mirror: %v", err)
	}
	private := library(t, Options{Mirrors: mirrors, PrivateRegistries: true})
	before := asked.Load()
	if _, err := private.EnsureFor(t.Context(), origin.host+"/team/b", &Login{Owner: "w", Username: "u", Password: "p"}, nil); err != nil || asked.Load() != before || originAsked.Load() == 0 {
		t.Errorf("with credentials: %v, %d requests to the mirror, %d to the registry", err, asked.Load()-before, originAsked.Load())
	}
}
