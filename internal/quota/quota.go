// Package quota keeps in memory what the limits of workspaces are, how fast
// their requests come, and how many are open. It decides and counts; it reads
// no record and answers no request.
package quota

import (
	"encoding/json"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/ratelimit"
)

const (
	// burst is how many seconds' worth of requests may come at once: a page that
	// loads, or a program that starts, asks for much in its first moment.
	burst = 2
	// keysMax bounds the buckets of keys: far above the keys that are in use
	// within seconds. One that is forgotten finds a full bucket.
	keysMax = 20_000
	// workspacesMax is how many workspaces a platform may have.
	workspacesMax = 10_000
)

// Options are the settings of a Book.
type Options struct {
	Defaults doze.Limits // of workspaces without limits of their own
	// PerKey is how many requests a second one credential may send; 0: any number.
	PerKey int
	// Refused is told of each refusal, by the name of the quota, or [PerKey]. It
	// must not wait. It may be nil.
	Refused func(quota string)
}

// PerKey is the name of the limit of a credential, where refusals are counted.
const PerKey = "requestsPerSecondPerKey"

// Book is safe for concurrent use.
type Book struct {
	Options
	keys       *ratelimit.Buckets[string]
	workspaces *ratelimit.Buckets[string]
	egress     egress

	mu   sync.RWMutex
	own  map[string]doze.Limits             // guarded by mu; by workspace
	open map[string]int64                   // guarded by mu; requests to sandboxes, by workspace
	tell func(workspace string, limits any) // guarded by mu

	elsewhere map[string]told // guarded by mu; by process
}

// told is what another process has told about the requests that are open there.
type told struct {
	at   time.Time
	open map[string]int64 // by workspace
}

// toldFor is how long that counts: a process that says no more is gone.
const toldFor = 30 * time.Second

// New returns a book in which every workspace has the default limits.
func New(o Options) *Book {
	if o.Refused == nil {
		o.Refused = func(string) {}
	}
	return &Book{
		Options: o, keys: ratelimit.New[string](perSecond(int64(o.PerKey)), keysMax), workspaces: ratelimit.New[string](ratelimit.Limit{}, workspacesMax),
		egress: egress{all: map[string]*day{}},
		own:    map[string]doze.Limits{}, open: map[string]int64{}, elsewhere: map[string]told{},
		tell: func(string, any) {},
	}
}

func perSecond(n int64) ratelimit.Limit {
	return ratelimit.Limit{PerSecond: float64(n), Burst: int(burst * n)}
}

// Set replaces the limits that a workspace has of its own; nil takes them back.
func (b *Book) Set(workspace string, own doze.Limits) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(own) == 0 {
		delete(b.own, workspace)
		b.tell(workspace, nil)
		return
	}
	b.own[workspace] = maps.Clone(own)
	b.tell(workspace, own)
}

// defaultsKey stands for the limits of workspaces without their own, where limits
// are told: no workspace has an empty name.
const defaultsKey = ""

// Tell has fn told of the limits that workspaces have, and then of each change. The
// empty workspace stands for all that have none of their own; without limits, a
// workspace has none of its own any more. fn must not block.
func (b *Book) Tell(fn func(workspace string, limits any)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tell = fn
	if b.Defaults != nil {
		fn(defaultsKey, b.Defaults)
	}
	for workspace, own := range b.own {
		fn(workspace, own)
	}
}

// Apply takes over what another book told.
func (b *Book) Apply(workspace string, value json.RawMessage) error {
	var limits doze.Limits
	if value != nil {
		if err := json.Unmarshal(value, &limits); err != nil {
			return err
		}
	}
	if workspace != defaultsKey {
		b.Set(workspace, limits)
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.Defaults = limits
	return nil
}

// Limit returns the limit of a quota for a workspace.
func (b *Book) Limit(workspace, quota string) int64 {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.own[workspace].Of(quota, b.Defaults)
}

// Exceeded is the error for a workspace that may have no more of a quota. It
// counts the refusal.
func (b *Book) Exceeded(quota string, used, limit int64) error {
	b.Refused(quota)
	return doze.QuotaExceeded(quota, used, limit)
}

// Take counts a request by a credential in a workspace, either of which may be
// empty, and says in h where the caller stands.
func (b *Book) Take(h http.Header, workspace, key string) error {
	v, policy, err := b.take(workspace, key)
	v.Header(h, policy)
	return err
}

// take returns the verdict on the credential, or that on the workspace if that
// refuses. The credential comes first: what it may not send costs its workspace
// nothing.
func (b *Book) take(workspace, key string) (v ratelimit.Verdict, policy string, err error) {
	if key != "" {
		v = b.keys.Take(key, 1)
		if err := v.Err("requests with this credential"); err != nil {
			b.Refused(PerKey)
			return v, PerKey, err
		}
	}
	if workspace == "" {
		return v, PerKey, nil
	}
	limit := b.Limit(workspace, doze.QuotaRequests)
	if all := b.workspaces.TakeFrom(workspace, perSecond(limit), 1); !all.OK {
		return all, doze.QuotaRequests, b.Exceeded(doze.QuotaRequests, limit, limit)
	}
	return v, PerKey, nil
}

// Enter counts a request to a sandbox of a workspace, which is open until leave
// is called; that may be more than once. The answer is the sandbox's: only one
// that is refused says in h where its caller stands.
func (b *Book) Enter(h http.Header, workspace, key string) (leave func(), err error) {
	if v, policy, err := b.take(workspace, key); err != nil {
		v.Header(h, policy)
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n, limit := b.open[workspace], b.own[workspace].Of(doze.QuotaConnections, b.Defaults)
	if n >= limit {
		return nil, b.Exceeded(doze.QuotaConnections, n, limit)
	}
	b.open[workspace] = n + 1
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.open[workspace]--; b.open[workspace] == 0 {
			delete(b.open, workspace)
		}
	}), nil
}

// Open is how many requests to sandboxes of a workspace are open, here and
// elsewhere.
func (b *Book) Open(workspace string) int64 {
	b.mu.RLock()
	defer b.mu.RUnlock()
	n := b.open[workspace]
	for _, t := range b.elsewhere {
		if time.Since(t.at) < toldFor {
			n += t.open[workspace]
		}
	}
	return n
}

// Load returns how many requests to sandboxes are open here, by workspace.
func (b *Book) Load() map[string]int64 {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return maps.Clone(b.open)
}

// Elsewhere takes note of the requests that are open in another process, which has to
// be repeated.
func (b *Book) Elsewhere(process string, open map[string]int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.elsewhere, func(_ string, t told) bool { return time.Since(t.at) >= toldFor })
	b.elsewhere[process] = told{time.Now(), open}
}

// Rate is about how many requests of a workspace came within the last second.
func (b *Book) Rate(workspace string) int64 {
	limit := b.Limit(workspace, doze.QuotaRequests)
	v := b.workspaces.TakeFrom(workspace, perSecond(limit), 0)
	return min(limit, burst*limit-int64(v.Remaining))
}
