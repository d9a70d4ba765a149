package hostnet

import (
	"slices"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// TestLacking finds nothing on the host that all other tests run on, and a part
// that no kernel has, without harm to what is tried after it.
func TestLacking(t *testing.T) {
	t.Parallel()
	needRoot(t)
	if got, err := Lacking(); len(got) != 0 || err != nil {
		t.Errorf("this kernel lacks %q, %v", got, err)
	}
	none := []expr.Any{&expr.Lookup{SourceRegister: 1, SetName: "none"}}
	odd := feature{"odd", inChain(nftables.ChainTypeFilter, nftables.ChainHookForward, none)}
	got, err := lacking(slices.Insert(slices.Clone(features), 1, odd))
	if !slices.Equal(got, []string{"odd"}) || err != nil {
		t.Errorf("of a part that is not there: %q, %v", got, err)
	}
}
