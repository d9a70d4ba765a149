package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze/internal/machine"
)

const (
	// spareIdle is how long a spare machine waits for its sandbox.
	spareIdle = 10 * time.Minute
	// demandTime is how far back creates are counted: as many may come again.
	demandTime = time.Minute
)

// demand is when sandboxes of a kind were created lately, the oldest first.
type demand map[string][]time.Time

// note counts a create of a kind, and returns how many there were lately.
func (d demand) note(kind string, now time.Time) int {
	for k, times := range d {
		times = slices.DeleteFunc(times, func(t time.Time) bool { return now.Sub(t) > demandTime })
		if d[k] = times; len(times) == 0 {
			delete(d, k)
		}
	}
	d[kind] = append(d[kind], now)
	return len(d[kind])
}

// spare is a machine that is nobody's yet: its agent has answered, and it stands
// still in memory.
type spare struct {
	machine.Machine

	n      *Node
	config machine.Config
	key    string
	since  time.Time
}

// end destroys a machine that nobody got.
func (s *spare) end(ctx context.Context) error {
	if err := s.Close(ctx); err != nil {
		return fmt.Errorf("end a spare machine: %w", err)
	}
	s.n.reservations.release(s.config.ID)
	return s.n.Release(s.config.ID)
}

// Warm returns how many machines have booted and belong to no sandbox.
func (n *Node) Warm() int {
	n.ahead.mu.Lock()
	defer n.ahead.mu.Unlock()
	return len(n.ahead.spares)
}

// launch starts a machine like c that is nobody's, and returns when its agent
// answers.
func (a *ahead) launch(ctx context.Context, c machine.Config) (_ *spare, err error) {
	c.ID = "spare-" + strings.ToLower(rand.Text())
	c.Dir, c.Hostname = filepath.Join(a.n.Ahead, machineDir, c.ID), "sandbox"
	var u undo
	defer u.unwind(&err)
	if !a.n.reservations.reserve(c.ID, a.n.need(c)) { // nobody makes room for what nobody asked for
		return nil, machine.ErrNoMemory
	}
	u.push(func() error { a.n.reservations.release(c.ID); return nil })
	u.push(func() error { return a.n.Release(c.ID) })
	if c.Link, err = a.n.Lease(ctx, c.ID); err != nil {
		return nil, fmt.Errorf("lease an address: %w", err)
	}
	m, err := a.n.Driver.Boot(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("boot: %w", err)
	}
	u.push(func() error { return m.Close(context.WithoutCancel(ctx)) })
	if err := agentOf(ctx, m).Healthy(ctx); err != nil {
		return nil, fmt.Errorf("wait for the agent: %w", err)
	}
	return &spare{Machine: m, n: a.n, config: c, key: key(c), since: time.Now()}, nil
}

// fill makes n spare machines like c, in place of others. It waits for its turn
// among the sandboxes that are being created: theirs are wanted now.
func (a *ahead) fill(ctx context.Context, c machine.Config, n int) error {
	for a.count(key(c)) < n {
		leave, err := a.n.creates.enter(ctx, nobody)
		if err != nil {
			return err
		}
		err = a.addOne(ctx, c)
		leave()
		if err != nil {
			return fmt.Errorf("make a spare machine: %w", err)
		}
		a.shrink(ctx, n, time.Time{})
	}
	return nil
}

// nobody is the workspace of what belongs to none.
const nobody = ""

func (a *ahead) addOne(ctx context.Context, c machine.Config) error {
	ctx, cancel := context.WithTimeout(ctx, aheadTimeout)
	defer cancel()
	s, err := a.launch(ctx, c)
	if err != nil {
		return err
	}
	if err := s.Suspend(ctx, machine.Paused); err != nil {
		return errors.Join(err, s.end(context.WithoutCancel(ctx)))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.spares = append(a.spares, s)
	return nil
}

// count returns how many spare machines there are for a key.
func (a *ahead) count(key string) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, s := range a.spares {
		if s.key == key {
			n++
		}
	}
	return n
}

// take gives the youngest spare machine like c away, or nil.
func (a *ahead) take(c machine.Config) *spare {
	if c.From != "" {
		return nil
	}
	want := key(c)
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, s := range slices.Backward(a.spares) {
		if s.key == want {
			a.spares = slices.Delete(a.spares, i, i+1)
			return s
		}
	}
	return nil
}

// giveUp ends the oldest spare machine, and reports false if there is none.
func (a *ahead) giveUp(ctx context.Context) bool {
	a.mu.Lock()
	if len(a.spares) == 0 {
		a.mu.Unlock()
		return false
	}
	oldest := a.spares[0]
	a.spares = a.spares[1:]
	a.mu.Unlock()
	if err := oldest.end(ctx); err != nil {
		slog.Error("end a spare machine", "machine", oldest.config.ID, "err", err)
	}
	return true
}

// shrink ends the oldest spare machines as long as there are more than n that
// were made before a time, if one is given. It gives up when ctx ends.
func (a *ahead) shrink(ctx context.Context, n int, before time.Time) {
	for ctx.Err() == nil {
		a.mu.Lock()
		if len(a.spares) <= n || !before.IsZero() && !a.spares[0].since.Before(before) {
			a.mu.Unlock()
			return
		}
		oldest := a.spares[0]
		a.spares = a.spares[1:]
		a.mu.Unlock()
		if err := oldest.end(ctx); err != nil {
			slog.Error("end a spare machine", "machine", oldest.config.ID, "err", err)
		}
	}
}
