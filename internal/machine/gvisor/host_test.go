package gvisor

import (
	"cmp"
	"context"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/gvisor/launcher/patch"
	"github.com/dozehq/doze/internal/machine/hostproc"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/machine/machinetest/rig"
)

// sentryPackage is the program that the launcher and the engine are.
const sentryPackage = "github.com/dozehq/doze/cmd/doze-sentry"

// shared is what all tests of this package share.
var shared = &rig.Rig{
	Driver:  DriverName,
	Sources: []string{"cmd/doze-sentry", "internal/machine/checkpoint", "internal/machine/gvisor/launcher", "internal/machine/hostproc"},
	Make:    makeEngine,
}

// onPlatform runs the tests on another platform of gVisor.
var onPlatform = flag.String("platform", PlatformSystrap, "the platform of gVisor that machines run on, also one that is refused otherwise")

// measure is for tests that print figures, which nothing can be wrong with.
var measure = flag.Bool("measure", false, "run the tests that only measure, and print what they measured")

// onlyMeasures skips a test that only measures, unless the caller wants its figures.
func onlyMeasures(t *testing.T) {
	t.Helper()
	if !*measure {
		t.Skip("SKIPPED: it only measures, and needs -measure")
	}
}

func TestMain(m *testing.M) {
	os.Exit(shared.Main(m)) //nolint:forbidigo // a test's main
}

// sentryIn is the engine of all tests, and enginesIn where it is installed, in what
// they share.
func sentryIn(dir string) string  { return filepath.Join(dir, Program) }
func enginesIn(dir string) string { return filepath.Join(dir, "engines") }

func makeEngine(ctx context.Context, dir string) error {
	version, err := rig.Run(ctx, "go", "list", "-m", "-f", "{{.Version}}", "gvisor.dev/gvisor")
	if err != nil {
		return err
	}
	if err := buildSentry(ctx, version, sentryIn(dir)); err != nil {
		return err
	}
	return install(sentryIn(dir), filepath.Join(enginesIn(dir), version, Program)) // before many would at once
}

// buildSentry builds a version of the engine.
func buildSentry(ctx context.Context, version, to string) error {
	root, err := rig.Run(ctx, "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	engine := filepath.Join(root, "bin", "engine")
	if err := patch.Apply(ctx, root, engine); err != nil {
		return err
	}
	_, err = rig.Run(ctx, "go", "build", "-modfile", filepath.Join(engine, "go.mod"), "-ldflags", "-s -w -X gvisor.dev/gvisor/runsc/version.version="+version, "-o", to, sentryPackage)
	return err
}

// host is a place for real machines of this driver.
type host struct {
	*rig.Host

	sentry     string // if it is not the one of all
	engines    string // directory, if it is not the one of all
	pauseLimit time.Duration
	ready      int
	memory     int64 // that all machines may take together
	processes  int64 // of each machine, if it is not the default
}

var _ machinetest.Host = (*host)(nil)

func newHost(t *testing.T) *host {
	t.Helper()
	return &host{Host: shared.Host(t)}
}

func (h *host) options() Options {
	return Options{
		Sentry: cmp.Or(h.sentry, sentryIn(shared.Dir())), Engines: cmp.Or(h.engines, enginesIn(shared.Dir())), Run: h.Run, Cgroup: h.Cgroup, Dial: h.Dial,
		PauseLimit: h.pauseLimit, Ready: h.ready, Calm: time.Millisecond, Memory: h.memory, Processes: h.processes, Platform: *onPlatform,
	}
}

func (h *host) Open(t *testing.T) machine.Driver {
	t.Helper()
	return h.open(t)
}

func (h *host) open(t *testing.T) *Driver {
	t.Helper()
	d, err := Open(t.Context(), h.options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.current.client.hangUp)
	return d
}

// engine returns the process id of a machine's engine, or 0. The guest's
// processes are its children and have its name.
func (h *host) engine(id string) int {
	all := rig.PIDs(func(cmdline string) bool {
		return strings.HasPrefix(cmdline, "runsc-sandbox ") && strings.Contains(cmdline, h.Run) && strings.HasSuffix(cmdline, " "+id)
	})
	for _, pid := range all {
		if parent, err := hostproc.Parent(pid); err == nil && !slices.Contains(all, parent) {
			return pid
		}
	}
	return 0
}

func (h *host) Kill(t *testing.T, id string) {
	t.Helper()
	pid := h.engine(id)
	if pid == 0 {
		t.Fatalf("%s has no engine", id)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	rig.Wait(t, "the engine is gone", func() bool { return h.engine(id) == 0 })
	// What the launcher does about it is done when it does not know it.
	rig.Wait(t, "the launcher noticed", func() bool { return len(h.Groups(id)) == 0 })
}

func (h *host) Processes(t *testing.T, id string) int {
	t.Helper()
	n := len(h.Grouped(id))
	if h.engine(id) != 0 {
		n = max(n, 1)
	}
	return n
}

// launcher returns the process id of the launcher, or 0.
func (h *host) launcher() int {
	for _, pid := range h.launchers() {
		return pid
	}
	return 0
}

func (h *host) launchers() []int {
	return rig.PIDs(func(cmdline string) bool { return strings.Contains(cmdline, "/"+Program+" -run "+h.Run) })
}

// Empty fails t if something is left of a machine. The launcher is no leak.
func (h *host) Empty(t *testing.T) {
	t.Helper()
	h.Vacate(t, func(pid int) bool { return pid == h.launcher() }, func(name string, d fs.DirEntry) bool {
		if d.IsDir() {
			return filepath.Base(filepath.Dir(name)) == dirBundles
		}
		return !strings.HasPrefix(d.Name(), "launcher.") && d.Name() != fileVersion
	})
}
