package store_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/listing"
	"github.com/dozehq/doze/internal/store"
)

func TestDrives(t *testing.T) {
	onBoth(t, func(db database) {
		t := db.t
		s := db.open(t)
		if err := s.InsertWorkspace(t.Context(), doze.Workspace{Name: "main"}); err != nil {
			t.Fatal(err)
		}
		add := func(name string, at time.Duration) store.Drive {
			t.Helper()
			d := store.Drive{ID: store.NewID(), Drive: doze.Drive{Metadata: doze.Metadata{
				Workspace: "main", Name: name, ExternalID: "ext", CreatedAt: doze.Time{Time: time.Now().Add(at).Truncate(time.Millisecond)},
			}}}
			if err := s.InsertDrive(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			return d
		}
		old, young := add("old", 0), add("young", time.Hour)
		err := s.InsertDrive(t.Context(), store.Drive{ID: store.NewID(), Drive: old.Drive})
		if kind(err) != doze.Conflict || doze.Public(err).Name != doze.NameDriveExists {
			t.Errorf("a second one of a name: %v", err)
		}
		if got, err := s.DriveByExternalID(t.Context(), "main", "ext"); err != nil || got.ID != young.ID {
			t.Errorf("of two with an external id, it is %s, %v", got.Metadata.Name, err)
		}
		if _, err := s.Drive(t.Context(), "other", "old"); kind(err) != doze.NotFound {
			t.Errorf("in another workspace: %v", err)
		}
		p, err := s.ListDrives(t.Context(), listing.Query{Workspace: "main", Text: "YO", Limit: 10}, time.Now())
		if err != nil || len(p.Records) != 1 || p.Total != 2 || p.Records[0].ID != young.ID {
			t.Errorf("a list has %+v, %v", p, err)
		}
		if p, err = s.ListDrives(t.Context(), listing.Query{Workspace: "main", Phases: []string{}, Limit: 10}, time.Now()); err != nil || len(p.Records) != 0 {
			t.Errorf("a list of no status has %+v, %v", p, err)
		}
		if err := s.DeleteDrive(t.Context(), old.ID); err != nil {
			t.Fatal(err)
		}
		if err := s.DeleteDrive(t.Context(), old.ID); kind(err) != doze.NotFound {
			t.Errorf("deleted again: %v", err)
		}
		dropped, err := s.DroppedDrives(t.Context(), 10)
		if diff := cmp.Diff([]string{old.ID}, dropped); diff != "" || err != nil {
			t.Errorf("what is left in the bucket (-want +got), %v:\n%s", err, diff)
		}
		if err := s.ForgetDrive(t.Context(), old.ID); err != nil {
			t.Fatal(err)
		}
		if dropped, err = s.DroppedDrives(t.Context(), 10); err != nil || len(dropped) != 0 {
			t.Errorf("when it was removed: %v, %v", dropped, err)
		}
	})
}
