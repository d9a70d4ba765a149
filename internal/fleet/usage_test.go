package fleet

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestUsage counts a file once for each workspace, however many things of that
// workspace have it.
func TestUsage(t *testing.T) {
	t.Parallel()
	u := Usage{Uses: []DiskUse{
		{Kind: DiskSnapshot, ID: "s", Bytes: 1, Shared: map[uint64]int64{7: 100}},
		{Kind: DiskCheckpoint, ID: "a", Workspace: "one", Bytes: 2, Shared: map[uint64]int64{7: 100}},
		{Kind: DiskCheckpoint, ID: "b", Workspace: "two", Bytes: 3, Shared: map[uint64]int64{7: 100, 8: 10}},
		{Kind: DiskImage, ID: "i", Bytes: 1000, Users: []string{"a", "b"}},
		{Kind: DiskAhead, Bytes: 5000},
	}}
	got := u.Of(func(d DiskUse) []string {
		switch d.Kind {
		case DiskImage:
			return []string{"one", "two"}
		case DiskSnapshot:
			return []string{"one"}
		case DiskAhead:
			return nil
		default:
			return []string{d.Workspace}
		}
	})
	want := map[string]map[DiskKind]int64{
		"one": {DiskImage: 1000, DiskCheckpoint: 102, DiskSnapshot: 1},
		"two": {DiskImage: 1000, DiskCheckpoint: 113},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	host := u.Host()
	if len(host) != len(DiskKinds) || host[DiskCheckpoint] != 115 || host[DiskSnapshot] != 1 || host[DiskImage] != 1000 || host[DiskAhead] != 5000 {
		t.Errorf("the host has %v", host)
	}
	if n := u.Uses[2].Total(); n != 113 {
		t.Errorf("b takes %d", n)
	}
}
