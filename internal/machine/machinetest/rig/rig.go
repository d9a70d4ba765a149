// Package rig is a real host for the tests of a driver. It has a root file system with
// the guest of the suite, swap, run directories, cgroups, network namespaces and links.
// It finds what machines left in them. It knows no driver: each brings a [Rig] with
// what it builds, embeds a [Host], and adds how it is opened and killed.
package rig

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/swap"
)

const (
	// module is where the Go files are of what is built.
	module = "github.com/dozehq/doze"
	// guest is the program of the suite, and agent what it is called as an agent.
	guest, agent = "internal/machine/machinetest/guest", "doze-agent"
	// swapBytes is how much swap a host gets for the tests.
	swapBytes = 1 << 30
)

// Rig is what all tests of one driver share.
type Rig struct {
	Driver  string   // its name
	Sources []string // packages of programs that Make builds, by their directories in the module
	// Make makes what the driver needs, in a directory. It runs once.
	Make func(ctx context.Context, dir string) error

	dir   string
	once  sync.Once
	err   error
	swaps bool // there is some swap
}

// Main runs the tests of a package, and removes what they shared. It returns the
// code to exit with.
func (r *Rig) Main(m *testing.M) int {
	code, err := r.run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func (r *Rig) run(m *testing.M) (code int, err error) {
	if r.dir, err = os.MkdirTemp("", "doze-"+r.Driver); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.dir)) }()
	defer func() { err = errors.Join(err, swap.Remove(context.Background(), r.swapFile(os.Getpid()))) }() //nolint:forbidigo // a test's main
	return m.Run(), nil
}

// Dir is what Make got.
func (r *Rig) Dir() string { return r.dir }

// root and agentRoot are the file systems of every machine.
func (r *Rig) root() string      { return filepath.Join(r.dir, "root.erofs") }
func (r *Rig) agentRoot() string { return filepath.Join(r.dir, "agent.erofs") }

// Build makes what the tests share, once. It skips t where there can be no real
// machines.
func (r *Rig) Build(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: real machines need root")
	}
	for _, tool := range []string{"go", "mkfs.erofs"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED: real machines need %s", tool)
		}
	}
	r.once.Do(func() {
		r.err = r.build(t.Context())
		if err := r.addSwap(t.Context()); err != nil {
			t.Log("SKIPPED: no memory is moved to swap, this host gives us none:", err)
			return
		}
		r.swaps = true
	})
	if r.err != nil {
		t.Fatal(r.err)
	}
}

func (r *Rig) build(ctx context.Context) error {
	if err := r.open(ctx); err != nil {
		return err
	}
	program := filepath.Join(r.dir, "root", "guest")
	for _, step := range [][]string{
		{"go", "build", "-ldflags", "-s -w", "-o", program, module + "/" + guest},
		{"mkdir", "-p", filepath.Join(r.dir, "agent")},
		{"cp", program, filepath.Join(r.dir, "agent", agent)},
		// Engines map these files: they may have no compressed and no inlined data.
		{"mkfs.erofs", "-x-1", "-E", "noinline_data", r.root(), filepath.Join(r.dir, "root")},
		{"mkfs.erofs", "-x-1", "-E", "noinline_data", r.agentRoot(), filepath.Join(r.dir, "agent")},
	} {
		if _, err := Run(ctx, step[0], step[1:]...); err != nil {
			return err
		}
	}
	return r.Make(ctx, r.dir)
}

// open looks at the sources of the programs that the tests run: results of tests are
// cached by the files that they open.
func (r *Rig) open(ctx context.Context) error {
	root, err := Run(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module)
	if err != nil {
		return err
	}
	for _, dir := range append([]string{filepath.Dir(guest)}, r.Sources...) {
		err := filepath.WalkDir(filepath.Join(root, dir), func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				_, err = os.Stat(name)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Run runs a program, without cgo if it is Go, and returns what it printed.
func Run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...) //nolint:gosec // G204: a test says what it builds
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// swapFile is where a test process has its swap. It must be on a disk.
func (r *Rig) swapFile(pid int) string {
	return fmt.Sprintf("/var/tmp/doze-test-%s-%d.swap", r.Driver, pid)
}

// addSwap gives the host some swap until the end of all tests, if it lets us,
// and takes away what killed test processes left.
func (r *Rig) addSwap(ctx context.Context) error {
	left, _ := filepath.Glob("/var/tmp/doze-test-" + r.Driver + "-*.swap") // the pattern is well formed
	for _, name := range left {
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(name), "doze-test-"+r.Driver+"-%d.swap", &pid); err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			if err := swap.Remove(ctx, name); err != nil {
				return err
			}
		}
	}
	return swap.Make(ctx, r.swapFile(os.Getpid()), swapBytes, true)
}

// Patience bounds how long tests wait for something that must happen.
const Patience = 20 * time.Second

const (
	// pauseFirst is the first pause between two looks, and pauseMost what it grows to: some
	// look at all processes of the host.
	pauseFirst = 2 * time.Millisecond
	pauseMost  = 20 * time.Millisecond
)

// Wait polls until done reports true.
func Wait(t *testing.T, what string, done func() bool, why ...func() string) {
	t.Helper()
	pause := pauseFirst
	for deadline := time.Now().Add(Patience); !done(); pause = min(pause*5/4, pauseMost) {
		if time.Now().After(deadline) {
			for _, w := range why {
				what += ": " + w()
			}
			t.Fatal("did not happen: " + what)
		}
		time.Sleep(pause)
	}
}
