package hostproc

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// TestShares: who is above its share of the ceiling, and who goes.
func TestShares(t *testing.T) {
	t.Parallel()
	const gb = 1 << 30
	for name, tc := range map[string]struct {
		all         []taker
		limit, free int64
		paused      string
		want        string // who is ended
		above       int
	}{
		"limits fit": {
			all: []taker{{id: "a", used: 2 * gb, limit: 2 * gb}, {id: "b", used: gb, limit: 2 * gb}}, limit: 4 * gb, free: gb,
		},
		"one hog": {
			all:   []taker{{id: "small", used: gb / 8, limit: gb / 2}, {id: "hog", used: 3 * gb, limit: 4 * gb}, {id: "large", used: gb / 2, limit: 4 * gb}},
			limit: 4 * gb, free: gb / 64, want: "hog", above: 1,
		},
		"a small one that is full costs less than the one that takes most": {
			all:   []taker{{id: "small", used: gb / 8, limit: gb / 8}, {id: "hog", used: 3 * gb, limit: 4 * gb}, {id: "large", used: gb / 2, limit: 4 * gb}},
			limit: 4 * gb, free: gb / 64, want: "hog", above: 2,
		},
		"one that is paused does not grow": {
			all:   []taker{{id: "asleep", used: 3 * gb, limit: 4 * gb}, {id: "awake", used: 2 * gb, limit: 4 * gb}, {id: "idle", limit: 8 * gb}},
			limit: 5 * gb, free: gb / 64, paused: "asleep", want: "awake", above: 2,
		},
		"all that are above are paused": {
			all:   []taker{{id: "asleep", used: 3 * gb, limit: 4 * gb}, {id: "awake", used: gb, limit: 4 * gb}},
			limit: 4 * gb, free: gb / 64, paused: "asleep", want: "asleep", above: 1,
		},
		"the host is short for other reasons": {
			all:   []taker{{id: "a", used: gb, limit: 4 * gb}, {id: "b", used: gb / 4, limit: 4 * gb}},
			limit: 16 * gb, free: 0, want: "a", above: 1,
		},
		"nobody": {limit: gb},
	} {
		all := shares(tc.all, tc.limit, tc.free)
		above := 0
		for _, v := range all {
			if v.excess > 0 {
				above++
			}
		}
		worst, found := furthest(all, func(id string) bool { return id != tc.paused })
		if worst.id != tc.want || found != (tc.want != "") || above != tc.above {
			t.Errorf("%s: %q goes, want %q; %d are above their share, want %d: %+v", name, worst.id, tc.want, above, tc.above, all)
		}
	}
}

// TestCeilingFiles: where the limit is written, and that what is in use already
// is not killed for it.
func TestCeilingFiles(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		unified                  bool
		usage, limit, pids, stat string
	}{
		"v1": {false, "memory/doze/memory.usage_in_bytes", "memory/doze/memory.limit_in_bytes", "pids/doze/pids.max", "memory/doze/memory.stat"},
		"v2": {true, "doze/memory.current", "doze/memory.max", "doze/pids.max", "doze/memory.stat"},
	} {
		g := fakeGroups(t, tc.unified)
		put := func(file, text string) {
			t.Helper()
			file = filepath.Join(g.root, file)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for used, want := range map[int64]int64{100 << 20: 1 << 30, 2 << 30: 2<<30 + marginMin} {
			put(tc.usage, strconv.FormatInt(used, 10)+"\n")
			put(tc.limit, "")
			put(tc.pids, "")
			if err := g.limitMemory(1 << 30); err != nil {
				t.Fatal(name, err)
			}
			if got, err := g.Open("").limit(); got != want || err != nil {
				t.Errorf("%s: with %d bytes in use the limit is %d, want %d, %v", name, used, got, want, err)
			}
		}
		if err := g.limitPIDs(); err != nil {
			t.Fatal(name, err)
		}
		raw, err := os.ReadFile(filepath.Join(g.root, tc.pids))
		if n, bad := strconv.Atoi(string(raw)); err != nil || bad != nil || n < 1000 {
			t.Errorf("%s: all machines may have %q tasks, %v", name, raw, err)
		}
		// What the kernel can drop is free.
		total := map[bool]string{true: "", false: "total_"}[tc.unified]
		put(tc.usage, "1000000000\n")
		put(tc.stat, total+"inactive_file 600000000\n"+total+"active_file 100000000\n")
		free, err := g.free(1_000_000_000)
		if err != nil || free > 700_000_000 || free < 1 {
			t.Errorf("%s: %d bytes are free, %v", name, free, err)
		}
		if below, err := g.below(1_100_000_000); err != nil || below != 800_000_000 {
			t.Errorf("%s: %d bytes are free below the limit, %v", name, below, err)
		}
	}
}

func TestFree(t *testing.T) {
	t.Parallel()
	if free, err := Free("any", 0); free != math.MaxInt64 || err != nil {
		t.Errorf("without a limit %d bytes are free, %v", free, err)
	}
	if _, err := Free("doze-test-nobody", 1); err == nil {
		t.Error("nobody has memory")
	}
}
