package main

import (
	"strings"
	"testing"
	"time"
)

// instance is what a sandbox has in its memory. A copy of it is a copy of the sandbox.
type instance struct{ n, token, heard uint64 }

// say has an instance say what it would say, and hear the answer.
func (i *instance) say(t *testing.T, r *recorder, now time.Time) error {
	t.Helper()
	return i.hear(r.take(i.message(), now))
}

func (i *instance) message() message {
	return message{Name: "a", Born: "x", N: i.n + 1, Token: i.token, Heard: i.heard}
}

func (i *instance) hear(a answer, err error) error {
	switch {
	case err != nil:
		return err
	case a.Token != 0:
		i.n, i.token, i.heard = i.n+1, a.Token, a.Token
	default:
		i.heard = a.Challenge
	}
	return nil
}

// TestRecorder: sequences by hand. A and B are the instance that says something. With c, B is
// made of A, and l is a message of A from then, which comes late.
func TestRecorder(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		steps   string
		wrong   string // part of it; empty: nothing is
		rewinds int
		lost    uint64
	}{
		"one instance":                                     {steps: "AAAA"},
		"a copy that lost nothing":                         {steps: "AAcBBB"},
		"a copy goes on, and is challenged":                {steps: "AAcAAABBBB", rewinds: 1, lost: 3},
		"an answer got lost":                               {steps: "AAcABBBB"},
		"two, in turns":                                    {steps: "AAcAABBBAA", wrong: "OVERLAP", rewinds: 1, lost: 2},
		"the old one comes back much later":                {steps: "AAcAABBBBBBBAA", wrong: "OVERLAP", rewinds: 1, lost: 2},
		"the copy runs, and the original, and the copy":    {steps: "AAcAABABABABABABAB", wrong: "OVERLAP"},
		"a message of the original that was on its way":    {steps: "AAcABBBlBBB"},
		"it is late twice":                                 {steps: "AAcAABBllBB", rewinds: 1, lost: 2},
		"both go on from one write, and one of them first": {steps: "AAcBABABABABABA", wrong: "OVERLAP"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecorder(func(string) {})
			a, b, old := &instance{}, &instance{}, message{}
			now := time.Unix(0, 0)
			var failed []string
			for _, step := range tt.steps {
				now = now.Add(time.Second)
				var err error
				switch step {
				case 'A':
					err = a.say(t, r, now)
				case 'B':
					err = b.say(t, r, now)
				case 'c':
					*b, old = *a, a.message()
				case 'l':
					_, err = r.take(old, now) // nobody hears the answer
				}
				if err != nil {
					failed = append(failed, err.Error())
				}
			}
			told := []notice{{checkpoint: time.Unix(2, 0), at: now}}
			wrong, rewinds, lost := r.settle("a", told)
			if len(wrong) != len(failed) {
				t.Errorf("told %q, and kept %q", failed, wrong)
			}
			if tt.wrong == "" && len(wrong) > 0 || tt.wrong != "" && (len(wrong) == 0 || !strings.Contains(wrong[0], tt.wrong)) {
				t.Errorf("wrong: %q", wrong)
			}
			if tt.wrong == "" || rewinds > 0 {
				if rewinds != tt.rewinds || lost != tt.lost {
					t.Errorf("%d rewinds that lost %d, want %d that lost %d", rewinds, lost, tt.rewinds, tt.lost)
				}
			}
		})
	}
}

// TestSettle: a rewind needs a notice from after all that is lost, of a checkpoint from before
// it.
func TestSettle(t *testing.T) {
	t.Parallel()
	second := func(n int64) time.Time { return time.Unix(n, 0) }
	for name, tt := range map[string]struct {
		told  []notice
		wrong string
	}{
		"it says so":                {told: []notice{{checkpoint: second(2), at: second(99)}}},
		"it lost less than it says": {told: []notice{{checkpoint: second(-60), at: second(99)}}},
		"it says nothing":           {wrong: "do not say so"},
		"it lost more than it says": {told: []notice{{checkpoint: second(60), at: second(99)}}, wrong: "do not say so"},
		"it said so before":         {told: []notice{{checkpoint: second(2), at: second(30)}}, wrong: "do not say so"},
		"another notice, and this":  {told: []notice{{checkpoint: second(60), at: second(70)}, {checkpoint: second(2), at: second(99)}}},
		"each of two says a part":   {told: []notice{{checkpoint: second(60), at: second(99)}, {checkpoint: second(2), at: second(30)}}, wrong: "do not say so"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, a := newRecorder(func(string) {}), &instance{}
			for n := range int64(2) {
				if err := a.say(t, r, second(n+1)); err != nil {
					t.Fatal(err)
				}
			}
			b := *a
			for n := range int64(60) {
				if err := a.say(t, r, second(n+3)); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // a challenge, and its answer
				if err := b.say(t, r, second(100)); err != nil {
					t.Fatal(err)
				}
			}
			wrong, rewinds, lost := r.settle("a", tt.told)
			if rewinds != 1 || lost != 60 {
				t.Errorf("%d rewinds, %d lost", rewinds, lost)
			}
			if got := strings.Join(wrong, "; "); tt.wrong == "" && got != "" || !strings.Contains(got, tt.wrong) {
				t.Errorf("wrong: %s", got)
			}
			if again, rewinds, _ := r.settle("a", nil); len(again) > 0 || rewinds > 0 {
				t.Errorf("settled twice: %q", again)
			}
		})
	}
}

// TestRecorderStands: a sandbox whose host stood still may write for a moment after others were told
// that it went back, and not for longer.
func TestRecorderStands(t *testing.T) {
	t.Parallel()
	at := func(s float64) time.Time { return time.Unix(0, int64(s*float64(time.Second))) }
	still := nodeLease.Seconds() + 10
	for name, tt := range map[string]struct {
		writes []float64 // after the copy, of second 2
		told   float64
		wrong  bool
	}{
		"it stood still, and wrote a little":       {writes: []float64{3, 4, 4 + still, 4.2 + still}, told: 8},
		"it wrote for longer":                      {writes: []float64{3, 4, 4 + still, 6 + still}, told: 8, wrong: true},
		"it did not stand still":                   {writes: []float64{3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14}, told: 8, wrong: true},
		"the notice is from before it stood still": {writes: []float64{13, 14, 14 + still}, told: 8, wrong: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, a := newRecorder(func(string) {}), &instance{}
			for _, s := range []float64{1, 2} {
				if err := a.say(t, r, at(s)); err != nil {
					t.Fatal(err)
				}
			}
			b := *a
			for _, s := range tt.writes {
				if err := a.say(t, r, at(s)); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // a challenge, and its answer
				if err := b.say(t, r, at(100)); err != nil {
					t.Fatal(err)
				}
			}
			wrong, rewinds, _ := r.settle("a", []notice{{checkpoint: at(2), at: at(tt.told)}})
			if rewinds != 1 || len(wrong) > 0 != tt.wrong {
				t.Errorf("%d rewinds, wrong: %q", rewinds, wrong)
			}
		})
	}
}

// TestRecorderRefuses: what no sandbox could have said is wrong, too.
func TestRecorderRefuses(t *testing.T) {
	t.Parallel()
	for name, bad := range map[string]message{
		"another process":    {Name: "a", Born: "y", N: 2, Token: 1, Heard: 1},
		"a skipped count":    {Name: "a", Born: "x", N: 3, Token: 1, Heard: 1},
		"a token of nobody":  {Name: "a", Born: "x", N: 2, Token: 77, Heard: 77},
		"from the future":    {Name: "a", Born: "x", N: 2, Token: 1, Heard: 99},
		"the count of twice": {Name: "a", Born: "x", N: 1, Token: 1, Heard: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, a := newRecorder(func(string) {}), &instance{}
			if err := a.say(t, r, time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
			if got, err := r.take(bad, time.Unix(2, 0)); err == nil {
				t.Errorf("accepted: %+v", got)
			}
			if wrong, _, _ := r.settle("a", nil); len(wrong) != 1 {
				t.Errorf("wrong: %q", wrong)
			}
		})
	}
}

// FuzzParse: whatever a sandbox sends is a message that a recorder can take, or none.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"name":"a","born":"x","n":1,"token":0,"heard":0}`))
	f.Add([]byte(`{"name":"a","born":"x","n":18446744073709551615,"token":9,"heard":9}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		m, err := parse(line)
		if err != nil {
			return
		}
		if m.Name == "" || m.Born == "" || m.N == 0 || m.Heard < m.Token {
			t.Errorf("%q is %+v", line, m)
		}
		r := newRecorder(func(string) {})
		if a, err := r.take(m, time.Unix(1, 0)); err == nil && (a.Token == 0) == (a.Challenge == 0) {
			t.Errorf("%q gets %+v", line, a)
		}
	})
}
