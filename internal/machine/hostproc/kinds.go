package hostproc

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Kinds is the memory of a group by kind, in bytes.
type Kinds struct {
	Own    int64 // of its processes alone
	Shared int64 // in files without a disk, such as the memory of a guest
	Cache  int64 // of files on a disk, which the kernel can drop
}

// Kinds returns the memory in RAM that the group is charged for, by kind. It is zero for
// a group that is not there.
func (g *Group) Kinds() Kinds {
	raw, err := os.ReadFile(filepath.Join(g.memory, "memory.stat"))
	if err != nil {
		return Kinds{}
	}
	return kindsOf(string(raw), g.unified)
}

// kindsOf reads a memory.stat. What it counts as file has the shared memory, too.
func kindsOf(stat string, unified bool) Kinds {
	own, file := "rss", "cache"
	if unified {
		own, file = "anon", "file"
	}
	counts := map[string]int64{}
	for line := range strings.Lines(stat) {
		name, count, _ := strings.Cut(strings.TrimSpace(line), " ")
		counts[name], _ = strconv.ParseInt(count, 10, 64) // what is no number is none of ours
	}
	return Kinds{Own: counts[own], Shared: counts["shmem"], Cache: max(0, counts[file]-counts["shmem"])}
}
