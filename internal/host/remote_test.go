package host_test

import (
	"testing"

	"github.com/dozehq/doze/internal/host"
)

func TestRemoteQuotas(t *testing.T) {
	t.Parallel()
	q := host.NewRemoteQuotas()
	n := uint64(5)
	q.Meter("w", func() uint64 { return n })
	if got := q.Traffic(); len(got) != 1 || got["w"] != 5 {
		t.Errorf("traffic is %v", got)
	}
	if why := q.Barred("w"); why != "" {
		t.Errorf("it is barred before anybody decided: %q", why)
	}
	for i, step := range []struct {
		barred  map[string]string
		changed bool
	}{
		{nil, false},
		{map[string]string{"w": "10 MiB"}, true},
		{map[string]string{"w": "10 MiB, really"}, false},
		{map[string]string{"v": "x"}, true},
		{nil, true},
	} {
		if changed := q.Bar(step.barred); changed != step.changed {
			t.Errorf("step %d changed something: %t", i, changed)
		}
		if why := q.Barred("w"); why != step.barred["w"] {
			t.Errorf("step %d: it is barred with %q", i, why)
		}
	}
}
