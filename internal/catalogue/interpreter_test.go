package catalogue

import (
	"os"
	"os/exec"
	"testing"
)

// python is that of Debian, as in the images.
const python = "/usr/bin/python3"

// TestInterpreterParts runs the tests of the pure parts of the code interpreter, which need
// the standard library of Python alone: see interpreter_test.py.
func TestInterpreterParts(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(python); err != nil {
		t.Skipf("SKIPPED: the interpreter is a Python program: %v", err)
	}
	if out, err := exec.CommandContext(t.Context(), python, "interpreter_test.py").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
