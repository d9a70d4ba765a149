package metric

import (
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/machine"
)

// TestSum: two processes together count what one would have counted.
func TestSum(t *testing.T) {
	t.Parallel()
	count := func(all ...*Metrics) {
		for i, m := range all {
			m.Woke(machine.Paused, 3*time.Millisecond, nil)
			m.Refused("sandboxes")
			if i > 0 {
				m.Refused("memory")
			}
			m.Decided(true)
		}
	}
	one, first, second := New(), New(), New()
	count(one, one)
	count(first, second)
	now := func(open int) Now {
		return Now{Front: Front{Open: open, Refused: map[string]uint64{"full": uint64(open)}}}
	}
	want, err := one.Text(now(5))
	if err != nil {
		t.Fatal(err)
	}
	a, err := first.Text(now(2))
	if err != nil {
		t.Fatal(err)
	}
	b, err := second.Text(now(3))
	if err != nil {
		t.Fatal(err)
	}
	got, err := Sum(a, b)
	if err != nil {
		t.Fatal(err)
	}
	lines := func(text []byte) map[string]bool {
		all := map[string]bool{}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "doze_") && !strings.Contains(line, "_created") {
				all[line] = true
			}
		}
		return all
	}
	has := lines(got)
	for line := range lines(want) {
		if !has[line] {
			t.Errorf("the sum lacks %s", line)
		}
	}
	if len(has) != len(lines(want)) || len(has) == 0 {
		t.Errorf("the sum has %d lines, want %d", len(has), len(lines(want)))
	}
	if _, err := Sum(a, []byte("# TYPE doze_connections counter\ndoze_connections 1\n")); err == nil {
		t.Error("a gauge and a counter are added")
	}
	if _, err := Sum([]byte("{{{")); err == nil {
		t.Error("nonsense is added")
	}
}
