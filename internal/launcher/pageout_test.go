package launcher

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestPrivate(t *testing.T) {
	t.Parallel()
	got, err := private(strings.NewReader(`00400000-01431000 r-xp 00000000 fe:00 9 /bin/doze-sentry
029d0000-029d2000 rw-p 025d0000 fe:00 9                            /bin/doze-sentry
2bebdb000000-2bebdc400000 rw-p 00000000 00:00 0
7fc9b8400000-7fc9b8a0e000 rw-s 00000000 00:01 7 /memfd:runsc-memory (deleted)
7fca40000000-7fca40001000 ---p 00000000 00:00 0
`))
	want := []unix.RemoteIovec{{Base: 0x29d0000, Len: 0x2000}, {Base: 0x2bebdb000000, Len: 0x1400000}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, line := range []string{"1-x rw-p", "2-1 rw-p", "ffffffffffffffff-1 rw-p", "- rw-p", " rw-p"} {
		if got, err := private(strings.NewReader(line)); err == nil && len(got) > 0 {
			t.Errorf("%q: %v", line, got)
		}
	}
}

// TestPageOut takes any process; whether the host has swap or not, it lives on.
func TestPageOut(t *testing.T) {
	t.Parallel()
	child := exec.Command("cat")
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if err := pageOut(child.Process.Pid); err != nil {
		t.Error(err)
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := child.Wait(); err != nil {
		t.Error("it did not survive:", err)
	}
	if err := pageOut(child.Process.Pid); err == nil {
		t.Error("there is no such process")
	}
}
