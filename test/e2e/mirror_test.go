package e2e_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/dozehq/doze/internal/testkit"
)

// mirrorName is that of a mirror of packages in the operator's network.
const mirrorName = "inner.test:8088"

// packageFiles are what a mirror of apt, npm and pip has, with one package each, by path.
func packageFiles(t *testing.T, suite string) map[string][]byte {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"DEBIAN/control": "Package: up\nVersion: 1\nArchitecture: all\nMaintainer: us <us@example.com>\nDescription: a word\n", "usr/bin/up": "#!/bin/sh\necho up\n"} {
		path := filepath.Join(dir, "up", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "dpkg-deb", "--root-owner-group", "-Zgzip", "--build", filepath.Join(dir, "up"), filepath.Join(dir, "up.deb"))
	deb, err := os.ReadFile(filepath.Join(dir, "up.deb"))
	if err != nil {
		t.Fatal(err)
	}
	sum := func(b []byte) string { s := sha256.Sum256(b); return hex.EncodeToString(s[:]) }
	packages := fmt.Appendf(nil, "Package: up\nVersion: 1\nArchitecture: all\nMaintainer: us <us@example.com>\nDescription: a word\nFilename: pool/up.deb\nSize: %d\nSHA256: %s\n", len(deb), sum(deb))
	arch := strings.TrimSpace(run(t, "dpkg", "--print-architecture"))
	index := "main/binary-" + arch + "/Packages"
	release := fmt.Appendf(nil, "Suite: %s\nCodename: %s\nComponents: main\nArchitectures: %s\nDate: Thu, 01 Jan 2026 00:00:00 UTC\nSHA256:\n %s %d %s\n", suite, suite, arch, sum(packages), len(packages), index)

	var left bytes.Buffer
	packed := gzip.NewWriter(&left)
	archive := tar.NewWriter(packed)
	for name, text := range map[string]string{"package/package.json": `{"name": "left", "version": "1.0.0"}`, "package/index.js": "module.exports = 'left'\n"} {
		if err := archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := archive.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if archive.Close() != nil || packed.Close() != nil {
		t.Fatal("the package of npm cannot be packed")
	}
	integrity := sha512.Sum512(left.Bytes())

	var right bytes.Buffer
	wheel := zip.NewWriter(&right)
	for name, text := range map[string]string{
		"right.py":                       "word = 'right'\n",
		"right-1.0.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: right\nVersion: 1.0.0\n",
		"right-1.0.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"right-1.0.0.dist-info/RECORD":   "right.py,,\nright-1.0.0.dist-info/METADATA,,\nright-1.0.0.dist-info/WHEEL,,\nright-1.0.0.dist-info/RECORD,,\n",
	} {
		w, err := wheel.Create(name)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := wheel.Close(); err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{
		"/debian/dists/" + suite + "/Release": release, "/debian/dists/" + suite + "/" + index: packages, "/debian/pool/up.deb": deb,
		"/npm/left": fmt.Appendf(nil, `{"name": "left", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {"name": "left", "version": "1.0.0",
			"dist": {"tarball": "http://%s/npm/left/-/left-1.0.0.tgz", "integrity": "sha512-%s"}}}}`, mirrorName, base64.StdEncoding.EncodeToString(integrity[:])),
		"/npm/left/-/left-1.0.0.tgz":                      left.Bytes(),
		"/pypi/simple/right/":                             []byte(`<a href="right-1.0.0-py3-none-any.whl">right-1.0.0-py3-none-any.whl</a>`),
		"/pypi/simple/right/right-1.0.0-py3-none-any.whl": right.Bytes(),
	}
}

// TestPackageMirrors: with the recipe that the page for operators prints, apt, npm and pip
// of a sandbox use a mirror in a private network, and nothing else.
func TestPackageMirrors(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	n := newInternet(t)
	_, c := start(t, "--egress", "open", "--egress-allow", privateIP+"/32", "--resolver", n.zone.Address, "--pause-after", "1h")
	_, agent := create(t, c, named("closed", 2048))
	files := packageFiles(t, sh(t, agent, ". /etc/os-release && echo $VERSION_CODENAME"))
	within(t, n.outside, func() error {
		l, err := net.Listen("tcp4", net.JoinHostPort(privateIP, "8088"))
		if err != nil {
			return err
		}
		s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			file, ok := files[r.URL.Path]
			if !ok {
				http.NotFound(w, r)
				return
			}
			if strings.HasSuffix(r.URL.Path, "/") {
				w.Header().Set("Content-Type", "text/html")
			}
			_, _ = w.Write(file)
		})}
		t.Cleanup(func() { _ = s.Close() })
		go func() { _ = s.Serve(l) }()
		return nil
	})
	page, err := os.ReadFile(filepath.Join(testkit.Root(), "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	recipe := regexp.MustCompile("(?s)```dockerfile\nFROM doze/base-image\nRUN (.*?)```").FindSubmatch(page)
	if recipe == nil {
		t.Fatal("docs/operations.md has no recipe")
	}
	// A mirror of Debian has its signatures. That of the test has none.
	command := strings.NewReplacer("mirror.example.com", mirrorName, "deb http", "deb [trusted=yes] http").Replace(string(recipe[1]))
	sh(t, agent, command)
	for program, install := range map[string]string{
		"up":    "apt-get update -qq && apt-get install -y -qq up >/dev/null && up",
		"left":  "mkdir -p /root/app && cd /root/app && npm init -y >/dev/null && npm install --no-audit --no-fund left >/dev/null && node -p 'require(\"left\")'",
		"right": "cd /root && python3 -m venv env && env/bin/pip install -q --disable-pip-version-check right && env/bin/python -c 'import right; print(right.word)'",
	} {
		if out := sh(t, agent, install); out != program {
			t.Errorf("%s: %s", program, out)
		}
	}
	for _, name := range []string{"deb.debian.org", "registry.npmjs.org", "pypi.org"} {
		if n.zone.Asked(name) {
			t.Errorf("%s was asked for", name)
		}
	}
}

// TestBuildThroughMirror: a Dockerfile names a registry, and its base comes from the mirror of
// that. If the mirror has none, nobody else is asked.
func TestBuildThroughMirror(t *testing.T) {
	t.Parallel()
	inner := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
	var mu sync.Mutex
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = append(asked, r.Method+" "+r.URL.Path)
		mu.Unlock()
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	hub := strings.TrimPrefix(server.URL, "http://")
	push(t, hub+"/cache/library/mirrored:1", shellLayer(t, map[string]string{"srv/base": "of the mirror\n"}), v1.Config{Env: []string{"PATH=/bin:/usr/bin"}})
	mu.Lock()
	asked = nil
	mu.Unlock()
	p, _ := start(t, append([]string{"--registry-mirrors", "docker.io=" + hub + "/cache", "--images", "", "--images-dir", filepath.Join(t.TempDir(), "images")}, buildArgs...)...)
	buildPlace(t, p, "mirrors")
	s, dir := shell{t.TempDir()}, t.TempDir()
	s.ok(t, "doze", "login", "--address", p.Address, "--data", p.Data)
	s.ok(t, "doze", "workspace", "use", "mirrors")
	build := func(dockerfile string) ran {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o600); err != nil {
			t.Fatal(err)
		}
		return s.run(t, "", "doze", "build", dir, "-t", "app")
	}
	if r := build("FROM mirrored:1\nRUN read -r line </srv/base && echo \"$line, built\" >/srv/made\n"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	s.ok(t, "doze", "sandbox", "create", "web", "--image", "app", "--memory", "512")
	if out := s.ok(t, "doze", "sandbox", "exec", "web", "--", "read -r line </srv/made; echo $line"); out != "of the mirror, built\n" {
		t.Errorf("it says %q", out)
	}
	mu.Lock()
	all := strings.Join(asked, "\n")
	mu.Unlock()
	if !strings.Contains(all, "/v2/cache/library/mirrored/manifests/1") || !strings.Contains(all, "/v2/cache/library/mirrored/blobs/") {
		t.Errorf("the mirror was asked for\n%s", all)
	}
	if r := build("FROM docker.io/library/alpine:3\n"); r.code == 0 || !strings.Contains(r.err, hub) {
		t.Errorf("the mirror has no such image: %+v", r)
	}
}
