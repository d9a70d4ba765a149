package metric

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
)

// TestReasons: each reason has an error, and an error that wraps it has the reason too.
func TestReasons(t *testing.T) {
	t.Parallel()
	seen := map[string]error{
		"memory":    doze.Wrap(machine.ErrNoMemory, doze.Unavailable, "no memory is left"),
		"damaged":   machine.ErrDamaged,
		"no_engine": machine.ErrNoEngine,
		"gone":      machine.ErrGone,
		"timeout":   context.DeadlineExceeded,
		"stopped":   context.Canceled,
		"disk":      errors.New("write: " + syscall.ENOSPC.Error()),
		"engine":    errors.New("bad magic"),
	}
	var names []string
	for _, name := range Reasons() {
		if got := reason(fmt.Errorf("resume: %w", seen[name])); seen[name] == nil || got != name {
			t.Errorf("%v has the reason %q, want %q", seen[name], got, name)
		}
		names = append(names, name)
	}
	if len(names) != len(seen) {
		t.Error(cmp.Diff(names, seen))
	}
}
