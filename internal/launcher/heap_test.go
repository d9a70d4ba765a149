package launcher

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/launcher/tune"
)

// TestCatches: every program in Go takes the signal, of whatever release it is;
// another one would end by it.
func TestCatches(t *testing.T) {
	t.Parallel()
	if !catches(os.Getpid(), tune.HeapAsleep) {
		t.Error("we do")
	}
	if catches(os.Getpid(), unix.SIGKILL) || catches(0, tune.HeapAsleep) {
		t.Error("nobody can")
	}
	child := exec.Command("cat")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if catches(child.Process.Pid, tune.HeapAsleep) {
		t.Error("cat does not")
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}
