package testkit

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestAccount: on every kind of cgroup that this host has, the time of a command
// and of a child that has ended is counted, nothing else is, and they come to rest.
func TestAccount(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("cgroups need root")
	}
	counted := false
	for i, h := range hierarchies {
		if !h.there() {
			continue
		}
		counted = true
		t.Run(h.root, func(t *testing.T) {
			t.Parallel()
			a, err := h.open(fmt.Sprintf("doze-test-account-%d-%d", os.Getpid(), i), []string{"no-such-group"})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := a.Close(); err != nil {
					t.Error(err)
				}
			}()
			if used, err := a.Used(); err != nil || used != 0 {
				t.Errorf("before the first command %v was used, %v", used, err)
			}
			const work = `i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done`
			cmd := a.Command(exec.CommandContext(t.Context(), "sh", "-c", work+"; ("+work+")& wait; echo $0", "an argument"))
			said, err := cmd.Output()
			if err != nil || string(said) != "an argument\n" {
				t.Fatalf("the command said %q, %v", said, err)
			}
			used, err := a.Rest(t.Context())
			// rusage counts in ticks on some kernels.
			if of := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(); err != nil || used < of*8/10 || used > of*12/10+20*time.Millisecond {
				t.Errorf("%v was used, %v; the command's children and itself took %v", used, err, of)
			}
		})
	}
	if !counted {
		t.Skip("this host has no cgroups")
	}
}

// TestUsage: the time of processors is read from cpu.stat, whose other lines
// depend on the kernel, and a file without it is a mistake.
func TestUsage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		stat string
		want time.Duration
		bad  bool
	}{
		"usual":     {stat: "usage_usec 31270\nuser_usec 18920\nsystem_usec 12350\n", want: 31270 * time.Microsecond},
		"not first": {stat: "core_sched.force_idle_usec 7\nusage_usec 2\n", want: 2 * time.Microsecond},
		"none":      {stat: "user_usec 18920\n", bad: true},
		"no number": {stat: "usage_usec x\n", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := usage(c.stat)
			if got != c.want || (err != nil) != c.bad {
				t.Errorf("usage is %v, %v", got, err)
			}
		})
	}
}
