package launcher

import (
	"testing"

	"github.com/dozehq/doze/internal/machine/gvisor"
)

// TestExcess looks at disks of 100 MB, once a second.
func TestExcess(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		megabytes []int64
		ends      int // the look at which the machine ends; 0: never
	}{
		"it is full":                 {[]int64{100, 100, 110, 100, 100, 100, 100}, 0},
		"its file system adds some":  {[]int64{164, 164, 164, 164, 164, 164, 164}, 0},
		"files are replaced":         {[]int64{100, 200, 200, 200, 200, 100, 200}, 0},
		"it stays too large":         {[]int64{100, 200, 200, 200, 200, 200, 100}, 6},
		"it grows without any bound": {[]int64{100, 400}, 2},
	} {
		e, ended := excess{size: 100 << 20}, 0
		for i, mb := range tc.megabytes {
			if e.is(mb<<20) && ended == 0 {
				ended = i + 1
			}
		}
		if ended != tc.ends {
			t.Errorf("%s: it ends at look %d, want %d", name, ended, tc.ends)
		}
	}
}

func TestDiskOf(t *testing.T) {
	t.Parallel()
	c := gvisor.Config{ID: "m", Dir: "/data/m", Memory: 1 << 30, Disk: 3 << 30}
	file, size, ok := diskOf(specFor(c, "/root"))
	if file != "/data/m/disk.live" || size != 3<<30 || !ok {
		t.Errorf("%q, %d, %v", file, size, ok)
	}
	c.Disk = 0
	if _, _, ok := diskOf(specFor(c, "/root")); ok {
		t.Error("a machine with its files in memory has a disk")
	}
}
