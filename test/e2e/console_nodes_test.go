package e2e_test

import (
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/testkit"
)

// TestConsoleNodes: an operator of a platform with nodes of its own sees them in a real
// browser, keeps new sandboxes off one, and gets the command for another.
func TestConsoleNodes(t *testing.T) {
	t.Parallel()
	offered := `[...document.querySelectorAll("header nav a")].some((e) => e.textContent === "Platform")`
	p, _ := launch(t, nil, testkit.Options{Roles: true})
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
	b.press(".does button", "Uncordon")
	b.until("it takes sandboxes again", `document.querySelector("tbody tr .good")?.innerText === "ready"`)
	b.press("button", "Add a node")
	b.fill("ttl", "5m")
	if command := b.once(); !strings.HasPrefix(command, "dozed node --control https://") || !strings.Contains(command, " --join ") {
		t.Errorf("the command is %q", command)
	}
	b.clean()
}
