package hostproc

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestProcessTime(t *testing.T) {
	t.Parallel()
	const rest = " S 1 2 2 0 -1 4194560 9 0 0 0 150 50 7 3 20 0 1 0 100 1 1"
	for stat, want := range map[string]time.Duration{
		"7 (sh)" + rest:                    2100 * time.Millisecond,
		"7 (a) S 1 (b) 9 9)" + rest:        2100 * time.Millisecond, // a name of the program's choice
		"7 (sh) S 1 2":                     0,
		"":                                 0,
		"7 (sh) S 1 2 2 0 -1 4 9 0 0 0 x ": 0,
	} {
		if got := processTime([]byte(stat)); got != want {
			t.Errorf("%q: %v, want %v", stat, got, want)
		}
	}
}

// The processes of no group take no time, and one that works takes some.
func TestCPUTime(t *testing.T) {
	t.Parallel()
	v2 := t.TempDir()
	if got := (&Group{unified: true, cpu: v2, memory: v2}).CPUTime(); got != 0 {
		t.Errorf("a group without processes: %v", got)
	}
	if err := os.WriteFile(filepath.Join(v2, "cpu.stat"), []byte("nr_periods 1\nusage_usec 2500\nuser_usec 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := (&Group{unified: true, cpu: v2, memory: v2}).CPUTime(); got != 2500*time.Microsecond {
		t.Errorf("cpu.stat: %v", got)
	}
	if got := (&Group{dirs: []string{t.TempDir()}, cpu: t.TempDir(), memory: t.TempDir()}).CPUTime(); got != 0 {
		t.Errorf("a group of v1 without processes: %v", got)
	}
}
