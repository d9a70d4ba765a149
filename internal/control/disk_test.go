package control

import (
	"slices"
	"testing"

	"github.com/dozehq/doze/internal/fleet"
)

// TestUnreserved: the size of a disk is in the records. What a machine has beyond that, such
// as copies of the disk, counts by what it takes.
func TestUnreserved(t *testing.T) {
	t.Parallel()
	uses := []fleet.DiskUse{
		{Kind: fleet.DiskCheckpoint, ID: "plain", Bytes: 30},
		{Kind: fleet.DiskCheckpoint, ID: "filling", Bytes: 30},
		{Kind: fleet.DiskCheckpoint, ID: "copied", Bytes: 230},
		{Kind: fleet.DiskArchive, ID: "copied", Bytes: 7},
	}
	var got []int64
	for _, use := range unreserved(uses, map[string]int64{"filling": 100, "copied": 100}) {
		got = append(got, use.Bytes)
	}
	if want := []int64{30, 0, 130, 7}; !slices.Equal(got, want) || uses[2].Bytes != 230 {
		t.Errorf("%v of %v, want %v", got, uses, want)
	}
}

func TestDiskOwners(t *testing.T) {
	t.Parallel()
	machines := map[string]string{"m": "w", "n": "x", "o": "w"}
	tagged := map[string][]string{"hub.test/app@sha256:1": {"w"}}
	for name, c := range map[string]struct {
		use  fleet.DiskUse
		want []string
	}{
		"checkpoint":              {fleet.DiskUse{Kind: fleet.DiskCheckpoint, ID: "m"}, []string{"w"}},
		"archive":                 {fleet.DiskUse{Kind: fleet.DiskArchive, ID: "n"}, []string{"x"}},
		"files of drives":         {fleet.DiskUse{Kind: fleet.DiskDrive, ID: "n"}, []string{"x"}},
		"scratch volume":          {fleet.DiskUse{Kind: fleet.DiskScratch, ID: "n"}, []string{"x"}},
		"of nobody":               {fleet.DiskUse{Kind: fleet.DiskCheckpoint, ID: "?"}, nil},
		"snapshot, on record":     {fleet.DiskUse{Kind: fleet.DiskSnapshot, ID: "m"}, nil},
		"volume, on record":       {fleet.DiskUse{Kind: fleet.DiskVolume, ID: "m"}, nil},
		"started ahead":           {fleet.DiskUse{Kind: fleet.DiskAhead, ID: "m"}, nil},
		"a builder":               {fleet.DiskUse{Kind: fleet.DiskBuilder, ID: "builder-m", Workspace: "main"}, []string{"main"}},
		"a builder of nobody":     {fleet.DiskUse{Kind: fleet.DiskBuilder, ID: "builder-m"}, nil},
		"image of the platform":   {fleet.DiskUse{Kind: fleet.DiskImage, Platform: true, Users: []string{"m"}}, nil},
		"image of two":            {fleet.DiskUse{Kind: fleet.DiskImage, Users: []string{"m", "n", "o"}}, []string{"w", "x"}},
		"image with a tag of one": {fleet.DiskUse{Kind: fleet.DiskImage, Refs: []string{"hub.test/app@sha256:1"}, Users: []string{"m", "n"}}, []string{"x"}},
		"image that nobody uses":  {fleet.DiskUse{Kind: fleet.DiskImage, Refs: []string{"hub.test/app@sha256:2"}}, nil},
	} {
		if got := diskOwners(c.use, machines, tagged); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
