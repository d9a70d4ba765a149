package oauth

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/audit"
	"github.com/dozehq/doze/internal/ratelimit"
	"github.com/dozehq/doze/internal/store"
)

const (
	// pairFree are mistakes of one network about one account that cost nothing.
	pairFree = 5
	// sourceFree are those of one network about all accounts: an office shares
	// one address.
	sourceFree = 30
	// attemptPause is the pause after the first mistake too many; each further
	// one doubles it, up to pauseMax.
	attemptPause = time.Second
	pauseMax     = 5 * time.Minute
	// attemptMemory is how long mistakes count: to wait for their end is slower
	// than the longest pause.
	attemptMemory = time.Hour
	// pairsMax, sourcesMax and namesMax bound what is remembered, in a few MB. One
	// network cannot fill any of them: its pauses are too long.
	pairsMax   = 20_000
	sourcesMax = 20_000
	namesMax   = 20_000
	// knownSource is how long a network counts as one from which a user logs in.
	knownSource = 90 * 24 * time.Hour
)

// nameRate bounds guesses about one account from everywhere: some 2,900 a day.
// Where its owner has logged in before, it does not count.
var nameRate = ratelimit.Limit{PerSecond: 1.0 / 30, Burst: 100}

var errWrongPassword = doze.Errorf(doze.Unauthenticated, "the name or the password is wrong")

// CheckPassword reports a wrong password of u, from a network, as Unauthenticated.
// After some in a row, each takes longer.
func (s *Server) CheckPassword(ctx context.Context, u store.User, from netip.Prefix, password string) error {
	_, err := s.logIn(ctx, u.Sub, u, true, from, password)
	return err
}

// authenticate returns the user who typed a name and a password.
func (s *Server) authenticate(ctx context.Context, from netip.Prefix, name, password string) (store.User, error) {
	name = strings.ToLower(strings.TrimSpace(name))
	audit.About(ctx, "users", name)
	u, err := s.Store.User(ctx, name)
	if err != nil && doze.Public(err).Kind != doze.NotFound {
		return u, err
	}
	return s.logIn(ctx, name, u, err == nil, from, password)
}

func (s *Server) logIn(ctx context.Context, name string, u store.User, exists bool, from netip.Prefix, password string) (store.User, error) {
	switch {
	case exists:
		name = u.Sub // one count for the address and the sub
	case len(name) > doze.EmailMax:
		name = "" // nobody is called so: they share one count
	}
	now := time.Now()
	if err := s.attempts.begin(pair{name, from}, now); err != nil {
		return u, err
	}
	if v := s.attempts.names.Take(name, 1); !v.OK {
		known, err := s.Store.LoginSource(ctx, name, from.String(), now.Add(-knownSource))
		if err != nil {
			return u, err
		}
		if !known {
			return u, errPause("for this account", v.Retry)
		}
	}
	if len(password) > doze.PasswordMax {
		password = ""
	}
	hash := u.Password
	if !exists {
		hash = "" // takes as long
	}
	ok, err := access.CheckPassword(ctx, hash, password)
	if err != nil {
		return u, err
	}
	if !ok || !exists {
		return u, errWrongPassword
	}
	s.attempts.succeed(pair{name, from})
	audit.By(ctx, u.Sub, doze.SubUser, s.Credentials.Home(u.Sub))
	if err := s.Store.NoteLoginSource(ctx, u.Sub, from.String(), now); err != nil { // no reason to keep them out
		slog.WarnContext(ctx, "the network of a log-in is not recorded", "err", err)
	}
	return u, nil
}

func errPause(of string, pause time.Duration) error {
	return doze.Errorf(doze.Exhausted, "too many wrong passwords %s: try again in %s", of, pause.Round(time.Second)+time.Second)
}

// pair is an account and a network that tries to enter it.
type pair struct {
	name string
	from netip.Prefix
}

// attempts slows down who guesses passwords. Guesses count before they are
// checked, so that many at a time gain nothing. What one network does makes no
// other one wait, but for namePace.
type attempts struct {
	names *ratelimit.Buckets[string]

	mu      sync.Mutex
	pairs   tally[pair]         // guarded by mu
	sources tally[netip.Prefix] // guarded by mu
}

func newAttempts() *attempts {
	return &attempts{
		names: ratelimit.New[string](nameRate, namesMax),
		pairs: newTally[pair](pairFree, pairsMax), sources: newTally[netip.Prefix](sourceFree, sourcesMax),
	}
}

// begin counts a guess, or says that it comes too early.
func (a *attempts) begin(p pair, now time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if pause := a.pairs.pause(p, now); pause > 0 {
		return errPause("for this account from this address", pause)
	}
	if pause := a.sources.pause(p.from, now); pause > 0 {
		return errPause("from this address", pause)
	}
	a.pairs.count(p, now)
	a.sources.count(p.from, now)
	return nil
}

// succeed forgets the mistakes of a pair, and that this guess was counted. Those
// of the network about other accounts still count: an account of its own does
// not pay for them.
func (a *attempts) succeed(p pair) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pairs.byKey.Remove(p)
	a.sources.uncount(p.from)
}

// mistakes are guesses that failed, or are being checked.
type mistakes struct {
	count int
	next  time.Time // none before
	last  time.Time
}

// tally counts mistakes by key. The key that was used longest ago is forgotten
// first.
type tally[K comparable] struct {
	free  int
	byKey *lru.LRU[K, mistakes]
}

func newTally[K comparable](free, keysMax int) tally[K] {
	byKey, err := lru.NewLRU[K, mistakes](keysMax, nil)
	if err != nil {
		panic(err) // keysMax is a constant of ours
	}
	return tally[K]{free, byKey}
}

// pause is how long a key has to wait.
func (t tally[K]) pause(key K, now time.Time) time.Duration {
	m, _ := t.byKey.Peek(key)
	return max(0, m.next.Sub(now))
}

func (t tally[K]) count(key K, now time.Time) {
	m, _ := t.byKey.Get(key)
	if now.Sub(m.last) > attemptMemory {
		m = mistakes{}
	}
	m.count, m.last = m.count+1, now
	if over := m.count - t.free; over >= 0 {
		m.next = now.Add(min(attemptPause<<min(over, 30), pauseMax))
	}
	t.byKey.Add(key, m)
}

func (t tally[K]) uncount(key K) {
	m, known := t.byKey.Peek(key)
	if !known {
		return
	}
	m.count, m.next = max(0, m.count-1), time.Time{}
	t.byKey.Add(key, m)
}
