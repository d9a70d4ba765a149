// Package ratelimit keeps token buckets by key: by source address, by account,
// by API key. It decides and counts. It does not wait and answers no request.
//
// The memory for keys is bounded: the key that was not used for the longest
// time is forgotten first, and finds a full bucket when it comes back.
package ratelimit

import (
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"

	"github.com/dozehq/doze"
)

// Limit is how much one key may do. The zero Limit allows everything.
type Limit struct {
	PerSecond float64 // refill; may be below 1
	Burst     int     // size of the bucket
}

// Buckets are token buckets of one limit. It is safe for concurrent use.
type Buckets[K comparable] struct {
	limit Limit

	mu    sync.Mutex
	byKey *lru.LRU[K, *rate.Limiter] // guarded by mu
}

// New returns full buckets for up to keysMax keys at a time, which must be
// positive.
func New[K comparable](l Limit, keysMax int) *Buckets[K] {
	byKey, err := lru.NewLRU[K, *rate.Limiter](keysMax, nil)
	if err != nil {
		panic(err) // keysMax is a constant of ours
	}
	return &Buckets[K]{limit: l, byKey: byKey}
}

// Verdict is what a bucket says of a request.
type Verdict struct {
	OK        bool
	Limit     Limit
	Remaining int           // whole tokens that are left
	Retry     time.Duration // until the request would pass; 0 if it does
	Reset     time.Duration // until the bucket is full again
}

// Take takes n tokens from the bucket of a key, or none if it has fewer.
func (b *Buckets[K]) Take(key K, n int) Verdict { return b.TakeFrom(key, b.limit, n) }

// TakeFrom is Take where the key has a limit of its own. A bucket keeps its
// tokens when the limit of its key changes, as far as they fit.
func (b *Buckets[K]) TakeFrom(key K, l Limit, n int) Verdict {
	if l == (Limit{}) {
		return Verdict{OK: true}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	bucket, ok := b.byKey.Get(key)
	if !ok {
		bucket = rate.NewLimiter(rate.Limit(l.PerSecond), l.Burst)
		b.byKey.Add(key, bucket)
	}
	if was := (Limit{float64(bucket.Limit()), bucket.Burst()}); was != l {
		bucket.SetLimitAt(now, rate.Limit(l.PerSecond))
		bucket.SetBurstAt(now, l.Burst)
	}
	v := Verdict{OK: bucket.AllowN(now, n), Limit: l}
	left := bucket.TokensAt(now)
	v.Remaining = max(0, int(left))
	v.Reset = l.refill(float64(l.Burst) - left)
	if !v.OK {
		v.Retry = l.refill(float64(n) - left)
	}
	return v
}

// refill is how long tokens take to come.
func (l Limit) refill(tokens float64) time.Duration {
	if tokens <= 0 {
		return 0
	}
	seconds := tokens / l.PerSecond
	if seconds > math.MaxInt64/float64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(seconds * float64(time.Second))
}

// Header tells a client how many requests are left, in the fields of
// draft-ietf-httpapi-ratelimit-headers-10 and in the three older fields that most
// clients read. It tells a refused client when to retry (RFC 9110, section 10.2.3). A
// verdict without a limit sets nothing.
func (v Verdict) Header(h http.Header, policy string) {
	if v.Limit == (Limit{}) {
		return
	}
	burst, remaining, reset := strconv.Itoa(v.Limit.Burst), strconv.Itoa(v.Remaining), seconds(v.Reset)
	window := seconds(v.Limit.refill(float64(v.Limit.Burst)))
	h.Set("RateLimit-Policy", strconv.Quote(policy)+";q="+burst+";w="+window)
	h.Set("RateLimit", strconv.Quote(policy)+";r="+remaining+";t="+reset)
	h.Set("RateLimit-Limit", burst)
	h.Set("RateLimit-Remaining", remaining)
	h.Set("RateLimit-Reset", reset)
	if !v.OK {
		h.Set("Retry-After", seconds(max(v.Retry, time.Nanosecond)))
	}
}

// Err is the error for a refused request, or nil: Exhausted, with the time
// after which the caller may try again.
func (v Verdict) Err(what string) error {
	if v.OK {
		return nil
	}
	return &doze.Error{
		Kind: doze.Exhausted, Name: doze.NameRateLimited,
		Message: "too many " + what + ": try again in " + seconds(max(v.Retry, time.Nanosecond)) + " s",
	}
}

// seconds is a duration in whole seconds, rounded up.
func seconds(d time.Duration) string {
	return strconv.FormatInt(int64(math.Ceil(d.Seconds())), 10)
}
