package patch

// Stopped is in the error of a save that a request stopped.
const Stopped = "the save was stopped by a request"

// mark is what the licence of gVisor asks for: each file that we change says so.
const mark = "// Doze changed this file, or added it.\n\n"

// edit replaces a text that must be in a file exactly once.
type edit struct{ file, old, with string }

// added are the files that gVisor does not have.
var added = map[string]string{
	"pkg/state/stop.go": `// Package state: see state.go.
package state

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
)

// saveStop says that a request waits for the end of the save.
var saveStop atomic.Bool

// ErrStopped is what a save fails with that was stopped.
var ErrStopped = errors.New("` + Stopped + `")

// SaveUntilStopped is Save that fails with ErrStopped as soon as saveStop is set.
func SaveUntilStopped(ctx context.Context, w io.Writer, rootPtr any) (Stats, error) {
	return save(ctx, w, rootPtr, true)
}

// ForgetStop ends what was asked of a save that is over.
func ForgetStop() { saveStop.Store(false) }

// stopped reports whether to encode no further object.
func (es *encodeState) stopped() bool { return es.stoppable && saveStop.Load() }

// checkStop ends the save, outside of what would print the object at hand.
func (es *encodeState) checkStop() {
	if es.stopped() {
		panic(ErrStopped)
	}
}
`,
	"pkg/sentry/kernel/processes.go": `package kernel

import "gvisor.dev/gvisor/pkg/errors/linuxerr"

// processesMost is how many processes the guest may have; 0 is no bound.
var processesMost int

// admitProcessLocked fails if a task of the guest would begin a process too many. What
// the host starts in the guest counts, and is admitted.
//
// Preconditions: ts.mu must be locked.
func (ts *TaskSet) admitProcessLocked(source *Task, tg *ThreadGroup) error {
	if source != nil && tg.leader == nil && processesMost > 0 && len(ts.Root.tgids) >= processesMost {
		return linuxerr.EAGAIN
	}
	return nil
}
`,
}

// edits are what changes in files of gVisor.
var edits = []edit{
	// The encoder asks before each object whether it is to stop.
	{"pkg/state/state.go", `func Save(ctx context.Context, w io.Writer, rootPtr any) (Stats, error) {
`, `func Save(ctx context.Context, w io.Writer, rootPtr any) (Stats, error) {
	return save(ctx, w, rootPtr, false)
}

// save is Save, which can be stopped or not.
func save(ctx context.Context, w io.Writer, rootPtr any, stoppable bool) (Stats, error) {
`},
	{"pkg/state/state.go", `		encodedStructs: make(map[reflect.Value]*wire.Struct),
`, `		encodedStructs: make(map[reflect.Value]*wire.Struct),
		stoppable:      stoppable,
`},
	{"pkg/state/encode.go", `	// stats tracks time data.
	stats Stats
`, `	// stats tracks time data.
	stats Stats

	// stoppable says that saveStop ends the encoding.
	stoppable bool
`},
	{"pkg/state/encode.go", `			es.deferred.Remove(oes)
`, `			if es.stopped() {
				return
			}
			es.deferred.Remove(oes)
`},
	{"pkg/state/encode.go", `		Failf("encoding error: %w", err)
	}
`, `		Failf("encoding error: %w", err)
	}
	es.checkStop()
`},
	{"pkg/state/encode.go", `			// Encode the id.
			oes = nil
`, `			if es.stopped() {
				return
			}
			// Encode the id.
			oes = nil
`},
	{"pkg/state/encode.go", `			Failf("error serializing type or ID: %w", err)
		}
	}
`, `			Failf("error serializing type or ID: %w", err)
		}
	}
	es.checkStop()
`},
	// Of all that is saved, only the kernel has many objects.
	{"pkg/sentry/kernel/kernel.go", `		stats, err := state.Save(ctx, stateFile, k)
`, `		stats, err := state.SaveUntilStopped(ctx, stateFile, k)
`},
	{"pkg/sentry/kernel/kernel.go", `	saveStart := time.Now()
`, `	saveStart := time.Now()
	defer state.ForgetStop()
`},
	// A process too many is refused under the lock that counts them.
	{"pkg/sentry/kernel/task_start.go", `	if err := ts.assignTIDsLocked(t); err != nil {
`, `	if err := ts.admitProcessLocked(srcT, tg); err != nil {
		return nil, err
	}
	if err := ts.assignTIDsLocked(t); err != nil {
`},
}
