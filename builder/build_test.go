package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/buildapi"
	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/builder/engine"
)

// TestCache: a changed line runs what follows it, and nothing before.
func TestCache(t *testing.T) {
	b := open(t, "")
	names := b.base(t)
	const dockerfile = "FROM busybox:1\nRUN echo one > /one\nCOPY src /src\nRUN echo %s > /two\n"
	build := func(id, word, file string) (*buildapi.Result, []string) {
		o := order(t, id, fmt.Sprintf(dockerfile, word), map[string]string{"src/a": file})
		o.Names = names
		result, all := b.must(t, o)
		return result, all.states()
	}
	first, _ := build("b1", "two", "a")
	for _, c := range []struct {
		name, word, file string
		want             []string
		same             bool
	}{
		{"nothing", "two", "a", []string{"RUN echo one > /one: cached", "COPY src /src: cached", "RUN echo two > /two: cached"}, true},
		{"the last", "three", "a", []string{"RUN echo one > /one: cached", "COPY src /src: cached", "RUN echo three > /two: done"}, false},
		{"a file", "two", "b", []string{"RUN echo one > /one: cached", "COPY src /src: done", "RUN echo two > /two: done"}, false},
	} {
		got, states := build("again", c.word, c.file)
		states = slices.DeleteFunc(states, func(s string) bool { return strings.HasPrefix(s, "FROM") })
		slices.Sort(states)
		slices.Sort(c.want)
		if diff := cmp.Diff(c.want, states); diff != "" {
			t.Errorf("%s changed: %s", c.name, diff)
		}
		if (got.Config == first.Config) != c.same {
			t.Errorf("%s changed: the configuration is %s, and was %s", c.name, got.Config, first.Config)
		}
	}
	o := order(t, "fresh", fmt.Sprintf(dockerfile, "two"), map[string]string{"src/a": "a"})
	o.Names, o.NoCache = names, true
	if _, all := b.must(t, o); strings.Contains(strings.Join(all.states(), "\n"), "RUN echo one > /one: cached") {
		t.Errorf("without the cache, it was used: %q", all.states())
	}
}

// TestPrune: what nobody uses goes, and the next build does everything again.
func TestPrune(t *testing.T) {
	b := open(t, "")
	o := order(t, "b", "FROM busybox:1\nRUN head -c 5000000 /dev/urandom > /five\n", nil)
	o.Names = b.base(t)
	b.must(t, o)
	if err := b.DropResult(t.Context(), o.ID); err != nil {
		t.Fatal(err)
	}
	before, err := b.Status(t.Context())
	if err != nil || before.CacheBytes < 5_000_000 {
		t.Fatalf("the cache has %+v, %v", before, err)
	}
	if out, err := b.Prune(t.Context(), buildapi.Prune{Bytes: before.CacheBytes * 2, Age: time.Hour}); err != nil || out.Bytes != 0 {
		t.Errorf("pruned what is new, and fits: %+v, %v", out, err)
	}
	out, err := b.Prune(t.Context(), buildapi.Prune{All: true})
	if err != nil || out.Bytes < 5_000_000 || b.HasImage(baseKey) {
		t.Errorf("pruned %+v, %v; the base is here: %v", out, err, b.HasImage(baseKey))
	}
	if after, err := b.Status(t.Context()); err != nil || after.CacheBytes > 1<<20 {
		t.Errorf("the cache has %+v, %v", after, err)
	}
	o.Names = b.base(t)
	if _, all := b.must(t, o); slices.Contains(all.states(), "RUN head -c 5000000 /dev/urandom > /five: cached") {
		t.Errorf("it was not deleted: %q", all.states())
	}
	if out, err := b.Prune(t.Context(), buildapi.Prune{Bytes: 1}); err != nil || out.Bytes == 0 {
		t.Errorf("pruned %+v, %v, though the cache is too large", out, err)
	}
	if img := b.read(t, o.ID); img.files["/five"].Size != 5_000_000 {
		t.Error("it deleted a result that nobody has dropped")
	}
}

// TestWithoutBase: a result can leave out the layers of an image that the node has.
func TestWithoutBase(t *testing.T) {
	b := open(t, "")
	o := order(t, "b", "FROM busybox:1\nRUN echo x > /x\n", nil)
	o.Names = b.base(t)
	b.must(t, o)
	whole, part := b.read(t, o.ID), b.read(t, o.ID, "sha256:unknown", baseKey)
	if len(whole.layers) != len(part.layers) || len(whole.files) <= len(part.files) {
		t.Errorf("%d layers and %d files, of %d and %d", len(part.layers), len(part.files), len(whole.layers), len(whole.files))
	}
	if _, ok := part.files["/x"]; !ok {
		t.Error("it lacks what was built")
	}
	last := part.layers[len(part.layers)-1]
	if last.Annotations[buildapi.AnnotationImage] != "" || part.layers[0].Annotations[buildapi.AnnotationImage] != baseKey {
		t.Errorf("marked: %v", part.layers)
	}
	if err := b.DropResult(t.Context(), o.ID); err != nil {
		t.Fatal(err)
	}
	if err := b.Result(t.Context(), o.ID, nil, &bytes.Buffer{}); err == nil {
		t.Error("it is still there")
	}
}

// TestSecretsStaySecret: the value of a secret is in no event, and in no file of the cache.
func TestSecretsStaySecret(t *testing.T) {
	b := open(t, "")
	const secret = "hunter2-of-the-test"
	o := order(t, "b", `FROM busybox:1
RUN --mount=type=secret,id=tok cat /run/secrets/tok; echo; cat /run/secrets/tok >&2
RUN --mount=type=secret,id=tok,env=TOK echo "it is $TOK"; exit 3
`, nil)
	o.Names, o.Secrets = b.base(t), map[string]string{"tok": secret}
	_, failure, all := b.try(t.Context(), o)
	if failure == nil || failure.Code != 3 || failure.Line != 3 || failure.Step != 3 || failure.Reason != buildapi.FailedStep {
		t.Fatalf("got %+v", failure)
	}
	raw, err := json.Marshal(struct {
		Events  events
		Failure *buildapi.Failure
	}{all, failure})
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(raw), secret) {
		t.Errorf("an event has the secret: %s", raw)
	}
	if diff := cmp.Diff([]string{"it is ***"}, failure.Tail); diff != "" {
		t.Error(diff)
	}
	if _, err := b.Prune(t.Context(), buildapi.Prune{}); err != nil { // as after each build
		t.Fatal(err)
	}
	if left := grep(t, b.dir, secret); len(left) > 0 {
		t.Errorf("these files have the secret: %v", left)
	}
	// A step with another value of a secret is the same step: no key of the cache has it.
	o = order(t, "c", "FROM busybox:1\nRUN --mount=type=secret,id=tok wc -c < /run/secrets/tok > /n\n", nil)
	o.Names, o.Secrets = b.base(t), map[string]string{"tok": secret}
	b.must(t, o)
	o.ID, o.Secrets = "d", map[string]string{"tok": "another"}
	if _, all := b.must(t, o); !strings.Contains(strings.Join(all.states(), "\n"), "/n: cached") {
		t.Errorf("got %q", all.states())
	}
}

// grep finds the files below a directory that have a text.
func grep(t *testing.T, dir, text string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // it was deleted meanwhile
		}
		if raw, err := os.ReadFile(name); err == nil && bytes.Contains(raw, []byte(text)) {
			found = append(found, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestEvents: an event says where it is in the Dockerfile.
func TestEvents(t *testing.T) {
	b := open(t, "")
	o := order(t, "b", `FROM busybox:1 AS one

# a comment
RUN echo first
FROM busybox:1 AS two
COPY --from=one /etc/passwd /x
RUN echo second && \
  echo third >&2
`, nil)
	o.Names = b.base(t)
	_, all := b.must(t, o)
	type place struct {
		Stage, Name, Stream, Text string
		Line, Step, Steps         int
	}
	var got []place
	for _, e := range all {
		if strings.HasPrefix(e.Name, "FROM") && e.State == buildapi.StateStarted || e.Stream != "" {
			got = append(got, place{e.Stage, e.Name, e.Stream, e.Text, e.Line, e.Step, e.Steps})
		}
		if e.State == buildapi.StateStarted && strings.HasPrefix(e.Name, "COPY") && e.Line != 6 {
			t.Errorf("%s is in line 6, not %d", e.Name, e.Line)
		}
	}
	slices.SortFunc(got, func(a, b place) int {
		return slices.Compare([]string{a.Text, fmt.Sprint(a.Line)}, []string{b.Text, fmt.Sprint(b.Line)})
	})
	want := []place{
		{"one", "FROM busybox:1", "", "", 1, 1, 2},
		{"two", "FROM busybox:1", "", "", 5, 1, 3},
		{"one", "RUN echo first", "stdout", "first", 4, 2, 2},
		{"two", "RUN echo second &&   echo third >&2", "stdout", "second", 7, 3, 3},
		{"two", "RUN echo second &&   echo third >&2", "stderr", "third", 7, 3, 3},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestBaseProgress: an image is done when its layers are unpacked, and tells how far it is. What
// another build has unpacked is cached.
func TestBaseProgress(t *testing.T) {
	const mb = 200
	first := open(t, "")
	o := order(t, "large", fmt.Sprintf("FROM busybox:1\nRUN head -c %d /dev/urandom > /large\n", mb<<20), nil)
	o.Names = first.base(t)
	first.must(t, o)
	var layout bytes.Buffer
	if err := first.Result(t.Context(), o.ID, nil, &layout); err != nil {
		t.Fatal(err)
	}
	b := open(t, "")
	if err := b.PutImage(t.Context(), baseKey, &layout); err != nil {
		t.Fatal(err)
	}
	build := func(step string) (states []string, progress []buildapi.Progress) {
		o := order(t, "b", "FROM large\nRUN "+step+"\n", nil)
		o.Names = map[string]string{"large": baseKey}
		_, all := b.must(t, o)
		for _, e := range all {
			switch {
			case e.Progress != nil:
				progress = append(progress, *e.Progress)
				if e.Name != "FROM large" || e.Text != "unpacked" || e.Progress.Current > e.Progress.Total {
					t.Errorf("got %+v, %+v", e, e.Progress)
				}
			case e.Step > 0 && e.State != "":
				states = append(states, e.Name+": "+e.State)
			}
		}
		return states, progress
	}
	states, progress := build("echo one")
	want := []string{"FROM large: started", "FROM large: done", "RUN echo one: started", "RUN echo one: done"}
	if diff := cmp.Diff(want, states); diff != "" {
		t.Error(diff)
	}
	if n := len(progress); n == 0 || progress[n-1].Current == 0 || progress[n-1].Total < mb<<20 {
		t.Errorf("the image of %d MB tells %+v", mb, progress)
	}
	states, progress = build("echo two")
	want = []string{"FROM large: started", "FROM large: cached", "RUN echo two: started", "RUN echo two: done"}
	if diff := cmp.Diff(want, states); diff != "" || len(progress) > 0 {
		t.Errorf("%s%+v", diff, progress)
	}
}

// TestNotRun: a step that did not run, since another one failed, is not called cached.
func TestNotRun(t *testing.T) {
	b := open(t, "")
	names := b.base(t)
	for dockerfile, want := range map[string][]string{
		"FROM busybox:1\nRUN sleep 60\nRUN echo x\nCOPY none /\n":              {"COPY none /: failed", "RUN echo x: canceled", "RUN sleep 60: canceled"},
		"FROM busybox:1 AS one\nRUN sleep 1; exit 3\nFROM one\nRUN sleep 60\n": {"RUN sleep 1; exit 3: failed"},
		"FROM busybox:1 AS one\nRUN sleep 1; exit 3\nFROM busybox:1\nRUN sleep 60\nCOPY --from=one / /\n": {
			"RUN sleep 1; exit 3: failed", "RUN sleep 60: canceled",
		},
	} {
		o := order(t, "b", dockerfile, nil)
		o.Names = names
		_, failure, all := b.try(t.Context(), o)
		if failure == nil {
			t.Fatal("it did not fail")
		}
		got := slices.DeleteFunc(all.states(), func(s string) bool { return strings.HasPrefix(s, "FROM ") })
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", dockerfile, diff)
		}
	}
}

// TestMistakes: what a user did wrong is told as the user's.
func TestMistakes(t *testing.T) {
	b := open(t, "")
	names := b.base(t)
	for name, c := range map[string]struct {
		dockerfile string
		change     func(*engine.Order)
		reason     buildapi.Reason
		line       int
		text       string
	}{
		"a command":  {"FROM busybox:1\nRUN false\n", nil, buildapi.FailedStep, 2, "exit code 1"},
		"no command": {"FROM busybox:1\nRUN [\"/none\"]\n", nil, buildapi.FailedStep, 2, "exit code 127"},
		"no file":    {"FROM busybox:1\nCOPY none /x\n", nil, buildapi.FailedStep, 2, `there is no "/none" in the build context`},
		"ignored": {"FROM busybox:1\nCOPY a.log /x\n", func(o *engine.Order) {
			for name, text := range map[string]string{".dockerignore": "*.log\n", "a.log": ""} {
				if err := os.WriteFile(filepath.Join(o.Dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}, buildapi.FailedStep, 2, `"/a.log" is not in the build context: a line of .dockerignore leaves it out`},
		"a word":        {"FROM busybox:1\nFLY x\n", nil, buildapi.FailedDockerfile, 2, "FLY"},
		"no Dockerfile": {"", func(o *engine.Order) { o.Dockerfile = "none" }, buildapi.FailedDockerfile, 0, "none"},
		"no target":     {"FROM busybox:1\n", func(o *engine.Order) { o.Target = "none" }, buildapi.FailedDockerfile, 0, "none"},
		"no base":       {"FROM 127.0.0.1:1/none:1\n", nil, buildapi.FailedBase, 1, "127.0.0.1:1/none"},
		"insecure":      {"FROM busybox:1\nRUN --security=insecure true\n", nil, buildapi.FailedDockerfile, 0, "insecure"},
		"no user":       {"FROM busybox:1\nUSER nobody2\nRUN true\n", nil, buildapi.FailedStep, 3, "nobody2"},
		"not put":       {"FROM other\n", func(o *engine.Order) { o.Names = map[string]string{"other": "sha256:none"} }, buildapi.FailedInternal, 0, "put it first"},
	} {
		o := order(t, "b", c.dockerfile, nil)
		o.Names = names
		if c.change != nil {
			c.change(&o)
		}
		_, failure, _ := b.try(t.Context(), o)
		if failure == nil || failure.Reason != c.reason || c.line != 0 && failure.Line != c.line || !strings.Contains(failure.Message, c.text) {
			t.Errorf("%s: %+v, want %s in line %d about %q", name, failure, c.reason, c.line, c.text)
		}
	}
}

// TestHostileSteps: a step ends, the builder does not, and the next build works.
func TestHostileSteps(t *testing.T) {
	b := open(t, "")
	names := b.base(t)
	for name, c := range map[string]struct {
		script string
		reason buildapi.Reason
		text   string // in the message or the output
	}{
		"endless output":    {"yes", buildapi.FailedOutput, "MB of output"},
		"an endless line":   {"cat /dev/zero", buildapi.FailedOutput, "MB of output"},
		"a fork bomb":       {"f() { f | f & f; }; f", buildapi.FailedStep, "processes"},
		"kill all":          {"kill -9 -1; sleep 0.1; exit 9", buildapi.FailedStep, "exit code"},
		"kill the first":    {"kill -9 1 2>/dev/null; sleep 0.1; exit 9", buildapi.FailedStep, "exit code"}, // not every kernel lets it
		"other processes":   {"cat /proc/*/environ | tr '\\0' '\\n' | grep -c TOKEN; exit 9", buildapi.FailedStep, "exit code 9"},
		"the root of init":  {"ls /proc/1/root/s /proc/1/root/w /b /proc/1/cwd/w 2>&1; exit 9", buildapi.FailedStep, "exit code 9"},
		"mount":             {"mount -t tmpfs x /mnt || mount -o remount,rw / || umount /proc || exit 9", buildapi.FailedStep, "exit code 9"},
		"a device":          {"mknod /disk b 254 0 && dd if=/disk of=/dev/null bs=512 count=1 && exit 1; exit 9", buildapi.FailedStep, "exit code 9"},
		"background":        {"setsid sleep 5432 & setsid sh -c 'trap \"\" TERM HUP; sleep 5432' & exit 9", buildapi.FailedStep, "exit code 9"},
		"namespaces":        {"unshare -m true 2>/dev/null && exit 1; nsenter -t 1 -m ls /w 2>/dev/null && exit 1; exit 9", buildapi.FailedStep, "exit code 9"},
		"chroot of the old": {"mkdir -p /x && chroot /x /bin/sh -c true; cd /; for i in 1 2 3 4 5 6 7 8; do cd ..; done; ls w s 2>/dev/null && exit 1; exit 9", buildapi.FailedStep, "exit code 9"},
	} {
		o := order(t, "b", "FROM busybox:1\nCOPY script /script\nRUN sh /script\n", map[string]string{"script": c.script + "\n"})
		o.Names = names
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, failure, all := b.try(ctx, o)
		cancel()
		if failure == nil || failure.Reason != c.reason || failure.Line != 3 || !strings.Contains(failure.Message, c.text) {
			t.Errorf("%s: %+v, want %s about %q\n%.300s", name, failure, c.reason, c.text, all.output())
		}
		if pids := running(t, "sleep 5432"); len(pids) > 0 {
			t.Errorf("%s: left %v", name, pids)
		}
	}
	o := order(t, "b", "FROM busybox:1\nRUN echo still here > /x\n", nil)
	o.Names = names
	b.must(t, o)
	tidy(t, b)
}

// tidy checks that no step has left something.
func tidy(t *testing.T, b *bench) {
	t.Helper()
	if left, err := os.ReadDir(filepath.Join(b.dir, "s")); err != nil || len(left) > 0 {
		t.Errorf("directories of steps are left: %v, %v", left, err)
	}
	raw, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, b.dir+"/s/") {
			t.Errorf("a mount is left: %s", line)
		}
	}
}

// running finds processes by their command.
func running(t *testing.T, command string) (found []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		raw, _ := os.ReadFile(name) // or it has ended
		if strings.Contains(strings.ReplaceAll(string(raw), "\x00", " "), command) {
			found = append(found, name)
		}
	}
	return found
}

// TestCancel: the end of the context ends a build in each of its phases, with its processes.
func TestCancel(t *testing.T) {
	b := open(t, "")
	names := b.base(t)
	large := strings.Repeat("x", 20<<20)
	for name, when := range map[string]func(buildapi.Event) bool{
		"at once":     func(buildapi.Event) bool { return true },
		"in a copy":   func(e buildapi.Event) bool { return strings.HasPrefix(e.Name, "COPY") },
		"in a step":   func(e buildapi.Event) bool { return e.Text == "begun" },
		"between two": func(e buildapi.Event) bool { return e.State == buildapi.StateDone && strings.Contains(e.Name, "first") },
	} {
		o := order(t, "b", "FROM busybox:1\nRUN echo first\nCOPY large /large\nRUN echo begun; sleep 6543\n", map[string]string{"large": large})
		o.Names, o.NoCache = names, true
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		_, failure := b.Build(ctx, o, func(e buildapi.Event) {
			if when(e) {
				cancel()
			}
		})
		cancel()
		if failure == nil || failure.Reason != buildapi.FailedCanceled {
			t.Errorf("%s: %+v", name, failure)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s: it took %v", name, took)
		}
		if pids := running(t, "sleep 6543"); len(pids) > 0 {
			t.Errorf("%s: left %v", name, pids)
		}
	}
	o := order(t, "b", "FROM busybox:1\nRUN echo first\n", nil)
	o.Names = names
	b.must(t, o)
	tidy(t, b)
}

// TestDiskFull: a step that fills the disk fails with the name of the setting, and the next
// build works, however much the files of the cache grow in between.
func TestDiskFull(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	mountMemory(t, dir, 64)
	b := reopen(t, dir, "")
	names := b.base(t)
	for i := range 4 {
		o := order(t, "b", fmt.Sprintf("FROM busybox:1\nRUN echo %d > /x\nRUN head -c 200000000 /dev/zero > /big\n", i), nil)
		o.Names = names
		_, failure, all := b.try(t.Context(), o)
		if failure == nil || failure.Reason != buildapi.FailedDisk || !strings.Contains(failure.Message, "exit code 1, and the disk of the builder is full") {
			t.Errorf("got %+v\n%s", failure, all.output())
		}
		o = order(t, "b", fmt.Sprintf("FROM busybox:1\nRUN echo %d > /y\n", i), nil)
		o.Names = names
		b.must(t, o)
	}
}

// TestImagesMakeRoom: images that were put go, the oldest first, before the disk is full of them.
func TestImagesMakeRoom(t *testing.T) {
	needRoot(t)
	source := open(t, "")
	dir := t.TempDir()
	mountMemory(t, dir, 96)
	b := reopen(t, dir, "")
	for i := range 10 { // 12 MB each
		o := order(t, "b", "FROM busybox:1\nRUN head -c 12000000 /dev/urandom > /random\n", nil)
		o.Names, o.NoCache = source.base(t), true
		source.must(t, o)
		var layout bytes.Buffer
		if err := source.Result(t.Context(), o.ID, nil, &layout); err != nil {
			t.Fatal(err)
		}
		if err := b.PutImage(t.Context(), fmt.Sprint("sha256:", i), &layout); err != nil {
			t.Fatalf("image %d: %v", i, err)
		}
	}
	if b.HasImage("sha256:0") || !b.HasImage("sha256:9") {
		t.Errorf("the first is here: %v, the last: %v", b.HasImage("sha256:0"), b.HasImage("sha256:9"))
	}
	o := order(t, "b", "FROM last\nRUN test -s /random\n", nil)
	o.Names = map[string]string{"last": "sha256:9"}
	b.must(t, o)
}

// TestParallel: builds at the same time do not disturb each other, nor wait for each other.
func TestParallel(t *testing.T) {
	b := open(t, "")
	names := b.base(t)
	var group sync.WaitGroup
	for i := range 2 {
		// Each waits for the other one, by the cache mount that they share.
		o := order(t, fmt.Sprint("b", i), fmt.Sprintf(`FROM busybox:1
RUN --mount=type=cache,target=/c : > /c/%d; for n in $(seq 300); do [ -e /c/%d ] && echo met && exit 0; sleep 0.1; done; exit 1
`, i, 1-i), nil)
		o.Names = names
		group.Go(func() {
			if _, failure, all := b.try(t.Context(), o); failure != nil || all.output() != "met" {
				t.Errorf("%s: %+v\n%s", o.ID, failure, all.output())
			}
		})
	}
	group.Wait()
	o := order(t, "b0", "FROM busybox:1\nRUN true\n", nil)
	if err := b.DropResult(t.Context(), o.ID); err != nil {
		t.Error(err)
	}
}

// TestCollectBesideBuilds: garbage that is collected while builds end costs none its result.
func TestCollectBesideBuilds(t *testing.T) {
	b := open(t, "")
	names := b.base(t)
	ctx, stop := context.WithCancel(t.Context())
	var pruning, building sync.WaitGroup
	pruning.Go(func() {
		for ctx.Err() == nil {
			if _, err := b.Prune(ctx, buildapi.Prune{Bytes: 1}); err != nil && ctx.Err() == nil {
				t.Errorf("prune: %v", err)
			}
		}
	})
	for worker := range 2 {
		building.Go(func() {
			for i := range 15 {
				o := order(t, fmt.Sprintf("b%d-%d", worker, i), fmt.Sprintf("FROM busybox:1\nRUN echo %d %d > /x\n", worker, i), nil)
				o.Names = names
				if _, failure, all := b.try(t.Context(), o); failure != nil {
					t.Errorf("%s: %+v\n%s", o.ID, failure, all.output())
				} else if err := b.Result(t.Context(), o.ID, nil, io.Discard); err != nil {
					t.Errorf("the result of %s: %v", o.ID, err)
				}
				if err := b.DropResult(t.Context(), o.ID); err != nil {
					t.Error(err)
				}
			}
		})
	}
	building.Wait()
	stop()
	pruning.Wait()
}

// TestManyLayers: a step finds the files of each layer, of as many as there may be.
func TestManyLayers(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(os.TempDir(), "m") // as short as that of builders
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	mountMemory(t, dir, diskMB)
	b := reopen(t, dir, "")
	var text strings.Builder
	text.WriteString("FROM busybox:1\n")
	for i := range buildapi.StepsMax - 1 {
		fmt.Fprintf(&text, "WORKDIR /layers/%d\n", i)
	}
	text.WriteString("RUN ls /layers | wc -l\n")
	o := order(t, "b", text.String(), nil)
	o.Names = b.base(t)
	if _, all := b.must(t, o); all.output() != fmt.Sprint(buildapi.StepsMax-1) {
		t.Errorf("the step sees %s layers", all.output())
	}
	o = order(t, "c", text.String()+"RUN true\n", nil)
	o.Names = b.base(t)
	if _, failure, _ := b.try(t.Context(), o); failure == nil || failure.Reason != buildapi.FailedDockerfile || !strings.Contains(failure.Message, "layers") {
		t.Errorf("one more is %+v", failure)
	}
}
