// Package lifecycle knows where a sandbox is in its life, and tells of each change.
//
// It has no lock and sends nothing: the owner of a [State] guards it, and passes its
// reports on.
package lifecycle

import (
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// State is where one sandbox is in its life.
type State struct {
	phase   doze.Phase
	message string        // why it is in its phase, if there is more to say
	seq     uint64        // of the last report
	changed chan struct{} // closed and replaced by each change
}

// New is the state of a sandbox in a phase. Its reports count from seq.
func New(p doze.Phase, message string, seq uint64) State {
	return State{phase: p, message: message, seq: seq, changed: make(chan struct{})}
}

// Adopt says where the sandbox is that an earlier process left. Preconditions: nobody
// else has it yet.
func (s *State) Adopt(p doze.Phase, message string) { s.phase, s.message = p, message }

// Phase is where the sandbox is.
func (s *State) Phase() doze.Phase { return s.phase }

// Message is why the sandbox is in its phase, if there is more to say.
func (s *State) Message() string { return s.message }

// Is reports whether the sandbox is in one of some phases.
func (s *State) Is(phases ...doze.Phase) bool { return slices.Contains(phases, s.phase) }

// Move applies one transition and signals the change. It returns the phase before. A
// transition without a row in [doze.Transitions] is a Conflict.
func (s *State) Move(on doze.Trigger, message string) (from doze.Phase, err error) {
	next, err := doze.Next(s.phase, on)
	if err != nil {
		return s.phase, err
	}
	from, s.phase, s.message = s.phase, next, message
	s.Signal()
	return from, nil
}

// Changed is closed at the next change.
func (s *State) Changed() <-chan struct{} { return s.changed }

// Signal wakes everyone who waits for a change.
func (s *State) Signal() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// Report returns the next report. A note says something that changes no phase.
func (s *State) Report(message string, note bool, now time.Time) fleet.Report {
	s.seq++
	return fleet.Report{Seq: s.seq, Phase: s.phase, Message: message, At: now, Note: note}
}
