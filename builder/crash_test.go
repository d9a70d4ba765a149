package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/buildapi"
	"golang.org/x/sys/unix"
)

const (
	// localTar and testProgram stand in a table for files that no text can be.
	localTar    = "@a tar"
	testProgram = "@this program"
	// token is that of the node in tests.
	token = "token-of-the-test"
)

// mountMemory mounts a file system in memory.
func mountMemory(t *testing.T, dir string, megabytes int) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", megabytes)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// process is the program, as a node starts it.
type process struct {
	cmd    *exec.Cmd
	log    *bytes.Buffer
	client buildapi.Client
}

// start starts the program with a cache, and waits until it answers.
func start(t *testing.T, dir string) *process {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(filepath.Dir(dir), "socket")
	p := &process{log: &bytes.Buffer{}}
	p.cmd = exec.Command(program, serveArgument, "-dir="+dir, "-listen=unix:"+socket)
	p.cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TMPDIR=") }), buildapi.TokenVariable+"="+token)
	p.cmd.Stdout, p.cmd.Stderr = p.log, p.log
	p.cmd.WaitDelay = 5 * time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	p.client = buildapi.Client{Token: token, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := p.client.Ready(ctx); err != nil {
		p.kill()
		t.Fatalf("it does not start: %v\n%s", err, p.log)
	}
	return p
}

// kill ends the program as the kernel does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// contextTar is a context as a user sends it.
func contextTar(t *testing.T, all map[string]string) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(all[name])), Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, all[name]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

// writeTar writes an archive that a Dockerfile adds, and returns its path.
func writeTar(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "local.tar")
	if err := os.WriteFile(name, contextTar(t, map[string]string{"in.txt": "in"}).Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// phases is a Dockerfile that stands still in each of its steps until it is let go.
const phases = `FROM busybox:1
COPY data /data
RUN echo first > /first
RUN --mount=type=cache,target=/cache echo one >> /cache/n; echo begun; sleep 7654
`

// TestCrash: after kill -9 in each phase, a new process goes on with the cache, and nothing of
// the one before is left.
func TestCrash(t *testing.T) {
	needRoot(t)
	layout := open(t, "")
	layout.base(t) // baseLayout
	dir := filepath.Join(t.TempDir(), "b")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mountMemory(t, dir, 512)
	p := start(t, dir)
	if err := p.client.PutImage(t.Context(), baseKey, bytes.NewReader(baseLayout)); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{"Dockerfile": phases, "data": strings.Repeat("x", 8<<20)}
	for _, c := range []struct {
		name string
		run  func(p *process) error // until the moment of the kill
	}{
		{"idle", func(*process) error { return nil }},
		{"in a context", func(p *process) error {
			r, w := io.Pipe()
			go func() {
				_, _ = w.Write(contextTar(t, files).Bytes()[:4<<20])
				time.Sleep(200 * time.Millisecond)
				p.kill()
				_ = w.Close()
			}()
			_, err := p.client.PutContext(t.Context(), "c", r)
			return err
		}},
		{"in an image", func(p *process) error {
			r, w := io.Pipe()
			go func() {
				_, _ = w.Write(baseLayout[:len(baseLayout)/2])
				time.Sleep(200 * time.Millisecond)
				p.kill()
				_ = w.Close()
			}()
			return p.client.PutImage(t.Context(), "sha256:half", r)
		}},
		{"in a copy", func(p *process) error {
			return buildUntil(t, p, files, func(e buildapi.Event) bool { return strings.HasPrefix(e.Name, "COPY") })
		}},
		{"in a step", func(p *process) error {
			return buildUntil(t, p, files, func(e buildapi.Event) bool { return e.Text == "begun" })
		}},
		{"in an export", func(p *process) error {
			return buildUntil(t, p, map[string]string{"Dockerfile": strings.ReplaceAll(phases, "; sleep 7654", ""), "data": files["data"]},
				func(e buildapi.Event) bool { return strings.HasPrefix(e.Name, "exporting") })
		}},
	} {
		if err := c.run(p); c.name != "idle" && err == nil {
			t.Errorf("%s: it has ended without a mistake", c.name)
		}
		p.kill()
		eventually(t, c.name+": a step outlived the builder", func() bool { return len(running(t, "sleep 7654")) == 0 })
		p = start(t, dir)
		if has, err := p.client.HasImage(t.Context(), baseKey); err != nil || !has {
			t.Errorf("%s: the base is lost: %v\n%s", c.name, err, p.log)
		}
		if has, err := p.client.HasImage(t.Context(), "sha256:half"); err != nil || has {
			t.Errorf("%s: half of an image counts: %v, %v", c.name, has, err)
		}
		text := map[string]string{"Dockerfile": fmt.Sprintf("FROM busybox:1\nCOPY data /data\nRUN echo first > /first\nRUN echo after %s\n", c.name), "data": files["data"]}
		cached := 0
		err := buildUntil(t, p, text, func(e buildapi.Event) bool {
			if e.State == buildapi.StateCached && e.Step > 1 {
				cached++
			}
			return false
		})
		if err != nil {
			p.kill()
			t.Fatalf("%s: the next build fails: %v; %v\n%s", c.name, err, p.cmd.ProcessState, p.log)
		}
		if c.name == "in a step" && cached != 2 {
			t.Errorf("%s: %d steps of 2 came from the cache", c.name, cached)
		}
	}
	status, err := p.client.Status(t.Context())
	if err != nil || status.Builds != 0 {
		t.Errorf("got %+v, %v", status, err)
	}
}

// buildUntil builds, and kills the program at an event.
func buildUntil(t *testing.T, p *process, files map[string]string, when func(buildapi.Event) bool) error {
	t.Helper()
	if _, err := p.client.PutContext(t.Context(), "c", contextTar(t, files)); err != nil {
		t.Fatalf("%v\n%s", err, p.log)
	}
	_, err := p.client.Build(t.Context(), buildapi.Build{ID: "b", Context: "c", Names: map[string]string{"busybox:1": baseKey}}, func(e buildapi.Event) {
		if when(e) {
			p.kill()
		}
	})
	return err
}

// eventually waits for what a signal brings about.
func eventually(t *testing.T, text string, what func() bool) {
	t.Helper()
	for range 100 {
		if what() {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Error(text)
}

// TestFullDisk: a context that the disk has no room for is refused, and a smaller one is not.
func TestFullDisk(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(t.TempDir(), "b")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mountMemory(t, dir, 32)
	p := start(t, dir)
	of := func(bytes int) *bytes.Buffer {
		return contextTar(t, map[string]string{"Dockerfile": "FROM busybox:1\n", "large": strings.Repeat("x", bytes)})
	}
	_, err := p.client.PutContext(t.Context(), "c", of(20<<20)) // more than half of the disk
	if refused, ok := errors.AsType[*buildapi.RefusalError](err); !ok || refused.Status != http.StatusRequestEntityTooLarge || !strings.Contains(refused.Text, "more than 16 MB") {
		t.Errorf("got %v", err)
	}
	for _, id := range []string{"other", "another"} {
		if _, err := p.client.PutContext(t.Context(), id, of(9<<20)); err != nil {
			t.Fatal(err)
		}
	}
	for _, zipped := range []bool{false, true} {
		body := of(15 << 20)
		if zipped { // one that is spooled, and broken only beyond the disk
			body = bytes.NewBuffer(append([]byte("PK\x03\x04"), make([]byte, 40<<20)...))
		}
		_, err := p.client.PutContext(t.Context(), "c", body)
		if refused, ok := errors.AsType[*buildapi.RefusalError](err); !ok || refused.Status != http.StatusInsufficientStorage || !strings.Contains(refused.Text, "--build-disk-mb") {
			t.Errorf("got %v", err)
		}
		if _, err := p.client.PutContext(t.Context(), "c", contextTar(t, map[string]string{"Dockerfile": "FROM busybox:1\n", "small": strings.Repeat("x", 8<<20)})); err != nil {
			t.Errorf("a small one: %v", err)
		}
		if err := p.client.DropContext(t.Context(), "c"); err != nil {
			t.Error(err)
		}
	}
}

// TestThirdBuild: the program runs so many builds at a time, and refuses more.
func TestThirdBuild(t *testing.T) {
	needRoot(t)
	open(t, "").base(t)
	dir := filepath.Join(t.TempDir(), "b")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mountMemory(t, dir, diskMB)
	p := start(t, dir)
	if err := p.client.PutImage(t.Context(), baseKey, bytes.NewReader(baseLayout)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	begun, ended := make(chan bool, buildapi.BuildsMax), make(chan error, buildapi.BuildsMax)
	order := func(i int) buildapi.Build {
		id := fmt.Sprint("b", i)
		if _, err := p.client.PutContext(t.Context(), id, contextTar(t, map[string]string{"Dockerfile": fmt.Sprintf("FROM busybox:1\nRUN echo begun %d; sleep 8765\n", i)})); err != nil {
			t.Fatal(err)
		}
		return buildapi.Build{ID: id, Context: id, Names: map[string]string{"busybox:1": baseKey}}
	}
	for i := range buildapi.BuildsMax {
		o := order(i)
		go func() {
			_, err := p.client.Build(ctx, o, func(e buildapi.Event) {
				if strings.HasPrefix(e.Text, "begun") {
					begun <- true
				}
			})
			ended <- err
		}()
	}
	for range buildapi.BuildsMax {
		<-begun
	}
	_, err := p.client.Build(t.Context(), order(buildapi.BuildsMax), func(buildapi.Event) {})
	if refused, ok := errors.AsType[*buildapi.RefusalError](err); !ok || refused.Status != http.StatusTooManyRequests {
		t.Errorf("one more: %v", err)
	}
	cancel()
	for range buildapi.BuildsMax {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a build that was canceled: %v", err)
		}
	}
	eventually(t, "a step outlived its build", func() bool { return len(running(t, "sleep 8765")) == 0 })
	eventually(t, "a place is still taken", func() bool {
		_, err := p.client.Build(t.Context(), buildapi.Build{ID: "x", Context: "b0", Dockerfile: "none"}, func(buildapi.Event) {})
		_, failed := errors.AsType[*buildapi.FailedError](err)
		return failed
	})
}

// TestProgram: a build over the protocol, from the archive to the image.
func TestProgram(t *testing.T) {
	needRoot(t)
	open(t, "").base(t)
	dir := filepath.Join(t.TempDir(), "b")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mountMemory(t, dir, diskMB)
	p := start(t, dir)
	ctx := t.Context()
	dockerfile := "ARG BASE\nFROM ${BASE}\nARG WORD\nRUN echo $WORD; ls -a / > /list\nCOPY . /context/\n"
	got, err := p.client.PutContext(ctx, "c", contextTar(t, map[string]string{"Dockerfile": dockerfile, ".env.build": "BASE=busybox:1\nWORD=told\n", ".docker/config.json": `{}`}))
	if err != nil || got.Files != 3 || !slices.Equal(got.Args, []string{"BASE", "WORD"}) {
		t.Fatalf("got %+v, %v", got, err)
	}
	plan, err := p.client.Plan(ctx, "c", buildapi.Plan{})
	if err != nil || !slices.Equal(plan.Images, []string{"busybox:1"}) {
		t.Fatalf("got %+v, %v", plan, err)
	}
	if err := p.client.PutImage(ctx, baseKey, bytes.NewReader(baseLayout)); err != nil {
		t.Fatal(err)
	}
	var all events
	result, err := p.client.Build(ctx, buildapi.Build{ID: "b", Context: "c", Names: map[string]string{"busybox:1": baseKey}}, func(e buildapi.Event) { all = append(all, e) })
	if err != nil || result.Layers < 2 || result.Bytes == 0 {
		t.Fatalf("got %+v, %v\n%s", result, err, p.log)
	}
	if all.output() != "told" {
		t.Errorf("the steps wrote %q", all.output())
	}
	layout, err := p.client.Result(ctx, "b", baseKey)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = layout.Close() }()
	names := map[string]bool{}
	for in := tar.NewReader(layout); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names[h.Name] = true
	}
	// Besides these two, it has the manifest, the configuration, and the layers of RUN and COPY.
	if !names["index.json"] || !names["oci-layout"] || len(names) != 6 {
		t.Errorf("the layout has %v", names)
	}
	for range 2 { // what is not there is no error
		if err := errors.Join(p.client.DropResult(ctx, "b"), p.client.DropContext(ctx, "c")); err != nil {
			t.Error(err)
		}
	}
	if _, err := p.client.Result(ctx, "b"); err == nil {
		t.Error("it is still there")
	}
	if _, err := p.client.Prune(ctx, buildapi.Prune{All: true}); err != nil {
		t.Error(err)
	}
	stranger := p.client
	stranger.Token = "another"
	if _, err := stranger.Status(ctx); err == nil {
		t.Error("a stranger was answered")
	}
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Errorf("SIGTERM: %v\n%s", err, p.log)
	}
}
