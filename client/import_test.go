package client_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// elsewhere is a program of another module.
const elsewhere = `package main

import (
	"fmt"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func main() {
	_, err := client.New(client.Config{Address: "no address", Key: "key"})
	fmt.Print(doze.Public(err).Kind)
}
`

// TestOtherModulesCanImport: a program of another module uses this package and the
// dictionary, with no setting of ours.
func TestOtherModulesCanImport(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"main.go": elsewhere, "go.sum": string(sums),
		"go.mod": "module example.com/elsewhere\n\ngo 1.26.0\n\nrequire github.com/dozehq/doze v0.0.0\n\nreplace github.com/dozehq/doze => " + root + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := exec.CommandContext(t.Context(), "go", "run", ".")
	run.Dir = dir
	run.Env = append(os.Environ(), "GOFLAGS=-mod=mod -trimpath", "GOPROXY=off", "GOWORK=off") // all that it needs is here, and compiled
	if out, err := run.CombinedOutput(); err != nil || string(out) != "invalid" {
		t.Errorf("%v: %s", err, out)
	}
}
