package idle_test

import (
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/node/idle"
)

// start is a moment; the tests count from it.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestReasons: each reason has a text of its own.
func TestReasons(t *testing.T) {
	seen := map[string]idle.Reason{}
	for _, r := range idle.Reasons {
		text := r.String()
		if other, twice := seen[text]; text == "" || twice {
			t.Errorf("reason %d has the text %q, as %d has", r, text, other)
		}
		seen[text] = r
	}
}

// TestHeed: what the agent says decides, unless somebody used the sandbox meanwhile.
func TestHeed(t *testing.T) {
	asked, now := start.Add(time.Minute), start.Add(time.Minute+time.Second)
	ago := func(d time.Duration) *time.Duration { return &d }
	for name, tt := range map[string]struct {
		before func(*idle.Use)
		phase  doze.Phase
		answer idle.Answer
		want   idle.Reason
		last   time.Time
	}{
		"nobody":                   {phase: doze.Running, want: idle.None, last: start},
		"it fell asleep meanwhile": {phase: doze.Standby, answer: idle.Answer{KeepAlive: true}, want: idle.Moved, last: start},
		"a request is in flight": {
			before: func(u *idle.Use) { u.Hold(start) }, phase: doze.Running, want: idle.Request, last: start,
		},
		"its processes end": {
			before: func(u *idle.Use) { u.SetGrace(time.Minute); u.Part(doze.Running) }, phase: doze.Running, want: idle.Parting, last: start,
		},
		"its memory is copied": {
			before: func(u *idle.Use) { u.Copy(true) }, phase: doze.Running, want: idle.Copying, last: start,
		},
		"its memory was copied": {
			before: func(u *idle.Use) { u.Copy(true); u.Copy(false) }, phase: doze.Running, want: idle.None, last: start,
		},
		"a request came and went": {
			before: func(u *idle.Use) { u.Release(asked, u.Hold(asked)) }, phase: doze.Running, want: idle.Recent, last: asked,
		},
		"a process asked":            {phase: doze.Running, answer: idle.Answer{KeepAlive: true}, want: idle.Process, last: now},
		"a process asked until then": {phase: doze.Running, answer: idle.Answer{KeptAgo: ago(20 * time.Second)}, want: idle.None, last: asked.Add(-20 * time.Second)},
		"it ended before the use":    {phase: doze.Running, answer: idle.Answer{KeptAgo: ago(time.Hour)}, want: idle.None, last: start},
		"no answer":                  {phase: doze.Running, answer: idle.Answer{Silent: true}, want: idle.Silent, last: now},
		"nobody waits for it":        {phase: doze.Running, answer: idle.Answer{Silent: true, Cut: true}, want: idle.None, last: start},
	} {
		t.Run(name, func(t *testing.T) {
			u := idle.New(start, 0)
			if tt.before != nil {
				tt.before(&u)
			}
			tt.answer.Asked = asked
			if got := u.Heed(tt.phase, tt.answer, now); got != tt.want {
				t.Errorf("it stays awake: %v, want %v", got, tt.want)
			}
			if !u.Last().Equal(tt.last) {
				t.Errorf("it was last used %v after the start, want %v", u.Last().Sub(start), tt.last.Sub(start))
			}
			if asked := tt.want == idle.Process || tt.want == idle.Silent; asked && !u.InUse(tt.phase) {
				t.Error("it is kept awake, and not in use")
			}
		})
	}
}

// TestSilence: an agent that is dead keeps its sandbox awake for a while only, and one
// that answers starts anew.
func TestSilence(t *testing.T) {
	u := idle.New(start, 0)
	silent := idle.Answer{Asked: start.Add(time.Hour), Silent: true}
	rounds := 0
	for u.Unheard(); u.Heed(doze.Running, silent, start) == idle.Silent; u.Unheard() {
		if rounds++; rounds > 100 {
			t.Fatal("it stays awake for ever")
		}
	}
	if rounds != 9 {
		t.Errorf("it stayed awake for %d questions, want 9", rounds)
	}
	u.Heed(doze.Running, idle.Answer{Asked: start.Add(time.Hour)}, start)
	if n := u.Unanswered(); n != 0 {
		t.Errorf("after an answer %d questions count as unanswered", n)
	}
}

// TestUse: requests and phases say whether a sandbox is in use, and when it was.
func TestUse(t *testing.T) {
	u, later := idle.New(start, 0), start.Add(time.Minute)
	if !u.UnusedSince(doze.Running, start) || u.UnusedSince(doze.Running, start.Add(-1)) {
		t.Error("a sandbox that nobody used since its start")
	}
	since := u.Hold(start)
	if u.UnusedSince(doze.Running, later) || !u.At(doze.Running, later).Equal(later) || u.Busy(doze.Running) != idle.Request {
		t.Error("a request in flight does not count")
	}
	if u.Busy(doze.Standby) != idle.None {
		t.Error("a request in flight stops the way of a sandbox that sleeps")
	}
	if first := u.Mark(); u.Before(since) != 0 || u.Before(first) != 1 {
		t.Error("the request did not begin before the mark")
	}
	second := u.Hold(later)
	if last := u.Mark(); u.Before(second) != 1 || u.Before(last) != 2 {
		t.Error("two requests began before the last mark, and one before the first")
	}
	u.Release(later, second)
	u.Release(later, since)
	if u.Before(u.Mark()) != 0 {
		t.Error("requests that ended began before a mark")
	}
	if u.InUse(doze.Running) || u.Holds() != 0 || !u.At(doze.Running, later.Add(1)).Equal(later) {
		t.Error("a request that ended counts")
	}
	if !u.InUse(doze.Waking) {
		t.Error("a sandbox that wakes is not in use")
	}
	u.Move(doze.Waking, doze.Running, later.Add(time.Hour))
	if !u.Last().Equal(later.Add(time.Hour)) {
		t.Error("a wake is no use")
	}
	u.Heed(doze.Running, idle.Answer{Asked: later.Add(2 * time.Hour), KeepAlive: true}, later)
	u.Move(doze.Running, doze.Suspending, later)
	if u.InUse(doze.Suspending) {
		t.Error("the wish of a process lasts longer than the sandbox runs")
	}
}

// TestPart: only a sandbox that runs, and has the time, parts.
func TestPart(t *testing.T) {
	u := idle.New(start, 0)
	if u.Part(doze.Running) {
		t.Error("processes without time have some")
	}
	u.SetGrace(time.Second)
	if u.Part(doze.Standby) {
		t.Error("processes that stand still have time to end")
	}
	if !u.Part(doze.Running) || u.Busy(doze.Running) != idle.Parting || u.Busy(doze.Standby) != idle.Parting {
		t.Error("processes that end do not keep their sandbox awake")
	}
	if u.Part(doze.Standby); u.Busy(doze.Standby) != idle.Parting {
		t.Error("a second delete ends the time of the first")
	}
	if u.Parted(); u.Busy(doze.Running) != idle.None {
		t.Error("they still end")
	}
}
