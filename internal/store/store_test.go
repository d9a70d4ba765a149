package store_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/testkit/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

// onBoth runs a test on each kind of database.
func onBoth(t *testing.T, test func(database)) {
	t.Helper()
	t.Parallel()
	for name, address := range map[string]func(*testing.T) string{
		"sqlite":   func(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "with ?odd%20 name.db") },
		"postgres": func(t *testing.T) string { t.Helper(); return postgres.Database(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(database{t, address(t), filepath.Join(t.TempDir(), "key")})
		})
	}
}

// database is one for a test, and the key that it is sealed with.
type database struct {
	t            *testing.T
	address, key string
}

// open opens it, until the test ends.
func (d database) open(t *testing.T) *store.Store {
	t.Helper()
	cipher, err := seal.Open(d.key)
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.Open(t.Context(), d.address, cipher)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC)

// insert adds a sandbox of the workspace "w".
func insert(t *testing.T, s *store.Store, name string, change ...func(*store.Sandbox)) store.Sandbox {
	t.Helper()
	sb := store.Sandbox{UID: store.NewID(), LastUsed: epoch}
	sb.Metadata = doze.Metadata{Name: name, Workspace: "w", CreatedAt: doze.Time{Time: epoch}}
	for _, fn := range change {
		fn(&sb)
	}
	sb, err := s.InsertSandbox(t.Context(), sb)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// apply takes steps and returns the record after them.
func apply(t *testing.T, s *store.Store, uid string, on ...doze.Trigger) (sb store.Sandbox) {
	t.Helper()
	for _, trigger := range on {
		var err error
		if sb, err = s.Apply(t.Context(), uid, store.Step{On: trigger, At: epoch}); err != nil {
			t.Fatal(err)
		}
	}
	return sb
}

func kind(err error) doze.Kind { return doze.Public(err).Kind }

func TestRecordsSurviveAReopen(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		want := insert(t, s, "a", func(sb *store.Sandbox) {
			enabled := false
			sb.Spec.Enabled = &enabled
			sb.Spec.Runtime.Envs = []doze.Env{{Name: "A", Value: new("x\n\"ü\u2028")}}
			sb.Metadata.Labels = map[string]string{"$p": `q"z`}
			sb.Deadline = epoch.Add(time.Hour)
		})
		if err := s.SetSetting(t.Context(), "k", "1"); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.SetSetting(t.Context(), "k", "2"), s.Close()); err != nil {
			t.Fatal(err)
		}
		s = d.open(t)
		got, err := s.Sandbox(t.Context(), want.UID)
		if err != nil {
			t.Fatal(err)
		}
		want.Events = []doze.Event{{Type: "deployment", Status: "DEPLOYING", Message: "the sandbox is being started", Time: doze.Time{Time: epoch}, Revision: "1", CanaryRevision: "1"}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		for key, value := range map[string]string{"k": "2", "none": ""} {
			if v, err := s.Setting(t.Context(), key); v != value || err != nil {
				t.Errorf("setting %s: %q, %v", key, v, err)
			}
		}
	})
}

func TestOnlyTheOwnerReadsTheFile(t *testing.T) {
	t.Parallel()
	d := database{t, filepath.Join(t.TempDir(), "doze.db"), filepath.Join(t.TempDir(), "key")}
	d.open(t)
	if info, err := os.Stat(d.address); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%+v, %v", info, err)
	}
}

func TestNamesAreUniqueAmongTheLiving(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		first := insert(t, s, "a")
		again := store.Sandbox{UID: store.NewID(), Metadata: first.Metadata}
		if _, err := s.InsertSandbox(t.Context(), again); kind(err) != doze.Conflict {
			t.Errorf("taken: %v", err)
		}
		insert(t, s, "a", func(sb *store.Sandbox) { sb.Metadata.Workspace = "other" })
		apply(t, s, first.UID, doze.Delete)
		if sb, err := s.SandboxByName(t.Context(), "w", "a"); err != nil || sb.Phase != doze.Deleting {
			t.Errorf("%v, %v", sb.Phase, err)
		}
		again.Metadata.ExternalID = "x"
		if _, err := s.InsertSandbox(t.Context(), again); err != nil {
			t.Errorf("reuse: %v", err)
		}
		if sb, err := s.SandboxByName(t.Context(), "w", "a"); err != nil || sb.UID != again.UID {
			t.Errorf("%v, %v", sb.UID, err)
		}
		if sb, err := s.LatestByExternalID(t.Context(), "w", "x"); err != nil || sb.UID != again.UID {
			t.Errorf("%v, %v", sb.UID, err)
		}
		for _, id := range []string{"", "y"} {
			if _, err := s.LatestByExternalID(t.Context(), "w", id); kind(err) != doze.NotFound {
				t.Errorf("external id %q: %v", id, err)
			}
		}
	})
}

func TestApply(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		for name, tt := range map[string]struct {
			path []doze.Trigger
			on   doze.Trigger
			want doze.Phase
			fail bool
		}{
			"next":                       {nil, doze.Placed, doze.Starting, false},
			"not in the table":           {nil, doze.Booted, doze.Pending, true},
			"there already":              {[]doze.Trigger{doze.Placed, doze.Booted}, doze.Booted, doze.Running, false},
			"there, and moved on":        {[]doze.Trigger{doze.Placed, doze.Booted, doze.Idled}, doze.Booted, doze.Suspending, false},
			"the node may have moved":    {[]doze.Trigger{doze.Placed, doze.Booted, doze.Idled}, doze.Disable, doze.Disabling, false},
			"no redeploy while disabled": {[]doze.Trigger{doze.Placed, doze.Booted, doze.Disable, doze.Halted}, doze.Redeploy, doze.Disabled, true},
			"deleted twice":              {[]doze.Trigger{doze.Delete}, doze.Delete, doze.Deleting, false},
			"dead":                       {[]doze.Trigger{doze.Delete, doze.Gone}, doze.Delete, doze.Terminated, true},
		} {
			t.Run(name, func(t *testing.T) {
				sb := insert(t, s, store.NewID())
				apply(t, s, sb.UID, tt.path...)
				_, err := s.Apply(t.Context(), sb.UID, store.Step{On: tt.on, At: epoch})
				if (kind(err) == doze.Conflict) != tt.fail || (err != nil) != tt.fail {
					t.Errorf("error %v", err)
				}
				if now, err := s.Sandbox(t.Context(), sb.UID); err != nil || now.Phase != tt.want {
					t.Errorf("%v, %v", now.Phase, err)
				}
			})
		}
		if _, err := s.Apply(t.Context(), "none", store.Step{On: doze.Delete}); kind(err) != doze.NotFound {
			t.Errorf("unknown: %v", err)
		}
	})
}

func TestApplyWritesAndReplaces(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		sb := insert(t, s, "a")
		sb = apply(t, s, sb.UID, doze.Placed, doze.Booted)
		want := sb
		want.Spec.Runtime.Memory, want.Metadata.DisplayName = 2048, "x"
		step := store.Step{On: doze.Redeploy, At: epoch, Revision: sb.Revision, Write: &want, Machine: "fresh", Message: strings.Repeat("ü", 1000)}
		now, err := s.Apply(t.Context(), sb.UID, step)
		if err != nil || now.Machine != "fresh" || now.Spec.Runtime.Memory != 2048 || now.Phase != doze.Starting {
			t.Fatalf("%+v, %v", now, err)
		}
		if m := now.Events[2].Message; len(m) != 1024 || strings.Contains(m, "�") {
			t.Errorf("message of %d bytes", len(m))
		}
		if left, err := s.Leftovers(t.Context(), 9); err != nil || !cmp.Equal(left, []string{sb.UID}) {
			t.Errorf("%v, %v", left, err)
		}
		if err := s.ForgetLeftover(t.Context(), sb.UID); err != nil {
			t.Fatal(err)
		}
		step.On = doze.Booted
		if _, err := s.Apply(t.Context(), sb.UID, step); kind(err) != doze.Conflict {
			t.Errorf("an old revision: %v", err)
		}
		if _, err := s.Update(t.Context(), sb); kind(err) != doze.Conflict {
			t.Errorf("an old revision: %v", err)
		}
		if err := s.Remove(t.Context(), sb.UID); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Sandbox(t.Context(), sb.UID); kind(err) != doze.NotFound {
			t.Errorf("removed: %v", err)
		}
	})
}

func TestAccept(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		for name, tt := range map[string]struct {
			path    []doze.Trigger
			reports []store.Report
			want    doze.Phase
			events  int
			moved   int
		}{
			"boot":               {[]doze.Trigger{doze.Placed}, []store.Report{{Seq: 1, Phase: doze.Running}}, doze.Running, 2, 1},
			"old":                {[]doze.Trigger{doze.Placed}, []store.Report{{Seq: 2, Phase: doze.Running}, {Seq: 2, Phase: doze.Failed}, {Seq: 1, Phase: doze.Failed}}, doze.Running, 2, 1},
			"lost in between":    {[]doze.Trigger{doze.Placed}, []store.Report{{Seq: 7, Phase: doze.Standby}}, doze.Standby, 2, 1},
			"only control may":   {nil, []store.Report{{Seq: 1, Phase: doze.Starting}, {Seq: 2, Phase: doze.Deleting}}, doze.Pending, 1, 0},
			"late, disabling":    {[]doze.Trigger{doze.Placed, doze.Booted, doze.Disable}, []store.Report{{Seq: 1, Phase: doze.Suspending}, {Seq: 2, Phase: doze.Standby}, {Seq: 3, Phase: doze.Disabled}}, doze.Disabled, 4, 1},
			"late, deleting":     {[]doze.Trigger{doze.Delete}, []store.Report{{Seq: 1, Phase: doze.Failed}, {Seq: 2, Phase: doze.Running}}, doze.Deleting, 2, 0},
			"gone":               {[]doze.Trigger{doze.Delete}, []store.Report{{Seq: 1, Phase: doze.Terminated}}, doze.Terminated, 3, 1},
			"gone by itself":     {[]doze.Trigger{doze.Placed, doze.Booted}, []store.Report{{Seq: 1, Phase: doze.Terminated}}, doze.Running, 2, 0},
			"note":               {[]doze.Trigger{doze.Placed}, []store.Report{{Seq: 1, Phase: doze.Failed, Note: true, Message: "out of memory"}}, doze.Starting, 2, 0},
			"absurd sequence":    {[]doze.Trigger{doze.Placed}, []store.Report{{Seq: 1 << 63, Phase: doze.Running}}, doze.Starting, 1, 0},
			"sleeps and wakes":   {[]doze.Trigger{doze.Placed}, []store.Report{{Seq: 1, Phase: doze.Running}, {Seq: 2, Phase: doze.Suspending}, {Seq: 3, Phase: doze.Standby}, {Seq: 4, Phase: doze.Waking}, {Seq: 5, Phase: doze.Running}}, doze.Running, 2, 5},
			"of another machine": {[]doze.Trigger{doze.Placed}, []store.Report{{Machine: "unknown", Seq: 1, Phase: doze.Running}}, doze.Starting, 1, 0},
		} {
			t.Run(name, func(t *testing.T) {
				sb := insert(t, s, store.NewID())
				apply(t, s, sb.UID, tt.path...)
				for i := range tt.reports {
					if r := &tt.reports[i]; r.Machine == "" {
						r.Machine = sb.Machine
					}
					tt.reports[i].LastUsed, tt.reports[i].At = epoch.Add(time.Minute), epoch
				}
				moved, err := s.Accept(t.Context(), tt.reports)
				if err != nil || len(moved) != tt.moved {
					t.Errorf("%d moved, %v", len(moved), err)
				}
				now, err := s.Sandbox(t.Context(), sb.UID)
				if err != nil || now.Phase != tt.want || len(now.Events) != tt.events {
					t.Errorf("%v with events %v, %v", now.Phase, now.Events, err)
				}
			})
		}
	})
}

// TestAcceptFromAnotherNode: what the next node of a machine reports counts, although it began
// to count earlier than the node before it.
func TestAcceptFromAnotherNode(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		sb := insert(t, s, "a")
		apply(t, s, sb.UID, doze.Placed)
		other := insert(t, s, "b")
		apply(t, s, other.UID, doze.Placed)
		report := func(of store.Sandbox, seq uint64, to doze.Phase, want bool) {
			t.Helper()
			moved, err := s.Accept(t.Context(), []store.Report{{Machine: of.Machine, Seq: seq, Phase: to, At: epoch}})
			if err != nil || (len(moved) == 1) != want {
				t.Errorf("report %d that it is %v: %d moved, %v", seq, to, len(moved), err)
			}
		}
		report(sb, 1000, doze.Running, true)
		report(other, 1000, doze.Running, true)
		for i, node := range []string{"first", "second"} {
			if err := s.PutPlace(t.Context(), store.Place{Kind: "machine", ID: sb.Machine, Node: node, Epoch: uint64(i + 2)}); err != nil {
				t.Fatal(err)
			}
			report(sb, 10, doze.Standby, true)
			report(sb, 11, doze.Running, true)
			report(sb, 10, doze.Standby, false)
		}
		report(other, 10, doze.Standby, false)
	})
}

// TestUnplaced: what has no place are living sandboxes alone. A place of another kind does not
// count.
func TestUnplaced(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		free, placed, gone := insert(t, s, "a"), insert(t, s, "b"), insert(t, s, "c")
		apply(t, s, gone.UID, doze.Delete)
		for _, p := range []store.Place{{Kind: "machine", ID: placed.Machine, Node: "n", Epoch: 2}, {Kind: "volume", ID: free.Machine, Node: "n", Epoch: 2}} {
			if err := s.PutPlace(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		var found []string
		err := s.EachUnplaced(t.Context(), func(sb store.Sandbox) error {
			found = append(found, sb.UID)
			return nil
		})
		if err != nil || !slices.Equal(found, []string{free.UID}) {
			t.Errorf("%v, %v; want %s alone", found, err, free.UID)
		}
	})
}

func TestEventsAreBounded(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		sb := insert(t, s, "a")
		var notes []store.Report
		for i := range 250 {
			notes = append(notes, store.Report{Machine: sb.Machine, Seq: uint64(i + 1), Note: true, Message: strings.Repeat("x", i+1)})
		}
		if _, err := s.Accept(t.Context(), notes); err != nil {
			t.Fatal(err)
		}
		now, err := s.Sandbox(t.Context(), sb.UID)
		if err != nil || len(now.Events) != 100 || len(now.Events[99].Message) != 250 {
			t.Errorf("%d events, %v", len(now.Events), err)
		}
	})
}

func TestRepeatedNoticesAreCounted(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		sb := insert(t, s, "a")
		long := strings.Repeat("é", 1<<10)
		seq := uint64(0)
		note := func(messages ...string) {
			t.Helper()
			var notes []store.Report
			for _, m := range messages {
				seq++
				notes = append(notes, store.Report{Machine: sb.Machine, Seq: seq, Note: true, Message: m, At: epoch.Add(time.Duration(seq) * time.Second)})
			}
			if _, err := s.Accept(t.Context(), notes); err != nil {
				t.Fatal(err)
			}
		}
		note("killed 1 of them", "killed 1 of them", "killed 12 of them") // in one transaction
		note("killed 3 of them")
		note("other", "killed 1 of them", "killed 1 of them (the last of 2)", long, long)
		now, err := s.Sandbox(t.Context(), sb.UID)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range now.Events[1:] {
			got = append(got, e.Message)
			if e.Type != "notice" || len(e.Message) > 1<<10 || !utf8.ValidString(e.Message) {
				t.Errorf("%s of %d bytes", e.Type, len(e.Message))
			}
		}
		cut := strings.Repeat("é", (1<<10-len(" (the last of 2)"))/2) + " (the last of 2)"
		if diff := cmp.Diff([]string{
			"killed 3 of them (the last of 4)", "other", "killed 1 of them", "killed 1 of them (the last of 2)", cut,
		}, got); diff != "" {
			t.Error(diff)
		}
		if at := now.Events[1].Time; !at.Equal(epoch.Add(4 * time.Second)) {
			t.Errorf("the last of them was at %v", at)
		}
	})
}

func TestDeadlines(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		at := func(d time.Duration) func(*store.Sandbox) {
			return func(sb *store.Sandbox) { sb.Deadline = epoch.Add(d) }
		}
		next := func(want time.Time) {
			t.Helper()
			if got, err := s.NextDeadline(t.Context()); err != nil || !got.Equal(want) {
				t.Errorf("next deadline %v, %v; want %v", got, err, want)
			}
		}
		next(time.Time{})
		insert(t, s, "never")
		late, early := insert(t, s, "late", at(2*time.Hour)), insert(t, s, "early", at(time.Hour))
		next(epoch.Add(time.Hour))
		if due, err := s.Due(t.Context(), epoch.Add(time.Hour), 9); err != nil || len(due) != 1 || due[0].UID != early.UID {
			t.Errorf("%v, %v", due, err)
		}
		if err := s.SetDeadlines(t.Context(), []store.Deadline{{UID: early.UID, Revision: early.Revision + 1, At: epoch}}); err != nil {
			t.Fatal(err)
		}
		next(epoch.Add(time.Hour)) // another revision: not moved
		if err := s.SetDeadlines(t.Context(), []store.Deadline{{UID: early.UID, Revision: early.Revision, At: epoch.Add(3 * time.Hour)}}); err != nil {
			t.Fatal(err)
		}
		next(epoch.Add(2 * time.Hour))
		apply(t, s, late.UID, doze.Delete)
		next(epoch.Add(3 * time.Hour))
		apply(t, s, late.UID, doze.Gone)
		next(epoch.Add(doze.RetentionDefault))
		for n, now := range []time.Duration{doze.RetentionDefault - time.Millisecond, doze.RetentionDefault} {
			if all, err := s.Purgeable(t.Context(), epoch.Add(now), 9); len(all) != n || err != nil || n > 0 && len(all[0].Events) == 0 {
				t.Errorf("after %v: %+v are over, %v", now, all, err)
			}
			if purged, err := s.Purge(t.Context(), epoch.Add(now), 9); purged != n || err != nil {
				t.Errorf("after %v: purged %d, %v", now, purged, err)
			}
		}
		if err := s.Touch(t.Context(), map[string]time.Time{early.Machine: epoch.Add(time.Minute), "none": epoch}); err != nil {
			t.Fatal(err)
		}
		if sb, err := s.Sandbox(t.Context(), early.UID); err != nil || !sb.LastUsed.Equal(epoch.Add(time.Minute)) {
			t.Errorf("%v, %v", sb.LastUsed, err)
		}
	})
}

func TestWritersDoNotDisturbEachOther(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		sb := insert(t, s, "a")
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for range 16 {
			wg.Go(func() {
				if _, err := s.Update(t.Context(), sb); err == nil {
					mu.Lock()
					defer mu.Unlock()
					won++
				} else if kind(err) != doze.Conflict {
					t.Error(err)
				}
				if _, err := s.List(t.Context(), listing.Query{Workspace: "w", Limit: 9}, epoch); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won != 1 {
			t.Errorf("%d updates of one revision", won)
		}
	})
}

func TestCancelledWritesLeaveNothing(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		sb := store.Sandbox{UID: store.NewID(), Metadata: doze.Metadata{Name: "a", Workspace: "w"}}
		if _, err := s.InsertSandbox(ctx, sb); err == nil {
			t.Error("inserted")
		}
		insert(t, s, "a") // and the writer still works
	})
}

func TestCursorsAge(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		s := d.open(t)
		insert(t, s, "a")
		insert(t, s, "b")
		q := listing.Query{Workspace: "w", Limit: 1}
		page, err := s.List(t.Context(), q, epoch)
		if err != nil {
			t.Fatal(err)
		}
		q.Cursor = page.Next
		for age, want := range map[time.Duration]bool{24 * time.Hour: true, 24*time.Hour + time.Second: false} {
			if _, err := s.List(t.Context(), q, epoch.Add(age)); (err == nil) != want || !want && kind(err) != doze.Invalid {
				t.Errorf("after %v: %v", age, err)
			}
		}
	})
}

// FuzzCursor reads cursors of any form: they are refused or used, and never
// show another workspace.
func FuzzCursor(f *testing.F) {
	f.Add("", "")
	f.Add("eyJ1IjoiYSIsImIiOjEsIm0iOjF9", "createdAt:asc")
	f.Add("e30", "name:asc")
	cipher, err := seal.New()
	if err != nil {
		f.Fatal(err)
	}
	s, err := store.Open(f.Context(), filepath.Join(f.TempDir(), "doze.db"), cipher)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	for _, w := range []string{"w", "w", "other"} {
		sb := store.Sandbox{UID: store.NewID(), Metadata: doze.Metadata{Name: store.NewID(), Workspace: w, CreatedAt: doze.Time{Time: epoch}}}
		if _, err := s.InsertSandbox(f.Context(), sb); err != nil {
			f.Fatal(err)
		}
	}
	page, err := s.List(f.Context(), listing.Query{Workspace: "w", Limit: 1}, epoch)
	if err != nil || page.Next == "" {
		f.Fatal(page, err)
	}
	f.Add(page.Next, "")
	f.Fuzz(func(t *testing.T, cursor, sort string) {
		q := listing.Query{Workspace: "w", Limit: 5, Cursor: cursor, Sort: listing.Sort(sort)}
		if sort != "" && !q.Sort.Valid() {
			return
		}
		page, err := s.List(t.Context(), q, epoch)
		if err != nil && kind(err) != doze.Invalid {
			t.Fatal(err)
		}
		for _, sb := range page.Records {
			if sb.Metadata.Workspace != "w" {
				t.Fatalf("%+v", sb)
			}
		}
	})
}

func TestAnotherKeyOpensNothing(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		if err := d.open(t).Close(); err != nil {
			t.Fatal(err)
		}
		other, err := seal.New()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Open(t.Context(), d.address, other); err == nil || !strings.Contains(err.Error(), "another key") {
			t.Errorf("%v", err)
		}
	})
}

// TestSecretsOfRouting: what is sealed comes back as it was, and what is not is
// in no file.
func TestSecretsOfRouting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := database{t, filepath.Join(dir, "doze.db"), filepath.Join(t.TempDir(), "seal.key")}
	s := d.open(t)
	sealed := map[string][]byte{"key": {1, 2, 3}}
	sb := insert(t, s, "a", func(sb *store.Sandbox) {
		sb.Spec.Network = &doze.Network{Proxy: &doze.Proxy{Routing: []doze.ProxyTarget{
			{Destinations: []string{"*"}},
			{Destinations: []string{"a.example"}, Secrets: doze.Hide(map[string]string{"key": "hunter2"}), Sealed: sealed},
		}}}
	})
	got, err := s.Sandbox(t.Context(), sb.UID)
	if err != nil {
		t.Fatal(err)
	}
	routing := got.Spec.Network.Proxy.Routing
	if len(routing) != 2 || routing[0].Sealed != nil || routing[1].Secrets.Reveal() != nil {
		t.Fatalf("the rules are %v", routing)
	}
	if d := cmp.Diff(sealed, routing[1].Sealed); d != "" {
		t.Error(d)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(raw, []byte("hunter2")) {
			t.Errorf("the secret is in %s", filepath.Base(name))
		}
	}
}

// TestMigrationPreservesRecords opens a database of the first schema.
func TestMigrationPreservesRecords(t *testing.T) {
	onBoth(t, func(d database) {
		t := d.t
		err := store.MigrateTo(t.Context(), d.address, 1,
			`INSERT INTO workspaces VALUES ('id', 'w', 7, '{"id":"id","name":"w"}')`,
			`INSERT INTO api_keys VALUES ('k', 'w', '`+strings.Repeat("00", 32)+`', '["admin"]', 0, 7, 0, '{"id":"k","sub":"admin","sub_type":"user"}')`,
			`INSERT INTO sandboxes VALUES ('u', 'w', 'a', '', 'a', 'u', 'standby', 0, 1, 7, 7, 0, NULL,
				'{"metadata":{"name":"a","workspace":"w"},"spec":{"runtime":{"envs":[{"name":"S","value":"hunter2","secret":true}]}}}')`,
		)
		if err != nil {
			t.Fatal(err)
		}
		s := d.open(t)
		members, err := s.Members(t.Context(), "w")
		if diff := cmp.Diff([]store.Member{{Workspace: "w", Sub: "admin", Role: doze.RoleAdmin}}, members); err != nil || diff != "" {
			t.Error(err, diff)
		}
		if u, err := s.User(t.Context(), "admin"); err != nil || u.Sub != "admin" || u.Password != "" {
			t.Errorf("%+v, %v", u, err)
		}
		if n, err := s.Count(t.Context(), "w"); n != 1 || err != nil {
			t.Errorf("%d sandboxes, %v", n, err)
		}
		if sb, err := s.SandboxByName(t.Context(), "w", "a"); err != nil || sb.Spec.Runtime.Envs[0].Text() != "hunter2" {
			t.Errorf("%+v, %v", sb, err)
		}
	})
}
