package e2e_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dozehq/doze/client"
)

// TestCycles sends four callers to a sandbox that falls asleep whenever they
// leave it alone for a moment, until it did so a hundred times. No request
// fails, and no answer is lost or doubled.
func TestCycles(t *testing.T) {
	t.Parallel()
	const cycles, callers = 100, 4
	p, c := start(t, "--pause-after", "50ms", "--save-after", "20ms", "--disk-after", "200ms")
	sb, agent := create(t, c, named("cycles", 2048))
	url := hold(t, p, sb, agent, 8, 0)
	before := sum(t, p, url+"/bytes")

	var requests atomic.Int64
	ask := func() {
		resp, err := call{url: url + "/count"}.open(t.Context(), p)
		if err != nil {
			t.Error(err)
			return
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("%s %s %v", resp.Status, body, err)
			return
		}
		requests.Add(1)
	}
	_, first := get(t, p, url+"/count")
	wakes := func() int { return strings.Count(p.Printed(), `"msg":"woke"`) }
	began, woken := time.Now(), 0
	for round := 0; woken < cycles && !t.Failed() && time.Since(began) < 3*patience; round++ {
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range 1 + rand.IntN(3) {
					time.Sleep(rand.N(20 * time.Millisecond))
					ask()
				}
			})
		}
		all.Wait()
		// Around the moment in which it falls asleep, and now and then so long
		// that it goes to disk.
		quiet := 45*time.Millisecond + rand.N(40*time.Millisecond)
		if round%20 == 19 {
			quiet = 700 * time.Millisecond
		}
		time.Sleep(quiet)
		woken = wakes()
	}
	_, last := get(t, p, url+"/count")
	t.Logf("%d requests and %d wakes in %v", requests.Load(), woken, time.Since(began).Round(time.Millisecond))
	if woken < cycles {
		t.Errorf("it woke %d times only", woken)
	}
	if got := number(t, last) - number(t, first) - 1; int64(got) != requests.Load() {
		t.Errorf("it saw %v requests, and %d were made", got, requests.Load())
	}
	if after := sum(t, p, url+"/bytes"); after != before {
		t.Errorf("its memory is %s and was %s", after, before)
	}
}

// TestStorm wakes ten sandboxes from disk at the same time, each by several
// callers.
func TestStorm(t *testing.T) {
	t.Parallel()
	const sandboxes, callers = 10, 3
	p, c := start(t, "--pause-after", "300ms", "--save-after", "100ms", "--disk-after", "300ms")
	agents := make([]*client.Agent, sandboxes)
	for i := range agents {
		_, agents[i] = create(t, c, named(fmt.Sprintf("storm-%d", i), 2048))
		spawn(t, agents[i], client.Command{Name: "alive", Command: "exec sleep 1000"})
		put(t, agents[i], "/dev/shm/id", fmt.Sprint(i))
	}
	for i := range agents {
		awaitTier(t, p, fmt.Sprintf("storm-%d", i), "disk")
	}
	var (
		all     sync.WaitGroup
		slowest atomic.Int64
	)
	for i, agent := range agents {
		for range callers {
			all.Go(func() {
				began := time.Now()
				r, err := agent.ReadFile(t.Context(), "/dev/shm/id")
				if err != nil {
					t.Errorf("%d: %v", i, err)
					return
				}
				defer r.Close()
				if id, err := io.ReadAll(r); err != nil || string(id) != fmt.Sprint(i) {
					t.Errorf("%d: says %q, %v", i, id, err)
				}
				slowest.Store(max(slowest.Load(), int64(time.Since(began))))
				if proc, err := agent.Process(t.Context(), "alive"); err != nil || proc.Status != "running" {
					t.Errorf("%d: its process is %q, %v", i, proc.Status, err)
				}
			})
		}
	}
	all.Wait()
	t.Logf("the slowest of %d answers took %v", sandboxes*callers, time.Duration(slowest.Load()).Round(time.Millisecond))
}
