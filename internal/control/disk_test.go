package control

import (
	"slices"
	"testing"

	"doze/internal/peer"
)

func TestDiskOwners(t *testing.T) {
	t.Parallel()
	machines := map[string]string{"m": "w", "n": "x", "o": "w"}
	tagged := map[string][]string{"hub.test/app@sha256:1": {"w"}}
	for name, c := range map[string]struct {
		use  peer.DiskUse
		want []string
	}{
		"checkpoint":              {peer.DiskUse{Kind: peer.DiskCheckpoint, ID: "m"}, []string{"w"}},
		"archive":                 {peer.DiskUse{Kind: peer.DiskArchive, ID: "n"}, []string{"x"}},
		"files of drives":         {peer.DiskUse{Kind: peer.DiskDrive, ID: "n"}, []string{"x"}},
		"scratch volume":          {peer.DiskUse{Kind: peer.DiskScratch, ID: "n"}, []string{"x"}},
		"of nobody":               {peer.DiskUse{Kind: peer.DiskCheckpoint, ID: "?"}, nil},
		"snapshot, on record":     {peer.DiskUse{Kind: peer.DiskSnapshot, ID: "m"}, nil},
		"volume, on record":       {peer.DiskUse{Kind: peer.DiskVolume, ID: "m"}, nil},
		"started ahead":           {peer.DiskUse{Kind: peer.DiskAhead, ID: "m"}, nil},
		"image of the platform":   {peer.DiskUse{Kind: peer.DiskImage, Platform: true, Users: []string{"m"}}, nil},
		"image of two":            {peer.DiskUse{Kind: peer.DiskImage, Users: []string{"m", "n", "o"}}, []string{"w", "x"}},
		"image with a tag of one": {peer.DiskUse{Kind: peer.DiskImage, Refs: []string{"hub.test/app@sha256:1"}, Users: []string{"m", "n"}}, []string{"x"}},
		"image that nobody uses":  {peer.DiskUse{Kind: peer.DiskImage, Refs: []string{"hub.test/app@sha256:2"}}, nil},
	} {
		if got := diskOwners(c.use, machines, tagged); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
