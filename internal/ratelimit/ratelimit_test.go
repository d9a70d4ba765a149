package ratelimit_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/ratelimit"
)

func TestTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.Limit{PerSecond: 2, Burst: 4}
		b := ratelimit.New[string](limit, 10)
		for i := range 4 {
			if v := b.Take("a", 1); !v.OK || v.Remaining != 3-i {
				t.Fatalf("request %d: %+v", i, v)
			}
		}
		want := ratelimit.Verdict{Limit: limit, Retry: time.Second / 2, Reset: 2 * time.Second}
		if diff := cmp.Diff(want, b.Take("a", 1)); diff != "" {
			t.Error(diff)
		}
		if v := b.Take("b", 1); !v.OK {
			t.Errorf("another key pays for the first one: %+v", v)
		}
		time.Sleep(time.Second)
		if v := b.Take("a", 2); !v.OK || v.Remaining != 0 {
			t.Errorf("after a second: %+v", v)
		}
		if v := b.Take("a", 5); v.OK {
			t.Errorf("more than a bucket holds: %+v", v)
		}
	})
}

func TestNoLimit(t *testing.T) {
	b := ratelimit.New[int](ratelimit.Limit{}, 1)
	h := http.Header{}
	for range 1000 {
		v := b.Take(1, 1)
		if v.Header(h, "none"); !v.OK || v.Err("requests") != nil || len(h) != 0 {
			t.Fatalf("%+v, %v", v, h)
		}
	}
}

// A caller with many keys makes the platform forget buckets, and not grow.
func TestKeysMax(t *testing.T) {
	b := ratelimit.New[int](ratelimit.Limit{PerSecond: 1e-9, Burst: 1}, 2)
	if !b.Take(1, 1).OK || b.Take(1, 1).OK {
		t.Fatal("a bucket of one token does not hold one")
	}
	b.Take(2, 1)
	b.Take(3, 1)
	if !b.Take(1, 1).OK {
		t.Error("three keys are remembered, of which two have room")
	}
}

func TestHeader(t *testing.T) {
	v := ratelimit.Verdict{Limit: ratelimit.Limit{PerSecond: 10, Burst: 50}, Retry: 1500 * time.Millisecond, Reset: 5 * time.Second}
	h := http.Header{}
	v.Header(h, "source")
	want := http.Header{
		"Ratelimit-Policy": {`"source";q=50;w=5`}, "Ratelimit": {`"source";r=0;t=5`},
		"Ratelimit-Limit": {"50"}, "Ratelimit-Remaining": {"0"}, "Ratelimit-Reset": {"5"}, "Retry-After": {"2"},
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Error(diff)
	}
	e := doze.Public(v.Err("requests from your address"))
	if e.Kind != doze.Exhausted || e.Message != "too many requests from your address: try again in 2 s" {
		t.Errorf("%+v", e)
	}
}
