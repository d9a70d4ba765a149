package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	// rareWrites is how often each of many sandboxes tells the recorder that it runs.
	rareWrites = time.Second
	// createsMost is how many sandboxes are made at a time.
	createsMost = 4
	// lossTime bounds a takeover.
	lossTime = 5 * time.Minute
	// singly is how many sandboxes are asked one after the other.
	singly = 10

	// What processes say in their logs. Control says when others may have what a node had. Nodes say
	// when they have a sandbox of another node, when one sank, and when one is in the bucket.
	lostText, placedText, sankText, savedText = "a node is lost: its lease is over", "a sandbox of another node is here", "sank", "a sandbox is in the bucket"
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

// ripe waits until the bucket has a copy of each sandbox, of any moment. Where a sandbox may go back
// to it, born is right.
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

// born waits until the bucket has a copy of each sandbox from after its process began: from
// an older one the process would begin anew. The first copy that is new may have been on its
// way before, and the second was not.
func (f *fleet) born(ctx context.Context, most time.Duration, all []*witness) error {
	for range 2 {
		before := map[string]string{}
		for _, w := range all {
			if _, err := f.visit(ctx, w, false); err != nil { // it writes, and so there is something to copy
				return err
			}
			before[w.name] = f.newest(w.name)
		}
		err := until(ctx, most, func() error {
			for _, w := range all {
				if f.newest(w.name) <= before[w.name] {
					return fmt.Errorf("%s has no new copy in the bucket", w.name)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// spread are times, and how they are printed.
type spread []time.Duration

func (s spread) String() string {
	if len(s) == 0 {
		return "none"
	}
	return fmt.Sprintf("p50 %s, p95 %s, p99 %s, max %s (%d)", s.at(0.5), s.at(0.95), s.at(0.99), s.at(1), len(s))
}

// at is the time that a part of all took at most. Of none it is 0.
func (s spread) at(part float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(len(s)-1, int(part*float64(len(s))))].Round(time.Millisecond)
}

// ratio is how many times as long as in another spread a part took at most.
func (s spread) ratio(to spread, part float64) float64 {
	return float64(s.at(part)) / float64(max(1, to.at(part)))
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
	err = f.born(ctx, lossTime, all)
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
	before := f.computed()
	answered, err := f.askAll(ctx, all)
	if err != nil {
		return err
	}
	each := f.computed().since(before) / time.Duration(len(all))
	lost, err := f.lostAt(f.ids[first], killed)
	if err != nil {
		return err
	}
	var after, placed spread
	for _, at := range answered {
		after = append(after, max(0, at.Sub(lost)))
	}
	for _, name := range nodeNames() {
		for _, at := range f.logged(name, placedText, killed) {
			placed = append(placed, at.Sub(lost))
		}
	}
	var ages [2]spread
	var told int
	for i, w := range all {
		notices, err := f.notices(ctx, w)
		if err != nil {
			return err
		}
		kind := 0
		if i >= asleep {
			kind = 1
		}
		for _, n := range notices {
			told++
			ages[kind] = append(ages[kind], killed.Sub(n.checkpoint))
		}
		if err := f.right(r, w, notices, say); err != nil {
			return err
		}
	}
	fmt.Printf("the lease of %s was over %s after its node was killed; %d notices (load %s)\n", nodeLease, lost.Sub(killed).Round(time.Millisecond), told, loadOf())
	fmt.Printf("after the end of the lease, each had its node: %s\n", placed)
	fmt.Printf("%d that slept: first answer after that: %s; went back, age of their state: %s\n", asleep, after[:asleep], ages[0])
	fmt.Printf("%d that ran:   first answer after that: %s; went back, age of their state: %s\n", awake, after[asleep:], ages[1])
	if answers != "" {
		raw, err := json.Marshal(map[string]spread{"slept": after[:asleep], "ran": after[asleep:]})
		if err = errors.Join(err, os.WriteFile(answers, raw, 0o600)); err != nil {
			return err
		}
	}
	answered, err = f.yardstick(ctx, all, answered, after, each, say)
	if err != nil {
		return err
	}
	return f.oneByOne(ctx, r, all, answered, say)
}

// work is what processes have used of the processors, by their ids.
type work map[int]time.Duration

// since is what processes used that still run, after an earlier look.
func (w work) since(before work) (all time.Duration) {
	for pid, used := range w {
		all += used - before[pid]
	}
	return all
}

// computed is what all that runs of the fleet has used: processes of roles, the bucket, and machines.
// The servers of the database end with each connection, and are left out.
func (f *fleet) computed() work {
	var pids []int
	for name := range f.all {
		pids = append(pids, f.pid(name))
	}
	for _, name := range nodeNames() {
		pids = append(pids, f.teardown(name).Processes()...)
	}
	all := work{}
	for _, pid := range pids {
		if used, err := testkit.CPUTime(pid); err == nil { // or it has ended
			all[pid] = used
		}
	}
	return all
}

// askAll asks all witnesses at once, until each has answered, and returns when they did.
func (f *fleet) askAll(ctx context.Context, all []*witness) ([]time.Time, error) {
	answered := make([]time.Time, len(all))
	group, asking := errgroup.WithContext(ctx)
	for i, w := range all {
		group.Go(func() (err error) {
			answered[i], err = f.answer(asking, w)
			return err
		})
	}
	return answered, group.Wait()
}

// answer asks a witness until it answers with the memory that it had, and returns when it did.
func (f *fleet) answer(ctx context.Context, w *witness) (at time.Time, err error) {
	return at, until(ctx, lossTime, func() error {
		s, err := f.visit(ctx, w, true)
		if err == nil && (s.Born != w.born || len(s.Bad) > 0) {
			return fmt.Errorf("%s is another one, or has other bytes: %+v", w.name, s)
		}
		at = time.Now()
		return err
	})
}

// right returns what the recorder finds wrong with a witness that has these notices.
func (f *fleet) right(r *recorder, w *witness, notices []notice, say func(string)) (err error) {
	wrong, _, _ := r.settle(w.name, notices)
	for _, text := range wrong {
		say("WRONG: " + text)
		err = errors.Join(err, errors.New(text))
	}
	return err
}

// yardstick asks the same sandboxes at once when they sleep on the disks of nodes that live, and
// prints how much longer a loss took. They answered last at the times before, and answer now at
// those that it returns. On a host that others keep busy, times say less than each: it is what one
// took of the processors after the loss.
func (f *fleet) yardstick(ctx context.Context, all []*witness, before []time.Time, loss spread, each time.Duration, say func(string)) ([]time.Time, error) {
	if err := f.told(ctx, sankText, all, before); err != nil {
		return nil, err
	}
	pause(ctx, 2*time.Second) // copies of them may be under way
	say("all sleep on the disks of their nodes")
	asked, began := time.Now(), f.computed()
	answered, err := f.askAll(ctx, all)
	if err != nil {
		return nil, err
	}
	wake := f.computed().since(began) / time.Duration(len(all))
	var own spread
	for _, at := range answered {
		own = append(own, at.Sub(asked))
	}
	fmt.Printf("all %d, after the end of the lease: %s\n", len(all), loss)
	fmt.Printf("all %d, from the disks of nodes that live: %s (load %s)\n", len(all), own, loadOf())
	fmt.Printf("a loss takes %.1f times as long at p50, and %.1f times as long at most\n", loss.ratio(own, 0.5), loss.ratio(own, 1))
	fmt.Printf("of the processors, each took %s after the loss and %s from the disk, which is %.1f times as much\n",
		each.Round(time.Millisecond), wake.Round(time.Millisecond), each.Seconds()/wake.Seconds())
	return answered, nil
}

// oneByOne loses another node, and asks some of its sandboxes one after the other. They answered
// last at the times before.
func (f *fleet) oneByOne(ctx context.Context, r *recorder, all []*witness, before []time.Time, say func(string)) error {
	if err := f.told(ctx, savedText, all, before); err != nil {
		return err
	}
	second, uids := "", map[string]string{}
	for _, name := range nodeNames() {
		if has := f.has(name); f.all[name].runs() && len(has) > len(uids) {
			second, uids = name, has
		}
	}
	killed := time.Now()
	if err := f.killNode(second); err != nil {
		return err
	}
	say(second + " is dead, too")
	err := until(ctx, lossTime, func() error {
		_, err := f.lostAt(f.ids[second], killed)
		return err
	})
	if err != nil {
		return err
	}
	var took spread
	for _, w := range all {
		if uids[w.name] == "" || len(took) == singly {
			continue
		}
		began := time.Now()
		at, err := f.answer(ctx, w)
		if err != nil {
			return err
		}
		took = append(took, at.Sub(began))
		notices, err := f.notices(ctx, w)
		if err = errors.Join(err, f.right(r, w, notices, say)); err != nil {
			return err
		}
	}
	fmt.Printf("of %d that slept on %s, some were asked one after the other, from the end of its lease on: %s (load %s)\n",
		len(uids), second, took, loadOf())
	return nil
}

// told waits until the node of each witness has said something of it since a moment. Of moves
// down, those to disk count alone.
func (f *fleet) told(ctx context.Context, text string, all []*witness, since []time.Time) error {
	return until(ctx, lossTime, func() error {
		pause(ctx, time.Second)        // logs are long
		said := map[string]time.Time{} // by name
		for _, node := range nodeNames() {
			if !f.all[node].runs() {
				continue
			}
			times := f.logged(node, text, time.Time{})
			for name, uid := range f.has(node) {
				said[name] = times[uid]
			}
		}
		for i, w := range all {
			if !said[w.name].After(since[i]) {
				return fmt.Errorf("no node said %q of %s", text, w.name)
			}
		}
		return nil
	})
}

// logged is when a process said something since a moment, by the sandbox or node that it was
// about. The last time counts.
func (f *fleet) logged(name, text string, since time.Time) map[string]time.Time {
	raw, err := os.ReadFile(f.all[name].log)
	if err != nil {
		return nil // it has said nothing
	}
	all := map[string]time.Time{}
	for lines := bufio.NewScanner(bytes.NewReader(raw)); lines.Scan(); {
		var line struct {
			Time                     time.Time
			Msg, Node, Sandbox, Tier string
		}
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == text && line.Time.After(since) && (line.Tier == "" || line.Tier == "disk") {
			all[cmp.Or(line.Sandbox, line.Node)] = line.Time
		}
	}
	return all
}

// lostAt is when control said that a node is lost, after a moment.
func (f *fleet) lostAt(id string, since time.Time) (time.Time, error) {
	if at, said := f.logged(controlHost, lostText, since)[id]; said {
		return at, nil
	}
	return time.Time{}, errors.New("control did not say that the node is lost")
}

// loadOf is the load of this host, which others may keep busy.
func loadOf() string {
	raw, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	load, _, _ := strings.Cut(string(raw), " ")
	return load
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
