package fleettest

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// Dockerfiles by which a build in a test does something special. A fake obeys their
// names, and does what a builder does with their content.
const (
	// Broken fails in its second step, which is in line 3.
	Broken = "broken.Dockerfile"
	// Endless prints a line and does not end by itself.
	Endless = "endless.Dockerfile"
	// Unknown begins with an image that the platform does not have.
	Unknown = "unknown.Dockerfile"
	// Mirrored begins with images of two registries, of which a fake has a mirror for the
	// first.
	Mirrored = "mirrored.Dockerfile"
)

// dockerfiles is the context of each build of the suite.
var dockerfiles = map[string]string{
	"Dockerfile": "FROM doze/slim\nRUN echo built\n",
	Broken:       "FROM doze/slim\n\nRUN echo reason && exit 7\n",
	Unknown:      "FROM doze/none\n",
	Mirrored:     "FROM mirrored.example.com/a:1\nFROM elsewhere.example.com/a:1\n",
	Endless:      "FROM doze/slim\nRUN echo begun && sleep 1000000\n",
}

// Context returns the archive of the builds of the suite: a zip.
func Context(tb testing.TB) []byte {
	tb.Helper()
	var raw bytes.Buffer
	w := zip.NewWriter(&raw)
	for name, text := range dockerfiles {
		f, err := w.Create(name)
		if err == nil {
			_, err = io.WriteString(f, text)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return raw.Bytes()
}

// RunBuilder checks that a builder does what [fleet.Builder] says. open returns one that
// has built nothing, and that has two builds of a workspace at a time.
func RunBuilder(t *testing.T, open func(*testing.T) fleet.Builder) {
	t.Helper()
	for name, check := range buildCases {
		t.Run(name, func(t *testing.T) {
			check(&yard{T: t, Builder: open(t), context: Context(t)})
		})
	}
}

// buildCases is the part of the suite about builds.
var buildCases = map[string]func(*yard){
	"a build makes an image":                      builds,
	"a second build is of the first one's cache":  cached,
	"a step that fails says where":                fails,
	"an archive that is none is refused":          refuses,
	"a build ends with its caller":                cancels,
	"a builder that is dropped ends its builds":   drops,
	"an image is saved, and loaded under an id":   saves,
	"what is no image is not loaded":              loads,
	"secrets are in no event":                     hides,
	"builds of one workspace wait for their turn": waits,
}

// yard is what one case about builds works with.
type yard struct {
	*testing.T

	fleet.Builder
	context []byte
}

// events are those of one build.
type events struct {
	mu  sync.Mutex
	all []fleet.BuildEvent // guarded by mu
}

func (e *events) add(v fleet.BuildEvent) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, v)
}

// count returns how many events a test takes.
func (e *events) count(takes func(fleet.BuildEvent) bool) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, v := range e.all {
		if takes(v) {
			n++
		}
	}
	return n
}

func state(want string) func(fleet.BuildEvent) bool {
	return func(e fleet.BuildEvent) bool { return e.State == want }
}

func (b *yard) order(id string) fleet.BuildOrder {
	return fleet.BuildOrder{ID: id, Workspace: "main", WorkspaceID: "w1", Network: new(doze.Network), Timeout: time.Minute}
}

// build makes an image that must work.
func (b *yard) build(o fleet.BuildOrder) (fleet.Built, *events) {
	b.Helper()
	seen := new(events)
	built, err := b.Build(b.Context(), o, bytes.NewReader(b.context), seen.add)
	if err != nil {
		b.Fatal(err)
	}
	return built, seen
}

// begin starts a build that does not end by itself, and returns when its step runs.
// Wait returns its end.
func (b *yard) begin(ctx context.Context, o fleet.BuildOrder) (wait func() error) {
	b.Helper()
	o.Dockerfile = Endless
	running, ended := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	go func() {
		_, err := b.Build(ctx, o, bytes.NewReader(b.context), func(e fleet.BuildEvent) {
			if e.Text == "begun" {
				once.Do(func() { close(running) })
			}
		})
		ended <- err
	}()
	select {
	case <-running:
	case err := <-ended:
		b.Fatalf("an endless build ended: %v", err)
	}
	return func() error { return <-ended }
}

func builds(b *yard) {
	built, seen := b.build(b.order("b1"))
	if built.Ref == "" || !strings.HasPrefix(built.Digest, "sha256:") || built.Bytes == 0 {
		b.Errorf("it built %+v", built)
	}
	if seen.count(state(fleet.BuildDone)) == 0 || seen.count(func(e fleet.BuildEvent) bool { return e.Text == "built" && e.Stream == "stdout" }) != 1 {
		b.Errorf("it told %+v", seen.all)
	}
	all, err := b.Builders(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	if use, ok := all["w1"]; len(all) != 1 || !ok || use.LastUsed.IsZero() || use.Builds != 0 {
		b.Errorf("the builders are %+v", all)
	}
	other := b.order("b2")
	other.Args = map[string]string{"A": "b"}
	if again, _ := b.build(other); again.Ref == built.Ref {
		b.Errorf("two builds have the reference %s", again.Ref)
	}
}

func cached(b *yard) {
	if _, seen := b.build(b.order("b1")); seen.count(state(fleet.BuildCached)) != 0 {
		b.Errorf("the first build is of a cache: %+v", seen.all)
	}
	if _, seen := b.build(b.order("b2")); seen.count(state(fleet.BuildCached)) == 0 {
		b.Errorf("the second build is of no cache: %+v", seen.all)
	}
	anew := b.order("b3")
	anew.NoCache = true
	if _, seen := b.build(anew); seen.count(state(fleet.BuildCached)) != 0 {
		b.Errorf("a build without cache is of it: %+v", seen.all)
	}
	stranger := b.order("b4")
	stranger.WorkspaceID = "w2"
	if _, seen := b.build(stranger); seen.count(state(fleet.BuildCached)) != 0 {
		b.Errorf("a stranger's build is of our cache: %+v", seen.all)
	}
}

func fails(b *yard) {
	o := b.order("b1")
	o.Dockerfile = Broken
	_, err := b.Build(b.Context(), o, bytes.NewReader(b.context), func(fleet.BuildEvent) {})
	where, failed := fleet.BuildFailureOf(err)
	if !failed || doze.Public(err).Kind != doze.Invalid {
		b.Fatalf("it is %v", err)
	}
	if where.Line != 3 || where.Code != 7 || !strings.Contains(where.Command, "exit 7") || !strings.Contains(strings.Join(where.Output, "\n"), "reason") {
		b.Errorf("it failed at %+v", where)
	}
	o.ID, o.Dockerfile = "b2", "nothing/here"
	if _, err := b.Build(b.Context(), o, bytes.NewReader(b.context), func(fleet.BuildEvent) {}); doze.Public(err).Name != fleet.NameBuildFailed {
		b.Errorf("without its Dockerfile it is %v", err)
	}
}

func refuses(b *yard) {
	_, err := b.Build(b.Context(), b.order("b1"), strings.NewReader(strings.Repeat("no archive at all ", 1000)), func(fleet.BuildEvent) {})
	if doze.Public(err).Name != fleet.NameBuildFailed {
		b.Errorf("it is %v", err)
	}
	b.build(b.order("b2")) // nothing of the first one is in the way
}

func cancels(b *yard) {
	ctx, cancel := context.WithCancelCause(b.Context())
	defer cancel(nil)
	wait := b.begin(ctx, b.order("b1"))
	enough := errors.New("the caller had enough")
	cancel(enough)
	if err := wait(); !errors.Is(err, enough) {
		b.Errorf("it ended with %v", err)
	}
	b.build(b.order("b2"))
}

func drops(b *yard) {
	ctx := b.Context()
	if err := b.DropBuilder(ctx, "nobody"); err != nil {
		b.Fatal(err)
	}
	b.build(b.order("b1"))
	wait := b.begin(ctx, b.order("b2"))
	for range 2 {
		if err := b.DropBuilder(ctx, "w1"); err != nil {
			b.Fatal(err)
		}
	}
	if err := wait(); err == nil {
		b.Error("a build without a builder succeeded")
	}
	if all, err := b.Builders(ctx); err != nil || len(all) != 0 {
		b.Errorf("the builders are %+v, %v", all, err)
	}
	if _, seen := b.build(b.order("b3")); seen.count(state(fleet.BuildCached)) != 0 {
		b.Errorf("the cache outlived its builder: %+v", seen.all)
	}
}

func saves(b *yard) {
	ctx := b.Context()
	built, _ := b.build(b.order("b1"))
	archive, err := b.SaveImage(ctx, built.Ref, nil)
	if err != nil {
		b.Fatal(err)
	}
	raw, err := io.ReadAll(archive)
	if err := errors.Join(err, archive.Close()); err != nil {
		b.Fatal(err)
	}
	loaded, err := b.LoadImage(ctx, "l1", bytes.NewReader(raw))
	if err != nil {
		b.Fatal(err)
	}
	if loaded.Ref == built.Ref || !strings.HasPrefix(loaded.Digest, "sha256:") || loaded.Bytes == 0 {
		b.Errorf("%+v was loaded as %+v", built, loaded)
	}
	if _, err := b.SaveImage(ctx, "no image: at all", nil); doze.Public(err).Kind != doze.Invalid {
		b.Errorf("what is no reference is saved: %v", err)
	}
}

func loads(b *yard) {
	for what, raw := range map[string]string{"text": strings.Repeat("no archive at all ", 1000), "nothing": ""} {
		if _, err := b.LoadImage(b.Context(), "l1", strings.NewReader(raw)); doze.Public(err).Kind != doze.Invalid {
			b.Errorf("%s is loaded: %v", what, err)
		}
	}
}

func hides(b *yard) {
	o := b.order("b1")
	o.Secrets = map[string]string{"token": "hunter2"}
	_, seen := b.build(o)
	if seen.count(func(e fleet.BuildEvent) bool { return strings.Contains(fmt.Sprint(e), "hunter2") }) != 0 {
		b.Errorf("it told %+v", seen.all)
	}
}

// waits checks that the third build of a workspace waits, says so, and goes on.
func waits(b *yard) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	first, second := b.begin(ctx, b.order("b1")), b.begin(ctx, b.order("b2"))
	waiting, done := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	go func() {
		_, err := b.Build(b.Context(), b.order("b3"), bytes.NewReader(b.context), func(e fleet.BuildEvent) {
			if e.State == fleet.BuildWaiting && e.Text != "" {
				once.Do(func() { close(waiting) })
			}
		})
		done <- err
	}()
	select {
	case <-waiting:
	case err := <-done:
		b.Fatalf("the third build did not wait: %v", err)
	}
	cancel()
	for _, wait := range []func() error{first, second} {
		if err := wait(); err == nil {
			b.Error("an endless build ended well")
		}
	}
	if err := <-done; err != nil {
		b.Error(err)
	}
}
