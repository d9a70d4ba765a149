package registry_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/plane/planetest"
	"github.com/dozehq/doze/internal/testkit/imagetest"
)

// picture is an image of one layer, and its archive as a node writes it.
func picture(tb testing.TB, content string) (img v1.Image, archive []byte) {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	put := func(name string, content []byte) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			tb.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			tb.Fatal(err)
		}
	}
	done := func() []byte {
		if err := w.Close(); err != nil {
			tb.Fatal(err)
		}
		return bytes.Clone(b.Bytes())
	}
	put("file", []byte(content))
	layer := static.NewLayer(done(), types.OCIUncompressedLayer)

	img, err := mutate.AppendLayers(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON), layer)
	if err != nil {
		tb.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		tb.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	if img, err = mutate.ConfigFile(img, file); err != nil {
		tb.Fatal(err)
	}
	manifest, err := img.RawManifest()
	if err != nil {
		tb.Fatal(err)
	}
	config, err := img.RawConfigFile()
	if err != nil {
		tb.Fatal(err)
	}
	m, _ := img.Manifest()
	digest, _ := img.Digest()
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{
		{MediaType: types.OCIManifestSchema1, Digest: digest, Size: int64(len(manifest))},
	}})
	if err != nil {
		tb.Fatal(err)
	}
	r, err := layer.Compressed()
	if err != nil {
		tb.Fatal(err)
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		tb.Fatal(err)
	}
	b.Reset()
	w = tar.NewWriter(&b)
	put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	put("index.json", index)
	put("manifest.json", []byte(`[{}]`))
	put("blobs/sha256/"+digest.Hex, manifest)
	put("blobs/sha256/"+m.Config.Digest.Hex, config)
	put("blobs/sha256/"+m.Layers[0].Digest.Hex, raw)
	return img, done()
}

// hub is the registry of a platform, on loopback.
type hub struct {
	*planetest.Platform

	host string
}

func newHub(t *testing.T) *hub {
	t.Helper()
	p := planetest.Start(t, true)
	s := httptest.NewServer(p.Rooms.Handler())
	t.Cleanup(s.Close)
	return &hub{p, strings.TrimPrefix(s.URL, "http://")}
}

// load puts an image into a workspace.
func (h *hub) load(name, workspace string, archive []byte) {
	h.T.Helper()
	planetest.Want[doze.ImageResponse](h.Platform, 200, "PUT", "/images/sandbox/"+name+"/archive", string(archive), "X-Blaxel-Workspace", workspace, "Content-Type", "application/x-tar")
}

func (h *hub) ref(tb testing.TB, s string) name.Reference {
	tb.Helper()
	ref, err := name.ParseReference(h.host + "/" + s)
	if err != nil {
		tb.Fatal(err)
	}
	return ref
}

// as are the credentials that docker login stores.
func as(key string) remote.Option {
	return remote.WithAuth(&authn.Basic{Username: "anybody", Password: key})
}

// status is that of an error of a registry.
func status(err error) int {
	if e, ok := err.(*transport.Error); ok { //nolint:errorlint // the library wraps none
		return e.StatusCode
	}
	return 0
}

// TestPull pulls images as docker does, of the caller's workspace and shared ones, and no
// others.
func TestPull(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	planetest.Want[doze.Workspace](h.Platform, 200, "POST", "/workspaces", `{"name":"other"}`)
	one, archive := picture(t, "one")
	two, second := picture(t, "two")
	h.load("own-app:1", "main", archive)
	h.load("own-app:2", "main", second)
	h.load("own-secret", "other", second)
	h.load("own-shared", "other", archive)
	planetest.Want[doze.Image](h.Platform, 200, "POST", "/images/sandbox/own-shared/share", `{"targetWorkspace":"main"}`, "X-Blaxel-Workspace", "other")
	key := h.KeyFor("main", time.Time{}, access.Admin)

	for ref, want := range map[string]v1.Image{"main/own-app:1": one, "main/own-app:2": two, "main/own-shared": one} {
		got, err := remote.Image(h.ref(t, ref), as(key))
		if err == nil {
			err = imagetest.Verify(got)
		}
		if err != nil {
			t.Errorf("%s: %v", ref, err)
			continue
		}
		digest, _ := want.Digest()
		if d, _ := got.Digest(); d != digest {
			t.Errorf("%s is %s", ref, d)
		}
		byDigest := h.ref(t, strings.Split(ref, ":")[0]+"@"+digest.String())
		if _, err := remote.Get(byDigest, as(key)); err != nil {
			t.Errorf("%s: %v", byDigest, err)
		}
		if d, err := remote.Head(h.ref(t, ref), as(key)); err != nil || d.Digest != digest {
			t.Errorf("%s: %+v, %v", ref, d, err)
		}
	}
	tags, err := remote.List(h.ref(t, "main/own-app").Context(), as(key))
	if err != nil || strings.Join(tags, " ") != "1 2" {
		t.Errorf("%v, %v", tags, err)
	}

	member := h.KeyFor("main", time.Time{}, "sandboxes:get")
	for _, tt := range []struct {
		ref, key string
		status   int
	}{
		{"main/own-app:1", "", 401},
		{"main/own-app:1", "wrong", 401},
		{"main/own-app:1", member, 403},
		{"other/own-secret", key, 403},
		{"main/own-secret", key, 404},
		{"main/own-app:3", key, 404},
		{"main/own-app@sha256:" + strings.Repeat("0", 64), key, 404},
		{"main/own-app/more", key, 404},
		{"other/own-app:1", h.KeyFor("other", time.Time{}, access.Admin), 404},
	} {
		option := as(tt.key)
		if tt.key == "" {
			option = remote.WithAuth(authn.Anonymous)
		}
		if _, err := remote.Get(h.ref(t, tt.ref), option); status(err) != tt.status {
			t.Errorf("%s: %v, want %d", tt.ref, err, tt.status)
		}
	}
}

// TestProtocol sends what docker and others send, byte for byte.
func TestProtocol(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	img, archive := picture(t, strings.Repeat("content ", 1000))
	h.load("own-app", "main", archive)
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	layer := m.Layers[0]
	raw, _ := img.RawManifest()
	blob := "/v2/main/own-app/blobs/" + layer.Digest.String()
	for _, tt := range []struct {
		method, path, ranged string
		key                  string
		status               int
		says                 string
		header, value        string
	}{
		{"GET", "/v2/", "", "", 401, "UNAUTHORIZED", "WWW-Authenticate", `Basic realm="Doze: an API key is the password"`},
		{"GET", "/v2/", "", h.Key, 200, "", "Docker-Distribution-Api-Version", "registry/2.0"},
		{"GET", "/v2/main/own-app/manifests/latest", "", h.Key, 200, string(raw), "Content-Type", string(types.OCIManifestSchema1)},
		{"HEAD", "/v2/main/own-app/manifests/latest", "", h.Key, 200, "", "Docker-Content-Digest", func() string { d, _ := img.Digest(); return d.String() }()},
		{"HEAD", blob, "", h.Key, 200, "", "Docker-Content-Digest", layer.Digest.String()},
		{"GET", blob, "bytes=600-607", h.Key, 206, "", "Content-Length", "8"},
		{"GET", blob, "bytes=99999999-", h.Key, 416, "", "", ""},
		{"GET", "/v2/main/own-app/tags/list", "", h.Key, 200, `"latest"`, "", ""},
		{"GET", "/v2/main/own-app/blobs/sha256:x", "", h.Key, 400, "", "", ""},
		{"GET", "/v2/main/own-app/manifests/a%20b", "", h.Key, 404, "", "", ""},
		{"GET", "/v2/main/UPPER/manifests/latest", "", h.Key, 400, "", "", ""},
		{"GET", "/v2/other/own-app/manifests/latest", "", h.Key, 403, "DENIED", "", ""},
		{"GET", "/v2/main", "", h.Key, 404, "", "", ""},
		{"POST", "/v2/main/own-app/blobs/uploads/", "", h.Key, 405, "UNSUPPORTED", "", ""},
		{"PUT", "/v2/main/own-app/manifests/latest", "", h.Key, 405, "read-only", "", ""},
		{"DELETE", "/v2/main/own-app/manifests/latest", "", h.Key, 405, "UNSUPPORTED", "", ""},
	} {
		r, err := http.NewRequestWithContext(t.Context(), tt.method, "http://"+h.host+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tt.key != "" {
			r.SetBasicAuth("doze", tt.key)
		}
		if tt.ranged != "" {
			r.Header.Set("Range", tt.ranged)
		}
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		if err := answer.Body.Close(); err != nil {
			t.Fatal(err)
		}
		if err != nil || answer.StatusCode != tt.status || !strings.Contains(string(body), tt.says) || tt.header != "" && answer.Header.Get(tt.header) != tt.value {
			t.Errorf("%s %s %s: %d %v %.200s, %v", tt.method, tt.path, tt.ranged, answer.StatusCode, answer.Header, body, err)
		}
	}
}

// TestBearer takes the credential as the API does.
func TestBearer(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, (&url.URL{Scheme: "http", Host: h.host, Path: "/v2/"}).String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+h.Key)
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Errorf("%v, %v", answer, err)
	}
	_ = answer.Body.Close()
}

// TestStreams holds as many layers of a workspace as may be on their way: the next one
// has to wait for one of them.
func TestStreams(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	img, archive := picture(t, strings.Repeat("x", 64<<20)) // more than is on its way in buffers
	h.load("own-app", "main", archive)
	m, _ := img.Manifest()
	get := func() *http.Response {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+h.host+"/v2/main/own-app/blobs/"+m.Layers[0].Digest.String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		r.SetBasicAuth("doze", h.Key)
		answer, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		return answer
	}
	var held []*http.Response
	for range 4 {
		held = append(held, get())
	}
	if one := get(); one.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one too many: %d", one.StatusCode)
	}
	for _, one := range held {
		if one.StatusCode != http.StatusOK {
			t.Errorf("%d", one.StatusCode)
		}
		_ = one.Body.Close()
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		one := get()
		_ = one.Body.Close()
		if one.StatusCode == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after all ended: %d", one.StatusCode)
		}
	}
}
