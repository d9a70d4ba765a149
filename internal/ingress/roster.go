package ingress

import (
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/httpx"
)

// roster is who is connected. It shares the room between sources: when there is
// none left, a source with few connections gets that of one with many.
type roster struct {
	limits Limits

	mu      sync.Mutex
	total   int                          // guarded by mu
	sources map[netip.Prefix]*source     // guarded by mu
	proxied map[*conn]struct{}           // guarded by mu; connections of proxies that are trusted
	levels  map[int]map[*source]struct{} // guarded by mu; sources by how many connections they have
	top     int                          // guarded by mu; the highest level that may have a source
	peak    int                          // guarded by mu; the most connections since memory was given back
}

const (
	// crowd is how many connections take memory that is worth giving back.
	crowd = 1024
	// ebb is the part of them that may be left when that is done.
	ebb = 4
)

// ebbTimes are what those that go have to end. On a busy host some need longer.
var ebbTimes = []time.Duration{time.Second, 5 * time.Second}

// relieve gives the memory of many connections that have ended back to the host.
// The runtime would do so minutes later, and sandboxes need it. Preconditions: mu
// is held.
func (ro *roster) relieve() {
	if ro.peak < crowd || ro.total*ebb > ro.peak {
		return
	}
	ro.peak = ro.total
	for _, after := range ebbTimes {
		time.AfterFunc(after, debug.FreeOSMemory)
	}
}

// source is the connections of one source.
type source struct {
	network netip.Prefix
	conns   map[*conn]struct{}
}

func newRoster(l Limits) *roster {
	return &roster{limits: l, sources: map[netip.Prefix]*source{}, proxied: map[*conn]struct{}{}, levels: map[int]map[*source]struct{}{}}
}

func (ro *roster) len() int {
	ro.mu.Lock()
	defer ro.mu.Unlock()
	return ro.total
}

// add finds room for c, if need be that of another one, which is returned and
// must be closed. It reports false and why if c gets none. Scarce says that room
// has to be made although the number of connections would allow c.
func (ro *roster) add(c *conn, from netip.Addr, trusted, scarce bool) (evict *conn, why reason, ok bool) {
	ro.mu.Lock()
	defer ro.mu.Unlock()
	var s *source
	if !trusted {
		s = ro.sources[httpx.SourceNetwork(from)]
		if s == nil {
			s = &source{network: httpx.SourceNetwork(from), conns: map[*conn]struct{}{}}
		}
		most := ro.limits.PerSource
		if from.IsLoopback() {
			most = ro.limits.perLocal
		}
		if len(s.conns) >= most {
			return nil, crowdedSource, false
		}
	}
	if full := ro.total >= ro.limits.Connections; full || scarce {
		if evict = ro.victim(s); evict == nil {
			if full {
				return nil, noRoom, false
			}
			return nil, noDescriptor, false
		}
		ro.drop(evict)
	}
	ro.total++
	ro.peak = max(ro.peak, ro.total)
	if c.source = s; s != nil {
		ro.sources[s.network] = s
		ro.move(s, len(s.conns)+1)
		s.conns[c] = struct{}{}
	} else {
		ro.proxied[c] = struct{}{}
	}
	return evict, 0, true
}

// resting is how many connections of HTTP/1 have had no request for a time from least to most.
func (ro *roster) resting(least, most time.Duration) (n int) {
	now := time.Now()
	count := func(conns map[*conn]struct{}) {
		for c := range conns {
			if rest, ok := c.rest(now); ok && rest >= least && rest < most {
				n++
			}
		}
	}
	ro.mu.Lock()
	defer ro.mu.Unlock()
	count(ro.proxied)
	for _, s := range ro.sources {
		count(s.conns)
	}
	return n
}

// move changes the level of s. Preconditions: mu is held, s has still the
// connections of its old level.
func (ro *roster) move(s *source, to int) {
	delete(ro.levels[len(s.conns)], s)
	if len(ro.levels[len(s.conns)]) == 0 {
		delete(ro.levels, len(s.conns))
	}
	if to > 0 {
		if ro.levels[to] == nil {
			ro.levels[to] = map[*source]struct{}{}
		}
		ro.levels[to][s] = struct{}{}
	}
	for ro.top = max(ro.top, to); ro.top > 0 && len(ro.levels[ro.top]) == 0; ro.top-- {
	}
}

// looked bounds how many connections are looked at for one that waits: an
// attacker must not make each accept expensive.
const looked = 256

// victim is a connection that waits for its client, of a source that has more
// connections than s will have; or nil. Preconditions: mu is held.
func (ro *roster) victim(s *source) *conn {
	own := 1
	if s != nil {
		own += len(s.conns)
	}
	left := looked
	for level := ro.top; level > own && left > 0; level-- {
		for other := range ro.levels[level] {
			for c := range other.conns {
				if c.waits() {
					return c
				}
				if left--; left == 0 {
					return nil
				}
			}
		}
	}
	return nil
}

// remove takes c away, if it is still there.
func (ro *roster) remove(c *conn) {
	ro.mu.Lock()
	defer ro.mu.Unlock()
	ro.drop(c)
}

// drop is remove. Preconditions: mu is held.
func (ro *roster) drop(c *conn) {
	if c.gone {
		return
	}
	c.gone = true
	ro.total--
	ro.relieve()
	delete(ro.proxied, c)
	if s := c.source; s != nil {
		ro.move(s, len(s.conns)-1)
		if delete(s.conns, c); len(s.conns) == 0 {
			delete(ro.sources, s.network)
		}
	}
}
