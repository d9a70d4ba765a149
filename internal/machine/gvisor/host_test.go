package gvisor

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/checkpoint"
	"github.com/dozehq/doze/internal/machine/machinetest"
	"github.com/dozehq/doze/internal/swap"
)

// built is what all tests of this package share.
var built struct {
	once                sync.Once
	err                 error
	swap                bool // there is some
	sentry, root, agent string
}

// build makes doze-sentry and the images of the suite's guest, once.
func build(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: real machines need root")
	}
	for _, tool := range []string{"go", "mkfs.erofs"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED: real machines need %s", tool)
		}
	}
	built.once.Do(func() {
		built.err = buildAll(t.Context())
		if err := addSwap(t.Context()); err != nil {
			t.Log("SKIPPED: no memory is moved to swap, this host gives us none:", err)
			return
		}
		built.swap = true
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
}

func buildAll(ctx context.Context) error {
	dir := sharedDir
	// Results of tests are cached by the files that they open: name the sources
	// of the programs that we run.
	for _, sources := range []string{"launcher", "../checkpoint", "../hostproc", "../../../cmd/doze-sentry", "../machinetest"} {
		err := filepath.WalkDir(sources, func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				_, err = os.Stat(name)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	built.sentry, built.root, built.agent = filepath.Join(dir, "doze-sentry"), filepath.Join(dir, "root.erofs"), filepath.Join(dir, "agent.erofs")
	engine, err := run(ctx, "go", "list", "-m", "-f", "{{.Version}}", "gvisor.dev/gvisor")
	if err != nil {
		return err
	}
	for _, step := range [][]string{
		{"go", "build", "-ldflags", "-s -w -X gvisor.dev/gvisor/runsc/version.version=" + engine, "-o", built.sentry, "github.com/dozehq/doze/cmd/doze-sentry"},
		{"go", "build", "-ldflags", "-s -w", "-o", filepath.Join(dir, "root", "guest"), "github.com/dozehq/doze/internal/machine/machinetest/guest"},
		{"mkdir", "-p", filepath.Join(dir, "agent")},
		{"cp", filepath.Join(dir, "root", "guest"), filepath.Join(dir, "agent", "doze-agent")},
		// The engine reads no compressed and no inlined data.
		{"mkfs.erofs", "-x-1", "-E", "noinline_data", built.root, filepath.Join(dir, "root")},
		{"mkfs.erofs", "-x-1", "-E", "noinline_data", built.agent, filepath.Join(dir, "agent")},
	} {
		if _, err := run(ctx, step[0], step[1:]...); err != nil {
			return err
		}
	}
	if _, err = buildinfo.ReadFile(built.sentry); err != nil {
		return err
	}
	return install(built.sentry, filepath.Join(dir, "engines", engine, fileSentry)) // before many would at once
}

func run(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return strings.TrimSpace(string(out)), nil
}

// sharedDir holds what build makes.
var sharedDir string

func TestMain(m *testing.M) {
	code, err := testMain(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code) //nolint:forbidigo // a test's main
}

func testMain(m *testing.M) (code int, err error) {
	sharedDir, err = os.MkdirTemp("", "doze-gvisor")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(sharedDir)) }()
	defer func() { err = errors.Join(err, swap.Remove(context.Background(), swapFile(os.Getpid()))) }() //nolint:forbidigo // a test's main
	return m.Run(), nil
}

// swapFile is where a test process has its swap. It must be on a disk.
func swapFile(pid int) string { return fmt.Sprintf("/var/tmp/doze-test-gvisor-%d.swap", pid) }

// addSwap gives the host some swap until the end of all tests, if it lets us,
// and takes away what killed test processes left.
func addSwap(ctx context.Context) error {
	left, _ := filepath.Glob("/var/tmp/doze-test-gvisor-*.swap") // the pattern is well formed
	for _, name := range left {
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(name), "doze-test-gvisor-%d.swap", &pid); err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			if err := swap.Remove(ctx, name); err != nil {
				return err
			}
		}
	}
	return swap.Make(ctx, swapFile(os.Getpid()), 1<<30, true)
}

// hosts numbers them, for cgroups and addresses.
var hosts atomic.Int64

// host is a place for real machines: a run directory, a parent of cgroups, and
// a network namespace in which the host's ends of links are.
type host struct {
	dir, run, cgroup string
	netns            string // path
	sentry           string // if it is not the one of all
	engines          string // directory, if it is not the one of all
	pauseLimit       time.Duration
	ready            int
	memory           int64 // that all machines may take together
	links            atomic.Int64

	mu     sync.Mutex
	spaces []string // guarded by mu; paths of guests' network namespaces
}

var _ machinetest.Host = (*host)(nil)

func newHost(t *testing.T) *host {
	t.Helper()
	build(t)
	dir, err := os.MkdirTemp("", "doze") //nolint:usetesting // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	h := &host{
		dir: dir, run: filepath.Join(dir, "run"),
		cgroup: fmt.Sprintf("doze-test-%d-%d", os.Getpid(), hosts.Add(1)),
	}
	t.Cleanup(func() { h.destroy(t) })
	if err := os.Mkdir(h.run, 0o700); err != nil {
		t.Fatal(err)
	}
	h.netns = h.space(t, "host")
	return h
}

// space makes a network namespace that lives as a file.
func (h *host) space(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(h.dir, "net-"+name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		own := fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		return unix.Mount(own, path, "", unix.MS_BIND, "")
	})
	if err != nil {
		t.Fatal("make a network namespace:", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.spaces = append(h.spaces, path)
	return path
}

// onThread runs do on a thread that is thrown away.
func onThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		done <- do()
	}()
	return <-done
}

func inside(path string, do func() error) error {
	return onThread(func() error {
		ns, err := netns.GetFromPath(path)
		if err != nil {
			return err
		}
		defer ns.Close()
		if err := netns.Set(ns); err != nil {
			return err
		}
		return do()
	})
}

// link makes a pair of interfaces between the host's namespace and a new one.
func (h *host) link(t *testing.T, id string) machine.Link {
	t.Helper()
	n := h.links.Add(1)
	l := machine.Link{
		NetNS: h.space(t, id), Name: "eth0", MTU: 1500, PrefixLen: 30,
		IP: fmt.Sprintf("10.99.%d.2", n), MAC: fmt.Sprintf("02:00:00:00:%02x:02", n),
		Gateway: fmt.Sprintf("10.99.%d.1", n), GatewayMAC: fmt.Sprintf("02:00:00:00:%02x:01", n),
	}
	near, far := mac(l.GatewayMAC), mac(l.MAC)
	err := inside(h.netns, func() error {
		space, err := netns.GetFromPath(l.NetNS)
		if err != nil {
			return err
		}
		defer space.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr, attrs.MTU = fmt.Sprintf("m%d", n), near, l.MTU
		pair := &netlink.Veth{
			LinkAttrs: attrs, PeerName: l.Name, PeerHardwareAddr: far, PeerNamespace: netlink.NsFd(space),
		}
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		made, err := netlink.LinkByName(attrs.Name)
		if err != nil {
			return err
		}
		index := made.Attrs().Index
		return errors.Join(
			netlink.AddrAdd(made, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(l.Gateway), Mask: net.CIDRMask(l.PrefixLen, 32)}}),
			netlink.LinkSetUp(made),
			netlink.NeighSet(&netlink.Neigh{LinkIndex: index, State: netlink.NUD_PERMANENT, IP: net.ParseIP(l.IP), HardwareAddr: far}),
		)
	})
	if err == nil {
		err = inside(l.NetNS, func() error {
			own, err := netlink.LinkByName(l.Name)
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(own)
		})
	}
	if err != nil {
		t.Fatal("make a link:", err)
	}
	return l
}

func mac(s string) net.HardwareAddr {
	m, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

func (h *host) dial(ctx context.Context, l machine.Link, port uint16) (conn net.Conn, err error) {
	err = inside(h.netns, func() error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "tcp4", net.JoinHostPort(l.IP, strconv.Itoa(int(port))))
		return err
	})
	return conn, err
}

func (h *host) options() Options {
	return Options{Sentry: cmp.Or(h.sentry, built.sentry), Engines: cmp.Or(h.engines, filepath.Join(sharedDir, "engines")), Run: h.run, Cgroup: h.cgroup, Dial: h.dial, PauseLimit: h.pauseLimit, Ready: h.ready, Calm: time.Millisecond, Memory: h.memory}
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

func (h *host) Config(t *testing.T, id string) machine.Config {
	t.Helper()
	return machine.Config{
		ID: id, Dir: filepath.Join(h.dir, "disk-"+id, "images"), Root: built.root, Agent: built.agent,
		Hostname: "host-" + id, Env: []string{"COLOUR=blue"}, Args: []string{"/guest"},
		Memory: 256 << 20, CPUs: 1, Link: h.link(t, id),
	}
}

func (h *host) Crowd(t *testing.T, c machine.Config) (relieve func()) {
	t.Helper()
	disk := filepath.Dir(c.Dir)
	if err := os.MkdirAll(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return func() {
		if err := unix.Mount("tmpfs", disk, "tmpfs", unix.MS_REMOUNT, "size=512m"); err != nil {
			t.Error(err)
		}
	}
}

func (h *host) Swaps() bool { return built.swap }

func (h *host) Forge(t *testing.T, c machine.Config) {
	t.Helper()
	m, err := layout.Read(checkpoint.Dir(c), c)
	if err != nil {
		t.Fatal(err)
	}
	m.Engine += "-other"
	if err := m.Write(checkpoint.Dir(c)); err != nil {
		t.Fatal(err)
	}
}

// engine returns the process id of a machine's engine, or 0. The guest's
// processes are its children and have its name.
func (h *host) engine(id string) int {
	all := pids(func(cmdline string) bool {
		return strings.HasPrefix(cmdline, "runsc-sandbox ") && strings.Contains(cmdline, h.run) && strings.HasSuffix(cmdline, " "+id)
	})
	for _, pid := range all {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue
		}
		_, parent, _ := strings.Cut(string(status), "\nPPid:\t")
		ppid, _ := strconv.Atoi(strings.SplitN(parent, "\n", 2)[0])
		if !slices.Contains(all, ppid) {
			return pid
		}
	}
	return 0
}

// pids returns the processes whose command line is wanted.
func pids(want func(cmdline string) bool) (found []int) {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		raw, err := os.ReadFile(name)
		if err != nil || len(raw) == 0 {
			continue
		}
		if want(strings.TrimSpace(strings.ReplaceAll(string(raw), "\x00", " "))) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			found = append(found, pid)
		}
	}
	return found
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
	wait(t, "the engine is gone", func() bool { return h.engine(id) == 0 })
	// What the launcher does about it is done when it does not know it.
	wait(t, "the launcher noticed", func() bool { return len(h.groups(id)) == 0 })
}

// groups returns the cgroups of a machine, or of the host for no id.
func (h *host) groups(id string) (dirs []string) {
	for _, pattern := range []string{"/sys/fs/cgroup/*", "/sys/fs/cgroup"} {
		found, _ := filepath.Glob(filepath.Join(pattern, h.cgroup, id))
		for _, name := range found {
			if info, err := os.Stat(name); err == nil && info.IsDir() {
				dirs = append(dirs, name)
			}
		}
	}
	return dirs
}

func (h *host) Processes(t *testing.T, id string) (n int) {
	t.Helper()
	for _, dir := range h.groups(id) {
		raw, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err == nil {
			n = max(n, strings.Count(string(raw), "\n"))
		}
	}
	if h.engine(id) != 0 {
		n = max(n, 1)
	}
	return n
}

// launcher returns the process id of the launcher, or 0.
func (h *host) launcher() int {
	for _, pid := range pids(func(cmdline string) bool {
		return strings.Contains(cmdline, "/doze-sentry -run "+h.run)
	}) {
		return pid
	}
	return 0
}

func (h *host) Reboot(t *testing.T) {
	t.Helper()
	h.slay(t)
	if err := os.RemoveAll(h.run); err != nil {
		t.Fatal(err)
	}
	for _, dir := range h.groups("*") {
		_ = os.Remove(dir)
	}
}

// slay kills whatever belongs to this host.
func (h *host) slay(t *testing.T) {
	t.Helper()
	ours := func(cmdline string) bool { return strings.Contains(cmdline, h.run) }
	wait(t, "all processes are gone", func() bool {
		left := pids(ours)
		for _, dir := range h.groups("*") {
			raw, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for field := range strings.FieldsSeq(string(raw)) {
				pid, _ := strconv.Atoi(field)
				left = append(left, pid)
			}
		}
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		return len(left) == 0
	})
}

func (h *host) Empty(t *testing.T) {
	t.Helper()
	// A kill that nobody waited for takes a moment.
	var left []string
	wait(t, "everything is gone", func() bool {
		left = h.leaks()
		return len(left) == 0
	}, func() string { return fmt.Sprint(left) })
}

// leaks lists what is left of machines. The launcher is no leak.
func (h *host) leaks() (left []string) {
	launcher := h.launcher()
	for _, pid := range pids(func(cmdline string) bool { return strings.Contains(cmdline, h.run) }) {
		if pid != launcher {
			left = append(left, "process "+strconv.Itoa(pid))
		}
	}
	left = append(left, h.groups("*")...)
	_ = filepath.WalkDir(h.run, func(name string, d fs.DirEntry, err error) error {
		base := filepath.Base(name)
		if err == nil && !d.IsDir() && !strings.HasPrefix(base, "launcher.") && base != fileVersion {
			left = append(left, name)
		}
		if err == nil && d.IsDir() && filepath.Base(filepath.Dir(name)) == "bundles" {
			left = append(left, name)
		}
		return nil
	})
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, h.run) {
			left = append(left, "mount "+line)
		}
	}
	return left
}

func (h *host) destroy(t *testing.T) {
	t.Helper()
	if t.Failed() {
		logs, _ := filepath.Glob(filepath.Join(h.run, "*", "launcher.log"))
		for _, name := range logs {
			raw, _ := os.ReadFile(name)
			t.Logf("%s:\n%s", name, raw)
		}
	}
	h.slay(t)
	for _, pattern := range []string{"*", ""} {
		for _, dir := range h.groups(pattern) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Error(err)
			}
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, path := range h.spaces {
		if err := unix.Unmount(path, 0); err != nil {
			t.Errorf("a network namespace is in use: %v", err)
		}
	}
	if err := os.RemoveAll(h.dir); err != nil {
		t.Error(err)
	}
}

// patience bounds how long tests wait for something that must happen.
const patience = 20 * time.Second

// wait polls until done reports true.
func wait(t *testing.T, what string, done func() bool, why ...func() string) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		if time.Now().After(deadline) {
			for _, w := range why {
				what += ": " + w()
			}
			t.Fatal("did not happen: " + what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
