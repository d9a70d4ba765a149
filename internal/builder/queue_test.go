package builder

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// line is a queue in a test, and what was told to those who wait in it.
type line struct {
	*queue

	mu    sync.Mutex
	told  map[string][]int // guarded by mu; places, by the name of a build
	begun []string         // guarded by mu; builds in the order in which they began
	ends  map[string]func()
}

func newLine(most, each int) *line {
	return &line{queue: newQueue(most, each), told: map[string][]int{}, ends: map[string]func(){}}
}

// join has a build wait for its turn in a goroutine, and returns when it waits or has it.
func (l *line) join(ctx context.Context, name, workspace string) (ended <-chan error) {
	done := make(chan error, 1)
	go func() {
		leave, err := l.enter(ctx, workspace, func(place, _ int) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.told[name] = append(l.told[name], place)
		})
		l.mu.Lock()
		defer l.mu.Unlock()
		if err == nil {
			l.begun = append(l.begun, name)
			l.ends[name] = leave
		}
		done <- err
	}()
	synctest.Wait()
	return done
}

// end ends the turn of a build.
func (l *line) end(names ...string) {
	for _, name := range names {
		l.mu.Lock()
		leave := l.ends[name]
		l.mu.Unlock()
		leave()
		leave() // it counts once
		synctest.Wait()
	}
}

func TestQueueIsInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(2, 2)
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			l.join(t.Context(), name, name)
		}
		if !slices.Equal(l.begun, []string{"a", "b"}) {
			t.Errorf("at first there began %v", l.begun)
		}
		l.end("b", "a", "c", "d", "e")
		if want := []string{"a", "b", "c", "d", "e"}; !slices.Equal(l.begun, want) {
			t.Errorf("they began as %v, want %v", l.begun, want)
		}
		for name, want := range map[string][]int{"a": nil, "b": nil, "c": {1}, "d": {2, 1}, "e": {3, 2, 1}} {
			if !slices.Equal(l.told[name], want) {
				t.Errorf("%s was told the places %v, want %v", name, l.told[name], want)
			}
		}
		if l.total != 0 || len(l.running) != 0 || len(l.waiting) != 0 {
			t.Errorf("in the end there are %d builds, %v, %v", l.total, l.running, l.waiting)
		}
	})
}

// TestQueueIsFair: a workspace with many builds has no other one wait for it.
func TestQueueIsFair(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(4, 2)
		for _, name := range []string{"a1", "a2", "a3", "a4"} {
			l.join(t.Context(), name, "a")
		}
		l.join(t.Context(), "b1", "b")
		if want := []string{"a1", "a2", "b1"}; !slices.Equal(l.begun, want) {
			t.Errorf("there began %v, want %v", l.begun, want)
		}
		l.end("b1")
		if len(l.begun) != 3 {
			t.Errorf("a turn of another workspace was taken: %v", l.begun)
		}
		l.end("a1", "a2", "a3", "a4")
	})
}

// TestQueueIsLeft: who gives up leaves no gap, and who got its turn in that moment has it.
func TestQueueIsLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLine(1, 1)
		l.join(t.Context(), "a", "a")
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := l.join(ctx, "b", "b")
		l.join(t.Context(), "c", "c")
		enough := errors.New("enough")
		cancel(enough)
		if err := <-gone; !errors.Is(err, enough) {
			t.Errorf("who gives up is told %v", err)
		}
		synctest.Wait()
		if want := []int{2, 1}; !slices.Equal(l.told["c"], want) {
			t.Errorf("the next was told the places %v, want %v", l.told["c"], want)
		}
		l.end("a", "c")
		if l.total != 0 || len(l.waiting) != 0 {
			t.Errorf("in the end there are %d builds, %v", l.total, l.waiting)
		}
	})
}
