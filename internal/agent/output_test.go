package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func testBudget(total int64) *budget {
	return newBudget(total, func() bool { return false })
}

// fillOutput writes n numbered blocks of 1 KiB to stdout.
func fillOutput(o *output, from, n int) {
	for i := from; i < from+n; i++ {
		o.write(stdout, fmt.Appendf(nil, "%01023d\n", i))
	}
}

func TestRingKeepsTheEnd(t *testing.T) {
	t.Parallel()
	o := newOutput(filepath.Join(t.TempDir(), "logs/1"), testBudget(0)) // the floor alone
	defer o.close()
	fillOutput(o, 0, 1000)
	b, cut := o.rings[stdout].tail(ringMax)
	if !cut || len(b) != ringStep {
		t.Fatalf("%d bytes are kept, cut %v", len(b), cut)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if want := fmt.Sprintf("%01023d", 1000-ringStep/1024+i); line != want {
			t.Fatalf("line %d is %q", i, line[1000:])
		}
	}
	if info, err := os.Stat(o.rings[stdout].path); err != nil || info.Size() != ringStep {
		t.Errorf("the file: %v, %v", info, err)
	}
	if got := o.text(stdout, 10); got != truncate+"000000999\n" {
		t.Errorf("a short tail is %q", got)
	}
	used := o.rings[stdout].budget.used.Load()
	o.drop()
	if left := o.rings[stdout].budget.used.Load(); used != ringStep || left != 0 {
		t.Errorf("used %d, then %d", used, left)
	}
	o.write(stdout, []byte("late")) // of a child that was left behind
	if got := o.text(stdout, 10); got != truncate {
		t.Errorf("after the drop: %q", got)
	}
}
