package early

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUmounts(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		dir  string
	}{
		{[]string{"/proc/self/exe", "umount", "--sync-fd=3", "/proc"}, "/proc"},
		{[]string{"/proc/self/exe", "umount", "--sync-fd=4", "/proc"}, ""},
		{[]string{"/proc/self/exe", "umount", "--sync-fd=3", "proc"}, ""},
		{[]string{"/proc/self/exe", "umount", "--sync-fd=3", "/proc", "/sys"}, ""},
		{[]string{"/proc/self/exe", "boot", "--sync-fd=3", "/proc"}, ""},
		{[]string{"doze-sentry"}, ""},
	} {
		if dir, ok := umounts(tc.args); dir != tc.dir || ok != (tc.dir != "") {
			t.Errorf("%q: %q, %v; want %q", tc.args, dir, ok, tc.dir)
		}
	}
}

// TestUmount: this program has our init too, and so it is gVisor's process if it
// has its arguments. It unmounts when it is told to, and not if nobody is left
// who could tell it.
func TestUmount(t *testing.T) { //nolint:paralleltest // it has a thread with mounts of its own
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
	dir := t.TempDir()
	for _, tc := range []struct {
		name string
		said string
		code int
		left bool
	}{{"told to", "x", 0, false}, {"left alone", "", failed, true}} {
		done := make(chan error, 1)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread and its mounts end with this goroutine
			done <- func() error {
				if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_FS); err != nil {
					return err
				}
				if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
					return err
				}
				if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
					return err
				}
				r, w, err := os.Pipe()
				if err != nil {
					return err
				}
				child := exec.Command("/proc/self/exe", "umount", "--sync-fd=3", dir)
				child.ExtraFiles = []*os.File{r}
				if err := errors.Join(child.Start(), r.Close()); err != nil {
					return err
				}
				if mounted(dir) != nil {
					return errors.New("it did not wait")
				}
				if _, err := w.WriteString(tc.said); err != nil {
					return err
				}
				_ = errors.Join(w.Close(), child.Wait()) // its code says it
				if code := child.ProcessState.ExitCode(); code != tc.code {
					t.Errorf("%s: it ended with %d, want %d", tc.name, code, tc.code)
				}
				if left := mounted(dir) == nil; left != tc.left {
					t.Errorf("%s: mounted afterwards: %v", tc.name, left)
				}
				return nil
			}()
		}()
		if err := <-done; err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
	}
}

// mounted fails if nothing is mounted at dir, for this thread.
func mounted(dir string) error {
	var own, parent unix.Stat_t
	if err := errors.Join(unix.Stat(dir, &own), unix.Stat(filepath.Dir(dir), &parent)); err != nil {
		return err
	}
	if own.Dev == parent.Dev {
		return errors.New("nothing is mounted")
	}
	return nil
}
