package store_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/store"
)

// TestFiles: a request for the mark of a file takes it off the list of idle ones. Without one, the file can
// be dropped, once. The request after that gets another mark.
func TestFiles(t *testing.T) {
	onBoth(t, func(d database) {
		t, s := d.t, d.open(d.t)
		made := 0
		mark := func(label string) string {
			t.Helper()
			m, err := s.FileMark(t.Context(), label, func() (object, mark string) {
				made++
				return fmt.Sprint("object", made), fmt.Sprint("mark", made)
			})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		want := func(what string, want ...store.File) {
			t.Helper()
			got, err := s.Files(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", what, diff)
			}
		}
		drop := func(f store.File) bool {
			t.Helper()
			was, err := s.DropFile(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			return was
		}
		idle := func(at time.Time, objects ...string) {
			t.Helper()
			if err := s.SetFilesIdle(t.Context(), objects, at, at.Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
		local := func(t time.Time) time.Time { return time.Unix(0, t.UnixNano()) }
		first, second := local(epoch), local(epoch.Add(time.Hour))
		if a, b := mark("l"), mark("l"); a != "mark1" || b != a {
			t.Errorf("a file has the marks %s and %s", a, b)
		}
		idle(first, "object1", "old")
		idle(second, "object1") // it is on the list since before
		one := store.File{Object: "object1", Label: "l", Idle: first, BucketIdle: first.Add(time.Minute)}
		old := store.File{Object: "old", Idle: first, BucketIdle: first.Add(time.Minute)}
		want("two are idle", one, old)

		if mark("l") != "mark1" || drop(one) {
			t.Error("a file was dropped that somebody has just asked for")
		}
		want("one was asked for", store.File{Object: "object1", Label: "l"}, old)
		idle(second, "object1")
		if drop(one) {
			t.Error("a file was dropped that somebody asked for after the look began")
		}
		one.Idle, one.BucketIdle = second, second.Add(time.Minute)
		if err := s.SetFilesNeeded(t.Context(), []string{"old", "unknown"}); err != nil {
			t.Error(err)
		}
		if !drop(one) || drop(one) || drop(old) {
			t.Error("what is idle is dropped once, and nothing else")
		}
		one.Label, one.Dropped = "", true
		want("one is dropped", one, store.File{Object: "old"})
		if err := s.SetFilesNeeded(t.Context(), []string{"object1"}); err != nil {
			t.Error(err)
		}
		if m := mark("l"); m != "mark2" {
			t.Errorf("a file that is dropped has the mark %s", m)
		}
		want("another upload", one, store.File{Object: "object2", Label: "l"}, store.File{Object: "old"})
		for _, object := range []string{"object1", "object2"} { // the second one is not dropped
			if err := s.ForgetFile(t.Context(), object); err != nil {
				t.Error(err)
			}
		}
		want("one is forgotten", store.File{Object: "object2", Label: "l"}, store.File{Object: "old"})
	})
}

// TestFilesAtOnce: of many who ask for a file that nobody had yet, or that is being dropped, all get one mark.
func TestFilesAtOnce(t *testing.T) {
	onBoth(t, func(d database) {
		t, s := d.t, d.open(d.t)
		var mu sync.Mutex
		made := 0
		ask := func() string {
			m, err := s.FileMark(t.Context(), "l", func() (object, mark string) {
				mu.Lock()
				defer mu.Unlock()
				made++
				return fmt.Sprint("object", made), fmt.Sprint("mark", made)
			})
			if err != nil {
				t.Error(err)
			}
			return m
		}
		for round := range 10 {
			at := epoch.Add(time.Duration(round) * time.Hour)
			all, err := s.Files(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var group sync.WaitGroup
			marks, dropped := make([]string, 8), false
			if len(all) > 0 {
				last := all[len(all)-1]
				if err := s.SetFilesIdle(t.Context(), []string{last.Object}, at, at); err != nil {
					t.Fatal(err)
				}
				last.Idle = at
				group.Go(func() {
					var err error
					if dropped, err = s.DropFile(t.Context(), last); err != nil {
						t.Error(err)
					}
				})
			}
			for i := range marks {
				group.Go(func() { marks[i] = ask() })
			}
			group.Wait()
			after := ask()
			for _, m := range marks {
				if m != after {
					t.Errorf("round %d: one got %s, and the file has %s, dropped: %t", round, m, after, dropped)
				}
			}
		}
	})
}
