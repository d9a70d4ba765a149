package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze"
)

const (
	// rareWrites is how often each of many sandboxes tells the recorder that it runs.
	rareWrites = time.Second
	// createsMost is how many sandboxes are made at a time.
	createsMost = 4
	// lossTime bounds a takeover.
	lossTime = 5 * time.Minute
	// lostText is what control says when others may have what a node had.
	lostText = "a node is lost: its lease is over"
)

// many makes sandboxes, some at a time.
func (f *fleet) many(ctx context.Context, n int) ([]*witness, error) {
	all := make([]*witness, n)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(createsMost)
	for i := range all {
		group.Go(func() (err error) {
			all[i], err = f.witness(ctx, fmt.Sprintf("witness-%d", i), rareWrites)
			return err
		})
	}
	return all, group.Wait()
}

// record answers the sandboxes of a fleet until stop is called.
func record(ctx context.Context, f *fleet, say func(string)) (r *recorder, stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(f.wire.here(), recorderPort))
	if err != nil {
		cancel()
		return nil, nil, err
	}
	r = newRecorder(say)
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		r.serve(ctx, l)
	}()
	return r, func() { cancel(); <-done }, nil
}

// cordon has all nodes but one take no new sandboxes, or take them again.
func (f *fleet) cordon(ctx context.Context, but, word string) error {
	for _, name := range nodeNames() {
		if name == but {
			continue
		}
		if err := f.ask(ctx, http.MethodPost, "/platform/nodes/"+f.ids[name]+"/"+word, nil); err != nil {
			return err
		}
	}
	return nil
}

// ripe waits until the bucket has a copy of each sandbox.
func (f *fleet) ripe(ctx context.Context, most time.Duration, all []*witness) error {
	return until(ctx, most, func() error {
		for _, w := range all {
			if !f.copied(w.name) {
				return fmt.Errorf("%s is not in the bucket", w.name)
			}
		}
		return nil
	})
}

// spread are times, and how they are printed.
type spread []time.Duration

func (s spread) String() string {
	if len(s) == 0 {
		return "none"
	}
	s = slices.Sorted(slices.Values(s))
	at := func(part float64) time.Duration {
		return s[min(len(s)-1, int(part*float64(len(s))))].Round(time.Millisecond)
	}
	return fmt.Sprintf("p50 %s, p95 %s, p99 %s, max %s (%d)", at(0.5), at(0.95), at(0.99), s[len(s)-1].Round(time.Millisecond), len(s))
}

// takeover kills a node with sandboxes that sleep and others that run, and prints how soon
// each answers elsewhere. The times go to a file, too, unless answers is empty.
func takeover(ctx context.Context, dir string, asleep, awake int, answers string, say func(string)) (err error) {
	f, err := start(ctx, dir, "--pause-after", "3s", "--save-after", "0", "--disk-after", diskAfter, "--remote-after", copyAfter)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	r, stop, err := record(ctx, f, say)
	if err != nil {
		return err
	}
	defer stop()
	first := nodeName(0)
	if err := f.cordon(ctx, first, "cordon"); err != nil {
		return err
	}
	all, err := f.many(ctx, asleep+awake)
	if err != nil {
		return err
	}
	say(fmt.Sprintf("%d sandboxes are on %s", len(f.has(first)), first))
	err = f.ripe(ctx, lossTime, all)
	if err = errors.Join(err, f.cordon(ctx, first, "uncordon")); err != nil {
		return err
	}
	say("all of them are in the bucket")
	visits, end := context.WithCancel(ctx)
	defer end()
	var tasks sync.WaitGroup
	var woken atomic.Int64
	for _, w := range all[asleep:] {
		tasks.Go(func() {
			for first := true; pause(visits, time.Second); {
				if _, err := f.visit(visits, w, false); err == nil && first {
					first = false
					woken.Add(1)
				}
			}
		})
	}
	err = until(ctx, lossTime, func() error {
		if n := woken.Load(); n < int64(awake) {
			return fmt.Errorf("%d of %d run", n, awake)
		}
		return nil
	})
	if err != nil {
		return err
	}
	pause(ctx, 10*time.Second) // those that run have something to lose
	end()
	tasks.Wait()
	killed := time.Now()
	if err := f.killNode(first); err != nil {
		return err
	}
	say(first + " is dead")
	answered := make([]time.Time, len(all))
	group, asking := errgroup.WithContext(ctx)
	for i, w := range all {
		group.Go(func() error {
			return until(asking, lossTime, func() error {
				s, err := f.visit(asking, w, true)
				if err == nil && (s.Born != w.born || len(s.Bad) > 0) {
					return fmt.Errorf("%s is another one, or has other bytes: %+v", w.name, s)
				}
				answered[i] = time.Now()
				return err
			})
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	lost, err := f.lostAt(f.ids[first], killed)
	if err != nil {
		return err
	}
	var kinds [2]struct{ after, age spread }
	var told int
	for i, w := range all {
		k := &kinds[0]
		if i >= asleep {
			k = &kinds[1]
		}
		k.after = append(k.after, max(0, answered[i].Sub(lost)))
		notices, err := f.notices(ctx, w)
		if err != nil {
			return err
		}
		for _, n := range notices {
			told++
			k.age = append(k.age, killed.Sub(n.checkpoint))
		}
		wrong, _, _ := r.settle(w.name, notices)
		for _, text := range wrong {
			say("WRONG: " + text)
			err = errors.Join(err, errors.New(text))
		}
		if err != nil {
			return err
		}
	}
	fmt.Printf("the lease of %s was over %s after its node was killed; %d notices\n", nodeLease, lost.Sub(killed).Round(time.Millisecond), told)
	fmt.Printf("%d that slept: first answer after that: %s; went back, age of their state: %s\n", asleep, kinds[0].after, kinds[0].age)
	fmt.Printf("%d that ran:   first answer after that: %s; went back, age of their state: %s\n", awake, kinds[1].after, kinds[1].age)
	if answers == "" {
		return nil
	}
	raw, err := json.Marshal(map[string]spread{"slept": kinds[0].after, "ran": kinds[1].after})
	return errors.Join(err, os.WriteFile(answers, raw, 0o600))
}

// lostAt is when control said that a node is lost, after a moment.
func (f *fleet) lostAt(id string, since time.Time) (time.Time, error) {
	raw, err := os.ReadFile(f.all[controlHost].log)
	if err != nil {
		return time.Time{}, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		var line struct {
			Time      time.Time
			Msg, Node string
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == lostText && line.Node == id && line.Time.After(since) {
			return line.Time, nil
		}
	}
	return time.Time{}, errors.New("control did not say that the node is lost")
}

// drained is what came of drains under load.
type drained struct {
	nodes, moved, stayed int
	requests, failed     int
	took                 spread // of each drain
	waited               spread // of requests to sandboxes that moved, which ended meanwhile
	errors               []string
}

func (d drained) String() string {
	return fmt.Sprintf("drained %d nodes: %d sandboxes moved, %d stayed; each drain took: %s\n%d requests, %d failed; they took: %s",
		d.nodes, d.moved, d.stayed, d.took, d.requests, d.failed, d.waited)
}

// loadEvery is the pause between two requests to one sandbox.
const loadEvery = 20 * time.Millisecond

// drain drains the nodes of a fleet, one after the other, while all sandboxes are asked all
// the time.
func drain(ctx context.Context, dir string, many int, say func(string)) (d drained, err error) {
	f, err := start(ctx, dir, "--pause-after", pauseAfter, "--disk-after", "10s", "--remote-after", copyAfter)
	if err != nil {
		return d, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	r, stop, err := record(ctx, f, say)
	if err != nil {
		return d, err
	}
	defer stop()
	all, err := f.many(ctx, many)
	if err != nil {
		return d, err
	}
	// The first copy of all takes the files of the image, too, and longer than a request waits.
	if err := f.ripe(ctx, lossTime, all); err != nil {
		return d, err
	}
	load, end := context.WithCancel(ctx)
	defer end()
	var tasks sync.WaitGroup
	var mu sync.Mutex
	for _, w := range all {
		tasks.Go(func() {
			for pause(load, loadEvery) {
				began := time.Now()
				_, err := f.visit(ctx, w, false) // the end of the load cuts none
				mu.Lock()
				d.requests++
				d.waited = append(d.waited, time.Since(began))
				if err != nil {
					d.failed++
					d.errors = append(d.errors, fmt.Sprintf("%s: %v", w.name, err))
				}
				mu.Unlock()
			}
		})
	}
	pause(ctx, 2*time.Second)
	for _, name := range nodeNames() {
		began := time.Now()
		var got doze.Drained
		if err = f.ask(ctx, http.MethodPost, "/platform/nodes/"+f.ids[name]+"/drain", &got); err != nil {
			break
		}
		d.nodes, d.moved, d.stayed, d.took = d.nodes+1, d.moved+got.Moved, d.stayed+got.Stayed, append(d.took, time.Since(began))
		say(fmt.Sprintf("drained %s: %+v", name, got))
		if err = f.ask(ctx, http.MethodPost, "/platform/nodes/"+f.ids[name]+"/uncordon", nil); err != nil {
			break
		}
	}
	pause(ctx, 2*time.Second)
	end()
	tasks.Wait()
	for _, text := range d.errors[:min(len(d.errors), faultsMax)] {
		err = errors.Join(err, errors.New(text))
	}
	for _, w := range all {
		if s, none := f.visit(ctx, w, true); none != nil || s.Born != w.born || len(s.Bad) > 0 {
			err = errors.Join(err, none, fmt.Errorf("%s is another one, or has other bytes: %+v", w.name, s))
		}
		wrong, _, _ := r.settle(w.name, nil) // a move loses nothing
		for _, text := range wrong {
			err = errors.Join(err, errors.New(text))
		}
	}
	return d, err
}
