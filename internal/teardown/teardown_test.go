package teardown

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestOwns(t *testing.T) {
	t.Parallel()
	w := Platform{Run: "/run/doze/1a2b3c4d", Programs: []string{"doze-launcher", "engine*", "/proc/self/exe"}}
	for name, tt := range map[string]struct {
		args []string
		want bool
	}{
		"the launcher":     {[]string{"/opt/doze/doze-launcher", "-run", "/run/doze/1a2b3c4d/00000001"}, true},
		"the engine":       {[]string{"engine-sandbox", "--root=/run/doze/1a2b3c4d/00000001/state", "boot"}, true},
		"its files":        {[]string{"engine-gofer", "--root=/run/doze/1a2b3c4d/00000001/state"}, true},
		"started again":    {[]string{"/proc/self/exe", "--root=/run/doze/1a2b3c4d/00000001/state"}, true},
		"another platform": {[]string{"engine-sandbox", "--root=/run/doze/1a2b3c4d5/00000001/state"}, false},
		"dozed":            {[]string{"dozed", "all", "--run", "/run/doze/1a2b3c4d/"}, false},
		"its holder":       {[]string{"/opt/doze/dozed", "handover", "--socket", "/run/doze/1a2b3c4d/door.sock"}, true},
		"an older holder":  {[]string{"/opt/doze/dozed", "keep", "--socket", "/run/doze/1a2b3c4d/door.sock"}, true},
		"another's holder": {[]string{"/opt/doze/dozed", "handover", "--socket", "/run/doze/1a2b3c4d5/door.sock"}, false},
		"a log's reader":   {[]string{"tail", "-f", "/run/doze/1a2b3c4d/00000001/launcher.log"}, false},
		"only its name":    {[]string{"/run/doze/1a2b3c4d/engine"}, false},
		"a kernel thread":  {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := w.owns([]byte(strings.Join(tt.args, "\x00") + "\x00")); got != tt.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

func TestClearLeavesWhatIsNotOurs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"1fcaf3c2/state/x", "lock", "data/1fcaf3c2", "notes"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := Platform{Run: dir, Cgroup: "doze-test-no-such-group", Data: filepath.Join(dir, "nothing")}
	if err := w.Clear(); err != nil {
		t.Fatal(err)
	}
	var left []string
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if diff := cmp.Diff([]string{"data", "notes"}, left); diff != "" || err != nil {
		t.Error(diff, err)
	}

	if w.Run = filepath.Join(dir, "run"); os.MkdirAll(filepath.Join(w.Run, "00000000"), 0o700) != nil || os.MkdirAll(filepath.Join(w.Run, "owners"), 0o700) != nil {
		t.Fatal("no directory")
	}
	for range 2 { // the second time nothing is there
		if err := w.Clear(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(w.Run); err == nil {
		t.Error("the run directory is still there")
	}
}

// TestClearEndsWhatStandsStill: the machines of a node that lost its lease are frozen.
func TestClearEndsWhatStandsStill(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root for cgroups")
	}
	name := fmt.Sprint("doze-teardown-", os.Getpid())
	parent, file, word := "/sys/fs/cgroup/"+name, "cgroup.freeze", "1"
	if _, err := os.Stat("/sys/fs/cgroup/freezer"); err == nil {
		parent, file, word = "/sys/fs/cgroup/freezer/"+name, "freezer.state", "FROZEN"
	}
	group, run := filepath.Join(parent, "a"), t.TempDir()
	if err := os.MkdirAll(group, 0o750); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done", run+"/engine")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	for path, text := range map[string]string{filepath.Join(group, "cgroup.procs"): strconv.Itoa(c.Process.Pid), filepath.Join(parent, file): word} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w := Platform{Run: run, Cgroup: name, Data: filepath.Join(run, "nothing"), Programs: []string{"sh"}}
	if err := w.Clear(); err != nil {
		t.Error(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("it does not end")
	}
	if left := w.Groups(); len(left) > 0 {
		t.Errorf("groups are left: %v", left)
	}
}
