package e2e_test

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// shellLayer is the shell of this machine and what it needs to run, with files. Those below
// bin are programs.
func shellLayer(t *testing.T, files map[string]string) []byte {
	t.Helper()
	shell, err := elf.Open("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	defer shell.Close()
	libraries, err := shell.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	needs := []string{"/bin/sh"}
	for _, p := range shell.Progs {
		if p.Type == elf.PT_INTERP {
			loader, err := io.ReadAll(p.Open())
			if err != nil {
				t.Fatal(err)
			}
			needs = append(needs, string(bytes.TrimRight(loader, "\x00")))
		}
	}
	for _, library := range libraries {
		found, _ := filepath.Glob("/lib/*-linux-gnu/" + library) // the pattern is well formed
		if len(found) == 0 {
			t.Skipf("SKIPPED: no %s for an image with the shell of this machine", library)
		}
		needs = append(needs, found[0])
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	put := func(name, content string, mode int64) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(name, "/"), Mode: mode, Size: int64(len(content))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range needs {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		put(name, string(content), 0o755)
	}
	for name, content := range files {
		mode := int64(0o644)
		if strings.HasPrefix(name, "bin/") {
			mode = 0o755
		}
		put(name, content, mode)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return layer.Bytes()
}

// push puts an image of one layer into a registry on loopback.
func push(t *testing.T, ref string, layer []byte, c v1.Config) {
	t.Helper()
	img, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), static.NewLayer(layer, types.OCIUncompressedLayer))
	if err != nil {
		t.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, c
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(to, img); err != nil {
		t.Fatal(err)
	}
}

// TestImageOfOneProgram runs an image that has a static binary and nothing else:
// no shell, no directory, no user.
func TestImageOfOneProgram(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--private-registries", "--images", "", "--images-dir", filepath.Join(t.TempDir(), "images"))
	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	t.Cleanup(server.Close)
	program, err := os.ReadFile(filepath.Join(testkit.Root(), "bin", "doze"))
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "program", Mode: 0o755, Size: int64(len(program))})
	if err == nil {
		_, err = w.Write(program)
	}
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	sb := named("alone", 512)
	sb.Spec.Runtime.Image = strings.TrimPrefix(server.URL, "http://") + "/alone:1"
	push(t, sb.Spec.Runtime.Image, layer.Bytes(), v1.Config{})
	sb, agent := create(t, c, sb)
	done, err := agent.Start(t.Context(), client.Command{Command: "/program version", Wait: true})
	if err != nil || done.ExitCode != 0 || done.Stdout == "" {
		t.Errorf("the program: %+v, %v", done, err)
	}
	url := sb.Metadata.URL
	call{method: "PUT", url: url + "/filesystem//made/here/file", body: `{"content":"x"}`}.want(t, p, 200)
	call{url: url + "/filesystem//made/here"}.want(t, p, 200)
	call{url: url + "/filesystem-find//made?type=file"}.want(t, p, 200)
	call{url: url + "/network/process/1/ports"}.want(t, p, 200)
	call{method: "POST", url: url + "/mcp", body: `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fsReadFile","arguments":{"path":"/made/here/file"}}}`}.want(t, p, 200)
	if got := (call{method: "POST", url: url + "/process", body: `{"command":"/program version | cat"}`}).want(t, p, 422); !strings.Contains(got.body, "the image has no shell") {
		t.Errorf("without a shell: %s", got.body)
	}
}

// TestImageUser runs images that say who runs in them, and where.
func TestImageUser(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--private-registries", "--images", "", "--images-dir", filepath.Join(t.TempDir(), "images"))
	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	t.Cleanup(server.Close)
	hub := strings.TrimPrefix(server.URL, "http://")
	layer := shellLayer(t, map[string]string{
		"etc/passwd": "root:x:0:0::/root:\napp:x:1000:1001::/home/app:/bin/sh\n",
		"etc/group":  "app:x:1001:\nextra:x:29:app\n",
		"srv/given":  "",
	})
	boxed := func(t *testing.T, name string, config v1.Config) (doze.Sandbox, *client.Agent) {
		t.Helper()
		ref := hub + "/" + name + ":1"
		push(t, ref, layer, config)
		sb := named(name, 512)
		sb.Spec.Runtime.Image = ref
		return create(t, c, sb)
	}
	// The image has a shell and nothing else.
	const who = `while read key a b more; do case $key in Uid:|Gid:) echo $key $a;; Groups:) echo $key $a $b;; esac; done </proc/self/status; pwd; echo $HOME; echo ${DOZE_USER-no}${DOZE_WORKDIR-thing}${DOZE_NAMESERVERS-else}`

	t.Run("name", func(t *testing.T) {
		t.Parallel()
		sb, agent := boxed(t, "named", v1.Config{User: "app", WorkingDir: "/srv/made/later"})
		if got := sh(t, agent, who); got != "Uid: 1000\nGid: 1001\nGroups: 29\n/srv/made/later\n/home/app\nnothingelse" {
			t.Errorf("it says %q", got)
		}
		// What callers write is the user's, relative to the same directory.
		if _, err := agent.WriteFile(t.Context(), "mine/file", strings.NewReader("a"), ""); err != nil {
			t.Fatal(err)
		}
		if got := sh(t, agent, "echo b >>mine/file; echo x >mine/other; while read line; do echo $line; done <mine/file"); got != "ab" {
			t.Errorf("the file is %q", got)
		}
		if got := sh(t, agent, "if echo x >/srv/given; then echo writable; fi 2>/dev/null; echo out >/dev/stdout"); got != "out" {
			t.Errorf("it says %q", got)
		}
		if out, err := typed(t, p, sb, who, "nothingelse"); err != nil || !strings.Contains(out, "Uid: 1000") {
			t.Errorf("a terminal says %q, %v", out, err)
		}
	})
	t.Run("id", func(t *testing.T) {
		t.Parallel()
		_, agent := boxed(t, "numbered", v1.Config{User: "4242:4343", Env: []string{"HOME=/tmp", "PATH=/bin"}})
		if got := sh(t, agent, who); got != "Uid: 4242\nGid: 4343\nGroups:\n/\n/tmp\nnothingelse" {
			t.Errorf("it says %q", got)
		}
	})
	t.Run("nobody", func(t *testing.T) {
		t.Parallel()
		sb, _ := boxed(t, "unknown", v1.Config{User: "ghost"})
		a := call{method: "POST", url: sb.Metadata.URL + "/process", body: `{"command":"true"}`}.want(t, p, 422)
		if !strings.Contains(a.body, `\"ghost\" is not in the sandbox's /etc/passwd`) {
			t.Error(a.body)
		}
	})
}

// TestImageOfAPrivateRegistry gives an image that wants credentials a name of
// the workspace, by the command line, and runs it when the registry is gone.
func TestImageOfAPrivateRegistry(t *testing.T) {
	t.Parallel()
	p, _ := start(t, "--private-registries", "--images", "", "--images-dir", filepath.Join(t.TempDir(), "images"))
	inner := registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)))
	var closed atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); closed.Load() && (user != "me" || password != "word") {
			w.Header().Set("WWW-Authenticate", `Basic realm="hub"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	hub := strings.TrimPrefix(server.URL, "http://")
	push(t, hub+"/team/app:1", shellLayer(t, map[string]string{"srv/mine": "its file\n"}), v1.Config{WorkingDir: "/srv"})
	closed.Store(true)

	s := shell{t.TempDir()}
	s.ok(t, "doze", "login", "--address", p.Address, "--data", p.Data)
	if r := s.run(t, "", "doze", "image", "add", "app", hub+"/team/app:1"); r.code != 2 || !strings.Contains(r.err, doze.PullSecretKey) {
		t.Errorf("without credentials: %+v", r)
	}
	if out := s.ok(t, "doze", "sandbox", "ls", "-o", "json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("there is %s", out)
	}
	s.ok(t, "doze", "secret", "set", "hub", doze.PullSecretKey+`={"auths":{"`+hub+`":{"username":"me","password":"word"}}}`)
	if out := s.ok(t, "doze", "image", "add", "app:1", hub+"/team/app:1"); !strings.Contains(out, hub+"/team/app@sha256:") {
		t.Error(out)
	}
	server.Close()
	s.ok(t, "doze", "sandbox", "create", "web", "--memory", "512", "--image", "app:1")
	if out := s.ok(t, "doze", "sandbox", "exec", "web", "--", "read line <mine; echo $line"); out != "its file\n" {
		t.Errorf("it says %q", out)
	}
	if r := s.run(t, "", "doze", "image", "rm", "app"); r.code != 2 || !strings.Contains(r.err, "in use") {
		t.Errorf("in use: %+v", r)
	}
	s.ok(t, "doze", "sandbox", "rm", "web")
	s.ok(t, "doze", "image", "prune")
	if out := s.ok(t, "doze", "image", "ls"); strings.Contains(out, "app") {
		t.Error(out)
	}
	for _, file := range []string{"doze.db", "doze.db-wal"} {
		if b, err := os.ReadFile(filepath.Join(p.Data, file)); err == nil && bytes.Contains(b, []byte(`"word"`)) {
			t.Errorf("the password is in %s", file)
		}
	}
}

// typed enters a line into a terminal and returns what it shows until a text
// comes that is not in the line.
func typed(t *testing.T, p *testkit.Platform, sb doze.Sandbox, line, last string) (shown string, err error) {
	t.Helper()
	url := strings.Replace(sb.Metadata.URL, "http", "ws", 1) + "/terminal/ws?cols=400&token=" + p.Key
	conn, _, err := websocket.Dial(t.Context(), url, nil)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.CloseNow() }()
	raw := encode(t, map[string]string{"type": "input", "data": line + "\n"})
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(raw)); err != nil {
		return "", err
	}
	for !strings.Contains(shown, last) {
		_, b, err := conn.Read(t.Context())
		if err != nil {
			return shown, err
		}
		var f struct{ Data string }
		if err := json.Unmarshal(b, &f); err != nil {
			return shown, err
		}
		shown += f.Data
	}
	return shown, nil
}

// TestAgentsRetire upgrades the agent under a sleeping sandbox. It keeps the one
// that it was born with, which is gone after it.
func TestAgentsRetire(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	for _, name := range []string{"dozed", "doze-agent"} {
		raw, err := os.ReadFile(filepath.Join(testkit.Root(), "bin", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(bin, name), raw, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(filepath.Join(testkit.Root(), "bin", "doze-sentry"), filepath.Join(bin, "doze-sentry")); err != nil {
		t.Fatal(err)
	}
	p, c := launch(t, nil, testkit.Options{Bin: bin, Args: []string{"--pause-after", "200ms", "--save-after", "0", "--disk-after", "300ms"}})
	agents := func(want int) {
		t.Helper()
		found, _ := filepath.Glob(filepath.Join(p.Data, "agents", "images", "*.erofs")) // the pattern is well formed
		if len(found) != want {
			t.Errorf("agents: %q, want %d", found, want)
		}
	}
	_, agent := create(t, c, named("old", 512))
	counting(t, agent, false)
	awaitTier(t, p, "old", "disk")
	for build := range 2 {
		if err := p.Stop(); err != nil {
			t.Fatal(err)
		}
		// Another build: an executable does not mind what is behind its end.
		file, err := os.OpenFile(filepath.Join(bin, "doze-agent"), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprint(file, build); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		revive(t, p)
		agents(2) // that of the sandbox and the newest: the one in between served nobody
		one := count(t, agent)
		until(t, "it goes on", func() bool { return count(t, agent) > one })
		awaitTier(t, p, "old", "disk")
	}
	_, young := create(t, c, named("young", 512))
	if out := sh(t, young, "hostname"); out != "young" {
		t.Errorf("it is %q", out)
	}
	if _, err := c.Delete(t.Context(), "old"); err != nil {
		t.Fatal(err)
	}
	until(t, "it is gone", func() bool {
		left, _ := filepath.Glob(filepath.Join(p.Data, "sandboxes", "*", "record.json")) // the pattern is well formed
		return len(left) == 1
	})
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	revive(t, p)
	agents(1)
	if out := sh(t, young, "hostname"); out != "young" {
		t.Errorf("after the old agent: %q", out)
	}
}
