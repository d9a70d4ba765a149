package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/dozehq/doze"
)

// picture is an image whose configuration has what the library does not know.
func picture(t *testing.T) v1.Image {
	t.Helper()
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	content := strings.Repeat("text ", 1000)
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "file", Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(
		mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON),
		static.NewLayer(layer.Bytes(), types.OCIUncompressedLayer),
	)
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config.Env = "linux", runtime.GOARCH, []string{"A=b"}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}

// imageServer is a platform with one image, which counts what is loaded.
type imageServer struct {
	*httptest.Server

	archive []byte // of app; empty: one that breaks off

	mu     sync.Mutex
	loaded map[string][]byte // guarded by mu; by name
}

// tagged is an image with a tag of each kind.
var tagged = doze.Image{
	Metadata: doze.ImageMetadata{Name: "app", Status: doze.ImageBuilt},
	Spec: doze.ImageSpec{Tags: []doze.ImageTag{
		{Name: "latest", Image: "built/abcdefghijklmnopqrstuvwxyz@sha256:" + strings.Repeat("0123456789abcdef", 4), Size: 5 << 20},
		{Name: "1", Image: "hub.test/" + strings.Repeat("team/", 20) + "app@sha256:" + strings.Repeat("fedcba9876543210", 4), Size: 7 << 20},
	}},
}

// TestImageTable: a table of images fits a screen, and a wide one has all.
func TestImageTable(t *testing.T) {
	t.Parallel()
	s := newImageServer(t)
	const header = "NAME  TAG     IMAGE                                                  MB  FROM  UPDATED\n"
	for args, want := range map[string]string{
		"ls":                     header + "app   latest  0123456789ab                                           5   -     -\n" + "app   1       …/team/team/team/team/team/team/team/app@fedcba987654  7   -     -\n",
		"get begun":              "NAME   STATUS    UPDATED  REASON\nbegun  BUILDING  -        doze image build-logs begun\n",
		"get app:2":              "",
		"get none":               "",
		"get app -o name":        strings.Repeat("app\n", 2),
		"get sandbox/app:latest": "NAME  TAG     IMAGE         MB  FROM  UPDATED\napp   latest  0123456789ab  5   -     -\n",
	} {
		code, out, errs := s.command(t, "", strings.Fields(args)...)
		if out != want || (code == 0) != (want != "") || code != 0 && code != exitNotFound {
			t.Errorf("%s: %d %s\n%s", args, code, errs, cmp.Diff(want, out))
		}
	}
	if _, out, _ := s.command(t, "", "ls", "-o", "wide"); !strings.Contains(out, tagged.Spec.Tags[0].Image) || !strings.Contains(out, tagged.Spec.Tags[1].Image) {
		t.Errorf("a wide table is %s", out)
	}
	code, out, errs := s.command(t, "", "get", "app:1", "-o", "json")
	var got doze.Image
	if err := json.Unmarshal([]byte(out), &got); code != 0 || err != nil || len(got.Spec.Tags) != 1 || got.Spec.Tags[0] != tagged.Spec.Tags[1] {
		t.Errorf("%d %s %s %v", code, out, errs, err)
	}
}

// TestUnreachableRegistry: the reason is told once.
func TestUnreachableRegistry(t *testing.T) {
	t.Parallel()
	s := newImageServer(t)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"push", "app:1", address + "/x:1"}, {"pull", address + "/x:1"}} {
		code, _, errs := s.command(t, "", args...)
		if code == 0 || strings.Count(errs, "connection refused") != 1 || strings.Count(errs, "cannot be reached") != 1 {
			t.Errorf("%v: %d %s", args, code, errs)
		}
	}
}

func newImageServer(t *testing.T) *imageServer {
	t.Helper()
	var b bytes.Buffer
	if err := writeLayout(&b, picture(t)); err != nil {
		t.Fatal(err)
	}
	s := &imageServer{archive: b.Bytes(), loaded: map[string][]byte{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/v0/images/sandbox/"), "/archive")
		switch {
		case r.Method == http.MethodGet && name == "broken":
			_, _ = w.Write(s.archive[:1000])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case r.Method == http.MethodGet && name == "app:1":
			_, _ = w.Write(s.archive)
		case r.Method == http.MethodGet && name == "app":
			_ = json.NewEncoder(w).Encode(tagged)
		case r.Method == http.MethodGet && name == "begun":
			_ = json.NewEncoder(w).Encode(doze.Image{Metadata: doze.ImageMetadata{Name: "begun", Status: doze.BuildBuilding}})
		case r.Method == http.MethodGet && r.URL.Path == "/v0/images":
			_ = json.NewEncoder(w).Encode([]doze.Image{tagged})
		case r.Method == http.MethodPut && name != "wrong":
			raw, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			s.mu.Lock()
			s.loaded[name] = raw
			s.mu.Unlock()
			_ = json.NewEncoder(w).Encode(map[string]string{"name": "app", "image": "built/x@sha256:1"})
		case r.Method == http.MethodPut:
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"error":"INVALID_IMAGE","code":400,"message":"the archive is no image"}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":"not_found","code":404,"message":"there is no such image"}`)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// command runs a command line.
func (s *imageServer) command(t *testing.T, in string, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	env := map[string]string{"DOZE_ADDRESS": s.URL, "DOZE_KEY": "good", "DOZE_WORKSPACE": "w"}
	a := app{in: strings.NewReader(in), out: &o, err: &e, getenv: func(k string) string { return env[k] }, now: testNow, config: filepath.Join(t.TempDir(), "c.json")}
	code = a.run(t.Context(), append([]string{"image"}, args...))
	return code, o.String(), e.String()
}

func TestImageArchives(t *testing.T) {
	t.Parallel()
	s := newImageServer(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "app.tar")
	if code, out, errs := s.command(t, "", "save", "app:1", "-o", file); code != 0 || out != "" || !strings.HasPrefix(errs, "saved app:1 to "+file+", 0.0 MB in ") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if b, err := os.ReadFile(file); err != nil || !bytes.Equal(b, s.archive) {
		t.Errorf("the file has %d bytes, %v", len(b), err)
	}
	if code, out, errs := s.command(t, "", "save", "app:1"); code != 0 || out != string(s.archive) {
		t.Errorf("%d %s", code, errs)
	}
	if code, out, errs := s.command(t, "", "load", "-i", file, "-t", "mine:1"); code != 0 || !strings.Contains(out, "built/x@sha256:1") {
		t.Errorf("%d %s %s", code, out, errs)
	}
	if code, _, errs := s.command(t, "from the input", "load", "-t", "other"); code != 0 {
		t.Errorf("%d %s", code, errs)
	}
	if !bytes.Equal(s.loaded["mine:1"], s.archive) || string(s.loaded["other"]) != "from the input" {
		t.Errorf("the server got %d images", len(s.loaded))
	}
	for _, tt := range []struct {
		args, says string
		code       int
	}{
		{"save none -o " + filepath.Join(dir, "none"), "no such image", exitNotFound},
		{"save broken -o " + filepath.Join(dir, "none"), "", exitFailed},
		{"save app:1 -o " + filepath.Join(dir, "none", "x"), "doze: there is no directory " + filepath.Join(dir, "none") + ": make it first\n", exitFailed},
		{"save app:1 -o " + filepath.Join(file, "x"), "doze: cannot make a file in the directory " + file + ": not a directory\n", exitFailed},
		{"save app:1 -o " + dir, "doze: " + dir + " is a directory: name a file in it\n", exitFailed},
		{"load -i " + file, "-t NAME", exitUsage},
		{"load -i " + filepath.Join(dir, "none") + " -t a", "no such file", exitFailed},
		{"load -i " + file + " -t wrong", "no image", exitUsage},
	} {
		if code, _, errs := s.command(t, "", strings.Fields(tt.args)...); code != tt.code || !strings.Contains(errs, tt.says) {
			t.Errorf("%s: %d %s", tt.args, code, errs)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// newRegistry is a real registry on loopback that wants a password, if there is one.
func newRegistry(t *testing.T, password string) (host string) {
	t.Helper()
	inner := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, given, _ := r.BasicAuth(); password != "" && (user != "me" || given != password) {
			w.Header().Set("WWW-Authenticate", `Basic realm="hub"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// TestPushAndPull copies an image to a registry and back, with credentials of all kinds.
func TestPushAndPull(t *testing.T) { //nolint:paralleltest // it sets where docker stores credentials
	s, hub := newImageServer(t), newRegistry(t, "word")
	config := t.TempDir()
	t.Setenv("DOCKER_CONFIG", config)
	ref := hub + "/team/app:1"
	if code, _, errs := s.command(t, "", "push", "app:1", ref); code != exitRefused || !strings.Contains(errs, "docker login "+hub) {
		t.Errorf("without credentials: %d %s", code, errs)
	}
	code, out, errs := s.command(t, "word\n", "push", "app:1", ref, "--username", "me", "--password-stdin")
	if code != 0 || !strings.Contains(out, hub+"/team/app@sha256:") {
		t.Fatalf("%d %s %s", code, out, errs)
	}
	at, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Image(at, remote.WithAuth(&authn.Basic{Username: "me", Password: "word"}))
	if err == nil {
		err = validate.Image(pushed)
	}
	if err != nil {
		t.Fatal(err)
	}
	m, err := pushed.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	was, _ := picture(t).RawConfigFile()
	if now, err := pushed.RawConfigFile(); err != nil || !bytes.Equal(was, now) {
		t.Errorf("the configuration became %s, %v", now, err)
	}
	if l := m.Layers[0]; l.MediaType != types.OCILayer || l.Size > 2000 {
		t.Errorf("the layer is %+v", l)
	}

	if err := os.WriteFile(filepath.Join(config, "config.json"), []byte(`{"auths":{"`+hub+`":{"username":"me","password":"word"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := s.command(t, "", "pull", ref, "-t", "mine"); code != 0 {
		t.Fatalf("%d %s", code, errs)
	}
	if code, _, errs := s.command(t, "", "pull", ref); code != 0 {
		t.Fatalf("%d %s", code, errs)
	}
	digest, _ := pushed.Digest()
	for _, name := range []string{"mine", "app:1"} {
		found := false
		for in := tar.NewReader(bytes.NewReader(s.loaded[name])); ; {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			found = found || h.Name == "blobs/sha256/"+digest.Hex
		}
		if !found {
			t.Errorf("%s has no manifest %s", name, digest)
		}
	}
	for _, tt := range []struct {
		args, says string
		code       int
	}{
		{"pull " + hub + "/team/none:1", "has no image", exitNotFound},
		{"pull " + ref + " -t wrong", "no image", exitUsage},
		{"pull " + ref + " --username me", "--password-stdin", exitUsage},
		{"pull " + ref + " --platform linux/s390x/x/y", "--platform", exitUsage},
		{"pull 127.0.0.1:1/none", "cannot be reached", exitUnavailable},
		{"pull UPPER/case:1", "no image of a registry", exitUsage},
		{"push none " + ref, "no such image", exitNotFound},
		{"push broken " + ref, "", exitUnavailable},
	} {
		if code, _, errs := s.command(t, "", strings.Fields(tt.args)...); code != tt.code || !strings.Contains(errs, tt.says) {
			t.Errorf("%s: %d %s", tt.args, code, errs)
		}
	}
}
