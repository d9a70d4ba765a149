package quota_test

import (
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/quota"
)

func TestEgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // from midnight in UTC on
		refused := 0
		b := quota.New(quota.Options{Refused: func(string) { refused++ }})
		b.Set("w", doze.Limits{doze.QuotaEgress: 10})
		var w, other atomic.Uint64
		w.Store(1 << 40) // what was before does not count
		b.Meter("w", w.Load)
		b.Meter("other", other.Load)
		other.Add(1 << 30)
		w.Add(10<<20 - 1)
		if why := b.Barred("w"); why != "" || b.Turn() {
			t.Errorf("below the limit: %q", why)
		}
		b.Recall("w", "1999-12-31", 1<<30) // yesterday
		b.Recall("w", "2000-01-01", 1)     // an earlier process, today
		if why := b.Barred("w"); !strings.Contains(why, doze.QuotaEgress) || !strings.Contains(why, "10 MiB") {
			t.Errorf("at the limit: %q", why)
		}
		if !b.Turn() || b.Turn() || refused != 1 {
			t.Errorf("that it is barred is news once; refused %d times", refused)
		}
		if why := b.Barred("other"); why != "" {
			t.Errorf("another workspace: %q", why)
		}
		date, bytes := b.Egress()
		if diff := cmp.Diff(map[string]int64{"w": 10 << 20, "other": 1 << 30}, bytes); date != "2000-01-01" || diff != "" {
			t.Error(date, diff)
		}
		b.Set("w", doze.Limits{doze.QuotaEgress: 11})
		if why := b.Barred("w"); why != "" || !b.Turn() {
			t.Errorf("after its limit was raised: %q", why)
		}
		w.Add(5 << 20)
		if !b.Turn() {
			t.Error("over the new limit: nothing changed")
		}
		time.Sleep(24*time.Hour - time.Second)
		if b.Barred("w") == "" || b.Turn() {
			t.Error("before midnight it is open again")
		}
		time.Sleep(time.Second)
		if b.Barred("w") != "" || !b.Turn() || b.EgressOf("w") != 0 {
			t.Error("after midnight it is barred")
		}
		w.Add(3)
		if date, bytes := b.Egress(); date != "2000-01-02" || bytes["w"] != 3 {
			t.Error(date, bytes)
		}
	})
}
