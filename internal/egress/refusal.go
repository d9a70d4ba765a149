package egress

import (
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// refusalBurst is how many refusals of a sandbox its owner is told of at once. After
	// each refusalPause there is one more. A sandbox has a history of a
	// hundred events, which refusals alone must not fill in a day.
	refusalBurst = 8
	refusalPause = 30 * time.Minute
	// refusalMemory is how long a destination is not told of again.
	refusalMemory = 6 * time.Hour
	// refusalsMax is how many destinations of a sandbox are known.
	refusalsMax = 64
)

// refusals are the destinations that a sandbox could not reach. Each refusal counts
// once: for its destination, or for all that nobody was told of.
type refusals struct {
	events *rate.Limiter

	mu    sync.Mutex
	known map[refusal]*refused // guarded by mu
	other int                  // guarded by mu; refusals of destinations that are not known
}

// A refusal is of one destination, for one reason.
type refusal struct{ protocol, host, rule string }

// refused is what is known of a refusal.
type refused struct {
	told  time.Time // when the owner was told last
	count int       // refusals since then
}

func newRefusals() *refusals {
	return &refusals{events: rate.NewLimiter(rate.Every(refusalPause), refusalBurst), known: map[refusal]*refused{}}
}

// add counts a refusal, and returns what to tell the owner of the sandbox, or nothing.
func (r *refusals) add(protocol string, to Destination, v Verdict, now time.Time) (message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	host := to.host()
	if to.Port != 0 {
		host = net.JoinHostPort(host, strconv.Itoa(int(to.Port)))
	}
	key := refusal{protocol, host, v.Rule}
	of := r.known[key]
	if of != nil && now.Sub(of.told) < refusalMemory {
		of.count++
		return ""
	}
	if of == nil && len(r.known) == refusalsMax {
		r.forget(now)
	}
	if of == nil && len(r.known) == refusalsMax || !r.events.AllowN(now, 1) {
		if of != nil {
			of.count++
		} else {
			r.other++
		}
		return ""
	}
	message = fmt.Sprintf("egress by %s to %s is refused (%s): %s", protocol, host, v.Rule, v.reason())
	if of != nil && of.count > 0 {
		message += fmt.Sprintf("; %d times more since %s", of.count, of.told.UTC().Format(time.RFC3339))
	}
	if r.other > 0 {
		message += fmt.Sprintf("; %d refusals of other destinations are in the log of the platform alone", r.other)
	}
	r.known[key], r.other = &refused{told: now}, 0
	return message
}

// forget makes room: of destinations that may be told of again, the counts go to the
// others. Preconditions: mu is held.
func (r *refusals) forget(now time.Time) {
	for key, of := range r.known {
		if now.Sub(of.told) >= refusalMemory {
			r.other += of.count
			delete(r.known, key)
		}
	}
}
