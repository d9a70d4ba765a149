package doctor_test

import (
	"slices"
	"testing"

	"github.com/dozehq/doze/internal/doctor"
	"github.com/dozehq/doze/internal/swap"
)

// TestRunning: a process that serves makes no namespace to look, and one without
// sandboxes says nothing about what only they need.
func TestRunning(t *testing.T) {
	t.Parallel()
	h := doctor.Host{Plain: "192.0.2.1:80", Unfound: "localhost", Swap: swap.Plan{Kind: swap.Off, Why: "it was chosen"}}
	names := func(found []doctor.Finding) (all []string) {
		for _, f := range found {
			all = append(all, f.Check)
		}
		return all
	}
	node := doctor.Running(h, true)
	if all := names(node); slices.Contains(all, "network") || !slices.Contains(all, "disk") {
		t.Errorf("with sandboxes it looks at %q", all)
	}
	for _, f := range node {
		if slices.Contains([]string{"swap", "encryption", "local names"}, f.Check) && (f.Verdict != doctor.Advice || f.Remedy == "") {
			t.Errorf("%+v", f)
		}
	}
	if all := names(doctor.Running(h, false)); !slices.Equal(all, []string{"processor", "kernel", "open files"}) {
		t.Errorf("without sandboxes it looks at %q", all)
	}
}
