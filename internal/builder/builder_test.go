package builder

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/buildapi"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/fleettest"
)

// yard is a room in a test, and what it works with.
type yard struct {
	*testing.T
	*Room

	farm  *farm
	shelf *shelf
	o     Options
}

func newYard(t *testing.T) *yard {
	t.Helper()
	y := &yard{T: t, farm: newFarm(t), shelf: newShelf()}
	y.o = Options{
		Dir: filepath.Join(t.TempDir(), "builders"), Root: func(context.Context) (string, error) { return "root-1", nil }, Able: func() error { return nil },
		Machines: y.farm, Images: y.shelf, Builds: 2, Size: Size{1024, 512}, Own: Size{2048, 1024}, CacheAge: time.Hour, Timeout: time.Minute,
	}
	y.open()
	return y
}

// open begins as the next process does.
func (y *yard) open() {
	y.Helper()
	r, err := Open(y.Context(), y.o)
	if err != nil {
		y.Fatal(err)
	}
	y.Room = r
}

func (y *yard) order(id string) fleet.BuildOrder {
	return fleet.BuildOrder{ID: id, Workspace: "main", WorkspaceID: "w1", Network: new(doze.Network)}
}

// try builds, and returns the states of its steps.
func (y *yard) try(o fleet.BuildOrder) (built fleet.Built, states []string, err error) {
	y.Helper()
	built, err = y.Build(y.Context(), o, bytes.NewReader(fleettest.Context(y.T)), func(e fleet.BuildEvent) {
		if e.State != "" {
			states = append(states, e.Name+" "+e.State)
		}
	})
	return built, states, err
}

func (y *yard) must(o fleet.BuildOrder) (fleet.Built, []string) {
	y.Helper()
	built, states, err := y.try(o)
	if err != nil {
		y.Fatal(err)
	}
	return built, states
}

// guest returns the machine of the workspace of all orders.
func (y *yard) guest() *guest {
	y.Helper()
	y.farm.mu.Lock()
	defer y.farm.mu.Unlock()
	g := y.farm.machines["builder-"+nameOf("w1")]
	if g == nil {
		y.Fatal("there is no builder")
	}
	return g
}

// begin starts a build that does not end, and returns when its step runs.
func (y *yard) begin(ctx context.Context, id string) (ended <-chan error) {
	y.Helper()
	o := y.order(id)
	o.Dockerfile = fleettest.Endless
	begun, done := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	go func() {
		_, err := y.Build(ctx, o, bytes.NewReader(fleettest.Context(y.T)), func(e fleet.BuildEvent) {
			if e.Text == "begun" {
				once.Do(func() { close(begun) })
			}
		})
		done <- err
	}()
	select {
	case <-begun:
	case err := <-done:
		y.Fatalf("an endless build ended: %v", err)
	}
	return done
}

// TestRoom: a room does what its contract says.
func TestRoom(t *testing.T) {
	t.Parallel()
	fleettest.RunBuilder(t, func(t *testing.T) fleet.Builder {
		t.Helper()
		return newYard(t).Room
	})
}

// TestSupply: what a Dockerfile names of the platform and of the workspace comes into the
// machine once, and nothing of what registries have.
func TestSupply(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	o := y.order("b1")
	login := &fleettest.Login
	o.Bases = map[string]fleet.Base{"doze/slim": {Ref: "example.com/private@sha256:1", Login: login}}
	o.Logins = map[string]fleet.Login{"example.com": {Username: "u", Password: "p"}}
	o.Args, o.Secrets, o.Target = map[string]string{"A": "1"}, map[string]string{"token": "x"}, "last"
	y.must(o)
	g := y.guest()
	want := buildapi.Build{
		ID: "b1", Context: "b1", Target: "last", Args: o.Args, Secrets: o.Secrets,
		Names: map[string]string{"doze/slim": digestOf("example.com/private@sha256:1")}, Logins: map[string]buildapi.Login{"example.com": {User: "u", Password: "p"}},
	}
	got := g.orders[0]
	if got.CacheBytes <= 0 || got.CacheBytes >= y.o.Size.Disk.Bytes() {
		t.Errorf("the cache may have %d bytes", got.CacheBytes)
	}
	got.CacheBytes = 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the program was asked for something else:\n%s", diff)
	}
	if diff := cmp.Diff([][]fleet.Base{{o.Bases["doze/slim"]}}, y.shelf.bases); diff != "" {
		t.Errorf("the result was imported over something else:\n%s", diff)
	}
	o.ID = "b2"
	if _, states := y.must(o); g.puts != 1 || slices.ContainsFunc(states, func(s string) bool { return strings.HasPrefix(s, "load") }) {
		t.Errorf("the image came %d times; the build told %v", g.puts, states)
	}
	o.ID, o.Bases = "b3", nil
	y.must(o) // that of the platform, under the same name
	if name := g.orders[2].Names["doze/slim"]; g.puts != 2 || name != digestOf("doze/slim") {
		t.Errorf("the image of the platform is %s, after %d puts", name, g.puts)
	}
	for id, base := range map[string]fleet.Base{"b4": {Ref: "no image: at all"}, "b5": {Ref: "example.com/private:1"}} {
		o.ID, o.Bases = id, map[string]fleet.Base{"doze/slim": base}
		if _, _, err := y.try(o); doze.Public(err).Name != fleet.NameBuildFailed || !strings.Contains(err.Error(), "doze/slim") {
			t.Errorf("of %s there is %v", base.Ref, err)
		}
	}
	o.ID, o.Bases, o.Dockerfile = "b6", nil, fleettest.Unknown
	if _, _, err := y.try(o); doze.Public(err).Name != fleet.NameBuildFailed || !strings.Contains(err.Error(), `the platform has no image "doze/none"`) {
		t.Errorf("of an image that the platform lacks there is %v", err)
	}
}

// TestSupplyOfMirrors: an image of a registry that has a mirror comes into the machine as it is
// now. With a login for the registry, the machine pulls it.
func TestSupplyOfMirrors(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	o := y.order("b1")
	o.Dockerfile = fleettest.Mirrored
	y.must(o)
	want := map[string]string{"mirrored.example.com/a:1": digestOf("mirrored.example.com/a:1@now")}
	if diff := cmp.Diff(want, y.guest().orders[0].Names); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([][]fleet.Base{{{Ref: "mirrored.example.com/a:1@now"}}}, y.shelf.bases); diff != "" {
		t.Errorf("the result was imported over something else:\n%s", diff)
	}
	o.ID, o.Logins = "b2", map[string]fleet.Login{"mirrored.example.com": {Username: "u", Password: "p"}}
	y.must(o)
	if names := y.guest().orders[1].Names; len(names) > 0 {
		t.Errorf("with a login, the mirror gave %v", names)
	}
	y.shelf.mu.Lock()
	y.shelf.gone = true
	y.shelf.mu.Unlock()
	o.ID, o.Logins = "b3", nil
	if _, _, err := y.try(o); doze.Public(err).Name != fleet.NameBuildFailed || !strings.Contains(err.Error(), "the mirror has no such image") {
		t.Errorf("of a mirror without it there is %v", err)
	}
}

// TestTornExport: an image that cannot be read to its end is no fault of the builder.
func TestTornExport(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	torn := errors.New("the disk is broken")
	y.shelf.torn = torn
	if _, _, err := y.try(y.order("b1")); !errors.Is(err, torn) {
		t.Errorf("it is %v", err)
	}
	archive, err := y.SaveImage(t.Context(), "doze/slim", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(archive); !errors.Is(err, torn) {
		t.Errorf("it is saved with %v", err)
	}
	if err := archive.Close(); err != nil {
		t.Error(err)
	}
	y.shelf.torn = nil
	y.must(y.order("b2"))
}

// TestNetwork: the rules of an order are in force before its build, and one that sleeps
// has them, too.
func TestNetwork(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	for id, domain := range map[string]string{"b1": "a.example", "b2": "b.example"} {
		o := y.order(id)
		o.Network = &doze.Network{AllowedDomains: []string{domain}}
		y.farm.obey = func(g *guest, _ *http.Request) int {
			y.farm.mu.Lock()
			defer y.farm.mu.Unlock()
			for _, n := range y.farm.networks {
				if n.AllowedDomains[0] != domain {
					return http.StatusTeapot
				}
			}
			return 0
		}
		y.must(o)
	}
	if n := y.farm.created(); n != 1 {
		t.Errorf("there were %d machines", n)
	}
}

// TestHolds: a machine is held awake as long as a build is in it, and no longer.
func TestHolds(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.must(y.order("b1"))
	held := func() (n int) {
		y.farm.mu.Lock()
		defer y.farm.mu.Unlock()
		for _, holds := range y.farm.holds {
			n += holds
		}
		return n
	}
	if held() != 0 {
		t.Error("after a build the machine is held")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := y.begin(ctx, "b2")
	if held() != 1 {
		t.Errorf("in a build the machine is held %d times", held())
	}
	cancel()
	<-ended
	y.farm.obey = func(*guest, *http.Request) int { return http.StatusTeapot }
	if _, _, err := y.try(y.order("b3")); err == nil || held() != 0 {
		t.Errorf("after %v the machine is held %d times", err, held())
	}
}

// TestRefusedByTheNetwork: a step that fails says what the network refused since its build began.
func TestRefusedByTheNetwork(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	now := doze.Time{Time: time.Now().Add(time.Hour)}
	for _, host := range []string{"a.test", "b.test", "c.test", "d.test"} {
		y.farm.egress.Destinations = append(y.farm.egress.Destinations,
			doze.EgressDestination{Host: host, Verdict: doze.EgressDenied, Reason: "ask " + host, LastAt: now},
			doze.EgressDestination{Host: "old." + host, Verdict: doze.EgressDenied, LastAt: doze.Time{Time: time.Now().Add(-time.Hour)}},
			doze.EgressDestination{Host: "good." + host, Verdict: doze.EgressAllowed, LastAt: now})
	}
	broken := y.order("b1")
	broken.Dockerfile = fleettest.Broken
	_, _, err := y.try(broken)
	const want = "the command failed with exit code 7; the network refused a.test while it ran: ask a.test; " +
		"the network refused b.test while it ran: ask b.test; the network refused c.test while it ran: ask c.test and others"
	if e := doze.Public(err); !strings.HasSuffix(e.Message, want) {
		t.Error(e.Message)
	}
}

// TestLeftovers: nothing of a build stays in its machine, whatever becomes of it.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.must(y.order("b1"))
	g := y.guest()
	broken := y.order("b2")
	broken.Dockerfile = fleettest.Broken
	if _, _, err := y.try(broken); err == nil {
		t.Error("a broken build succeeded")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := y.begin(ctx, "b3")
	cancel()
	<-ended
	left := func() int {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.contexts) + len(g.results)
	}
	if left() != 0 {
		t.Errorf("there are still %d contexts and results", left())
	}
	y.farm.obey = func(_ *guest, r *http.Request) int { // it forgets nothing, as if the process ended before
		if r.Method == http.MethodDelete {
			return http.StatusInternalServerError
		}
		return 0
	}
	y.must(y.order("b4"))
	if left() != 2 {
		t.Errorf("there are %d contexts and results, want one of each", left())
	}
	y.farm.obey = nil
	y.open() // the next process
	y.must(y.order("b5"))
	if left() != 0 || len(y.known(y.benches["w1"]).Open) != 0 {
		t.Errorf("there are still %d contexts and results of the process before", left())
	}
}

// TestReplaced: a builder of an earlier release, or of another size, gives way to a new
// one, unless a build is in it.
func TestReplaced(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.must(y.order("b1"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := y.begin(ctx, "b2")
	root := "root-2"
	y.Room.o.Root = func(context.Context) (string, error) { return root, nil }
	y.must(y.order("b3"))
	if n := y.farm.created(); n != 1 {
		t.Errorf("with a build in it the builder was replaced: %d machines", n)
	}
	cancel()
	<-ended
	if _, states := y.must(y.order("b4")); y.farm.created() != 2 || slices.Contains(states, "RUN echo built cached") {
		t.Errorf("there were %d machines, and %v", y.farm.created(), states)
	}
	y.Room.o.Size.Memory = 2048
	y.must(y.order("b5"))
	y.must(y.order("b6"))
	if n := y.farm.created(); n != 3 || y.farm.creates[2].Memory != 2048 || y.guest().is.Root != root {
		t.Errorf("there were %d machines: %+v", n, y.farm.creates)
	}
}

// TestRestart: the next process finds the builders of the one before, with their caches,
// and removes what was not finished.
func TestRestart(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.must(y.order("b1"))
	before, err := y.Builders(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	y.open()
	if after, err := y.Builders(t.Context()); err != nil || !cmp.Equal(before, after, cmp.Comparer(func(a, b time.Time) bool { return a.Equal(b) })) {
		t.Errorf("before there were %+v, after it %+v, %v", before, after, err)
	}
	if _, states := y.must(y.order("b2")); !slices.Contains(states, "RUN echo built cached") || y.farm.created() != 1 {
		t.Errorf("the cache is gone: %v", states)
	}

	nobody := "builder-" + nameOf("w2")
	if err := y.farm.Create(t.Context(), fleet.Order{UID: nobody, Memory: 1024}, "root-1"); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"junk.json": "{", "other": "", nameOf("w3") + ".json": `{"workspaceId":"w3","token":"t","began":true}`} {
		if err := os.WriteFile(filepath.Join(y.o.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	y.open()
	if _, still := y.farm.All()[nobody]; still {
		t.Error("a machine without a record is there")
	}
	files, err := os.ReadDir(y.o.Dir)
	if err != nil || len(files) != 1 || files[0].Name() != nameOf("w1")+".json" {
		t.Errorf("the records are %v, %v", files, err)
	}

	y.farm.mu.Lock()
	y.farm.machines["builder-"+nameOf("w1")].is.Phase = doze.Failed
	y.farm.mu.Unlock()
	y.open()
	if _, states := y.must(y.order("b3")); slices.Contains(states, "RUN echo built cached") {
		t.Errorf("a failed builder builds: %v", states)
	}
}

// TestCrash: a program that ends in the middle of a build fails that build, and the next
// one works.
func TestCrash(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	ended := y.begin(t.Context(), "b1")
	y.guest().crash()
	err := <-ended
	if e := doze.Public(err); e.Kind != doze.Unavailable || !strings.Contains(e.Message, "build again") {
		t.Errorf("it is %v", err)
	}
	y.must(y.order("b2"))
	if n := y.farm.created(); n != 1 {
		t.Errorf("there were %d machines", n)
	}
}

// TestBroken: a machine that does not wake is replaced once; a node that cannot help now
// says so.
func TestBroken(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.must(y.order("b1"))
	uid := "builder-" + nameOf("w1")
	y.farm.sick[uid] = doze.Errorf(doze.Unavailable, "no memory is left")
	if _, _, err := y.try(y.order("b2")); doze.Public(err).Kind != doze.Unavailable || y.farm.created() != 1 {
		t.Errorf("without memory it is %v, after %d machines", err, y.farm.created())
	}
	y.farm.sick[uid] = doze.Errorf(doze.Conflict, "its checkpoint is damaged")
	if _, _, err := y.try(y.order("b3")); err == nil || y.farm.created() != 2 {
		t.Errorf("a machine that never wakes: %v, after %d machines", err, y.farm.created())
	}
	delete(y.farm.sick, uid)
	y.must(y.order("b4"))
	y.farm.refused = doze.Errorf(doze.Exhausted, "no disk is left")
	other := y.order("b5")
	other.WorkspaceID = "w2"
	if _, _, err := y.try(other); doze.Public(err).Kind != doze.Exhausted {
		t.Errorf("without disk it is %v", err)
	}
	if all, err := y.Builders(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("the builders are %v, %v", all, err)
	}
	if files, err := os.ReadDir(y.o.Dir); err != nil || len(files) != 1 {
		t.Errorf("the records are %v, %v", files, err)
	}
	if len(y.benches) != 1 {
		t.Errorf("there are still %d benches", len(y.benches))
	}
}

// TestStuck: a builder that cannot be removed builds nothing until it is.
func TestStuck(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.must(y.order("b1"))
	y.farm.stuck = doze.Errorf(doze.Internal, "it does not end")
	for range 2 {
		if err := y.DropBuilder(t.Context(), "w1"); err == nil {
			t.Error("what does not end is removed")
		}
	}
	if _, _, err := y.try(y.order("b2")); err == nil {
		t.Error("a builder that is being removed builds")
	}
	y.farm.stuck = nil
	if _, states := y.must(y.order("b3")); slices.Contains(states, "RUN echo built cached") || y.farm.created() != 2 {
		t.Errorf("there were %d machines, and %v", y.farm.created(), states)
	}
}

// TestTimes: a build ends with its time, and a builder with its age.
func TestTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		y := newYard(t)
		ctx, cancel := context.WithCancel(t.Context())
		running := make(chan struct{})
		go func() {
			defer close(running)
			_ = y.Room.Run(ctx)
		}()
		begin := time.Now()
		err := <-y.begin(t.Context(), "b1")
		if took := time.Since(begin); doze.Public(err).Kind != doze.Timeout || took != y.o.Timeout || !strings.Contains(err.Error(), "--build-timeout") {
			t.Errorf("after %v it ends with %v", took, err)
		}
		o := y.order("b2")
		o.Timeout, o.Dockerfile = time.Second, fleettest.Endless
		begin = time.Now()
		if _, _, err := y.try(o); doze.Public(err).Kind != doze.Timeout || time.Since(begin) != time.Second {
			t.Errorf("its own time ends with %v", err)
		}
		for range 3 {
			time.Sleep(y.o.CacheAge - time.Minute)
			y.must(y.order("b3")) // and so it is used
		}
		if n := y.farm.created(); n != 1 {
			t.Errorf("a builder in use was replaced: %d machines", n)
		}
		time.Sleep(y.o.CacheAge + 2*sweepEvery)
		if all := y.farm.All(); len(all) != 0 {
			t.Errorf("nobody used it, and there is %+v", all)
		}
		cancel()
		<-running
		for _, g := range y.farm.machines {
			g.end()
		}
	})
}

// TestPlatform: builds of the platform's own images pass those that wait for them, and
// control hears of no builder.
func TestPlatform(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := []<-chan error{y.begin(ctx, "b1"), y.begin(ctx, "b2")}
	o := y.order("b3")
	o.Workspace, o.WorkspaceID = "", Platform
	if _, states := y.must(o); slices.Contains(states, "wait for a turn waiting") {
		t.Errorf("it told %v", states)
	}
	cancel()
	for _, end := range ended {
		<-end
	}
	if all, err := y.Builders(t.Context()); err != nil || len(all) != 1 || y.farm.created() != 2 {
		t.Errorf("of %d machines, control hears of %v, %v", y.farm.created(), all, err)
	}
}

// TestBusy: a program that still ends a canceled build gets the next one in a moment.
func TestBusy(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	var asked atomic.Int32
	y.farm.obey = func(_ *guest, r *http.Request) int {
		if r.URL.Path == buildapi.StartBuild.Path && asked.Add(1) < 4 {
			return http.StatusTooManyRequests
		}
		return 0
	}
	y.must(y.order("b1"))
	if asked.Load() < 4 {
		t.Errorf("it was asked %d times", asked.Load())
	}
}

// TestNoProgram: a host without the program says what to do, and has no builders.
func TestNoProgram(t *testing.T) {
	t.Parallel()
	y := newYard(t)
	y.Room.o.Root = func(context.Context) (string, error) {
		return "", doze.Errorf(doze.Unsupported, "install it")
	}
	y.Room.o.Able = func() error { return doze.Errorf(doze.Unsupported, "install it") }
	if _, _, err := y.try(y.order("b1")); doze.Public(err).Kind != doze.Unsupported {
		t.Errorf("it is %v", err)
	}
	if _, err := y.Builders(t.Context()); doze.Public(err).Kind != doze.Unsupported {
		t.Errorf("its builders are %v", err)
	}
	if err := y.DropBuilder(t.Context(), "w1"); err != nil {
		t.Error(err)
	}
}

// TestRefusals: what the program says of a build reaches its user in the kind that says
// who can help.
func TestRefusals(t *testing.T) {
	t.Parallel()
	r := &Room{o: Options{Size: Size{1024, 512}}}
	for name, c := range map[string]struct {
		err  error
		kind doze.Kind
		ours bool // it is no failure of the build
		says string
	}{
		"hostile archive": {&buildapi.RefusalError{Status: 400, Text: "zip slip"}, doze.Invalid, false, "zip slip"},
		"large archive":   {&buildapi.RefusalError{Status: 413, Text: "too large"}, doze.Invalid, false, "too large"},
		"no disk":         {&buildapi.RefusalError{Status: 507, Text: "full"}, doze.Invalid, false, "full"},
		"bad Dockerfile":  {&buildapi.RefusalError{Status: 422, Text: "line 3"}, doze.Invalid, false, "line 3"},
		"stranger":        {&buildapi.RefusalError{Status: 401, Text: "who"}, doze.Unavailable, true, "build again"},
		"step":            {&buildapi.FailedError{Failure: buildapi.Failure{Reason: buildapi.FailedStep, Message: "exit 1"}}, doze.Invalid, false, "exit 1"},
		"exit code":       {&buildapi.FailedError{Failure: buildapi.Failure{Reason: buildapi.FailedStep, Line: 3, Code: 7, Message: "line 3 of the Dockerfile: RUN x: exit code 7"}}, doze.Invalid, false, "the command failed with exit code 7"},
		"its place":       {&buildapi.FailedError{Failure: buildapi.Failure{Reason: buildapi.FailedDockerfile, Line: 3, Message: "line 3 of the Dockerfile: no such word"}}, doze.Invalid, false, "no such word"},
		"disk in a step":  {&buildapi.FailedError{Failure: buildapi.Failure{Reason: buildapi.FailedDisk, Message: "full"}}, doze.Invalid, false, "full"},
		"output":          {&buildapi.FailedError{Failure: buildapi.Failure{Reason: buildapi.FailedOutput, Message: "much"}}, doze.Invalid, false, "much"},
		"its own fault":   {&buildapi.FailedError{Failure: buildapi.Failure{Reason: buildapi.FailedInternal, Message: "oops"}}, doze.Unavailable, true, "oops"},
		"the way":         {io.ErrUnexpectedEOF, doze.Unavailable, true, "--build-memory-mb"},
		"the port":        {doze.Errorf(doze.Unavailable, "nothing listens"), doze.Unavailable, true, "build again"},
		"the node":        {fleet.ErrStopping, doze.Unavailable, true, "shutting down"},
		"time":            {doze.Errorf(doze.Timeout, "slow"), doze.Timeout, true, "slow"},
	} {
		e := doze.Public(r.failure(c.err))
		if strings.Contains(e.Message, "of the Dockerfile") || e.Kind != c.kind || (e.Name != fleet.NameBuildFailed) != c.ours || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: %+v", name, e)
		}
	}
	if err := r.failure(nil); err != nil {
		t.Errorf("nothing is %v", err)
	}
}

// FuzzRecord: no file in the directory of records stops a start, or becomes a builder of
// another workspace.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"workspaceId":"w1","token":"t","began":true,"lastUsed":"2026-01-01T00:00:00Z","cacheBytes":7}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		file := filepath.Join(t.TempDir(), nameOf("w1")+recordSuffix)
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		rec, err := readRecord(file)
		if err == nil && len(raw) > recordMax {
			t.Errorf("%d bytes are a record: %+v", len(raw), rec)
		}
	})
}
