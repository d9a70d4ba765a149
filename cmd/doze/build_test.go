package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

// site makes a directory with files, whose names end in / for directories.
func site(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// unpacked are the names of the files in a tar.gz, with what is in them.
func unpacked(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	zip, err := gzip.NewReader(r)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for in := tar.NewReader(zip); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" {
			t.Errorf("%s belongs to %d:%d %s", h.Name, h.Uid, h.Gid, h.Uname)
		}
		all[h.Name] = string(raw) + h.Linkname
	}
}

func TestPack(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"Dockerfile": "FROM doze/slim", "a.txt": "a", "node_modules/x/y.js": "y", "docs/a.md": "m", "docs/keep.md": "k", "sub/Dockerfile": "FROM other",
		"sub/Dockerfile.dockerignore": "docs\n", ".git/HEAD": "h",
	}
	for name, tt := range map[string]struct {
		ignore, file string
		want         []string
	}{
		"none": {"", "", []string{".dockerignore", ".git/HEAD", "Dockerfile", "a.txt", "docs/a.md", "docs/keep.md", "link", "node_modules/x/y.js", "sub/Dockerfile", "sub/Dockerfile.dockerignore"}},
		"some": {"node_modules\n**/*.md\n!docs/keep.md\n.git\n", "", []string{".dockerignore", "Dockerfile", "a.txt", "docs/keep.md", "link", "sub/Dockerfile", "sub/Dockerfile.dockerignore"}},
		// Nothing takes the Dockerfile away.
		"all": {"*\n", "", []string{".dockerignore", "Dockerfile"}},
		"own": {"*\n", "sub/Dockerfile", []string{".dockerignore", ".git/HEAD", "Dockerfile", "a.txt", "link", "node_modules/x/y.js", "sub/Dockerfile", "sub/Dockerfile.dockerignore"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := site(t, files)
			if err := os.WriteFile(filepath.Join(dir, ignoreFile), []byte(tt.ignore), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("a.txt", filepath.Join(dir, "link")); err != nil {
				t.Fatal(err)
			}
			f, err := openBuildFiles(dir, tt.file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			var out bytes.Buffer
			if err := f.pack(&out); err != nil {
				t.Fatal(err)
			}
			var got []string
			all := unpacked(t, &out)
			for name, text := range all {
				if !strings.HasSuffix(name, "/") {
					got = append(got, name)
				}
				if want := files[name]; want != "" && text != want {
					t.Errorf("%s has %q", name, text)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, got); diff != "" || all["link"] != "a.txt" && name != "all" {
				t.Error(diff, all["link"])
			}
		})
	}
}

func TestBuildFlags(t *testing.T) {
	t.Parallel()
	env := func(name string) string { return map[string]string{"A": "from here"}[name] }
	args, err := buildArgs([]string{"A", "B=b=c", "C="}, env)
	if diff := cmp.Diff(map[string]string{"A": "from here", "B": "b=c", "C": ""}, args); err != nil || diff != "" {
		t.Error(err, diff)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("hunter2"), 0o600); err != nil {
		t.Fatal(err)
	}
	secrets, err := buildSecrets([]string{"id=a,src=" + file, "id=b,env=A"}, env)
	if diff := cmp.Diff(map[string]string{"a": "hunter2", "b": "from here"}, secrets); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for _, text := range []string{"id=a", "src=x", "id=a,src=x,env=A", "id=a,src=" + file + "x", "id=a,env=UNSET"} {
		if _, err := buildSecrets([]string{text}, env); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
	if _, err := buildArgs([]string{"=b"}, env); err == nil {
		t.Error("an argument without a name is taken")
	}
}

// builderOf serves what doze build asks of a server: one build with a log.
type builderOf struct {
	*httptest.Server
	log     []doze.BuildEvent
	breaks  int           // after how many lines the first connection ends
	holds   chan struct{} // closed when the log has come to its end; it never ends then
	mu      sync.Mutex
	asked   doze.BuildRequest // guarded by mu
	archive []byte            // guarded by mu
	calls   []string          // guarded by mu
}

func newBuilder(t *testing.T, log ...doze.BuildEvent) *builderOf {
	t.Helper()
	b := &builderOf{log: log}
	for i := range b.log {
		b.log[i].At = doze.Time{Time: testNow().Add(time.Duration(i) * time.Second)}
	}
	b.Server = httptest.NewServer(http.HandlerFunc(b.serve))
	t.Cleanup(b.Close)
	return b
}

func (b *builderOf) serve(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls = append(b.calls, r.Method+" "+r.URL.RequestURI())
	build := doze.Build{ID: "b1", Name: "app", Tag: "2", Status: doze.BuildBuilt, Image: "sandbox/app:2", Size: 3 << 20, Digest: "sha256:1", UploadURL: b.URL + "/v0/builds/b1/context?token=t"}
	out := json.NewEncoder(w)
	switch r.Method + " " + r.URL.Path {
	case "POST /v0/builds":
		_ = json.NewDecoder(r.Body).Decode(&b.asked)
		_ = out.Encode(build)
	case "PUT /v0/builds/b1/context":
		if r.Header.Get("Authorization") != "" {
			w.WriteHeader(http.StatusTeapot)
		}
		b.archive, _ = io.ReadAll(r.Body)
		_ = out.Encode(map[string]string{"message": "there"})
	case "GET /v0/builds/b1/logs":
		for i, e := range b.log {
			if b.breaks > 0 && i == b.breaks {
				b.breaks = 0
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}
			_ = out.Encode(e)
		}
		if b.holds != nil {
			_ = http.NewResponseController(w).Flush()
			close(b.holds)
			b.mu.Unlock()
			<-r.Context().Done()
			b.mu.Lock()
		}
	case "GET /v0/builds":
		_ = out.Encode([]doze.Build{build})
	default:
		_ = out.Encode(build)
	}
}

// doze runs a command against the server.
func (b *builderOf) doze(ctx context.Context, t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	env := map[string]string{"DOZE_ADDRESS": b.URL, "DOZE_KEY": "dz_1", "HERE": "x"}
	a := app{out: &o, err: &e, getenv: func(k string) string { return env[k] }, now: testNow, config: filepath.Join(t.TempDir(), "c.json")}
	code = a.run(ctx, args)
	return code, o.String(), e.String()
}

// buildLog is that of a build that works.
func buildLog() []doze.BuildEvent {
	return []doze.BuildEvent{
		{Text: "2 builds are before this one"},
		{Step: 1, Steps: 2, Name: "FROM doze/slim", State: doze.StepStarted},
		{Step: 1, Steps: 2, Name: "FROM doze/slim", State: doze.StepCached},
		{Step: 2, Steps: 2, Name: "RUN make", State: doze.StepStarted},
		{Step: 2, Steps: 2, Name: "RUN make", Stream: "stdout", Text: "compiled\x1b[31m"},
		{Step: 2, Steps: 2, Name: "RUN make", State: doze.StepDone, TookMs: 1500},
		{Status: doze.BuildBuilt, Image: "sandbox/app:2"},
	}
}

func TestBuild(t *testing.T) {
	t.Parallel()
	b := newBuilder(t, buildLog()...)
	b.breaks = 4
	dir := site(t, map[string]string{"Dockerfile": "FROM doze/slim", "docker/Dockerfile": "FROM doze/slim"})
	code, out, errs := b.doze(t.Context(), t, "build", dir, "-t", "app:2", "-f", "docker/Dockerfile", "--build-arg", "HERE", "--build-arg", "A=b", "--secret", "id=s,env=HERE", "--target", "run", "--no-cache")
	want := "2 builds are before this one\n#1 [1/2] FROM doze/slim\n#1 [1/2] FROM doze/slim CACHED\n\n#2 [2/2] RUN make\n#2 compiled [31m\n#2 [2/2] RUN make DONE 1.5s\nBUILT sandbox/app:2\n"
	if code != 0 || errs != want || !strings.Contains(out, "sandbox/app:2") {
		t.Errorf("%d\n%s\n%s", code, out, cmp.Diff(want, errs))
	}
	asked := doze.BuildRequest{Name: "app:2", Dockerfile: "docker/Dockerfile", Target: "run", NoCache: true, Args: map[string]string{"HERE": "x", "A": "b"}, Secrets: map[string]string{"s": "x"}}
	if diff := cmp.Diff(asked, b.asked); diff != "" {
		t.Error(diff)
	}
	if all := unpacked(t, bytes.NewReader(b.archive)); len(all) != 3 || all["docker/Dockerfile"] != "FROM doze/slim" {
		t.Errorf("uploaded are %v", all)
	}
	if slices.Contains(b.calls, "DELETE /v0/builds/b1") {
		t.Errorf("%v", b.calls)
	}
	code, out, _ = newBuilder(t, buildLog()...).doze(t.Context(), t, "build", dir, "-t", "app", "--progress", "json")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); code != 0 || len(lines) != len(buildLog()) || !json.Valid([]byte(lines[0])) {
		t.Errorf("%d %s", code, out)
	}
	code, out, _ = newBuilder(t, buildLog()...).doze(t.Context(), t, "build", dir, "-t", "app", "-o", "json")
	var made doze.Build
	if err := json.Unmarshal([]byte(out), &made); code != 0 || err != nil || made.Image != "sandbox/app:2" {
		t.Errorf("%d %s: %v", code, out, err)
	}
}

func TestBuildFails(t *testing.T) {
	t.Parallel()
	dir := site(t, map[string]string{"Dockerfile": "FROM doze/slim"})
	failure := &doze.BuildFailure{Message: "the command failed with exit code 7", Line: 3, Command: "RUN false", Code: 7, Output: []string{"reason"}}
	b := newBuilder(t, doze.BuildEvent{Name: "RUN false", Text: "reason"}, doze.BuildEvent{Status: doze.BuildFailed, Failure: failure})
	code, _, errs := b.doze(t.Context(), t, "build", dir, "-t", "app")
	if want := "#1 reason\ndoze: the build of app is FAILED: the command failed with exit code 7 (Dockerfile line 3: RUN false)\n"; code != exitFailed || errs != want {
		t.Errorf("%d %q", code, errs)
	}
	for name, args := range map[string][]string{
		"no directory":    {"build", "-t", "app"},
		"no tag":          {"build", dir},
		"none there":      {"build", filepath.Join(dir, "none"), "-t", "app"},
		"no Dockerfile":   {"build", dir, "-t", "app", "-f", "none"},
		"outside":         {"build", dir, "-t", "app", "-f", "/etc/passwd"},
		"progress":        {"build", dir, "-t", "app", "--progress", "fancy"},
		"two directories": {"build", dir, dir, "-t", "app"},
	} {
		if code, _, errs := b.doze(t.Context(), t, args...); code != exitUsage {
			t.Errorf("%s: %d %s", name, code, errs)
		}
	}
}

// TestBuildIsInterrupted: an interrupt cancels the build.
func TestBuildIsInterrupted(t *testing.T) {
	t.Parallel()
	dir := site(t, map[string]string{"Dockerfile": "FROM doze/slim"})
	b := newBuilder(t, doze.BuildEvent{Name: "RUN sleep 1d", State: doze.StepStarted})
	b.holds = make(chan struct{})
	ctx, interrupt := context.WithCancel(t.Context())
	go func() {
		<-b.holds
		interrupt()
	}()
	if code, _, errs := b.doze(ctx, t, "build", dir, "-t", "app"); code != exitInterrupted {
		t.Errorf("%d %s", code, errs)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.calls, "DELETE /v0/builds/b1") {
		t.Errorf("%v", b.calls)
	}
}

func TestBuildsAreListed(t *testing.T) {
	t.Parallel()
	b := newBuilder(t, buildLog()...)
	code, out, _ := b.doze(t.Context(), t, "build", "ls")
	if code != 0 || !strings.Contains(out, "b1  app:2  BUILT") {
		t.Errorf("%d %s", code, out)
	}
	code, out, _ = b.doze(t.Context(), t, "image", "build-logs", "app")
	if code != 0 || !strings.Contains(out, "#2 [2/2] RUN make DONE 1.5s") {
		t.Errorf("%d %s", code, out)
	}
	if code, _, _ := b.doze(t.Context(), t, "image", "build-logs", "none"); code != exitNotFound {
		t.Errorf("%d", code)
	}
	failed := newBuilder(t, doze.BuildEvent{Status: doze.BuildFailed, Failure: &doze.BuildFailure{Message: "unknown instruction: RUNN", Line: 3, Command: "RUNN"}})
	if code, out, _ := failed.doze(t.Context(), t, "image", "build-logs", "app"); code != 0 || !strings.Contains(out, "FAILED: unknown instruction: RUNN") {
		t.Errorf("of a build that failed: %d %s", code, out)
	}
	if code, _, _ := b.doze(t.Context(), t, "build", "cancel", "b1"); code != 0 || !slices.Contains(b.calls, "DELETE /v0/builds/b1") {
		t.Errorf("%d %v", code, b.calls)
	}
}

// TestPlainView: a step that says nothing is heard of every few seconds, and one that is over is
// not.
func TestPlainView(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		v := newPlainView(&out)
		defer v.close()
		show := func(e doze.BuildEvent) {
			t.Helper()
			e.At = doze.Time{Time: time.Now()}
			if err := v.show(e); err != nil {
				t.Fatal(err)
			}
		}
		said := func(want string) {
			t.Helper()
			synctest.Wait()
			v.mu.Lock()
			defer v.mu.Unlock()
			if got := out.String(); got != want {
				t.Errorf("got %q, want %q", got, want)
			}
			out.Reset()
		}
		from := doze.BuildEvent{Step: 1, Steps: 3, Name: "FROM large", State: doze.StepStarted}
		show(from)
		from.State = ""
		time.Sleep(time.Second / 2) // no two timers end at one time
		for i := range int64(8) {   // every second
			from.Current, from.Total = i<<20, 10<<20
			show(from)
			time.Sleep(time.Second)
		}
		said("#1 [1/3] FROM large\n#1 [1/3] FROM large 4.0 / 10.0 MB 5s\n")
		time.Sleep(3 * time.Second) // it came to a halt
		said("#1 [1/3] FROM large 7.0 / 10.0 MB 10s\n")
		show(doze.BuildEvent{Step: 1, Steps: 3, Name: "FROM large", State: doze.StepDone, TookMs: 12000})
		show(doze.BuildEvent{Name: "import the image", State: doze.StepStarted})
		time.Sleep(7 * time.Second)
		said("#1 [1/3] FROM large DONE 12.0s\n\n#2 import the image\n#2 import the image 5s\n")
		show(doze.BuildEvent{Name: "import the image", State: doze.StepDone, TookMs: 7000})
		show(doze.BuildEvent{Step: 2, Steps: 3, Name: "RUN x", State: doze.StepCanceled})
		time.Sleep(time.Minute)
		said("#2 import the image DONE 7.0s\n\n#3 [2/3] RUN x CANCELED\n")

		// The log of a build of the past is as dense.
		past, began := pastView(&out), time.Now()
		for i := range 12 {
			e := doze.BuildEvent{Name: "load the image x", State: doze.StepStarted, At: doze.Time{Time: began.Add(time.Duration(i) * time.Second)}}
			if i > 0 {
				e.State, e.Current = "", int64(i)<<20
			}
			if err := past.show(e); err != nil {
				t.Fatal(err)
			}
		}
		said("#1 load the image x\n#1 load the image x 5.0 MB\n#1 load the image x 10.0 MB\n")
	})
}

// TestLiveView: what has ended is drawn once, and what runs again and again, within the
// screen.
func TestLiveView(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	v := &liveView{w: &out, size: func() (int, int) { return 40, 6 }, stop: make(chan struct{})}
	step := func(n int, state, text string) {
		t.Helper()
		if err := v.show(doze.BuildEvent{Step: n, Steps: 3, Name: fmt.Sprintf("RUN step %d", n), State: state, Text: text, TookMs: 1000}); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	draw := func() string {
		out.Reset()
		for _, s := range v.steps {
			s.began = began
		}
		v.drawLocked(began.Add(2 * time.Second))
		return strings.NewReplacer("\r", "", "\x1b[K", "", "\x1b[J", "").Replace(out.String())
	}
	step(1, doze.StepStarted, "")
	if got, want := draw(), " => [1/3] RUN step 1               2.0s\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	step(1, doze.StepDone, "")
	step(2, doze.StepCached, "")
	step(3, doze.StepStarted, "")
	for i := range 9 {
		step(3, "", fmt.Sprintf("a line of output that is longer than the screen %d", i))
	}
	got := draw()
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	if lines[0] != "\x1b[1A => [1/3] RUN step 1               1.0s" || lines[1] != " => CACHED [2/3] RUN step 2" || len(lines) != 2+5 || v.lines != 5 || !strings.HasSuffix(lines[6], "…") {
		t.Errorf("%q", lines)
	}
	for _, line := range lines[1:] {
		if n := len([]rune(line)); n > 39 {
			t.Errorf("%q has %d letters", line, n)
		}
	}
	// How far a transfer is, stands behind the step; one that did not run says so.
	for _, c := range []struct {
		s    liveStep
		want string
	}{
		{liveStep{title: "FROM x", current: 1 << 20, total: 4 << 20}, " => FROM x 1.0 / 4.0 MB"},
		{liveStep{title: "import the image", current: 1 << 20}, " => import the image 1.0 MB"},
		{liveStep{title: "RUN x", state: doze.StepCanceled}, " => CANCELED RUN x"},
	} {
		if got := c.s.head(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	// A warning is printed once and whole, above what is drawn.
	warning := warningPrefix + strings.Repeat("long ", 20) + "end"
	if err := v.show(doze.BuildEvent{Text: warning}); err != nil {
		t.Fatal(err)
	}
	if got := draw(); !strings.HasPrefix(got, "\x1b[5A"+warning+"\n    a line") || v.lines != 5 {
		t.Errorf("%q", got)
	}
	// What has ended is not drawn again, and the end leaves no output.
	if got := draw(); strings.Contains(got, "step 1") || strings.Contains(got, "CACHED") || strings.Contains(got, "warning") {
		t.Errorf("%q", got)
	}
	v.close()
	if left := out.String(); strings.Contains(left[strings.LastIndex(left, "\x1b[5A"):], "a line of output") {
		t.Errorf("%q", left)
	}
}

// TestDockerfileIsChecked: what cannot be built is refused before it is uploaded.
func TestDockerfileIsChecked(t *testing.T) {
	for says, prepare := range map[string]func(path string) error{
		"has no Dockerfile":                      func(string) error { return nil },
		"is a link to no file in that directory": func(path string) error { return os.Symlink("/etc/passwd", path) },
		"is a link to no file":                   func(path string) error { return os.Symlink("none", path) },
		"is no file":                             func(path string) error { return os.Mkdir(path, 0o700) },
		"is empty":                               func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"":                                       func(path string) error { return os.WriteFile(path, []byte("FROM scratch\n"), 0o600) },
	} {
		dir := t.TempDir()
		if err := prepare(filepath.Join(dir, "Dockerfile")); err != nil {
			t.Fatal(err)
		}
		f, err := openBuildFiles(dir, "")
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: %v", says, err)
		}
		if err == nil {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
