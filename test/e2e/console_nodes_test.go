package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dozehq/doze/internal/machine/gvisor"
	"github.com/dozehq/doze/internal/teardown"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/freeport"
)

// addNode runs a command that the page gave, as a machine of its own would. What it returns
// destroys the machine.
func addNode(t *testing.T, command string) (destroy func()) {
	t.Helper()
	run, err := os.MkdirTemp("/run", "doze-test-") //nolint:usetesting // addresses of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	address, err := freeport.Address(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	mine := teardown.Platform{Run: run, Cgroup: filepath.Base(run), Data: t.TempDir(), Programs: gvisor.Processes()}
	args := append(strings.Fields(command)[1:], "--data", mine.Data, "--run", mine.Run, "--cgroup", mine.Cgroup, "--node-listen", address,
		"--images-dir", testkit.Images, "--swap", "off", "--egress", "closed", "--warm-pool", "0", "--warm-pool-max", "0", "--disk-reserve-mb", "256")
	cmd := exec.CommandContext(t.Context(), filepath.Join(testkit.Root(), "bin", "dozed"), args...)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	destroy = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
		if err := mine.Clear(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(destroy)
	return destroy
}

// TestConsoleNodes: an operator of a platform with nodes of its own sees them in a real
// browser, keeps new sandboxes off one, adds another, and gives up what that one alone had.
func TestConsoleNodes(t *testing.T) {
	t.Parallel()
	offered := `[...document.querySelectorAll("header nav a")].some((e) => e.textContent === "Platform")`
	p, c := launch(t, nil, testkit.Options{Roles: true})
	b := browse(t)
	b.watch()
	b.open(p.Address + "/")
	b.enter("#key", p.Key)
	b.until("the view is offered", offered)
	b.to("#/platform/nodes", "Nodes")
	b.until("the node is listed", `document.querySelector("tbody tr .good")?.innerText === "ready" && document.querySelector("tbody tr").innerText.includes("https://")`)
	b.press(".does button", "Cordon")
	b.until("it is cordoned", `document.querySelector("tbody tr").innerText.includes("cordoned")`)
	b.usable("nodes")
	b.press("button", "Add a node")
	b.fill("ttl", "5m")
	destroy := addNode(t, b.once())
	b.until("it has joined", `document.querySelectorAll("tbody tr .good").length === 1`)
	create(t, c, named("only", 256)) // the other node takes no new ones
	b.press(".does button", "Uncordon")
	b.until("both take sandboxes", `document.querySelectorAll("tbody tr .good").length === 2`)
	destroy()
	b.until("it is away", `document.querySelector("tbody tr .bad")?.innerText === "ready, away"`)
	b.press(".does button", "Delete")
	b.script(`document.querySelector("dialog form").requestSubmit()`)
	b.until("it stays: it may run", `document.querySelector("dialog").innerText.includes("does not answer")`)
	b.script(`document.querySelector("#ask-force").click()`)
	if lost := b.once(); lost != "sandbox main/only" {
		t.Errorf("the page says that %q is lost", lost)
	}
	b.until("one node is left", `document.querySelectorAll("tbody tr").length === 1 && document.querySelectorAll("tbody tr .good").length === 1`)
	b.clean()
}
