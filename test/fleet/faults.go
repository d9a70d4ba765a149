package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// wakeTime bounds the first answer of a sandbox after a fault.
	wakeTime = time.Minute
	// noticeTime bounds the time until the record of a sandbox says that it went back.
	noticeTime = 10 * time.Second
	// visitEvery is how often sandboxes are visited that are to stay awake. They fall asleep after
	// pauseAfter, and are on disk diskAfter later.
	visitEvery, pauseAfter, diskAfter, copyAfter = 300 * time.Millisecond, "1s", "1s", "1s"
	// goodTime is how long a fleet works between two rounds, at least: sandboxes sleep, and are copied.
	goodTime = 4 * time.Second
	// roundMost is how many faults a round has, at most. leastTime is for how long others may
	// happen while a short one lasts.
	roundMost, leastTime = 8, 12 * time.Second
	// everTime bounds an answer while a fault is none of the business of sandboxes.
	everTime = 10 * time.Second
	// eachAhead is how often a kind may have happened more than another one, and be next, if each
	// is to happen. It lets rounds be full.
	eachAhead = 2
	// ripeTime bounds the time until there are first copies.
	ripeTime = 4 * time.Minute
)

// options say what a run does.
type options struct {
	seed      uint64
	faults    int // how many
	sandboxes int
	only      string // part of the names of faults; empty: all of them
	times     int    // how often an upgrade restarts each process
	// each has all kinds happen about as often, in an order at random.
	each bool
	// clock is by how much the clock of this host is set wrong by some faults; 0: never.
	clock time.Duration
	say   func(string)
}

// counts is what a run ends with.
type counts struct {
	seed                    uint64
	faults, rounds          int
	asked                   int // requests during a fault that is none of the business of sandboxes
	kinds                   map[string]int
	rewinds                 int
	writes, lost            uint64
	moved                   int // sandboxes that were on another node after a fault
	wrong                   []string
	late                    []string      // answers that came late, or not, while nothing failed that they need
	load                    float64       // the highest of the host
	slowest                 time.Duration // answer after a fault
	slowestSettle, overWith time.Duration
	spent                   map[string]time.Duration // by what it was spent on
}

func (c counts) String() string {
	lines := []string{
		fmt.Sprintf("seed %d: %d faults, some at a time in %d rounds, in %s", c.seed, c.faults, c.rounds, c.overWith.Round(time.Second)),
		fmt.Sprintf("%d writes; %d returns to a checkpoint, which lost %d writes; %d sandboxes went to other nodes", c.writes, c.rewinds, c.lost, c.moved),
		fmt.Sprintf("after a fault: all nodes ready after %s at most, each sandbox answers after %s at most", c.slowestSettle.Round(time.Millisecond), c.slowest.Round(time.Millisecond)),
		fmt.Sprintf("%d requests while control, the records, the bucket or an edge failed alone; they had to be answered", c.asked),
		"spent " + c.spentOn(),
		fmt.Sprintf("%d wrong, %d late; the load of the host was up to %.0f", len(c.wrong), len(c.late), c.load),
	}
	for _, name := range slices.Sorted(maps.Keys(c.kinds)) {
		lines = append(lines, fmt.Sprintf("%4d %s", c.kinds[name], name))
	}
	return strings.Join(lines, "\n")
}

// spentOn says where the time of a run went.
func (c counts) spentOn() string {
	var parts []string
	for _, on := range slices.Sorted(maps.Keys(c.spent)) {
		parts = append(parts, fmt.Sprintf("%s on %s", c.spent[on].Round(time.Second), on))
	}
	return strings.Join(parts, ", ")
}

// trial is one run.
type trial struct {
	options

	f         *fleet
	recorder  *recorder
	witnesses []*witness
	counts    counts
	dice      *rand.Rand
	lost      atomic.Bool // a sandbox does not answer: the run ends
}

// try starts a fleet in an empty directory, and does harm to it.
func try(ctx context.Context, dir string, o options) (c counts, err error) {
	began := time.Now()
	f, err := start(ctx, dir, "--pause-after", pauseAfter, "--save-after", "0", "--disk-after", diskAfter, "--remote-after", copyAfter)
	if err != nil {
		return c, err
	}
	ctx, stop := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	defer func() {
		stop()
		tasks.Wait()
		err = errors.Join(err, f.close())
	}()
	f.clock = o.clock
	t := &trial{options: o, f: f, dice: rand.New(rand.NewPCG(o.seed, 0)), counts: counts{seed: o.seed, kinds: map[string]int{}, spent: map[string]time.Duration{}}} //nolint:gosec // G404: not a secret
	if len(t.kinds(nil)) == 0 {
		return c, fmt.Errorf("no fault has %q in its name", o.only)
	}
	t.recorder = newRecorder(o.say)
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(f.wire.here(), recorderPort))
	if err != nil {
		return c, err
	}
	tasks.Go(func() { t.recorder.serve(ctx, l) })
	for i := range o.sandboxes {
		w, err := f.witness(ctx, fmt.Sprintf("witness-%d", i), writeEvery)
		if err != nil {
			return c, fmt.Errorf("make a sandbox: %w", err)
		}
		t.witnesses = append(t.witnesses, w)
	}
	o.say(fmt.Sprintf("the fleet is ready after %s", time.Since(began).Round(time.Second)))
	if err := t.f.born(ctx, ripeTime, t.witnesses); err != nil {
		return c, err
	}
	if o.clock == 0 {
		o.say("the clock is left alone: -clock 10m has faults set that of the whole host wrong, and right again")
	}
	t.visitors(ctx, &tasks)
	for t.counts.faults < o.faults && err == nil && ctx.Err() == nil && !t.lost.Load() && len(t.counts.wrong)+len(t.counts.late) < faultsMax {
		err = t.round(ctx)
	}
	if t.lost.Load() { // what each process waits for is in its log then
		for _, name := range slices.Concat(controlNames(), nodeNames()) {
			err = errors.Join(err, f.leave(name, syscall.SIGQUIT))
		}
	}
	for _, w := range t.witnesses {
		t.counts.writes += t.recorder.last(w.name)
	}
	t.counts.overWith = time.Since(began)
	return t.counts, err
}

// visitors keep every second sandbox awake.
func (t *trial) visitors(ctx context.Context, tasks *sync.WaitGroup) {
	for i, w := range t.witnesses {
		if i%2 == 0 {
			continue
		}
		tasks.Go(func() {
			for pause(ctx, visitEvery) {
				bounded, cancel := context.WithTimeout(ctx, askTime)
				_, _ = t.f.visit(bounded, w, false) // after the fault it must answer
				cancel()
			}
		})
	}
}

// choose returns the faults of one round. Each goes into the queue of what it harms, where they
// follow each other. Queues go on at the same time. So while a fault lasts for long, others begin
// and end. All of a round have the same to be asked meanwhile.
func (t *trial) choose() (chosen []fault) {
	many := min(1+t.dice.IntN(roundMost), t.faults-t.counts.faults)
	queues := map[string]time.Duration{} // how long each lasts
	longest := leastTime
	for range 100 { // what does not fit may be followed by what does
		var as *meanwhile
		if len(chosen) > 0 {
			as = &chosen[0].meanwhile
		}
		kinds := t.kinds(as)
		if len(kinds) == 0 {
			break
		}
		k := kinds[t.dice.IntN(len(kinds))]
		one := k.make(t.f, nodeName(t.dice.IntN(nodes)), t.dice)
		one.meanwhile = k.meanwhile
		one.after = time.Duration(t.dice.Int64N(int64(2 * nodeLease)))
		if one.meanwhile != anything {
			one.after = 0 // the fleet recovers before the next one
		}
		queue := queues[one.queue()] + one.after + one.last
		if len(chosen) > 0 && one.meanwhile == anything && queue > longest {
			continue
		}
		queues[one.queue()], longest = queue, max(longest, queue)
		chosen = append(chosen, one)
		t.counts.kinds[k.name]++
		if len(chosen) == many {
			break
		}
	}
	return chosen
}

// kinds are those of which the next fault may be. In a round that has one already, the same has to
// be asked of sandboxes meanwhile.
func (t *trial) kinds(as *meanwhile) (all []kind) {
	for _, k := range harm {
		if strings.Contains(k.name, t.only) && (t.clock != 0 || k.name != clockKind) {
			all = append(all, k)
		}
	}
	least := t.faults
	for _, k := range all {
		least = min(least, t.counts.kinds[k.name])
	}
	return slices.DeleteFunc(all, func(k kind) bool {
		return t.each && t.counts.kinds[k.name] > least+eachAhead || as != nil && k.meanwhile != *as
	})
}

// spend adds the time since a moment to what was spent on something.
func (t *trial) spend(on string, since time.Time) { t.counts.spent[on] += time.Since(since) }

// wrong takes note of what must not be.
func (t *trial) wrong(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	t.say("WRONG: " + text)
	t.counts.wrong = append(t.counts.wrong, text)
}

// round has some faults happen, and looks at everything after that.
func (t *trial) round(ctx context.Context) error {
	chosen := t.choose()
	var names []string
	for _, one := range chosen {
		names = append(names, one.name)
	}
	what := strings.Join(names, " + ")
	good := time.Now()
	pause(ctx, goodTime+time.Duration(t.dice.Int64N(int64(time.Second))))
	t.spend("good times", good)
	t.say(fmt.Sprintf("%d of %d, %d wrong, %d late: %s", t.counts.faults+len(chosen), t.faults, len(t.counts.wrong), len(t.counts.late), what))
	before := t.places()
	began := time.Now()
	heard := t.meanwhile(ctx, chosen)
	err := t.f.suffer(ctx, chosen, t.say)
	for _, text := range heard() {
		text = fmt.Sprintf("during %s: %s", what, text)
		t.say("LATE: " + text)
		t.counts.late = append(t.counts.late, text)
	}
	t.counts.load = max(t.counts.load, hostLoad())
	t.spend("faults", began)
	if err != nil {
		return err
	}
	t.counts.faults, t.counts.rounds = t.counts.faults+len(chosen), t.counts.rounds+1
	over := time.Now()
	if err := t.f.settle(ctx); err != nil {
		return fmt.Errorf("after %s: %w", what, err)
	}
	t.counts.slowestSettle = max(t.counts.slowestSettle, time.Since(over))
	t.spend("nodes that join", over)
	ready := time.Now()
	var tasks sync.WaitGroup
	found := make([][]string, len(t.witnesses))
	slow := make([]time.Duration, len(t.witnesses))
	for i, w := range t.witnesses {
		tasks.Go(func() { found[i], slow[i] = t.examine(ctx, w) })
	}
	tasks.Wait()
	t.spend("answers", ready)
	t.counts.slowest = max(t.counts.slowest, slices.Max(slow))
	for _, text := range slices.Concat(found...) {
		t.wrong("after %s: %s", what, text)
	}
	t.ask(ctx, what, before)
	return nil
}

// ask compares what sandboxes lost with what was told of it.
func (t *trial) ask(ctx context.Context, what string, before map[string]string) {
	defer t.spend("notices", time.Now())
	after := t.places()
	late := make([]error, len(t.witnesses))
	told := make([][]notice, len(t.witnesses))
	var tasks sync.WaitGroup
	for i, w := range t.witnesses {
		tasks.Go(func() {
			late[i] = until(ctx, noticeTime, func() error { // its node may have had to join first
				more, err := t.f.notices(ctx, w)
				told[i] = append(told[i], more...)
				if err == nil && !t.recorder.told(w.name, told[i]) {
					err = errors.New("it has not said all yet")
				}
				return err
			})
		})
	}
	tasks.Wait()
	for i, w := range t.witnesses {
		wrong, rewinds, lost := t.recorder.settle(w.name, told[i])
		t.counts.rewinds, t.counts.lost = t.counts.rewinds+rewinds, t.counts.lost+lost
		for _, text := range wrong {
			t.wrong("after %s: %s (%v)", what, text, late[i])
		}
		if after[w.name] != before[w.name] {
			t.counts.moved++
		}
	}
}

// meanwhile asks all sandboxes while a fault lasts that is none of their business, until heard is
// called. That returns what is wrong.
func (t *trial) meanwhile(ctx context.Context, chosen []fault) (heard func() []string) {
	if chosen[0].meanwhile == anything {
		return func() []string { return nil }
	}
	ctx, stop := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	var mu sync.Mutex
	var wrong []string
	asked := 0
	for _, w := range t.witnesses {
		tasks.Go(func() {
			for pause(ctx, visitEvery) {
				bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), everTime)
				began := time.Now()
				visit := func() error {
					_, err := t.f.visit(bounded, w, false)
					return err
				}
				err := visit()
				if err != nil && chosen[0].meanwhile == soon {
					err = until(bounded, everTime, visit)
				}
				cancel()
				mu.Lock()
				asked++
				if err != nil && len(wrong) < faultsMax {
					wrong = append(wrong, fmt.Sprintf("%s did not answer at %s, for %s: %v", w.name, began.Format(clockForm), time.Since(began).Round(time.Millisecond), err))
				}
				mu.Unlock()
			}
		})
	}
	return func() []string {
		stop()
		tasks.Wait()
		t.counts.asked += asked
		return wrong
	}
}

// examine waits until a sandbox answers, and returns what is wrong with it.
func (t *trial) examine(ctx context.Context, w *witness) (wrong []string, took time.Duration) {
	began := time.Now()
	var s said
	err := until(ctx, wakeTime, func() error {
		bounded, cancel := context.WithTimeout(ctx, wakeTime)
		defer cancel()
		got, err := t.f.visit(bounded, w, true)
		s = got
		return err
	})
	took = time.Since(began)
	switch {
	case err != nil:
		wrong = append(wrong, fmt.Sprintf("%s does not answer: %v", w.name, err))
		t.lost.Store(true)
		return wrong, took
	case s.Born != w.born:
		wrong = append(wrong, fmt.Sprintf("%s began anew", w.name))
	case len(s.Bad) > 0:
		wrong = append(wrong, fmt.Sprintf("%s has other bytes in its memory: %v", w.name, s.Bad))
	}
	// It must reach the recorder, too: one that nobody hears of proves nothing.
	n := t.recorder.last(w.name)
	err = until(ctx, wakeTime, func() error {
		if _, err := t.f.visit(ctx, w, false); err != nil {
			return err
		}
		if t.recorder.last(w.name) == n {
			return errors.New("it writes nothing")
		}
		return nil
	})
	if err != nil {
		wrong = append(wrong, fmt.Sprintf("%s tells nobody that it runs: %v", w.name, err))
	}
	return wrong, took
}

// places says on which node each sandbox is, by what nodes have on their disks. Several may
// have one, of which all but one are to forget it.
func (t *trial) places() map[string]string {
	at := map[string]string{}
	for _, node := range nodeNames() {
		for name := range t.f.has(node) {
			at[name] += node + " "
		}
	}
	return at
}

// verdict is an error if something was wrong, or late. A host that is busy with other things is
// late, and needs longer leases.
func (c counts) verdict(err error) error {
	if all := slices.Concat(c.wrong, c.late); len(all) > 0 {
		err = errors.Join(err, errors.New(strings.Join(all[:min(len(all), faultsMax)], "\n")))
	}
	return err
}

// hostLoad is how many tasks of the host want a processor, over the last minute.
func hostLoad() (one float64) {
	raw, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, err = fmt.Sscan(string(raw), &one)
	}
	if err != nil {
		return 0 // it is only told
	}
	return one
}
