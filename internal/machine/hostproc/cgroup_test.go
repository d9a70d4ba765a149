package hostproc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fakeGroups is a directory tree that takes what would be written to cgroups.
// As in a real one, files exist before they are written.
func fakeGroups(t *testing.T, unified bool) Groups {
	t.Helper()
	g := Groups{root: t.TempDir(), name: "doze", unified: unified}
	if unified {
		if err := os.MkdirAll(filepath.Join(g.root, g.name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// written returns all files below root with what is in them.
func written(t *testing.T, root string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(root, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		raw, err := os.ReadFile(name)
		all[strings.TrimPrefix(name, root+"/")] = string(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestGroupFiles(t *testing.T) {
	t.Parallel()
	limit := fmt.Sprint(256 << 20)
	for name, tc := range map[string]struct {
		unified bool
		files   []string // that exist
		want    map[string]string
	}{
		"v1": {
			want: map[string]string{
				"memory/doze/a/memory.limit_in_bytes": limit,
				"cpu/doze/a/cpu.cfs_quota_us":         "50000",
				"cpu/doze/a/cpu.shares":               "64",
				"pids/doze/a/pids.max":                "16384",
				"memory/doze/a/cgroup.procs":          "7", "cpu/doze/a/cgroup.procs": "7", "pids/doze/a/cgroup.procs": "7",
			},
		},
		"v2": {
			unified: true,
			want: map[string]string{
				"doze/a/memory.max": limit, "doze/a/memory.oom.group": "0", "doze/a/pids.max": "16384",
				"doze/a/cpu.max": "50000 100000", "doze/a/cpu.weight": "6", "doze/a/cgroup.procs": "7",
				"cgroup.subtree_control": "+pids", "doze/cgroup.subtree_control": "+pids",
			},
		},
	} {
		g := fakeGroups(t, tc.unified)
		for file := range tc.want {
			file = filepath.Join(g.root, file)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := g.prepare(); err != nil {
			t.Fatal(name, err)
		}
		a, err := g.Make("a", 256<<20)
		if err != nil {
			t.Fatal(name, err)
		}
		if err := a.Add(7); err != nil {
			t.Fatal(name, err)
		}
		if err := a.LimitCPU(0.5); err != nil {
			t.Fatal(name, err)
		}
		if err := a.stand(below); err != nil {
			t.Fatal(name, err)
		}
		if diff := cmp.Diff(tc.want, written(t, g.root)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A machine whose checkpoint is taken stands behind the others, until that has
// ended or somebody waits for it.
func TestBehind(t *testing.T) {
	t.Parallel()
	type is = func(idle, weight string)
	for name, tc := range map[string]struct {
		old bool // the kernel has no groups that are last
		end func(ahead, wanted func(), is is)
	}{
		"the checkpoint ends":          {end: func(ahead, _ func(), _ is) { ahead() }},
		"a request comes":              {end: func(_, wanted func(), _ is) { wanted() }},
		"a request comes, and it ends": {end: func(ahead, wanted func(), _ is) { wanted(); ahead() }},
		"the host is busy": {end: func(ahead, _ func(), is is) {
			time.Sleep(lastMost)
			synctest.Wait()
			is("0", "6")
			ahead()
		}},
		"a request comes to a busy host": {end: func(_, wanted func(), _ is) {
			time.Sleep(lastMost)
			wanted()
		}},
		"on an old kernel": {old: true, end: func(ahead, _ func(), _ is) { ahead() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := fakeGroups(t, true)
			dir := filepath.Join(g.root, "doze/a")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			files := map[string]string{"cpu.idle": "0", "cpu.weight": "100"}
			if tc.old {
				delete(files, "cpu.idle")
			}
			for file, text := range files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Test(t, func(t *testing.T) {
				is := func(idle, weight string) {
					t.Helper()
					want := map[string]string{"cpu.idle": idle, "cpu.weight": weight}
					if tc.old {
						delete(want, "cpu.idle")
					}
					if diff := cmp.Diff(want, written(t, dir)); diff != "" {
						t.Errorf("its share (-want +got):\n%s", diff)
					}
				}
				ctx, wanted := context.WithCancel(t.Context())
				defer wanted()
				ahead := g.Open("a").Behind(ctx)
				if tc.old {
					is("", "6")
				} else {
					is("1", "100")
				}
				tc.end(ahead, wanted, is)
				synctest.Wait()
				is("0", "100")
				ahead()
				is("0", "100")
				time.Sleep(2 * lastMost)
				is("0", "100")
			})
		})
	}
}

func TestGroupNumbers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		unified      bool
		usage, kills string
	}{
		"v1": {false, "memory/doze/a/memory.usage_in_bytes", "memory/doze/a/memory.oom_control"},
		"v2": {true, "doze/a/memory.current", "doze/a/memory.events"},
	} {
		g := fakeGroups(t, tc.unified)
		for file, text := range map[string]string{
			tc.usage: "4096\n",
			tc.kills: "oom_kill_disable 0\nunder_oom 0\noom_kill 3\noom_group_kill 9\n",
		} {
			file = filepath.Join(g.root, file)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a := g.Open("a")
		if n, err := a.usage(); n != 4096 || err != nil {
			t.Errorf("%s: usage %d, %v", name, n, err)
		}
		if n := a.kills(); n != 3 {
			t.Errorf("%s: %d kills, want 3", name, n)
		}
		if !a.ShortOfMemory() {
			t.Errorf("%s: a kill that nobody saw is no reason", name)
		}
		a.seen.Store(3)
		if a.ShortOfMemory() {
			t.Errorf("%s: a kill of long ago is a reason", name)
		}
	}
}

// TestGroupSwap: where the kernel is asked to move memory, and that it may do so
// only then.
func TestGroupSwap(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		unified bool
		files   map[string]string // that exist
		want    map[string]string // in the end
		left    int64
		swapped int64
	}{
		"v1": {
			files: map[string]string{
				"memory/doze/a/memory.usage_in_bytes": "8192\n", "memory/doze/a/memory.force_empty": "", "memory/doze/a/memory.swappiness": "60\n",
				"memory/doze/a/memory.stat": "swap 4096\ninactive_file 4096\nactive_file 1024\n",
			},
			want: map[string]string{"memory/doze/a/memory.force_empty": "0", "memory/doze/a/memory.swappiness": "0"},
			left: 8192, swapped: 4096,
		},
		"v2": {
			unified: true,
			files: map[string]string{
				"doze/a/memory.current": "8192\n", "doze/a/memory.reclaim": "", "doze/a/memory.swap.max": "max", "doze/a/memory.swap.current": "4096\n",
				"doze/a/memory.stat": "inactive_file 4096\nactive_file 1024\n",
			},
			want: map[string]string{"doze/a/memory.reclaim": "8192 swappiness=max", "doze/a/memory.swap.max": "0"},
			left: 8192, swapped: 4096,
		},
		"v2 without swap": {
			unified: true,
			files:   map[string]string{"doze/a/memory.current": "8192\n", "doze/a/memory.reclaim": "", "doze/a/memory.stat": "inactive_file 5120\n"},
			want:    map[string]string{"doze/a/memory.reclaim": "8192 swappiness=max"},
			left:    8192,
		},
	} {
		g := fakeGroups(t, tc.unified)
		for file, text := range tc.files {
			file = filepath.Join(g.root, file)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a := g.Open("a")
		if left, err := a.Reclaim(t.Context()); left != tc.left || err != nil {
			t.Errorf("%s: %d bytes are left, %v", name, left, err)
		}
		if n := a.Swapped(); n != tc.swapped {
			t.Errorf("%s: %d bytes in swap", name, n)
		}
		if n, err := a.Resident(); n != 8192-5120 || err != nil {
			t.Errorf("%s: %d bytes without files, %v", name, n, err)
		}
		if n := a.Elsewhere(os.Getpid()); n <= 0 {
			t.Errorf("%s: %d bytes of a process are charged elsewhere", name, n)
		}
		if n := a.Elsewhere(0); n != 0 {
			t.Errorf("%s: %d bytes of nobody are charged elsewhere", name, n)
		}
		all := written(t, g.root)
		for file, text := range tc.want {
			if all[file] != text {
				t.Errorf("%s: %s is %q, want %q", name, file, all[file], text)
			}
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := a.Reclaim(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: it goes on without its caller: %v", name, err)
		}
	}
}

// TestGroupsReal uses the host's own cgroups.
func TestGroupsReal(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("SKIPPED: cgroups need root")
	}
	g, err := OpenGroups(fmt.Sprintf("doze-test-hostproc-%d", os.Getpid()))
	if err != nil {
		t.Skip("SKIPPED: this host has no cgroups for us:", err)
	}
	t.Cleanup(func() {
		for _, dir := range g.dirs("") {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		}
	})
	a, err := g.Make("a", 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Make("b", 16<<20); err != nil {
		t.Fatal(err)
	}
	child := exec.Command("sleep", "1000")
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if err := a.Add(child.Process.Pid); err != nil {
		t.Error(err)
	}
	if err := a.LimitCPU(0.5); err != nil {
		t.Error(err)
	}
	for _, dir := range a.dirs {
		raw, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil || strings.TrimSpace(string(raw)) != fmt.Sprint(child.Process.Pid) {
			t.Errorf("%s holds %q, %v", dir, raw, err)
		}
	}
	if n, err := a.usage(); err != nil || n < 0 {
		t.Errorf("usage %d, %v", n, err)
	}
	// A process that ends while it is moved is no error.
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	if err := a.Add(child.Process.Pid); err != nil {
		t.Error("a process that is gone:", err)
	}
	if err := g.Sweep(func(id string) bool { return id == "a" }); err != nil {
		t.Error(err)
	}
	for _, dir := range g.dirs("b") {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
	for range 2 {
		if err := a.Remove(); err != nil {
			t.Error(err)
		}
	}
}
