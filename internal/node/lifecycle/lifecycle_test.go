package lifecycle_test

import (
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/node/lifecycle"
)

// TestMove: a transition changes the phase and tells whoever waits.
func TestMove(t *testing.T) {
	s := lifecycle.New(doze.Running, "", 7)
	changed := s.Changed()
	if _, err := s.Move(doze.Called, ""); doze.Public(err).Kind != doze.Conflict || !s.Is(doze.Running) {
		t.Errorf("a transition without a row: %v, and the phase is %v", err, s.Phase())
	}
	select {
	case <-changed:
		t.Error("it signals without a change")
	default:
	}
	from, err := s.Move(doze.Broke, "its disk is gone")
	if err != nil || from != doze.Running || s.Phase() != doze.Failed || s.Message() != "its disk is gone" {
		t.Errorf("from %v to %v, %q: %v", from, s.Phase(), s.Message(), err)
	}
	select {
	case <-changed:
	default:
		t.Error("nobody is told of a change")
	}
	select {
	case <-s.Changed():
		t.Error("the next change was told already")
	default:
	}
}

// TestReport: each report has the next number.
func TestReport(t *testing.T) {
	now := time.Unix(1, 0)
	s := lifecycle.New(doze.Standby, "", 7)
	s.Adopt(doze.Failed, "lost")
	first, second := s.Report(s.Message(), false, now), s.Report("more", true, now)
	if first.Seq != 8 || second.Seq != 9 || first.Phase != doze.Failed || first.Message != "lost" || first.Note || !second.Note || !second.At.Equal(now) {
		t.Errorf("the reports are %+v and %+v", first, second)
	}
}
