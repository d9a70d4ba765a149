package launcher

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCloseFDs runs this test again as a process that inherits descriptors, of
// which one is meant for it.
func TestCloseFDs(t *testing.T) {
	t.Parallel()
	const meant, extra, inside = 3, 4, "inside"
	if flag.Arg(0) != inside {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCloseFDs$", inside)
		for range 2 {
			f, err := os.Open(os.DevNull)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		return
	}
	own, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	CloseFDs([]string{"runsc-sandbox", "--cpu-num=4", "boot", fmt.Sprintf("--spec-fd=%d", meant), "--io-fds=-1"})
	for fd, want := range map[int]error{meant: nil, extra: unix.EBADF, int(own.Fd()): nil} {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); !errors.Is(err, want) {
			t.Errorf("descriptor %d: %v, want %v", fd, err, want)
		}
	}
}

func TestDonated(t *testing.T) {
	t.Parallel()
	got := donated([]string{
		"runsc-sandbox", "--root=/run/7", "boot", "--io-fds=3,4", "--io-fds=5", "--start-sync-fd=6", "--pin-ring-fd=-1", "--total-memory", "8", "id-fd=9",
	})
	if want := "map[3:true 4:true 5:true 6:true]"; fmt.Sprint(got) != want {
		t.Errorf("descriptors %v, want %s", got, want)
	}
}
