package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// A fault is something that fails, and how it is well again.
type fault struct {
	name string // tells all of it
	on   string // of which there must be no two at a time
	last time.Duration
	// after is how long nothing fails in its queue before it.
	after time.Duration
	do    func(ctx context.Context) error
	end   func(ctx context.Context) error
	// meanwhile says what sandboxes do while it lasts. It is that of its kind.
	meanwhile meanwhile
}

// queue is where a fault has its turn: nothing else in it fails meanwhile. If sandboxes are asked
// meanwhile, all but the bucket and the clock is one queue. Without control, the records, and an
// edge at the same time, they could not answer.
func (o fault) queue() string {
	if o.meanwhile == anything || o.on == bucketHost || o.on == clockHost {
		return o.on
	}
	return controlHost
}

// meanwhile is what is asked of sandboxes during a fault.
type meanwhile int

const (
	anything meanwhile = iota // they answer after it
	soon                      // each answers, if callers try again
	asEver                    // no request fails
)

// A kind is one of faults.
type kind struct {
	name      string
	meanwhile meanwhile
	// make returns a fault, on a node that was chosen at random.
	make func(f *fleet, node string, dice *rand.Rand) fault
}

// harm are the kinds of faults.
var harm = []kind{
	{"kill a node, restart it at once", anything, func(f *fleet, node string, _ *rand.Rand) fault {
		return f.deadNode(node, 0)
	}},
	{"kill a node, restart it after others have what it had", anything, func(f *fleet, node string, dice *rand.Rand) fault {
		return f.deadNode(node, leases(dice, 1.5))
	}},
	{"kill dozed of a node, restart it at once", anything, func(f *fleet, node string, _ *rand.Rand) fault {
		return f.deadRole(node, 0)
	}},
	{"kill dozed of a node, restart it later", anything, func(f *fleet, node string, dice *rand.Rand) fault {
		return f.deadRole(node, leases(dice, 0.5))
	}},
	{"stop dozed of a node for 1.5 leases", anything, func(f *fleet, node string, _ *rand.Rand) fault {
		return f.stopped(node, justDozed, short())
	}},
	{"stop dozed of a node for 7 leases", anything, func(f *fleet, node string, _ *rand.Rand) fault {
		return f.stopped(node, justDozed, long())
	}},
	{"stop dozed and the launcher for 1.5 leases", anything, func(f *fleet, node string, _ *rand.Rand) fault {
		return f.stopped(node, withLauncher, short())
	}},
	{"stop dozed and the launcher for 7 leases", anything, func(f *fleet, node string, _ *rand.Rand) fault {
		return f.stopped(node, withLauncher, long())
	}},
	{"stop all processes of a node for 1.5 leases", anything, func(f *fleet, node string, _ *rand.Rand) fault {
		return f.stopped(node, withMachines, short())
	}},
	{"stop all processes of a node for 7 leases", anything, func(f *fleet, node string, _ *rand.Rand) fault {
		return f.stopped(node, withMachines, long())
	}},
	{"stop all processes of a node for up to 45 seconds", anything, func(f *fleet, node string, dice *rand.Rand) fault {
		return f.stopped(node, withMachines, long()+time.Duration(dice.Int64N(int64(longest-long())+1)).Round(time.Second))
	}},
	{"cut a node from control", anything, func(f *fleet, node string, dice *rand.Rand) fault {
		return f.parted(node, "control", controlNames(), dice)
	}},
	{"cut a node from the bucket", anything, func(f *fleet, node string, dice *rand.Rand) fault {
		return f.parted(node, "the bucket", []string{bucketHost}, dice)
	}},
	{"cut a node from the edges", anything, func(f *fleet, node string, dice *rand.Rand) fault {
		return f.parted(node, "the edges", edgeNames(), dice)
	}},
	{"cut a node from all", anything, func(f *fleet, node string, dice *rand.Rand) fault {
		return f.parted(node, "all", slices.Concat(controlNames(), []string{bucketHost}, edgeNames()), dice)
	}},
	{"kill the active control, restart it at once", asEver, func(f *fleet, _ string, _ *rand.Rand) fault {
		return f.deadControl("the active control", f.active, 0)
	}},
	{"kill the active control, restart it later", asEver, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.deadControl("the active control", f.active, leases(dice, 0.5))
	}},
	{"kill the control that stands by, restart it later", asEver, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.deadControl("the control that stands by", f.idle, leases(dice, 0.5))
	}},
	{"stop the active control for 2 leases", anything, func(f *fleet, _ string, _ *rand.Rand) fault {
		return f.stoppedControl(2 * nodeLease)
	}},
	{"kill both controls, restart them later", anything, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.deadControls(leases(dice, 0.5))
	}},
	{"stop PostgreSQL, start it later", asEver, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.deadRecords("stop", syscall.SIGINT, leases(dice, 0.2)/2) // sandboxes stand still when control grants no leases
	}},
	{"kill PostgreSQL, start it later", asEver, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.deadRecords("kill", syscall.SIGQUIT, leases(dice, 0.2)/2)
	}},
	{"stop PostgreSQL for longer than control grants leases", anything, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.deadRecords("stop", syscall.SIGINT, 4*nodeLease+leases(dice, 0))
	}},
	{"kill the bucket, restart it later", asEver, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.deadRole(bucketHost, leases(dice, 0.5))
	}},
	{"kill the bucket while other things fail", anything, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.deadRole(bucketHost, leases(dice, 0.5))
	}},
	{"the bucket answers 503 while other things fail", anything, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.gated("answers 503", gateRefuses, leases(dice, 0.5))
	}},
	{"stop the bucket", asEver, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.stopped(bucketHost, justDozed, leases(dice, 0.5))
	}},
	{"the bucket gets little time", asEver, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.slow(bucketHost, leases(dice, 1))
	}},
	{"the bucket answers 503", asEver, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.gated("answers 503", gateRefuses, leases(dice, 0.5))
	}},
	{"the bucket answers late", asEver, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.gated("answers late", gateWaits, leases(dice, 1))
	}},
	{"kill dozed of an edge, restart it at once", soon, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.deadRole(edgeName(dice.IntN(edges)), 0)
	}},
	{"kill an edge, restart it later", soon, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.deadEdge(edgeName(dice.IntN(edges)), leases(dice, 0.5))
	}},
	{clockKind, asEver, func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.wrongClock(dice)
	}},
}

// longest is for how long processes of a node are stopped, at most.
const longest = 45 * time.Second

// short and long are for how long they are usually stopped.
func short() time.Duration { return nodeLease * 3 / 2 }
func long() time.Duration  { return min(nodeLease*7, longest) }

// leasesMost is the longest time of most faults, in leases.
const leasesMost = 3

// leases is a time of at least so many leases, at random.
func leases(dice *rand.Rand, least float64) time.Duration {
	return time.Duration((least + dice.Float64()*(leasesMost-least)) * float64(nodeLease)).Round(10 * time.Millisecond)
}

// deadNode is a node without power for a time.
func (f *fleet) deadNode(node string, last time.Duration) fault {
	return fault{
		name: fmt.Sprintf("no power at %s for %s", node, last), on: node, last: last,
		do:  func(context.Context) error { return f.killNode(node) },
		end: func(context.Context) error { return f.begin(node) },
	}
}

// deadRole is a process that ends, and is started again.
func (f *fleet) deadRole(name string, last time.Duration) fault {
	return fault{
		name: fmt.Sprintf("kill the process of %s, and start it after %s", name, last), on: name, last: last,
		do:  func(context.Context) error { return f.kill(name) },
		end: func(context.Context) error { return f.begin(name) },
	}
}

// switchTime bounds how long two controls listen: one takes over, and the other one does not know yet.
const switchTime = 5 * time.Second

// deadControl is a control that ends, and is started again. Which one that is shows when it ends.
func (f *fleet) deadControl(named string, which func() string, last time.Duration) fault {
	name := controlHost
	return fault{
		name: fmt.Sprintf("kill %s, and start it after %s", named, last), on: controlHost, last: last,
		do: func(ctx context.Context) error {
			_ = until(ctx, switchTime, func() error { // while one takes over from the other, both listen
				if all := f.listening(); len(all) > 1 {
					return fmt.Errorf("%v listen", all)
				}
				return nil
			}) // or it is one of them
			name = which()
			return f.kill(name)
		},
		end: func(context.Context) error { return f.begin(name) },
	}
}

// stoppedControl is a time in which the active control stands still.
func (f *fleet) stoppedControl(last time.Duration) fault {
	var pid []int
	return fault{
		name: fmt.Sprintf("stop the process of the active control for %s", last), on: controlHost, last: last,
		do: func(context.Context) error {
			pid = []int{f.pid(f.active())}
			signalAll(pid, syscall.SIGSTOP)
			return nil
		},
		end: func(context.Context) error {
			signalAll(pid, syscall.SIGCONT)
			return nil
		},
	}
}

// deadControls is a time without a control.
func (f *fleet) deadControls(last time.Duration) fault {
	return fault{
		name: fmt.Sprintf("kill both controls, and start them after %s", last), on: controlHost, last: last,
		do:  func(context.Context) error { return errors.Join(f.kill(controlHost), f.kill(standbyHost)) },
		end: func(context.Context) error { return errors.Join(f.begin(standbyHost), f.begin(controlHost)) },
	}
}

// deadRecords is a time without PostgreSQL.
func (f *fleet) deadRecords(word string, by syscall.Signal, last time.Duration) fault {
	last = last.Round(time.Millisecond)
	return fault{
		name: fmt.Sprintf("%s PostgreSQL, and start it after %s", word, last), on: recordsHost, last: last,
		do:  func(context.Context) error { return f.leave(recordsHost, by) },
		end: func(ctx context.Context) error { return errors.Join(f.begin(recordsHost), f.recorded(ctx, answers)) },
	}
}

// deadEdge is an edge that refuses callers for a time, as its host would.
func (f *fleet) deadEdge(name string, last time.Duration) fault {
	return fault{
		name: fmt.Sprintf("kill all of %s, and start it after %s", name, last), on: name, last: last,
		do: func(context.Context) error {
			err := f.kill(name)
			signalAll(f.holders(name), syscall.SIGKILL)
			return err
		},
		end: func(context.Context) error { return f.begin(name) },
	}
}

// holders are the processes that hold the addresses of an edge while it is away.
func (f *fleet) holders(name string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline") // the pattern is well formed
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(raw, []byte("\x00--socket\x00"+filepath.Join(f.run, name)+"/")) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// gated is a bucket that is out of service, or slow.
func (f *fleet) gated(what string, does int32, last time.Duration) fault {
	return fault{
		name: fmt.Sprintf("the bucket %s for %s", what, last), on: bucketHost, last: last,
		do:  func(context.Context) error { f.gate.does.Store(does); return nil },
		end: func(context.Context) error { f.gate.does.Store(gatePasses); return nil },
	}
}

// What is stopped of a node.
const (
	justDozed = iota
	withLauncher
	withMachines
)

// stopped is a host whose processes stand still.
func (f *fleet) stopped(name string, what int, last time.Duration) fault {
	var pids []int
	return fault{
		name: fmt.Sprintf("stop %s of %s for %s", []string{"the process", "dozed and the launcher", "all processes"}[what], name, last),
		on:   name, last: last,
		do: func(context.Context) error {
			pids = []int{f.pid(name)}
			signalAll(pids, syscall.SIGSTOP) // it starts nothing meanwhile
			if what >= withLauncher {
				launchers, machines := f.launchers(name)
				pids = append(pids, launchers...)
				if what >= withMachines {
					pids = append(pids, machines...)
				}
			}
			signalAll(pids, syscall.SIGSTOP)
			return nil
		},
		// The machines first: their processes go on before anybody could stop them again.
		end: func(context.Context) error {
			slices.Reverse(pids)
			signalAll(pids, syscall.SIGCONT)
			return nil
		},
	}
}

// parted is a node that hears nothing of some hosts, or they of it, or both.
func (f *fleet) parted(node, named string, from []string, dice *rand.Rand) fault {
	which := dice.IntN(3)
	last := leases(dice, 0.5)
	var pairs [][2]string
	for _, other := range from {
		if which != 2 {
			pairs = append(pairs, [2]string{node, other})
		}
		if which != 1 {
			pairs = append(pairs, [2]string{other, node})
		}
	}
	return fault{
		name: fmt.Sprintf("cut %s from %s for %s, %s", node, named, last, []string{"both directions", "what it sends", "what it gets"}[which]),
		on:   node, last: last,
		do: func(ctx context.Context) error {
			for _, pair := range pairs {
				if err := f.wire.cut(ctx, pair[0], pair[1]); err != nil {
					return err
				}
			}
			return nil
		},
		end: func(ctx context.Context) error { return f.wire.heal(ctx, pairs...) },
	}
}

// slowEvery is how long a slow process stands still, and slowRuns how long it runs then.
const slowEvery, slowRuns = 400 * time.Millisecond, 20 * time.Millisecond

// slow is a process that gets a small part of the time.
func (f *fleet) slow(name string, last time.Duration) fault {
	ctx, stop := context.WithCancel(context.Background()) // end stops it
	done := make(chan struct{})
	return fault{
		name: fmt.Sprintf("%s is slow for %s", name, last), on: name, last: last,
		do: func(context.Context) error {
			pid := []int{f.pid(name)}
			go func() { // ends with end
				defer close(done)
				for ctx.Err() == nil {
					signalAll(pid, syscall.SIGSTOP)
					pause(ctx, slowEvery)
					signalAll(pid, syscall.SIGCONT)
					pause(ctx, slowRuns)
				}
			}()
			return nil
		},
		end: func(context.Context) error {
			stop()
			<-done
			return nil
		},
	}
}

// pause waits, or until ctx ends, and reports whether ctx is alive.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// suffer has faults happen: those of a queue one after the other, and all queues at the same time.
// Faults during which sandboxes are asked are followed by a fleet that is well again.
func (f *fleet) suffer(ctx context.Context, faults []fault, say func(string)) error {
	queues := map[string][]fault{}
	for _, one := range faults {
		queues[one.queue()] = append(queues[one.queue()], one)
	}
	var tasks sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	for _, queue := range queues {
		tasks.Go(func() {
			for i, one := range queue {
				err := one.happen(ctx, say)
				if err == nil && one.meanwhile != anything && i < len(queue)-1 {
					err = f.recover(ctx)
				}
				if err != nil {
					mu.Lock()
					errs = append(errs, fmt.Errorf("%s: %w", one.name, err))
					mu.Unlock()
					return
				}
			}
		})
	}
	tasks.Wait()
	return errors.Join(errs...)
}

// happen has a fault begin and end. It ends also with ctx.
func (o fault) happen(ctx context.Context, say func(string)) error {
	if !pause(ctx, o.after) {
		return nil
	}
	say("  begins: " + o.name)
	err := o.do(ctx)
	pause(ctx, o.last)
	return errors.Join(err, o.end(context.WithoutCancel(ctx)))
}

// breath is how long a fleet works between two faults that sandboxes must not notice. Control sees
// its records once more, and all nodes renew their leases.
const breath = 2500 * time.Millisecond

// recover waits until a fleet survives the next fault: all nodes have joined, and a control stands
// by. One that has just lost the records may seem to do so, but still lets others in.
func (f *fleet) recover(ctx context.Context) error {
	err := until(ctx, readyTime, func() error {
		if open := f.listening(); len(open) != 1 {
			return errors.Join(fmt.Errorf("controls that let others in: %v", open), f.settle(ctx))
		}
		return nil
	})
	if err := errors.Join(err, f.settle(ctx), f.recorded(ctx, standsBy, f.controlled)); err != nil {
		return err
	}
	pause(ctx, breath)
	return nil
}
