package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPage: each row is on the page, with its ratio and what bounds it; a row
// that nothing is known of fails.
func TestPage(t *testing.T) {
	t.Parallel()
	write := func(name string, lines ...any) string {
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
	where, err := thisHost("wake")
	if err != nil || where.Processors == 0 || where.MemoryMB == 0 || where.Load == "" || where.Kernel == "" {
		t.Fatalf("%+v, %v", where, err)
	}
	good := write("wake.json", where, row{Bench: "wake", Case: "paused 0 MB", N: 50, P50: 3, P99: 5, Vs: 2}, row{Bench: "wake", Case: "swapped 256 MB", Unsupported: "no swap"})
	var out strings.Builder
	if err := writePage(&out, []string{good}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"## wake", "| paused 0 MB | 50 | 3.0 | 5.0 | 0.0 |  |  | 1.5 | as awake", "| swapped 256 MB |", "unsupported on this host", where.Kernel} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the page lacks %q:\n%s", want, out.String())
		}
	}
	if err := writePage(&out, []string{write("x.json", where, row{Bench: "wake2", Case: "x"})}); err == nil || !strings.Contains(err.Error(), "bounds") {
		t.Errorf("a row that nobody knows: %v", err)
	}
	if err := writePage(&out, []string{write("y.json", host{Bench: "nonsense"})}); err == nil {
		t.Error("a benchmark that there is not has a section")
	}
}
