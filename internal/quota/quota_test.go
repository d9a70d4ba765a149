package quota_test

import (
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/quota"
)

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := map[string]int{}
		b := quota.New(quota.Options{Defaults: doze.Limits{doze.QuotaRequests: 10}, PerKey: 4, Refused: func(q string) { refused[q]++ }})
		take := func(workspace, key string) (*doze.Error, http.Header) {
			h := http.Header{}
			if err := b.Take(h, workspace, key); err != nil {
				return doze.Public(err), h
			}
			return nil, h
		}
		for range 8 { // the burst of a key
			if e, h := take("w", "k"); e != nil || h.Get("RateLimit-Limit") != "8" {
				t.Fatal(e, h)
			}
		}
		e, h := take("w", "k")
		if e == nil || e.Name != doze.NameRateLimited || h.Get("Retry-After") != "1" || e.Definitive() {
			t.Errorf("a key over its limit: %v, %v", e, h)
		}
		if n := b.Rate("w"); n != 8 {
			t.Errorf("%d requests are counted, want 8: those refused to the key cost nothing", n)
		}
		for range 12 { // what is left of the workspace
			if e, _ := take("w", ""); e != nil {
				t.Fatal(e)
			}
		}
		e, h = take("w", "other")
		if e == nil || e.Name != doze.NameQuotaExceeded || e.Fields["quota"] != doze.QuotaRequests || h.Get("Retry-After") != "1" || e.Definitive() {
			t.Errorf("a workspace over its limit: %v, %v", e, h)
		}
		if e, _ := take("elsewhere", "k2"); e != nil {
			t.Errorf("another workspace: %v", e)
		}
		b.Set("w", doze.Limits{doze.QuotaRequests: 100})
		_ = b.Rate("w") // from now on tokens come faster
		time.Sleep(time.Second)
		for range 100 {
			if e, _ := take("w", ""); e != nil {
				t.Fatalf("after its limit was raised: %v", e)
			}
		}
		if diff := cmp.Diff(map[string]int{quota.PerKey: 1, doze.QuotaRequests: 1}, refused); diff != "" {
			t.Error(diff)
		}
	})
}

// TestConnections has many callers at a time open the last connection of a
// workspace.
func TestConnections(t *testing.T) {
	t.Parallel()
	const limit, callers = 5, 20
	b := quota.New(quota.Options{})
	b.Set("w", doze.Limits{doze.QuotaConnections: limit})
	var last func()
	for range limit - 1 {
		leave, err := b.Enter(http.Header{}, "w", "")
		if err != nil {
			t.Fatal(err)
		}
		last = leave
	}
	var won atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			_, err := b.Enter(http.Header{}, "w", "")
			if err == nil {
				won.Add(1)
			} else if e := doze.Public(err); e.Name != doze.NameQuotaExceeded || e.Fields["used"] != int64(limit) || e.Fields["limit"] != int64(limit) {
				t.Errorf("refused as %v with %v", err, e.Fields)
			}
		})
	}
	all.Wait()
	if won.Load() != 1 || b.Open("w") != limit {
		t.Errorf("%d callers got the last place, %d are open", won.Load(), b.Open("w"))
	}
	if _, err := b.Enter(http.Header{}, "other", ""); err != nil {
		t.Errorf("another workspace: %v", err)
	}
	last()
	last() // a second time does nothing
	if b.Open("w") != limit-1 {
		t.Errorf("%d are open after one left", b.Open("w"))
	}
	if _, err := b.Enter(http.Header{}, "w", ""); err != nil {
		t.Errorf("in the place of one that left: %v", err)
	}
}

func TestOwnLimits(t *testing.T) {
	t.Parallel()
	b := quota.New(quota.Options{Defaults: doze.Limits{doze.QuotaVolumes: 3}})
	b.Set("w", doze.Limits{doze.QuotaVolumes: 0})
	for workspace, want := range map[string]int64{"w": 0, "other": 3} {
		if got := b.Limit(workspace, doze.QuotaVolumes); got != want {
			t.Errorf("%s: %d, want %d", workspace, got, want)
		}
	}
	b.Set("w", nil)
	if got := b.Limit("w", doze.QuotaVolumes); got != 3 {
		t.Errorf("after its own limits were taken back: %d", got)
	}
}

// BenchmarkEnter compares what a request to a sandbox pays here with a look at an empty map,
// which is the least that it could pay.
func BenchmarkEnter(b *testing.B) {
	book, h := quota.New(quota.Options{PerKey: 1 << 30}), http.Header{}
	book.Set("w", doze.Limits{doze.QuotaRequests: 1 << 30})
	start := time.Now()
	for b.Loop() {
		leave, err := book.Enter(h, "w", "k")
		if err != nil {
			b.Fatal(err)
		}
		leave()
	}
	taken := time.Since(start) / time.Duration(b.N)
	var mu sync.RWMutex
	empty := map[string]int{}
	start = time.Now()
	for range b.N {
		mu.RLock()
		_ = empty["w"]
		mu.RUnlock()
	}
	look := max(1, time.Since(start)/time.Duration(b.N))
	b.ReportMetric(float64(taken)/float64(look), "looks/op")
}

// TestTold: another process holds the same limits, and what is open there counts.
func TestTold(t *testing.T) {
	t.Parallel()
	b := quota.New(quota.Options{Defaults: doze.Limits{doze.QuotaConnections: 3}})
	b.Set("early", doze.Limits{doze.QuotaConnections: 1})
	other := quota.New(quota.Options{})
	b.Tell(func(workspace string, limits any) {
		var raw json.RawMessage
		if limits != nil {
			var err error
			if raw, err = json.Marshal(limits); err != nil {
				t.Error(err)
			}
		}
		if err := other.Apply(workspace, raw); err != nil {
			t.Error(err)
		}
	})
	same := func(after string) {
		t.Helper()
		for _, workspace := range []string{"early", "late", "none"} {
			if want, got := b.Limit(workspace, doze.QuotaConnections), other.Limit(workspace, doze.QuotaConnections); got != want {
				t.Errorf("after %s, %s may have %d there, and %d here", after, workspace, got, want)
			}
		}
	}
	same("nothing")
	b.Set("late", doze.Limits{doze.QuotaConnections: 2})
	same("a change")
	b.Set("early", nil)
	same("a limit that is taken back")

	leave, err := other.Enter(http.Header{}, "late", "")
	if err != nil {
		t.Fatal(err)
	}
	b.Elsewhere("an edge", other.Load())
	if n := b.Open("late"); n != 1 {
		t.Errorf("%d requests are open", n)
	}
	leave()
	b.Elsewhere("an edge", other.Load())
	if n := b.Open("late"); n != 0 {
		t.Errorf("%d requests are open after their end", n)
	}
}
