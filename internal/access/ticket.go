package access

import (
	"context"
	"crypto/sha256"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dozehq/doze"
)

const (
	// TicketPrefix begins a ticket. It is no credential anywhere but in the
	// address that it is made for.
	TicketPrefix = "dzt_"
	// TicketLife is the time to follow an address: it stands in the history of a
	// browser, and in the logs of proxies in front of us, for longer.
	TicketLife = 30 * time.Second
	// leaseLife is how long a page may get tickets: a working day.
	leaseLife = 12 * time.Hour
	// ticketsOfCaller bounds what one caller may have open. The oldest makes room:
	// nobody else pays for it.
	ticketsOfCaller = 64
	// ticketsMax bounds the memory of all, at about half a kilobyte each.
	ticketsMax = 1 << 16
)

// A Pass is what a ticket or a lease stands for.
type Pass struct {
	Sub        string // its owner
	Credential string // that it was made with: if that is void, so is the pass
	Workspace  string
	Sandbox    string // name
}

// Authorize makes r a request with the credential of a pass, and no other, in
// its workspace.
func (p Pass) Authorize(r *http.Request) {
	r.Header.Del("X-Blaxel-Authorization")
	r.Header.Set("Authorization", "Bearer "+p.Credential)
	r.Header.Set("X-Blaxel-Workspace", p.Workspace)
}

// Tickets are secrets that open one sandbox in the name of a credential. A ticket
// is for an address and opens once; a lease is for the memory of a page that was
// opened so, and gets it tickets. They are held in memory: a restart voids them.
// It is safe for concurrent use.
type Tickets struct {
	mu    sync.Mutex
	byKey map[passKey]held     // guarded by mu
	of    map[string][]passKey // guarded by mu; by sub, in the order of their making
}

type passKey struct {
	hash  [sha256.Size]byte
	lease bool
}

type held struct {
	pass  Pass
	until time.Time
}

// NewTickets returns no tickets yet.
func NewTickets() *Tickets {
	return &Tickets{byKey: map[passKey]held{}, of: map[string][]passKey{}}
}

// Issue makes a ticket that opens once, until the time that it returns. It is
// Exhausted while too many are open.
func (t *Tickets) Issue(_ context.Context, p Pass, now time.Time) (text string, until time.Time, err error) {
	return t.add(p, false, now)
}

// Lease makes a secret that [Tickets.Renew] takes. It is no ticket.
func (t *Tickets) Lease(_ context.Context, p Pass, now time.Time) (text string, err error) {
	text, _, err = t.add(p, true, now)
	return text, err
}

func (t *Tickets) add(p Pass, lease bool, now time.Time) (text string, until time.Time, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(t.of[p.Sub]) >= ticketsOfCaller {
		t.dropLocked(t.of[p.Sub][0])
	}
	if len(t.byKey) >= ticketsMax {
		for key, h := range t.byKey {
			if !now.Before(h.until) {
				t.dropLocked(key)
			}
		}
	}
	if len(t.byKey) >= ticketsMax {
		return "", until, doze.Errorf(doze.Exhausted, "%d tickets are open, which is the limit: try again in %s", len(t.byKey), TicketLife)
	}
	life := TicketLife
	if lease {
		life = leaseLife
	}
	text, until = TicketPrefix+random(secretBytes), now.Add(life)
	key := passKey{sha256.Sum256([]byte(text)), lease}
	t.byKey[key] = held{p, until}
	t.of[p.Sub] = append(t.of[p.Sub], key)
	return text, until, nil
}

// dropLocked forgets a pass. Callers hold mu.
func (t *Tickets) dropLocked(key passKey) {
	sub := t.byKey[key].pass.Sub
	delete(t.byKey, key)
	t.of[sub] = slices.DeleteFunc(t.of[sub], func(k passKey) bool { return k == key })
	if len(t.of[sub]) == 0 {
		delete(t.of, sub)
	}
}

// Redeem returns what a ticket stands for, once.
func (t *Tickets) Redeem(_ context.Context, text string, now time.Time) (Pass, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := passKey{hash: sha256.Sum256([]byte(text))}
	h, ok := t.byKey[key]
	if ok {
		t.dropLocked(key)
	}
	if !ok || !now.Before(h.until) {
		return Pass{}, errNoTicket
	}
	return h.pass, nil
}

// Renew returns what a lease stands for, as often as it is asked.
func (t *Tickets) Renew(_ context.Context, text string, now time.Time) (Pass, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	h, ok := t.byKey[passKey{sha256.Sum256([]byte(text)), true}]
	if !ok || !now.Before(h.until) {
		return Pass{}, errNoTicket
	}
	return h.pass, nil
}

var errNoTicket = doze.Errorf(doze.Unauthenticated, "the ticket was used or has expired: create another one with POST /v0/sandboxes/<name>/tickets")

// IsTicket reports whether text looks like a ticket.
func IsTicket(text string) bool { return strings.HasPrefix(text, TicketPrefix) }
