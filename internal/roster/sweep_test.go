package roster_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/plane/planetest"
	"github.com/dozehq/doze/internal/roster"
)

// cemetery is a bucket with a clock of its own, by which it says when a machine was dropped.
type cemetery struct {
	copies

	ahead   time.Duration        // how far its clock is ahead of that of control
	dropped map[string]time.Time // by machine, and by its clock; zero: it has a copy
	asked   int                  // how often something was dropped or buried
}

func (c *cemetery) now() time.Time { return time.Now().Add(c.ahead) }

func (c *cemetery) Now(context.Context) (time.Time, error) { return c.now(), nil }

func (c *cemetery) List(context.Context) ([]string, error) {
	return slices.Sorted(maps.Keys(c.dropped)), nil
}

func (c *cemetery) Drop(_ context.Context, id string) error {
	c.asked++
	if c.dropped[id].IsZero() {
		c.dropped[id] = c.now()
	}
	return nil
}

func (c *cemetery) Bury(ctx context.Context, id string, grace time.Duration) (bool, error) {
	if err := c.Drop(ctx, id); err != nil || c.now().Sub(c.dropped[id]) < grace {
		return false, err
	}
	delete(c.dropped, id)
	return true, nil
}

// TestSweepBuries: a machine that is gone is dropped once. Its id goes from the list when the clocks
// of the bucket and of control both say that this was an hour ago. One that has a record stays.
func TestSweepBuries(t *testing.T) {
	t.Parallel()
	const every, hour = 10 * time.Minute, time.Hour
	for name, tc := range map[string]struct {
		jumps   time.Duration // what the clock of the bucket does after the drop
		restart bool          // control is another process half an hour after the drop
		after   time.Duration
		asked   int // nobody asks about what is known
	}{
		"as it should be":      {0, false, hour, 2 * 2},
		"the bucket is ahead":  {48 * time.Hour, false, hour, 2 * 2},
		"the bucket is behind": {-30 * time.Minute, false, hour + 30*time.Minute, 2 * 5},
		"another control":      {0, true, hour + 30*time.Minute, 2 * 3},
	} {
		t.Run(name, func(t *testing.T) {
			inYard(t, func(y *yard) {
				living := y.make("n1", "a")["a"]
				c := &cemetery{copies: copies{y.shelf}, dropped: map[string]time.Time{living: {}, "gone": {}, "other": {}}}
				r := roster.New(roster.Config{Store: y.p.Store, Crew: y.crew, TTL: ttl, Copies: c})
				graves := map[string]time.Time{}
				for passed := time.Duration(0); passed <= 3*hour; passed += every {
					if tc.restart && passed == 30*time.Minute {
						graves = map[string]time.Time{}
					}
					dropped, err := r.SweepOnce(y.t.Context(), graves)
					if err != nil {
						y.t.Fatal(err)
					}
					if passed == 0 && dropped != 2 {
						y.t.Errorf("it dropped %d", dropped)
					}
					if there := len(c.dropped) == 3; there != (passed < tc.after) {
						y.t.Errorf("after %v the bucket has %v", passed, c.dropped)
					}
					if passed == 0 {
						c.ahead = tc.jumps
					}
					planetest.After(every)
				}
				if at, there := c.dropped[living]; !there || !at.IsZero() {
					y.t.Errorf("of the machine that has a record there is %v, %t", at, there)
				}
				if len(graves) != 0 {
					y.t.Errorf("it remembers %v", graves)
				}
				if c.asked != tc.asked {
					y.t.Errorf("the bucket was asked %d times, want %d", c.asked, tc.asked)
				}
			}, "n1")
		})
	}
}

// TestFilesAreOld: a file that nothing needs goes when both clocks say that this has been so for a day. Until
// then, each request for its mark keeps it for longer. A node that asks for nothing may have sent one without a
// record, which stays for two weeks.
func TestFilesAreOld(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	old := "file-" + strings.Repeat("b", 64)
	label := "file-" + strings.Repeat("a", 64)
	for name, tc := range map[string]struct {
		jumps time.Duration // what the clock of the bucket does after the first look
		asked bool          // somebody asks for the mark before the day is over
		after time.Duration // since the first look
	}{
		"as it should be":      {0, false, day},
		"the bucket is ahead":  {30 * day, false, day},
		"the bucket is behind": {-day, false, 2 * day},
		"it is needed again":   {0, true, day + 3*day/4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &cemetery{dropped: map[string]time.Time{old: {}}}
				r := recorded(t, roster.Config{Copies: c})
				mark, err := r.FileMark(t.Context(), "n1", label)
				if err != nil {
					t.Fatal(err)
				}
				key, err := r.FileKey(t.Context(), "n1", label)
				if err != nil {
					t.Fatal(err)
				}
				file := fleet.FileObject(key, mark)
				c.dropped[file] = time.Time{}
				gone := func(object string) bool {
					at, there := c.dropped[object]
					return !there || !at.IsZero()
				}
				graves := map[string]time.Time{}
				for passed := time.Duration(0); passed <= 16*day; passed += day / 4 {
					if tc.asked && passed == day/2+day/4 {
						if again, err := r.FileMark(t.Context(), "n1", label); err != nil || again != mark {
							t.Errorf("it has the mark %s, %v", again, err)
						}
					}
					if _, err := r.SweepFiles(t.Context()); err != nil {
						t.Fatal(err)
					}
					if _, err := r.SweepOnce(t.Context(), graves); err != nil {
						t.Fatal(err)
					}
					if is := gone(file); is != (passed >= tc.after) {
						t.Errorf("after %v, the file is dropped: %t", passed, is)
					}
					if is := gone(old); is != (passed >= 14*day-min(0, tc.jumps)) {
						t.Errorf("after %v, the file of an earlier release is dropped: %t", passed, is)
					}
					if passed == 0 {
						c.ahead = tc.jumps
					}
					time.Sleep(day / 4)
				}
				if len(c.dropped) != 0 {
					t.Errorf("the bucket still has %v", c.dropped)
				}
				if again, err := r.FileMark(t.Context(), "n1", label); err != nil || again == mark {
					t.Errorf("a file that comes again has the mark %s, %v", again, err)
				}
			})
		})
	}
}
