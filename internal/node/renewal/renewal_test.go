package renewal_test

import (
	"testing"
	"time"

	"github.com/dozehq/doze/internal/node/renewal"
)

// start is a moment; the tests count from it.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestDue: a sandbox that would rest for an hour rests until its checkpoint is due.
func TestDue(t *testing.T) {
	const every, pause, rest = 5 * time.Minute, 15 * time.Second, time.Hour
	for name, tt := range map[string]struct {
		every  time.Duration
		putOff time.Duration // after the start; 0 is never
		now    time.Duration // after the start
		want   time.Duration
	}{
		"never renewed":                     {0, 0, time.Hour, rest},
		"new":                               {every, 0, 0, every},
		"soon":                              {every, 0, every - time.Minute, time.Minute},
		"late":                              {every, 0, time.Hour, renewal.Idle},
		"put off":                           {every, time.Hour, time.Hour, pause},
		"put off, and due since":            {every, time.Hour, time.Hour + time.Minute, renewal.Idle},
		"put off long before it is due":     {every, time.Second, time.Minute, every - time.Minute},
		"put off, more often than pauses":   {5 * time.Second, time.Hour, time.Hour, 5 * time.Second},
		"put off, and half of that is over": {every, time.Hour, time.Hour + 10*time.Second, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			a := renewal.Since(start)
			if tt.putOff > 0 {
				a.PutOff(start.Add(tt.putOff))
			}
			if got := a.Due(tt.every, pause, start.Add(tt.now)).Sooner(rest, renewal.Idle); got != tt.want {
				t.Errorf("it rests for %v, want %v", got, tt.want)
			}
		})
	}
}

// TestSooner: a checkpoint that is due later does not shorten a rest.
func TestSooner(t *testing.T) {
	a := renewal.Since(start)
	if got := a.Due(time.Hour, time.Second, start).Sooner(time.Minute, 0); got != time.Minute {
		t.Errorf("it rests for %v, want a minute", got)
	}
}

// TestAge: a checkpoint of an earlier process is as old as this one.
func TestAge(t *testing.T) {
	now := start.Add(time.Minute)
	a := renewal.Since(time.Time{})
	if got := a.At(now, start); got != time.Minute {
		t.Errorf("one of an earlier process is %v old", got)
	}
	if a.Save(now); a.At(now.Add(time.Second), start) != time.Second {
		t.Error("a new one is not")
	}
	for age, want := range map[time.Duration]bool{time.Minute: false, time.Minute + 10*time.Second: false, 2 * time.Minute: true} {
		if renewal.Overdue(age, time.Minute) != want {
			t.Errorf("overdue after %v: %v", age, !want)
		}
	}
	if !renewal.Overdue(3*time.Second, time.Second) {
		t.Error("one that is renewed each second is not overdue after three")
	}
	if renewal.Overdue(time.Hour, 0) {
		t.Error("one that is never renewed is overdue")
	}
}

// TestOverdue: a renewal in use that fails is not begun again at once.
func TestOverdue(t *testing.T) {
	const every = time.Minute
	a := renewal.Since(start)
	for _, step := range []struct {
		after time.Duration
		try   bool
		want  bool
	}{
		{every, false, false},
		{every + 11*time.Second, true, true},
		{2 * every, false, false},
		{2*every + 11*time.Second, false, true},
	} {
		now := start.Add(step.after)
		if got := a.Overdue(every, now, start); got != step.want {
			t.Errorf("after %v it is overdue: %v", step.after, got)
		}
		if step.try {
			a.Try(now)
		}
	}
	if a.Save(start.Add(time.Hour)); a.Overdue(every, start.Add(time.Hour+time.Second), start) {
		t.Error("a new one is overdue")
	}
	if a := renewal.Since(start); a.Overdue(0, start.Add(time.Hour), start) {
		t.Error("one that is never renewed is overdue")
	}
}
