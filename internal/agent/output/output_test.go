package output

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func testBudget(total int64) *Budget {
	return NewBudget(total, func() bool { return false })
}

// filled is how many blocks fillOutput writes.
const filled = 1000

// fillOutput writes numbered blocks of 1 KiB to stdout.
func fillOutput(o *Output) {
	for i := range filled {
		o.Write(Stdout, fmt.Appendf(nil, "%01023d\n", i))
	}
}

func TestRingHasTheEnd(t *testing.T) {
	t.Parallel()
	o := New("", filepath.Join(t.TempDir(), "logs/1"), testBudget(0), nil) // the floor alone
	defer o.Close()
	fillOutput(o)
	b, cut := o.rings[Stdout].tail(ringMax)
	if !cut || len(b) != ringStep {
		t.Fatalf("%d bytes are kept, cut %v", len(b), cut)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if want := fmt.Sprintf("%01023d", filled-ringStep/1024+i); line != want {
			t.Fatalf("line %d is %q", i, line[1000:])
		}
	}
	if info, err := os.Stat(o.rings[Stdout].path); err != nil || info.Size() != ringStep {
		t.Errorf("the file: %v, %v", info, err)
	}
	if got := o.Text(Stdout, 10); got != Truncated+"000000999\n" {
		t.Errorf("a short tail is %q", got)
	}
	used := o.rings[Stdout].budget.used.Load()
	o.Drop()
	if left := o.rings[Stdout].budget.used.Load(); used != ringStep || left != 0 {
		t.Errorf("used %d, then %d", used, left)
	}
	o.Write(Stdout, []byte("late")) // of a child that was left behind
	if got := o.Text(Stdout, 10); got != Truncated {
		t.Errorf("after the drop: %q", got)
	}
}
