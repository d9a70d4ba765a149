package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"
)

// A fault is something that fails, and how it is well again.
type fault struct {
	name string // tells all of it
	on   string // of which there must be no two at a time
	last time.Duration
	do   func(ctx context.Context) error
	end  func(ctx context.Context) error
}

// harm are the kinds of faults. Each makes one, on a node that was chosen at random.
var harm = []struct {
	name string
	make func(f *fleet, node string, dice *rand.Rand) fault
}{
	{"kill a node, restart it at once", func(f *fleet, node string, _ *rand.Rand) fault {
		return f.deadNode(node, 0)
	}},
	{"kill a node, restart it after others have what it had", func(f *fleet, node string, dice *rand.Rand) fault {
		return f.deadNode(node, leases(dice, 1.5))
	}},
	{"kill dozed of a node, restart it at once", func(f *fleet, node string, _ *rand.Rand) fault {
		return f.deadRole(node, 0)
	}},
	{"kill dozed of a node, restart it later", func(f *fleet, node string, dice *rand.Rand) fault {
		return f.deadRole(node, leases(dice, 0.5))
	}},
	{"stop dozed of a node for 1.5 leases", func(f *fleet, node string, _ *rand.Rand) fault {
		return f.stopped(node, justDozed, short)
	}},
	{"stop dozed of a node for 7 leases", func(f *fleet, node string, _ *rand.Rand) fault {
		return f.stopped(node, justDozed, long)
	}},
	{"stop dozed and the launcher for 1.5 leases", func(f *fleet, node string, _ *rand.Rand) fault {
		return f.stopped(node, withLauncher, short)
	}},
	{"stop dozed and the launcher for 7 leases", func(f *fleet, node string, _ *rand.Rand) fault {
		return f.stopped(node, withLauncher, long)
	}},
	{"stop all processes of a node for 1.5 leases", func(f *fleet, node string, _ *rand.Rand) fault {
		return f.stopped(node, withMachines, short)
	}},
	{"stop all processes of a node for 7 leases", func(f *fleet, node string, _ *rand.Rand) fault {
		return f.stopped(node, withMachines, long)
	}},
	{"cut a node from control", func(f *fleet, node string, dice *rand.Rand) fault {
		return f.parted(node, "control", controlNames(), dice)
	}},
	{"cut a node from the bucket", func(f *fleet, node string, dice *rand.Rand) fault {
		return f.parted(node, "the bucket", []string{bucketHost}, dice)
	}},
	{"cut a node from the edges", func(f *fleet, node string, dice *rand.Rand) fault {
		return f.parted(node, "the edges", edgeNames(), dice)
	}},
	{"cut a node from all", func(f *fleet, node string, dice *rand.Rand) fault {
		return f.parted(node, "all", slices.Concat(controlNames(), []string{bucketHost}, edgeNames()), dice)
	}},
	{"kill control, restart it at once", func(f *fleet, _ string, _ *rand.Rand) fault {
		return f.deadRole(controlHost, 0)
	}},
	{"kill control, restart it later", func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.deadRole(controlHost, leases(dice, 0.5))
	}},
	{"stop control for 2 leases", func(f *fleet, _ string, _ *rand.Rand) fault {
		return f.stopped(controlHost, justDozed, 2*nodeLease)
	}},
	{"kill the bucket, restart it later", func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.deadRole(bucketHost, leases(dice, 0.5))
	}},
	{"stop the bucket", func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.stopped(bucketHost, justDozed, leases(dice, 0.5))
	}},
	{"the bucket is slow", func(f *fleet, _ string, dice *rand.Rand) fault {
		return f.slow(bucketHost, leases(dice, 1))
	}},
}

// short and long are for how long processes of a node are stopped.
const short, long = nodeLease * 3 / 2, nodeLease * 7

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
	return fault{
		name: fmt.Sprintf("cut %s from %s for %s, %s", node, named, last, []string{"both directions", "what it sends", "what it gets"}[which]),
		on:   node, last: last,
		do: func(ctx context.Context) error {
			for _, other := range from {
				if which != 2 {
					if err := f.wire.cut(ctx, node, other); err != nil {
						return err
					}
				}
				if which != 1 {
					if err := f.wire.cut(ctx, other, node); err != nil {
						return err
					}
				}
			}
			return nil
		},
		end: f.wire.heal,
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

// suffer has faults begin, one some time after the other, and end.
func (f *fleet) suffer(ctx context.Context, faults []fault, apart time.Duration) (err error) {
	done := make(chan error, len(faults))
	for i, one := range faults {
		if i > 0 {
			pause(ctx, apart)
		}
		err = errors.Join(err, one.do(ctx))
		go func() { // ends before suffer
			pause(ctx, one.last)
			done <- one.end(context.WithoutCancel(ctx))
		}()
	}
	for range faults {
		err = errors.Join(err, <-done)
	}
	return err
}
