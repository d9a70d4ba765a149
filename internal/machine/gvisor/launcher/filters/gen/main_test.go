package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
)

func TestFree(t *testing.T) {
	t.Parallel()
	const pid, twinPID = 100, 200
	for name, tc := range map[string]struct {
		words, twin []uint32
		want        []int // offsets of the process id
		fails       bool
	}{
		"the same":          {words: []uint32{1, 2, 3}, twin: []uint32{1, 2, 3}},
		"a process id":      {words: []uint32{1, pid, 3}, twin: []uint32{1, twinPID, 3}, want: []int{1}},
		"by chance the pid": {words: []uint32{pid, 2, 3}, twin: []uint32{pid, 2, 3}},
		"something else":    {words: []uint32{1, 2, 7}, twin: []uint32{1, 2, 8}, fails: true},
		"longer":            {words: []uint32{1, 2, 3}, twin: []uint32{1, 2, 3, 4}, fails: true},
	} {
		p := precompiledseccomp.Program{Name: "p", Bytecode32: tc.words, VarOffsets: map[string][]int{}}
		q := precompiledseccomp.Program{Name: "p", Bytecode32: tc.twin}
		if err := free(p, q, pid, twinPID); (err != nil) != tc.fails {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if diff := cmp.Diff(tc.want, p.VarOffsets[pidVariable]); diff != "" && !tc.fails {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	all := []precompiledseccomp.Program{{Name: "b A=1 B=1"}, {Name: "a A=1 B=1"}, {Name: "c A=1 B=0"}}
	var got []string
	for _, p := range choose(all, []string{"A=1", "B=1"}) {
		got = append(got, p.Name)
	}
	if diff := cmp.Diff([]string{"a A=1 B=1", "b A=1 B=1"}, got); diff != "" {
		t.Error(diff)
	}
}
