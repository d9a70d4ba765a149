// Package entry decides who may enter a sandbox: what becomes of a request that
// wants it to run.
//
// It only decides: it has no lock and waits for nothing. The owner of a [Gate]
// guards it.
package entry

import (
	"fmt"

	"github.com/dozehq/doze"
)

// ErrDeleted is for requests to a sandbox that is being deleted. The next call finds
// what has its name now, or nothing.
var ErrDeleted = doze.Errorf(doze.Unavailable, "the sandbox is being deleted")

// ErrMoved is for requests to a sandbox that another node has now. The next call finds it
// there.
var ErrMoved = doze.Errorf(doze.Unavailable, "the sandbox has moved to another node")

// A Verdict is what becomes of a request.
type Verdict uint8

// The verdicts.
const (
	Enter   Verdict = iota // it may go on
	Wait                   // the sandbox moves on by itself: wait for the next change
	Join                   // a wake is under way: wait for its end
	Wake                   // the sandbox sleeps: wake it
	Shelved                // refused: the sandbox is archived, or about to be
	Broken                 // refused: the sandbox is failed
	Deleted                // refused: the sandbox is being deleted
	Closed                 // refused: the sandbox is in another phase that lets nobody in
	Moved                  // refused: another node has the sandbox

	verdictCount
)

// verdicts are those of a sandbox that nothing else keeps from being used.
var verdicts = [...]Verdict{
	doze.Pending:     Closed,
	doze.Starting:    Wait,
	doze.Running:     Enter,
	doze.Suspending:  Wait,
	doze.Standby:     Wake,
	doze.Waking:      Join,
	doze.Disabling:   Closed,
	doze.Disabled:    Closed,
	doze.Archiving:   Shelved,
	doze.Archived:    Shelved,
	doze.Unarchiving: Wait,
	doze.Deleting:    Deleted,
	doze.Terminated:  Deleted,
	doze.Failed:      Broken,
	doze.Uploading:   Closed, // no node has it yet
	doze.Building:    Closed,
}

// refusals are the errors of verdicts that refuse, by the phase of the sandbox and
// what is said about it.
var refusals = [verdictCount]func(p doze.Phase, message string) error{
	Shelved: func(p doze.Phase, _ string) error {
		return &doze.Error{
			Kind: doze.Conflict, Name: doze.NameArchived,
			Message: fmt.Sprintf("the sandbox is %s and does not wake by itself: unarchive it to use it again", p),
		}
	},
	Broken: func(_ doze.Phase, message string) error {
		return doze.Errorf(doze.Conflict, "the sandbox is failed: %s", message)
	},
	Deleted: func(doze.Phase, string) error { return ErrDeleted },
	Moved:   func(doze.Phase, string) error { return ErrMoved },
	Closed:  func(p doze.Phase, _ string) error { return doze.Errorf(doze.Conflict, "the sandbox is %s", p) },
}

// Refusal is the error of a verdict that refuses, or nil for one that does not.
func (v Verdict) Refusal(p doze.Phase, message string) error {
	if refuse := refusals[v]; refuse != nil {
		return refuse(p, message)
	}
	return nil
}

// A Gate is what keeps requests from one sandbox besides its phase.
type Gate struct {
	retired bool // it is about to be deleted
	frozen  bool // a snapshot is being taken
	leaving bool // the sandbox is about to move to another node
	moved   bool // it has moved
}

// Ask returns what becomes of a request to the sandbox in a phase.
func (g *Gate) Ask(p doze.Phase) Verdict {
	switch v := verdicts[p]; {
	case g.retired:
		return Deleted
	case g.moved:
		return Moved
	case g.leaving && (v == Enter || v == Wake):
		return Wait
	case v == Enter && g.frozen:
		return Wait
	default:
		return v
	}
}

// Retire closes the gate of a sandbox that nobody used, and reports whether it did.
func (g *Gate) Retire(unused bool) bool {
	g.retired = unused
	return unused
}

// Reinstate opens what Retire closed.
func (g *Gate) Reinstate() { g.retired = false }

// Leave lets requests wait until Return, or Move.
func (g *Gate) Leave() { g.leaving = true }

// Return ends that.
func (g *Gate) Return() { g.leaving = false }

// Leaving reports whether the sandbox is about to move.
func (g *Gate) Leaving() bool { return g.leaving }

// Move says that another node has the sandbox.
func (g *Gate) Move() { g.moved = true }

// Freeze lets requests wait until Thaw.
func (g *Gate) Freeze() { g.frozen = true }

// Thaw ends that.
func (g *Gate) Thaw() { g.frozen = false }
