package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// jsonFile writes what a benchmark would.
func jsonFile(t *testing.T, name string, lines ...any) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, l := range lines {
		if err := json.NewEncoder(f).Encode(l); err != nil {
			t.Fatal(err)
		}
	}
	return file
}

func over(e ending) map[string]ending { return map[string]ending{"end": e} }

// TestPage: each row is on the page, with its ratio, its target and what bounds it.
func TestPage(t *testing.T) {
	t.Parallel()
	where, err := thisHost(t.Context(), "wake")
	if err != nil || where.Processors == 0 || where.MemoryMB == 0 || where.Load == "" {
		t.Fatalf("%+v, %v", where, err)
	}
	for _, f := range where.facts() {
		if f.text == "" || f.text == "unknown" && f.name != "Commit" {
			t.Errorf("%s of this machine is %q", f.name, f.text)
		}
	}
	loud := where
	loud.Bench, loud.Busy = "create", 0.4
	other := where
	other.Bench, other.Processor = "agent", "another processor"
	older := where // did not look at all that a later one did
	older.FaultUS = 0
	var out strings.Builder
	err = writePage(&out, []string{
		jsonFile(
			t, "wake.json", older,
			row{Bench: "wake", Case: "paused 0 MB", N: 50, P50: 3, P99: 5, Vs: 2, Yardstick: "awake 0 MB"},
			row{Bench: "wake", Case: "disk 0 MB", N: 50, P50: 40, P99: 50, Answer: 30, Cost: 45, Vs: 2, Yardstick: "awake 0 MB"},
			row{Bench: "wake", Case: "swapped 256 MB", Unsupported: "no\nswap"},
			over(ending{Seconds: 61}),
		),
		jsonFile(t, "create.json", loud, row{Bench: "create", Case: "podman with crun, create + exec", N: 9, P50: 100}, over(ending{Seconds: 5, Error: "the disk\nis full"})),
		jsonFile(t, "agent.json", other),
		filepath.Join(t.TempDir(), "sleep.json"),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		where.Kernel, where.Processor,
		"## wake", "It took 1m1s.",
		"| paused 0 MB | 50 | 3.0 | 5.0 |  |  | 1.5 × awake 0 MB | p50 − yardstick ≤ 1.5 ms: met | as awake",
		"| disk 0 MB | 50 | 40.0 | 50.0 | 30.0 | 45.0 | 20 × awake 0 MB | p50 ≤ 30 ms: **missed**<br>CPU ≤ 50 ms: met |",
		"unsupported on this host: no swap",
		"2 of 5 targets were met", "- sleep 64 MB, idle 0s to 1m0s: max ≤ 150 ms\n", "| wake | disk 0 MB | p50 ≤ 30 ms | 40 ms |", "| wake | swapped 256 MB | p50 ≤ 15 ms | unsupported on this host |",
		"failed after 5s, and rows may be missing:** the disk is full", "was not quiet",
		"It was cut short", "**Processors differs:**", "**A page fault differs:**", "the benchmark did not begin",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "| PSS MB |") {
		t.Error("the page has a column that no row has")
	}
}

// TestPageRefuses: a row that no table knows, and a benchmark that there is not,
// are mistakes.
func TestPageRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lines []any
		want  string
	}{
		"row":       {[]any{host{Bench: "wake"}, row{Bench: "wake", Case: "x"}}, "add it to its cases"},
		"benchmark": {[]any{host{Bench: "nonsense"}}, "no benchmark"},
		"damaged":   {[]any{host{Bench: "wake"}, "text"}, "cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := writePage(new(strings.Builder), []string{jsonFile(t, "x.json", c.lines...)}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("it says %v", err)
			}
		})
	}
}

// TestTables: every case of every benchmark has something that bounds it, and a
// name of its own. Every bound and every target is about some case.
func TestTables(t *testing.T) {
	t.Parallel()
	var all []string
	for _, b := range benches {
		names := b.cases()
		if len(names) == 0 {
			t.Errorf("%s has no cases", b.name)
		}
		for _, name := range names {
			if _, err := boundOf(row{Bench: b.name, Case: name}); err != nil {
				t.Error(err)
			}
			all = append(all, b.name+" "+name)
		}
	}
	used := map[int]bool{}
	for _, name := range all {
		for i, b := range bounds {
			if b.rows.MatchString(name) {
				used[i] = true
				break
			}
		}
	}
	for i, b := range bounds {
		if !used[i] {
			t.Errorf("nothing is bounded by %q (%s)", b.by, b.rows)
		}
	}
	for _, target := range targets {
		if !slices.ContainsFunc(all, target.rows.MatchString) {
			t.Errorf("no case has the target %s of %s", target.name, target.rows)
		}
	}
}

// TestGoals: a figure that is not there meets no target, unless its absence is what
// is wanted.
func TestGoals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		r   row
		met int
		of  int
	}{
		"upload, fast enough":   {row{Bench: "agent", Case: "upload 100 MB", Rate: 301}, 1, 1},
		"upload, too slow":      {row{Bench: "agent", Case: "upload 100 MB", Rate: 299}, 0, 1},
		"disk without its cost": {row{Bench: "wake", Case: "disk 2048 MB", P50: 75}, 1, 2},
		"storm, some failed":    {row{Bench: "create", Case: "create + exec, 20 at once, each by a boot", Failed: 1}, 0, 1},
		"storm, none failed":    {row{Bench: "create", Case: "create + exec, 20 at once, each by a boot"}, 1, 1},
		"unsupported":           {row{Bench: "create", Case: "create + exec, 20 at once, each by a boot", Unsupported: "x"}, 0, 1},
		"no target":             {row{Bench: "wake", Case: "awake 0 MB", P50: 1}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			met := 0
			all := goals(c.r)
			for _, g := range all {
				if g.met {
					met++
				}
			}
			if met != c.met || len(all) != c.of {
				t.Errorf("%d of %d targets are met: %+v", met, len(all), all)
			}
		})
	}
}
