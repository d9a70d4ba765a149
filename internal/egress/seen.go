package egress

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/dozehq/doze"
)

// seenHostMax bounds the name of a destination that is remembered: no name of the DNS is
// longer.
const seenHostMax = 253

// seen are the last destinations of a sandbox, allowed and refused ones. It keeps
// [doze.EgressDestinationsMax] of them, and forgets the one first that was used longest
// ago.
type seen struct {
	since time.Time

	mu   sync.Mutex
	all  map[sight]*sighting // guarded by mu
	uses uint64              // guarded by mu; of all, ever
}

// A sight is what makes two decisions about the same destination one entry.
type sight struct {
	protocol, host string
	port           uint16
	allow          bool
	rule           string
}

// A sighting is what is known of a sight.
type sighting struct {
	count       int
	first, last time.Time
	use         uint64 // which use of all it was last
	reason      string // of a refusal
}

func newSeen() *seen { return &seen{since: time.Now(), all: map[sight]*sighting{}} }

// add takes note of a decision.
func (s *seen) add(protocol string, to Destination, v Verdict, now time.Time) {
	host := to.host()
	key := sight{protocol, host[:min(len(host), seenHostMax)], to.Port, v.Allow, v.Rule}
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.all[key]
	if of == nil {
		if len(s.all) == doze.EgressDestinationsMax {
			s.forget()
		}
		key.host = strings.Clone(key.host) // or all that it is cut out of stays, too
		of = &sighting{first: now}
		s.all[key] = of
	}
	s.uses++
	of.count, of.last, of.use = of.count+1, now, s.uses
	if !v.Allow {
		of.reason = v.reason()
	}
}

// forget makes room for one. Preconditions: mu is held, and there is one.
func (s *seen) forget() {
	var oldest sight
	use := s.uses + 1
	for key, of := range s.all {
		if of.use < use {
			oldest, use = key, of.use
		}
	}
	delete(s.all, oldest)
}

// list returns what is remembered, the newest first.
func (s *seen) list() doze.EgressSummary {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]sight, 0, len(s.all))
	for key := range s.all {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b sight) int { return cmp.Compare(s.all[b].use, s.all[a].use) })
	out := doze.EgressSummary{Since: doze.Time{Time: s.since}, Destinations: make([]doze.EgressDestination, 0, len(keys))}
	for _, key := range keys {
		of := s.all[key]
		out.Destinations = append(out.Destinations, doze.EgressDestination{
			Protocol: key.protocol, Host: key.host, Port: key.port, Verdict: verdictName(key.allow), Rule: key.rule, Reason: of.reason,
			Count: of.count, FirstAt: doze.Time{Time: of.first}, LastAt: doze.Time{Time: of.last},
		})
	}
	return out
}

// verdictName is a verdict as the log and the API have it.
func verdictName(allow bool) string {
	if allow {
		return doze.EgressAllowed
	}
	return doze.EgressDenied
}

// Summary returns the last destinations of a sandbox. It is empty for one that is not
// here.
func (e *Egress) Summary(uid string) doze.EgressSummary {
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, g := range e.guests {
		if g.UID == uid {
			return g.seen.list()
		}
	}
	return doze.EgressSummary{Destinations: []doze.EgressDestination{}}
}
