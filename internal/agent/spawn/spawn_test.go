package spawn

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// run starts a program, returns what it printed, and how it ended.
func run(t *testing.T, file string, argv []string, a Attr) (string, syscall.WaitStatus, error) {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	a.Files = [3]int{int(null.Fd()), int(in.Fd()), int(in.Fd())}
	pid, err := Start(file, argv, a)
	in.Close()
	if err != nil {
		return "", 0, err
	}
	text, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	return string(text), status, nil
}

func TestStart(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		script string
		attr   Attr
		want   string
	}{
		"directory":     {"pwd", Attr{Dir: dir}, dir + "\n"},
		"environment":   {"echo $A-$B", Attr{Dir: "/", Env: []string{"A=1", "B=2 3"}}, "1-2 3\n"},
		"both outputs":  {"echo out; echo err >&2", Attr{Dir: "/"}, "out\nerr\n"},
		"no stdin":      {"wc -c", Attr{Dir: "/"}, "0\n"},
		"leads a group": {`read -r _ _ _ _ group _ </proc/$$/stat; echo $((group - $$))`, Attr{Dir: "/"}, "0\n"},
		// Bit n-1 is signal n. All that this process catches and blocks is its own.
		"signals": {"sed -n '/^SigBlk/p; /^SigCgt/p' /proc/self/status", Attr{Dir: "/"}, "SigBlk:\t0000000000000000\nSigCgt:\t0000000000000000\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, status, err := run(t, "/bin/sh", []string{"sh", "-c", tc.script}, tc.attr)
			if err != nil || status != 0 {
				t.Fatalf("status %d, error %v", status, err)
			}
			if diff := cmp.Diff(tc.want, strings.TrimLeft(got, " ")); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestStartAs(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("to be somebody else needs root")
	}
	for name, tc := range map[string]struct {
		as   syscall.Credential
		want string
	}{
		"user":                {syscall.Credential{Uid: 1234, Gid: 5678}, "Uid:\t1234\t1234\t1234\t1234\nGid:\t5678\t5678\t5678\t5678\nGroups:\t \n"},
		"user and two groups": {syscall.Credential{Uid: 1, Gid: 2, Groups: []uint32{3, 4}}, "Uid:\t1\t1\t1\t1\nGid:\t2\t2\t2\t2\nGroups:\t3 4 \n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, _, err := run(t, "/bin/grep", []string{"grep", "-E", "^(Uid|Gid|Groups)", "/proc/self/status"}, Attr{Dir: "/", As: &tc.as})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		file string
		attr Attr
		want error
	}{
		"no program":    {"/absent", Attr{Dir: "/"}, syscall.ENOENT},
		"no format":     {plain, Attr{Dir: "/"}, syscall.ENOEXEC},
		"no directory":  {"/bin/true", Attr{Dir: "/absent"}, syscall.ENOENT},
		"a file for it": {"/bin/true", Attr{Dir: plain}, syscall.ENOTDIR},
		"NUL":           {"/bin/true\x00", Attr{Dir: "/"}, syscall.EINVAL},
		"too long":      {"/bin/true", Attr{Dir: "/", Env: []string{"A=" + strings.Repeat("x", 8<<20)}}, syscall.E2BIG},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, _, err := run(t, tc.file, []string{"x"}, tc.attr); !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}

// Many at once, while this process gets signals that it handles, and its memory
// and stacks move.
func TestStartStorm(t *testing.T) {
	t.Parallel()
	const runners, rounds = 8, 40
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, syscall.SIGUSR1)
	defer signal.Stop(heard)
	over := make(chan struct{})
	var others, all sync.WaitGroup
	others.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-heard:
			default:
				_ = syscall.Kill(os.Getpid(), syscall.SIGUSR1)
				_ = bytes.Repeat([]byte("x"), 1<<16)
			}
		}
	})
	for i := range runners {
		all.Go(func() {
			for n := range rounds {
				want := fmt.Sprintf("%d-%d", i, n)
				got, status, err := run(t, "/bin/echo", []string{"echo", "-n", want}, Attr{Dir: "/", Env: []string{"X=" + want}})
				if err != nil || status != 0 || got != want {
					t.Errorf("%q, status %d, error %v; want %q", got, status, err, want)
				}
			}
		})
	}
	all.Wait()
	close(over)
	others.Wait()
}
