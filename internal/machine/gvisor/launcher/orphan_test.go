package launcher

import (
	"os"
	"testing"
)

func TestAlive(t *testing.T) {
	t.Parallel()
	if alive(os.Getpid()) {
		t.Error("a process that is no engine is taken for one")
	}
}
