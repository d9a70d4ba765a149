package metric

import (
	"context"
	"errors"
	"strings"
	"syscall"

	"github.com/dozehq/doze/internal/machine"
)

// otherReason is why wakes did not work that no row of reasons has.
const otherReason = "engine"

// reasons are the values of the label, and the errors that each stands for. The first
// match decides.
var reasons = []struct {
	name string
	of   func(error) bool
}{
	{"memory", func(err error) bool { return errors.Is(err, machine.ErrNoMemory) }},
	{"damaged", func(err error) bool { return errors.Is(err, machine.ErrDamaged) }},
	{"no_engine", func(err error) bool { return errors.Is(err, machine.ErrNoEngine) }},
	{"gone", func(err error) bool { return errors.Is(err, machine.ErrGone) }},
	{"timeout", func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }},
	{"stopped", func(err error) bool { return errors.Is(err, context.Canceled) }},
	// The launcher sends words only.
	{"disk", func(err error) bool {
		return errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), syscall.ENOSPC.Error())
	}},
	{otherReason, func(error) bool { return true }},
}

// Reasons are why wakes do not work, as the label of doze_wake_failures_total says it.
func Reasons() (names []string) {
	for _, r := range reasons {
		names = append(names, r.name)
	}
	return names
}

// reason is the label of a wake that did not work.
func reason(err error) string {
	for _, r := range reasons {
		if r.of(err) {
			return r.name
		}
	}
	return otherReason
}
