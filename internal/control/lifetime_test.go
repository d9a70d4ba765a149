package control_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// lifetime is what somebody who knows everything about a sandbox expects.
type lifetime struct {
	last        time.Time     // when it ends, used or not; zero is never
	idle        time.Duration // for how long it may be unused; 0 is for ever
	used, alive time.Time     // the end of the last request, and of the last keepAlive process
	held        bool          // a request is there
}

// ends is when the sandbox ends, as things are; zero is never.
func (l *lifetime) ends() time.Time {
	at := l.last
	if l.idle == 0 || l.held {
		return at
	}
	used := l.used
	if l.alive.After(used) { // it is known when that ends, and that nothing else comes
		used = l.alive
	}
	if idle := used.Add(l.idle); at.IsZero() || idle.Before(at) {
		at = idle
	}
	return at
}

// left is what expiresIn says before the end, in seconds.
func (l *lifetime) left(now time.Time) *int64 {
	as := *l
	if l.held || l.alive.After(now) { // as if its use ended now
		as.held, as.used, as.alive = false, now, now
	}
	at := as.ends()
	if at.IsZero() {
		return nil
	}
	return new(int64((at.Sub(now) + time.Second - 1) / time.Second))
}

// spec is what its caller asks for.
func (l *lifetime) spec() string {
	policies := ""
	if l.idle > 0 {
		policies = fmt.Sprintf(`{"action":"delete","type":"ttl-idle","value":"%ds"}`, int(l.idle.Seconds()))
	}
	if !l.last.IsZero() {
		if policies != "" {
			policies += ","
		}
		policies += fmt.Sprintf(`{"action":"delete","type":"date","value":%q}`, l.last.Format(time.RFC3339))
	}
	return `{"spec":{"lifecycle":{"terminatedRetention":"30d","expirationPolicies":[` + policies + `]}}}`
}

// TestLifetimes: whatever happens to sandboxes, each ends at its moment, within
// 100 ms, and not before; and until then every read says when that is. A change
// that comes just before the end counts.
func TestLifetimes(t *testing.T) {
	t.Parallel()
	const (
		many, steps = 8, 80
		late        = 100 * time.Millisecond
	)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dice := rand.New(rand.NewPCG(seed, 0))
	minutes := func(most int) time.Duration { return time.Duration(1+dice.IntN(most)) * time.Minute }
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		all, born := map[string]*lifetime{}, 0
		// settle has time pass, and looks at every sandbox.
		settle := func(until time.Time) {
			planetest.After(time.Until(until))
			now := time.Now()
			shown := map[string]planetest.Sandbox{}
			for _, sb := range planetest.Want[[]planetest.Sandbox](p, 200, "GET", "/sandboxes?showTerminated=true", "") {
				shown[sb.Metadata.Name] = sb
			}
			for name, l := range all {
				sb, at := shown[name], l.ends()
				switch over := !at.IsZero() && !now.Before(at); {
				case over && now.Sub(at) < late:
				case over:
					if sb.Status == "DEPLOYED" {
						t.Errorf("%s is there %v after its end: %+v", name, now.Sub(at), *l)
					}
					delete(all, name)
				case sb.Status != "DEPLOYED":
					t.Fatalf("%s is %s, %v before its end: %+v", name, sb.Status, at.Sub(now), *l)
				default:
					if got, left := sb.ExpiresIn, l.left(now); (got == nil) != (left == nil) || got != nil && *got != *left {
						t.Errorf("%s expires in %v: %+v", name, deref(got), *l)
					}
				}
			}
		}
		for range steps {
			for len(all) < many {
				born++
				now, name, l := time.Now(), fmt.Sprint("s", born), &lifetime{}
				if l.used = now; dice.IntN(4) > 0 {
					l.idle = minutes(30)
				}
				if dice.IntN(2) > 0 {
					l.last = now.Truncate(time.Second).Add(minutes(90))
				}
				p.Create(`{"metadata":{"name":"` + name + `"},` + l.spec()[1:])
				all[name] = l
			}
			now := time.Now()
			to := now.Add(minutes(15))
			for _, l := range all {
				if at := l.ends(); !at.IsZero() && at.Before(to) && at.Sub(now) > late {
					to = at.Add(-time.Millisecond)
				}
			}
			settle(to)
			if names := slices.Sorted(maps.Keys(all)); len(names) > 0 {
				name := names[dice.IntN(len(names))]
				happens(p, name, all[name], dice.IntN(6), minutes(30))
			}
			settle(time.Now().Add(late + time.Millisecond))
		}
	})
}

// happens lets something happen to a sandbox that has not ended.
func happens(p *planetest.Platform, name string, l *lifetime, what int, d time.Duration) {
	p.T.Helper()
	now := time.Now()
	if at := l.ends(); !at.IsZero() && !now.Before(at) {
		return
	}
	switch what {
	case 0: // a request
		if !l.held {
			l.used = now
		}
	case 1, 2: // a stream begins, or ends
		if l.held = !l.held; !l.held {
			l.used = now
		}
	case 3: // a process begins
		if l.alive.Before(now.Add(d)) {
			l.alive = now.Add(d)
		}
	default: // it is changed
		was := *l
		if l.idle = d; l.left(now) == nil || *l.left(now) <= 1 {
			*l = was
			return
		}
		planetest.Want[doze.Sandbox](p, 200, "PUT", "/sandboxes/"+name, l.spec())
		return
	}
	p.Node.With(name, func(_ string, m *planetest.Machine) { m.LastUsed, m.InUse, m.Alive = l.used, l.held, l.alive })
}

// deref is a number that may be missing, as a text.
func deref(n *int64) string {
	if n == nil {
		return "never"
	}
	return fmt.Sprint(*n)
}
