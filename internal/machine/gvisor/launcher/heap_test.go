package launcher

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine/gvisor/launcher/tune"
	"github.com/dozehq/doze/internal/machine/hostproc"
)

// TestCatches: every program in Go takes the signal, of whatever release it is;
// another one would end by it.
func TestCatches(t *testing.T) {
	t.Parallel()
	if !hostproc.Catches(os.Getpid(), tune.HeapAsleep) {
		t.Error("we do")
	}
	if hostproc.Catches(os.Getpid(), unix.SIGKILL) || hostproc.Catches(0, tune.HeapAsleep) {
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
	if hostproc.Catches(child.Process.Pid, tune.HeapAsleep) {
		t.Error("cat does not")
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}
