package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
)

// TestEnd: many endings at once write what a delete writes for each, and leave
// alone what changed or ended meanwhile.
func TestEnd(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		const many = 3
		var all []store.Ending
		for i := range many {
			sb := insert(t, s, fmt.Sprint("a", i), func(sb *store.Sandbox) { sb.Deadline = epoch })
			all = append(all, store.Ending{UID: sb.UID, Revision: sb.Revision, Message: fmt.Sprint("its time is over: ", i%2)})
		}
		changed, ended, alone := insert(t, s, "changed"), insert(t, s, "ended"), insert(t, s, "alone")
		apply(t, s, ended.UID, doze.Delete)
		all = append(all,
			store.Ending{UID: changed.UID, Revision: changed.Revision + 1},
			store.Ending{UID: ended.UID, Revision: ended.Revision},
			store.Ending{UID: "nobody", Revision: 1},
		)
		at := epoch.Add(time.Minute)
		uids, err := s.End(t.Context(), all, at)
		if err != nil || len(uids) != many {
			t.Fatalf("%d of %d ended, %v", len(uids), many, err)
		}
		first := []doze.Event{
			{Type: "deployment", Status: "DEPLOYING", Message: "the sandbox is being started", Time: doze.Time{Time: epoch}, Revision: "1", CanaryRevision: "1"},
		}
		last := doze.Event{Type: "deployment", Status: "DELETING", Message: "its time is over: 1", Time: doze.Time{Time: at}, Revision: "1", CanaryRevision: "1"}
		for name, tt := range map[string]struct {
			uid    string
			phase  doze.Phase
			events []doze.Event
		}{
			"ends":          {all[1].UID, doze.Deleting, append(first[:1:1], last)},
			"changed":       {changed.UID, doze.Pending, first},
			"nobody's time": {alone.UID, doze.Pending, first},
		} {
			sb, err := s.Sandbox(t.Context(), tt.uid)
			if err != nil || sb.Phase != tt.phase || !sb.Deadline.IsZero() {
				t.Errorf("%s: %s until %v, %v", name, sb.Phase, sb.Deadline, err)
			}
			if diff := cmp.Diff(tt.events, sb.Events); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
		if again, err := s.End(t.Context(), all, at); err != nil || len(again) != 0 {
			t.Errorf("again: %v, %v", again, err)
		}
		if none, err := s.End(t.Context(), nil, at); err != nil || len(none) != 0 {
			t.Errorf("none: %v, %v", none, err)
		}
	})
}
