package entry_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/node/entry"
)

// verdicts are those of a request to a sandbox that nothing else closes. Each phase
// is a key: TestPhases asks for them.
var verdicts = map[doze.Phase]struct {
	want    entry.Verdict
	refused string // part of the message
}{
	doze.Pending:     {entry.Closed, "the sandbox is pending"},
	doze.Starting:    {entry.Wait, ""},
	doze.Running:     {entry.Enter, ""},
	doze.Suspending:  {entry.Wait, ""},
	doze.Standby:     {entry.Wake, ""},
	doze.Waking:      {entry.Join, ""},
	doze.Disabling:   {entry.Closed, "the sandbox is disabling"},
	doze.Disabled:    {entry.Closed, "the sandbox is disabled"},
	doze.Archiving:   {entry.Shelved, "archiving and does not wake by itself"},
	doze.Archived:    {entry.Shelved, "archived and does not wake by itself"},
	doze.Unarchiving: {entry.Wait, ""},
	doze.Deleting:    {entry.Deleted, "is being deleted"},
	doze.Terminated:  {entry.Deleted, "is being deleted"},
	doze.Failed:      {entry.Broken, "the sandbox is failed: a reason"},
	doze.Uploading:   {entry.Closed, "the sandbox is uploading"},
	doze.Building:    {entry.Closed, "the sandbox is building"},
}

// TestPhases: each phase has a verdict, and each verdict that refuses has an error.
func TestPhases(t *testing.T) {
	for _, row := range doze.Transitions {
		for _, p := range slices.Concat(row.From, []doze.Phase{row.To}) {
			if _, ok := verdicts[p]; !ok {
				t.Errorf("the table of this test has no row for %v", p)
			}
		}
	}
	for p, tt := range verdicts {
		var g entry.Gate
		v := g.Ask(p)
		if v != tt.want {
			t.Errorf("%v: the verdict is %d, want %d", p, v, tt.want)
		}
		err := v.Refusal(p, "a reason")
		if (err != nil) != (tt.refused != "") || err != nil && !strings.Contains(err.Error(), tt.refused) {
			t.Errorf("%v: the refusal is %v, want %q", p, err, tt.refused)
		}
	}
}

// TestArchived: who asks for an archived sandbox can tell it from others.
func TestArchived(t *testing.T) {
	if e := doze.Public(entry.Shelved.Refusal(doze.Archived, "")); e.Name != doze.NameArchived || e.Kind != doze.Conflict {
		t.Errorf("the refusal is %v %q", e.Kind, e.Name)
	}
}

// TestGate: a snapshot lets requests wait, and a retirement refuses them.
func TestGate(t *testing.T) {
	var g entry.Gate
	g.Freeze()
	for p, want := range map[doze.Phase]entry.Verdict{doze.Running: entry.Wait, doze.Standby: entry.Wake, doze.Failed: entry.Broken} {
		if got := g.Ask(p); got != want {
			t.Errorf("during a snapshot, %v: the verdict is %d, want %d", p, got, want)
		}
	}
	if g.Thaw(); g.Ask(doze.Running) != entry.Enter {
		t.Error("requests wait after a snapshot")
	}
	if g.Retire(false) || g.Ask(doze.Running) != entry.Enter {
		t.Error("a sandbox in use is retired")
	}
	if !g.Retire(true) {
		t.Error("a sandbox that nobody uses is not retired")
	}
	for p := range verdicts {
		if v := g.Ask(p); !errors.Is(v.Refusal(p, ""), entry.ErrDeleted) {
			t.Errorf("retired, %v: the verdict is %d", p, v)
		}
	}
	if g.Reinstate(); g.Ask(doze.Running) != entry.Enter {
		t.Error("a sandbox that was reinstated lets nobody in")
	}
}
