package launcher

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRecent(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		used, older, want []uint64
		most              int
	}{
		"first wake":  {used: []uint64{3, 1}, most: 4, want: []uint64{3, 1}},
		"both":        {used: []uint64{3, 1}, older: []uint64{1, 2}, most: 4, want: []uint64{3, 1, 2}},
		"the newest":  {used: []uint64{3, 1}, older: []uint64{4, 2}, most: 3, want: []uint64{3, 1, 4}},
		"not so much": {used: []uint64{3, 1}, older: []uint64{4}, most: 1, want: []uint64{3}},
		"nothing":     {older: []uint64{4}, most: 1, want: []uint64{4}},
	} {
		if diff := cmp.Diff(tc.want, recent(tc.used, tc.older, tc.most)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
