package step

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Command {
		os.Exit(Main()) //nolint:forbidigo // it is main
	}
	os.Exit(m.Run()) //nolint:forbidigo // likewise
}

// TestPlace: a mount point is made in the root, wherever links lead.
func TestPlace(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		links map[string]string // in the root
		path  string
		dir   bool
		at    string // where it is in the root; empty for an error
	}{
		"plain":                {nil, "/a/b/c", true, "a/b/c"},
		"a file":               {nil, "/a/f", false, "a/f"},
		"the root":             {nil, "/", true, "."},
		"dots":                 {nil, "/a/../../../b", true, "b"},
		"an absolute link":     {map[string]string{"a": "/x", "x/": ""}, "/a/b", true, "x/b"},
		"a link out":           {map[string]string{"a": "../../../../../../x", "x/": ""}, "/a/b", true, "x/b"},
		"a link to the host":   {map[string]string{"a": "/proc/self/root"}, "/a/b", true, ""},
		"nowhere":              {map[string]string{"a": "/none"}, "/a", true, ""},
		"a file of a link":     {map[string]string{"etc/": "", "etc/resolv.conf": "../run/resolv.conf", "run/": ""}, "/etc/resolv.conf", false, ""},
		"a loop":               {map[string]string{"a": "b", "b": "a"}, "/a/x", true, ""},
		"a link in the middle": {map[string]string{"d/": "", "d/l": "/", "x/": ""}, "/d/l/x/y", true, "x/y"},
	} {
		above := t.TempDir()
		dir := filepath.Join(above, "root")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, at := range slices.Sorted(keys(c.links)) {
			full := filepath.Join(dir, at)
			var err error
			if strings.HasSuffix(at, "/") {
				err = os.MkdirAll(full, 0o755)
			} else {
				err = os.Symlink(c.links[at], full)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		root, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		fd, err := place(int(root.Fd()), c.path, c.dir)
		_ = root.Close()
		if all, _ := os.ReadDir(above); len(all) != 1 {
			t.Errorf("%s: it left %v outside", name, all)
		}
		if c.at == "" {
			if err == nil {
				t.Errorf("%s: no error", name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := os.Readlink(pathOf(fd))
		_ = unix.Close(fd)
		if want := filepath.Join(dir, c.at); err != nil || got != want {
			t.Errorf("%s: it is at %s, %v; want %s", name, got, err, want)
		}
		if st, err := os.Lstat(filepath.Join(dir, c.at)); err != nil || st.IsDir() != c.dir {
			t.Errorf("%s: made %v, %v", name, st, err)
		}
	}
}

// keys returns the keys of a map.
func keys(m map[string]string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func FuzzPlace(f *testing.F) {
	f.Add("/a/b", "../x", true)
	f.Add("a", "/proc/self/root/tmp", false)
	f.Fuzz(func(t *testing.T, name, link string, dir bool) {
		above := t.TempDir()
		rootDir := filepath.Join(above, "root")
		if err := os.Mkdir(rootDir, 0o755); err != nil {
			t.Fatal(err)
		}
		_ = os.Symlink(link, filepath.Join(rootDir, "a"))
		root, err := os.OpenFile(rootDir, unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = root.Close() }()
		fd, err := place(int(root.Fd()), name, dir)
		if err == nil {
			if at, _ := os.Readlink(pathOf(fd)); at != rootDir && !strings.HasPrefix(at, rootDir+"/") {
				t.Errorf("it is at %s", at)
			}
			_ = unix.Close(fd)
		}
		if all, _ := os.ReadDir(above); len(all) != 1 {
			t.Errorf("it left %v outside", all)
		}
	})
}

func TestParse(t *testing.T) {
	t.Parallel()
	flag, data := parse([]string{"rbind", "ro", "nosuid", "rprivate", "rw", "size=1m", "mode=0700"})
	if want := uintptr(unix.MS_BIND | unix.MS_REC | unix.MS_RDONLY | unix.MS_NOSUID); flag != want {
		t.Errorf("flags are %x, want %x", flag, want)
	}
	if data != "size=1m,mode=0700" {
		t.Errorf("data is %q", data)
	}
}

func TestMask(t *testing.T) {
	t.Parallel()
	if got := mask([]string{"CAP_CHOWN", "CAP_SETFCAP", "CAP_OF_TOMORROW"}); got != 1<<unix.CAP_CHOWN|1<<unix.CAP_SETFCAP {
		t.Errorf("got %x", got)
	}
	if len(capabilities) != unix.CAP_LAST_CAP+1 {
		t.Errorf("the table has %d capabilities, and the kernel's list %d", len(capabilities), unix.CAP_LAST_CAP+1)
	}
}

// world is a root file system with busybox.
func world(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("it needs root")
	}
	raw, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skip("it needs busybox-static: make deps-test")
	}
	dir := t.TempDir()
	for _, d := range []string{"bin", "etc", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(dir, "bin/busybox"), raw, 0o755), os.Symlink("busybox", filepath.Join(dir, "bin/sh")),
		os.WriteFile(filepath.Join(dir, "etc/passwd"), []byte("root:x:0:0::/root:/bin/sh\nann:x:7:8::/home/ann:/bin/sh\n"), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "/bin/busybox", "--install", "-s", filepath.Join(dir, "bin")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// The links lead to where busybox is on the host.
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "usr"), 0o755), os.Symlink("../bin", filepath.Join(dir, "usr/bin"))); err != nil {
		t.Fatal(err)
	}
	return dir
}

// order is a step in such a root.
func order(root string, args ...string) *specs.Spec {
	caps := []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_MKNOD", "CAP_SETUID", "CAP_SETGID", "CAP_KILL"}
	return &specs.Spec{
		Root: &specs.Root{Path: root}, Hostname: "step",
		Process: &specs.Process{
			Args: args, Cwd: "/", Env: []string{"PATH=/bin"}, User: specs.User{},
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 100, Soft: 100}},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
			{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro"}},
		},
		Linux: &specs.Linux{MaskedPaths: []string{"/proc/kcore", "/sys/firmware", "/proc/none"}, ReadonlyPaths: []string{"/proc/sys", "/proc/none"}},
	}
}

// run runs a step, and returns what it wrote.
func runStep(t *testing.T, change func(*Options), spec *specs.Spec) (string, error) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	o := Options{Spec: spec, Stdout: &out, Stderr: &out, Program: []string{program, Command}}
	if change != nil {
		change(&o)
	}
	err = Run(t.Context(), o)
	return out.String(), err
}

func sh(root, script string) *specs.Spec { return order(root, "/bin/sh", "-c", script) }

// TestStep: what a command finds of its world.
func TestStep(t *testing.T) {
	t.Parallel()
	root := world(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "f"), []byte("from outside\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	readOnly := sh(root, "cat /m/f; touch /m/x 2>&1 | sed 's/.*: //'")
	readOnly.Mounts = append(readOnly.Mounts, specs.Mount{Destination: "/m", Type: "bind", Source: outside, Options: []string{"rbind", "ro"}})
	oneFile := sh(root, "cat /etc/hosts")
	oneFile.Mounts = append(oneFile.Mounts, specs.Mount{Destination: "/etc/hosts", Type: "bind", Source: filepath.Join(outside, "f"), Options: []string{"rbind", "ro"}})
	frozen := sh(root, "touch /x 2>&1 | sed 's/.*: //'; touch /dev/shm/y && echo shm")
	frozen.Root.Readonly = true
	ann := sh(root, "id -u; id -g; id -G; echo $HOME; grep -E '^Cap(Eff|Prm|Bnd)' /proc/self/status | tr -d '\\t'; grep NoNewPrivs /proc/self/status | tr -d '\\t'")
	ann.Process.User = specs.User{UID: 7, GID: 8, AdditionalGids: []uint32{9}}
	ann.Process.NoNewPrivileges = true
	named := sh(root, "echo $HOME")
	named.Process.Env = append(named.Process.Env, "HOME=/mine")
	for name, c := range map[string]struct {
		spec *specs.Spec
		want string
	}{
		"one process":  {sh(root, "echo $$; ls /proc > /tmp/all; grep -c '^[0-9]' /tmp/all"), "1\n2\n"},
		"its own name": {sh(root, "hostname"), "step\n"},
		"root":         {sh(root, "id -u; echo $HOME; ulimit -n; umask; pwd"), "0\n/root\n100\n0022\n/\n"},
		"no way out":   {sh(root, "ls -a /; ls /proc/1/root/bin/sh; cat /etc/shadow 2>&1; true"), ""},
		"devices":      {sh(root, "echo x > /dev/null; head -c 2 /dev/zero | wc -c; head -c 1 /dev/urandom | wc -c; ls -l /dev/ptmx | sed 's/.*-> //'; : < /dev/fd/0"), "2\n1\npts/ptmx\n"},
		"hidden":       {sh(root, "head -c 1 /proc/kcore 2>/dev/null | wc -c; ls /sys/firmware | wc -l; echo 1 2>/dev/null > /proc/sys/kernel/hostname || echo no"), "0\n0\nno\n"},
		"no mounts":    {sh(root, "mount -t tmpfs x /tmp 2>&1 | sed 's/.*: //'; umount /proc 2>&1 | sed 's/.*: //'"), ""},
		"read-only":    {readOnly, "from outside\nRead-only file system\n"},
		"one file":     {oneFile, "from outside\n"},
		"all of it":    {frozen, "Read-only file system\nshm\n"},
		"another user": {ann, "7\n8\n8 9\n/home/ann\nCapPrm:0000000000000000\nCapEff:0000000000000000\nCapBnd:00000000080000e3\nNoNewPrivs:1\n"},
		"its home":     {named, "/mine\n"},
	} {
		got, err := runStep(t, nil, c.spec)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, got)
			continue
		}
		switch name {
		case "no way out":
			if strings.Contains(got, "root:") || !strings.Contains(got, "/proc/1/root/bin/sh") {
				t.Errorf("%s: %q", name, got)
			}
		case "no mounts":
			if !strings.Contains(got, "ermi") { // "permission denied (are you root?)"
				t.Errorf("%s: %q", name, got)
			}
		default:
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(outside, "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a read-only mount was written: %v", err)
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	root := world(t)
	if err := os.WriteFile(filepath.Join(root, "etc/text"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	nowhere := sh(root, "true")
	nowhere.Process.Cwd = "/none"
	for name, c := range map[string]struct {
		spec *specs.Spec
		code int
		text string
	}{
		"exit 7":        {sh(root, "exit 7"), 7, "exit code: 7"},
		"a signal":      {sh(root, "sh -c 'kill -9 $$'; test $? = 137 && exit 3"), 3, "exit code: 3"},
		"no command":    {order(root, "none"), 127, "not found in $PATH"},
		"no file":       {order(root, "/none"), 127, "/none"},
		"no program":    {order(root, "/etc/text"), 126, "/etc/text"},
		"a directory":   {order(root, "/etc"), 126, "/etc"},
		"nowhere":       {nowhere, 126, "/none"},
		"no arguments":  {order(root), 127, "no command"},
		"found in PATH": {order(root, "false"), 1, "exit code: 1"},
	} {
		out, err := runStep(t, nil, c.spec)
		exit, ok := errors.AsType[*ExitError](err)
		if !ok || exit.Code != c.code || !strings.Contains(exit.Error(), c.text) {
			t.Errorf("%s: %v (%q), want the code %d and %q", name, err, out, c.code, c.text)
		}
	}
}

// TestAlone: a step without a network has a loopback interface that works, and no other.
func TestAlone(t *testing.T) {
	t.Parallel()
	spec := sh(world(t), "sed 1,2d /proc/net/dev | cut -d: -f1 | tr -d ' '; (echo hi | nc -l -p 9000 > /dev/null &); sleep 0.5; nc -w 2 127.0.0.1 9000 < /dev/null")
	spec.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.NetworkNamespace}}
	got, err := runStep(t, func(o *Options) { o.Alone = true }, spec)
	if err != nil || got != "lo\nhi\n" {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestNothingIsLeft: what a step has started ends with it, however it ends.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	root := world(t)
	const nap = "sleep 4321"
	for name, c := range map[string]struct {
		script string
		cancel bool
		want   error
	}{
		"it exits":        {nap + " & setsid " + nap + " & sleep 0.2", false, nil},
		"it is canceled":  {nap + " & setsid " + nap + " & " + nap, true, context.Canceled},
		"it ignores TERM": {"trap '' TERM INT HUP; " + nap, true, context.Canceled},
		"a fork bomb":     {"f() { f | f & f; }; f", false, ErrProcesses},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		program, _ := os.Executable()
		o := Options{Spec: sh(root, c.script), Program: []string{program, Command}}
		o.Started = func() {
			if c.cancel {
				time.AfterFunc(200*time.Millisecond, cancel)
			}
		}
		done := make(chan error, 1)
		go func() { done <- Run(ctx, o) }()
		select {
		case err := <-done:
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		case <-time.After(time.Minute):
			t.Errorf("%s: it has not ended", name)
		}
		cancel()
		if left := running(nap); len(left) > 0 {
			t.Errorf("%s: left the processes %v", name, left)
		}
	}
}

// running finds processes by their command.
func running(command string) (pids []string) {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range all {
		if raw, err := os.ReadFile(f); err == nil && strings.Contains(strings.ReplaceAll(string(raw), "\x00", " "), command) {
			pids = append(pids, f)
		}
	}
	return pids
}
