package store_test

import (
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
)

// TestMarkRestored: records that were restored say so, and nothing of them about nodes counts. Epochs are
// later than all on record and than the clock, also if that was set back.
func TestMarkRestored(t *testing.T) {
	onBoth(t, func(d database) {
		t, s := d.t, d.open(d.t)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		check := func(want bool, at uint64) {
			t.Helper()
			restored, err := s.Restored(t.Context())
			must(err)
			least, err := s.LeastEpoch(t.Context())
			must(err)
			if restored != want || least != at {
				t.Errorf("restored is %t, and the least epoch is %d; want %t and %d", restored, least, want, at)
			}
		}
		check(false, 0)
		for _, id := range []string{"lost", "leased", "cordoned"} {
			_, err := s.PutNode(t.Context(), id, store.NodeBody{}, epoch)
			must(err)
		}
		must(s.LoseNode(t.Context(), "lost", 1))
		must(s.SetNodeLeased(t.Context(), "leased", true))
		must(s.SetNodeState(t.Context(), "cordoned", doze.NodeCordoned))
		must(s.Reserve(t.Context(), "machine"))
		now := time.UnixMilli(1_000_000)
		must(s.MarkRestored(t.Context(), now))
		check(true, 1_000_000)
		for id, want := range map[string]doze.NodeState{"lost": doze.NodeReady, "leased": doze.NodeReady, "cordoned": doze.NodeCordoned} {
			n, err := s.Node(t.Context(), id)
			if must(err); n.State != want || n.Leased {
				t.Errorf("%s is %s, and leased: %t", id, n.State, n.Leased)
			}
		}
		if named, err := s.Machines(t.Context(), []string{"machine"}); len(named) > 0 || err != nil {
			t.Errorf("a machine that was left over is on record: %v, %v", named, err)
		}
		must(s.MarkRestored(t.Context(), now))
		check(true, 1_000_001)
		must(s.PutPlace(t.Context(), store.Place{Kind: "machine", ID: "m", Node: "leased", Epoch: 2_000_000}))
		must(s.MarkRestored(t.Context(), now))
		check(true, 2_000_001)
		must(s.EndRestored(t.Context()))
		check(false, 2_000_001)
	})
}
