package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// pythonClient is the directory of the Python client.
const pythonClient = "../../clients/python"

// python is the interpreter that Debian installs packages for.
const python = "/usr/bin/python3"

// TestPythonClient runs the tests of the Python client against a real platform.
func TestPythonClient(t *testing.T) {
	t.Parallel()
	if exec.CommandContext(t.Context(), python, "-c", "import httpx").Run() != nil {
		t.Skip("SKIPPED: there is no httpx for Python: apt-get install python3-httpx")
	}
	p, _ := start(t)
	tests := exec.CommandContext(t.Context(), python, "-B", "-m", "unittest", "discover", "-v", "-s", "tests", "-t", ".")
	tests.Dir = pythonClient
	tests.Env = append(os.Environ(), "DOZE_ADDRESS="+p.Address, "DOZE_KEY="+p.Key)
	if out, err := tests.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestPythonTypes: the Python client and its tests are typed, in every line.
func TestPythonTypes(t *testing.T) {
	t.Parallel()
	if exec.CommandContext(t.Context(), python, "-c", "import mypy, httpx").Run() != nil {
		t.Skip("SKIPPED: there is no mypy for Python: apt-get install mypy python3-httpx")
	}
	cache, err := os.UserCacheDir() // it takes most of its time for the types of other packages
	if err != nil {
		t.Fatal(err)
	}
	check := exec.CommandContext(t.Context(), python, "-m", "mypy", "--strict", "--cache-dir", filepath.Join(cache, "doze", "mypy"), "doze", "tests")
	check.Dir = pythonClient
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
