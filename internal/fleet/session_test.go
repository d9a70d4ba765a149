package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/lease"
)

// office is a [fleet.Control] that keeps what it is told. It can be away, and start
// anew.
type office struct {
	mu       sync.Mutex
	away     bool              // guarded by mu
	joins    []string          // guarded by mu; incarnations
	known    string            // guarded by mu; the incarnation that joined
	recorded []uint64          // guarded by mu; Seq of each report
	bytes    map[string]uint64 // guarded by mu
	epoch    uint64            // guarded by mu
	ttl      time.Duration     // guarded by mu
	taken    map[string]bool   // guarded by mu; machines that others have
	load     fleet.Load        // guarded by mu
}

var errAway = errors.New("it is away")

func (o *office) Certify(context.Context, string, []byte) ([]byte, error) {
	return nil, doze.Errorf(doze.Unsupported, "this office has no authority")
}

func (o *office) Join(_ context.Context, n fleet.NodeInfo) (fleet.Lease, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.away {
		return fleet.Lease{}, errAway
	}
	o.joins, o.known = append(o.joins, n.Incarnation), n.Incarnation
	var gone []string
	for _, m := range n.Machines {
		if o.taken[m] {
			gone = append(gone, m)
		}
	}
	return fleet.Lease{Epoch: o.epoch, TTL: o.ttl, Gone: gone}, nil
}

func (o *office) Reclaim(context.Context, string, []string, map[string]fleet.Held) (fleet.Lease, error) {
	return fleet.Lease{}, fleet.ErrNotJoined
}

func (o *office) Claim(context.Context, string, string) (fleet.Claim, error) {
	return fleet.Claim{Epoch: 1, Key: []byte("key")}, nil
}

func (o *office) FileKey(context.Context, string, string) ([]byte, error) { return []byte("key"), nil }

func (o *office) FileMark(context.Context, string, string) (string, error) { return "", nil }

func (o *office) Renew(_ context.Context, r fleet.Renewal) (fleet.Lease, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.away:
		return fleet.Lease{}, errAway
	case o.known != r.Incarnation, o.epoch != r.Epoch:
		return fleet.Lease{}, fleet.ErrNotJoined
	}
	o.load = r.Load
	return fleet.Lease{Epoch: o.epoch, TTL: o.ttl}, nil
}

func (o *office) Record(_ context.Context, _ string, reports []fleet.Report) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.away {
		return errAway
	}
	for _, r := range reports {
		o.recorded = append(o.recorded, r.Seq)
	}
	return nil
}

func (o *office) ImageRefs(context.Context) ([]string, error) { return []string{"base"}, nil }

func (o *office) Traffic(_ context.Context, _, incarnation string, bytes map[string]uint64) (map[string]string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.away:
		return nil, errAway
	case o.known != incarnation:
		return nil, fleet.ErrNotJoined
	}
	o.bytes = maps.Clone(bytes)
	return map[string]string{"greedy": "used up"}, nil
}

func (o *office) set(do func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	do()
}

// TestSession: whatever starts anew, the node is known soon, and every report comes
// once it can be recorded, in order.
func TestSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &office{away: true}
		var barred map[string]string
		s := fleet.NewSession(o, side(fleet.Side{
			Traffic: func() map[string]uint64 { return map[string]uint64{"w": 7} },
			Barred:  func(all map[string]string) { barred = all },
		}))
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { _ = s.Run(ctx, fleet.NodeInfo{ID: "n", Incarnation: "1"}) })
		var want []uint64
		report := func() {
			want = append(want, uint64(len(want)))
			s.Report(fleet.Report{UID: "a", Seq: want[len(want)-1], Phase: doze.Waking})
		}
		for range 1000 {
			report()
		}
		time.Sleep(time.Minute)
		select {
		case <-s.Joined():
			t.Fatal("it joined while control was away")
		default:
		}
		o.set(func() { o.away = false })
		time.Sleep(10 * time.Second)
		<-s.Joined()
		o.set(func() { o.known = "" }) // it starts anew
		report()
		time.Sleep(10 * time.Second)
		o.set(func() { o.away = true })
		report()
		time.Sleep(time.Minute)
		o.set(func() { o.away, o.known = false, "" })
		report()
		time.Sleep(10 * time.Second)
		cancel()
		run.Wait()
		if diff := cmp.Diff(want, o.recorded); diff != "" {
			t.Errorf("reports (-want +got):\n%s", diff)
		}
		if len(o.joins) != 3 || o.known != "1" || o.bytes["w"] != 7 || barred["greedy"] == "" {
			t.Errorf("joins %v, known %q, bytes %v, barred %v", o.joins, o.known, o.bytes, barred)
		}
	})
}

// side is a side of a node that does nothing but what is given.
func side(s fleet.Side) fleet.Side {
	if s.Traffic == nil {
		s.Traffic = func() map[string]uint64 { return nil }
	}
	if s.Barred == nil {
		s.Barred = func(map[string]string) {}
	}
	if s.Lease == nil {
		s.Lease = lease.NewHolder(lease.Actions{Fence: func(context.Context) {}, Unfence: func(context.Context) {}, Check: func(context.Context) {}, Tell: func(time.Time) {}})
	}
	if s.Load == nil {
		s.Load = func(context.Context) fleet.Load { return fleet.Load{} }
	}
	if s.Machines == nil {
		s.Machines = func() []string { return nil }
	}
	if s.Held == nil {
		s.Held = func() map[string]fleet.Held { return nil }
	}
	if s.Leaving == nil {
		s.Leaving = func() []string { return nil }
	}
	if s.Lost == nil {
		s.Lost = func(context.Context, []string) error { return nil }
	}
	return s
}

// TestSessionWithLease: what runs stops when control is away for too long, and goes on with
// the next renewal. When others have some of it, that ends before anything goes on.
func TestSessionWithLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := &office{epoch: 1, ttl: 30 * time.Second}
		var runs, lost atomic.Int64
		has := []string{"a", "b"}
		runs.Store(1)
		s := fleet.NewSession(o, side(fleet.Side{
			Lease: lease.NewHolder(lease.Actions{
				Fence: func(context.Context) { runs.Store(0) }, Unfence: func(context.Context) { runs.Store(1) }, Check: func(context.Context) {}, Tell: func(time.Time) {},
			}),
			Load:     func(context.Context) fleet.Load { return fleet.Load{Sandboxes: 2} },
			Machines: func() []string { return has },
			Lost: func(_ context.Context, machines []string) error {
				if runs.Load() == 1 {
					t.Error("something runs that others have")
				}
				lost.Add(int64(len(machines)))
				return nil
			},
		}))
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { _ = s.Run(ctx, fleet.NodeInfo{ID: "n", Incarnation: "1"}) })
		want := func(n int64, when string) {
			t.Helper()
			synctest.Wait()
			if runs.Load() != n {
				t.Errorf("%s, it runs: %d", when, runs.Load())
			}
		}
		time.Sleep(time.Hour)
		want(1, "while control answers")
		if s.Epoch() != 1 || o.load.Sandboxes != 2 {
			t.Errorf("the epoch is %d, the load %+v", s.Epoch(), o.load)
		}
		o.set(func() { o.away = true })
		time.Sleep(18 * time.Second)
		want(1, "while its lease is good")
		time.Sleep(8 * time.Second)
		want(0, "when its lease is over")
		o.set(func() { o.away = false })
		time.Sleep(6 * time.Second)
		want(1, "when it is renewed")
		o.set(func() { o.away = true })
		time.Sleep(time.Minute)
		o.set(func() { o.away, o.epoch, o.taken = false, 2, map[string]bool{"b": true} })
		time.Sleep(8 * time.Second)
		want(1, "when it joined in another epoch")
		if lost.Load() != 1 || s.Epoch() != 2 {
			t.Errorf("%d machines ended, and the epoch is %d", lost.Load(), s.Epoch())
		}
		cancel()
		run.Wait()
	})
}

// TestControlOverLoopback: a session works over the wire, where control forgets it.
func TestControlOverLoopback(t *testing.T) {
	t.Parallel()
	o := &office{}
	mux := http.NewServeMux()
	fleet.NewControlServer(o, func(*http.Request) string { return "" }).Register(mux)
	server := httptest.NewServer(mux)
	defer server.Close()
	c := fleet.NewControlClient(server.URL, nil)
	if refs, err := c.ImageRefs(t.Context()); err != nil || !slices.Equal(refs, []string{"base"}) {
		t.Errorf("%v, %v", refs, err)
	}
	s := fleet.NewSession(c, side(fleet.Side{}))
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() { _ = s.Run(ctx, fleet.NodeInfo{ID: "n", Incarnation: "1", SealKey: []byte{1, 2}}) })
	<-s.Joined()
	s.Report(fleet.Report{UID: "a", Seq: 9})
	o.set(func() { o.known = "" })
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		o.mu.Lock()
		state := fmt.Sprint(o.joins, o.recorded)
		o.mu.Unlock()
		if state == "[1 1] [9]" {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(state)
		}
	}
	cancel()
	run.Wait()
}

// TestReportsAreBounded: a full queue keeps the newest of each sandbox.
func TestReportsAreBounded(t *testing.T) {
	t.Parallel()
	q := fleet.NewReports()
	const sandboxes, each = 100, 1000
	for i := range sandboxes * each {
		q.Put(fleet.Report{UID: fmt.Sprint(i % sandboxes), Seq: uint64(i), Phase: doze.Running})
	}
	last, n := map[string]uint64{}, 0
	for n < 16<<10 {
		for _, r := range q.Next(t.Context(), 1000) {
			last[r.UID] = r.Seq
			n++
		}
	}
	for i := range sandboxes {
		if want := uint64(sandboxes*(each-1) + i); last[fmt.Sprint(i)] != want {
			t.Errorf("the last report of %d is %d, want %d", i, last[fmt.Sprint(i)], want)
		}
	}
}
