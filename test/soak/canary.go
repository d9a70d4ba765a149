package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit"
)

// A canary is a sandbox whose state we know at any time.
type canary struct {
	*testkit.Canary

	r       *run
	index   int // of those that are there from the beginning; a fork has -1
	dice    *rand.Rand
	crashes int64    // that it knows of
	begun   int      // times that it was made
	made    int      // snapshots of it
	forks   []string // sandboxes that were made of them and may be there
	// answers is when the steps were answered since the last checkpoint that was
	// seen.
	answers map[uint64]time.Time
	// lost says that its sandbox is gone, and that there is no whole new one yet.
	lost bool
}

// canaryName is of those that are there from the beginning.
const canaryName = "canary-%d"

// filesOnDisk is how much the files of every other canary may take on disk. Those of the
// others are in memory.
const filesOnDisk doze.Megabytes = 64

// clockMax is how far the clock of a sandbox that just woke may be off.
const clockMax = 50 * time.Millisecond

func (r *run) canary(ctx context.Context, i int) (*canary, error) {
	k := &canary{r: r, index: i, dice: r.chance(i)}
	return k, k.begin(ctx)
}

// begin makes the sandbox of k.
func (k *canary) begin(ctx context.Context) error {
	k.begun++
	name := fmt.Sprintf(canaryName, k.index)
	sizes := []int{max(1, k.r.megabytes/3), k.r.megabytes, 2 * k.r.megabytes}
	storage := []doze.Megabytes{0, filesOnDisk}
	made, err := k.r.p.Canary(ctx, name, fmt.Sprintf("%s-%d-%d", name, k.begun, k.r.seed), sizes[k.index%len(sizes)], storage[k.index%len(storage)])
	if err == nil {
		k.adopt(made)
	}
	return err
}

// replace creates a new sandbox for one that was lost. Harm may end it half-way: then
// k stays lost.
func (k *canary) replace(ctx context.Context) error {
	k.lost = true
	c, err := k.r.p.Client()
	if err == nil {
		err = remove(ctx, c, k.Name)
	}
	if err == nil && k.index >= 0 {
		err = k.begin(ctx)
	}
	k.lost = err != nil
	return err
}

// adopt makes k one that has what another canary has.
func (k *canary) adopt(now *testkit.Canary) {
	if k.Canary != nil {
		k.Close()
	}
	k.Canary, k.crashes = now, k.r.crashes.Load()
	k.Crashed, k.answers = k.crashed, map[uint64]time.Time{}
	k.Unsure()
}

// crashed reports whether it may have gone back since it was asked before.
func (k *canary) crashed() bool {
	now := k.r.crashes.Load()
	defer func() { k.crashes = now }()
	return now%2 == 1 || now != k.crashes
}

// live makes steps at random instants until ctx ends, and copies now and then.
func (k *canary) live(ctx context.Context) {
	defer func() { k.Close() }()
	for k.rest(ctx) {
		switch {
		case k.lost:
			k.again(ctx)
		case k.dice.IntN(copyOneIn) == 0:
			k.copies(ctx, k.dice)
		default:
			k.step(ctx)
		}
	}
}

// again replaces k, which harm did not let be replaced before.
func (k *canary) again(ctx context.Context) {
	before := k.r.epoch.Load()
	if err := k.replace(ctx); err != nil && !k.r.down(before) && ctx.Err() == nil {
		k.r.fault("%s: replace it: %v", k.Name, err)
	}
}

// rest lets k sleep for a while: for a random time, or until a checkpoint is being
// written. It reports whether ctx lives.
func (k *canary) rest(ctx context.Context) bool {
	if k.dice.IntN(disturbOneIn) > 0 {
		return sleep(ctx, k.dice, restMax)
	}
	for end := time.Now().Add(restMax); time.Now().Before(end) && !k.r.p.Checkpointing(k.Name); {
		if !sleep(ctx, k.dice, lookEvery) {
			return false
		}
	}
	return sleep(ctx, k.dice, checkpointTime)
}

const (
	// disturbOneIn is how many times a canary rests for each time that a request
	// comes as soon as its checkpoint is written.
	disturbOneIn = 4
	lookEvery    = 4 * time.Millisecond
	// checkpointTime is about as long as a checkpoint takes.
	checkpointTime = 150 * time.Millisecond
)

// step makes one step and compares its result with what it must be.
func (k *canary) step(ctx context.Context) {
	if k.Observe(k.r.p) {
		k.answers = map[uint64]time.Time{}
		k.r.count(func(c *counts) { c.observed++ })
	}
	before, start := k.r.epoch.Load(), time.Now()
	cut := k.r.p.Checkpointing(k.Name)
	s, err := k.Step(ctx)
	took := time.Since(start)
	k.r.count(func(c *counts) {
		c.requests++
		if cut {
			c.interrupting++
		}
	})
	switch {
	case err != nil && (k.r.down(before) || ctx.Err() != nil):
		k.r.count(func(c *counts) { c.excused++ })
		return
	case err != nil:
		k.failed(ctx, err)
		return
	}
	k.r.count(func(c *counts) {
		c.steps++
		c.slowestStep, c.latest = max(c.slowestStep, took), max(c.latest, s.Off)
	})
	for _, what := range s.Wrong {
		k.r.wrong("%s: %s", k.Name, what)
	}
	if s.Off > clockMax {
		k.r.wrong("%s: the clock is off by %v", k.Name, s.Off)
	}
	if s.Lost > 0 {
		k.wentBack(ctx, s)
	}
	k.answers[s.N] = time.Now()
}

// reportPatience is how long a record may say that a sandbox is there after its node said that
// it has failed.
const reportPatience = 3 * time.Second

// failed finds out why something about k did not work. A sandbox that was lost
// without a checkpoint is replaced by another one.
func (k *canary) failed(ctx context.Context, err error) {
	before := k.r.epoch.Load()
	status := k.status(ctx)
	var over bool
	for end := time.Now().Add(reportPatience); ; status = k.status(ctx) {
		over = status == doze.Failed.Status() || status == doze.Terminated.Status() || status == gone // a cut ended its start
		if over || time.Now().After(end) || ctx.Err() != nil || k.r.down(before) {
			break
		}
		time.Sleep(lookEvery)
	}
	switch {
	case over && !k.Saved():
		k.r.count(func(c *counts) { c.lost++ })
		err = k.replace(ctx)
	case over:
		k.r.fault("%s: it had a checkpoint and is %s: %v\n%s", k.Name, status, err, k.story())
		err = k.replace(ctx)
	default:
		err = fmt.Errorf("%w (it is %s, with a checkpoint: %t)\n%s", err, status, k.Saved(), k.story())
	}
	if err != nil && !k.r.down(before) && ctx.Err() == nil {
		k.r.fault("%s: %v", k.Name, err)
	}
}

// story is the end of what dozed printed about k.
func (k *canary) story() string {
	const most = 20
	uid, err := k.r.p.UID(k.Name)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(k.r.p.Printed()) {
		if strings.Contains(line, uid) && !strings.Contains(line, `"msg":"request"`) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-most):], "")
}

// gone is the status of a sandbox that is not there.
const gone = "gone"

func (k *canary) status(ctx context.Context) string {
	c, err := k.r.p.Client()
	if err != nil {
		return err.Error()
	}
	sb, err := c.Sandbox(ctx, k.Name)
	switch {
	case err != nil && doze.Public(err).Kind == doze.NotFound:
		return gone
	case err != nil:
		return err.Error()
	}
	return sb.Status
}

// wentBack checks what a platform says of a sandbox that lost steps: that it went
// back, and to when. The steps that it lost are those since then, and no others.
func (k *canary) wentBack(ctx context.Context, s testkit.Stepped) {
	k.r.count(func(c *counts) { c.setbacks++; c.stepsLost += int64(s.Lost) }) //nolint:gosec // G115: a few
	before := k.r.epoch.Load()
	c, err := k.r.p.Client()
	if err != nil {
		k.r.fault("%s: %v", k.Name, err)
		return
	}
	sb, err := c.Sandbox(ctx, k.Name)
	switch {
	case err != nil && (k.r.down(before) || ctx.Err() != nil):
		return
	case err != nil:
		k.r.fault("%s: %v", k.Name, err)
		return
	case sb.Recovery == nil && k.justAnswered(s):
		k.r.count(func(c *counts) { c.untold++ })
		return
	case sb.Recovery == nil:
		k.r.fault("%s: it lost %d steps, %d is the first, and says nothing\n%s", k.Name, s.Lost, s.N, k.story())
		return
	}
	at := sb.Recovery.CheckpointAt.Time
	for n := s.N; n < s.N+s.Lost; n++ {
		if when, ok := k.answers[n]; ok && when.Before(at.Add(-clockMax)) {
			k.r.fault("%s: it lost step %d of %v, and says that its checkpoint is of %v", k.Name, n, when, at)
		}
	}
}

// syncTime is how long the disk may take to learn of a wake that was answered.
const syncTime = time.Second

// justAnswered reports whether all steps that k lost were answered right before
// the last cut of the power.
func (k *canary) justAnswered(s testkit.Stepped) bool {
	cut := time.Unix(0, k.r.cutAt.Load())
	for n := s.N; n < s.N+s.Lost; n++ {
		if k.answers[n].Before(cut.Add(-syncTime)) {
			return false
		}
	}
	return true
}

// wrong takes note of a wrong byte.
func (r *run) wrong(format string, args ...any) {
	r.count(func(c *counts) { c.wrong++ })
	r.fault(format, args...)
}
