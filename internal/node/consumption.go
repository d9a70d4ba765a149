package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
)

// consumption counts what a box has done since a moment. The lock of the box guards
// it. A wake adds to it what it knows anyway, so that counting takes no time of a
// request.
type consumption struct {
	since    time.Time
	wakes    int64
	failures int64
	sleeps   int64
	waits    []time.Duration // of the last wakes that worked, at most doze.WakesMax; a ring
	before   time.Duration   // processor time of the engine's processes that are gone
	now      time.Duration   // processor time of the present one, as it was read last
}

// woke counts a wake. The processor time of a machine begins anew when it wakes from disk.
func (c *consumption) woke(from machine.Tier, took time.Duration, err error) {
	if err != nil {
		c.failures++
		return
	}
	if len(c.waits) < doze.WakesMax {
		c.waits = append(c.waits, took)
	} else {
		c.waits[c.wakes%doze.WakesMax] = took
	}
	c.wakes++
	if from == machine.OnDisk {
		c.restarted()
	}
}

// restarted says that the processes of the machine are new ones.
func (c *consumption) restarted() {
	c.before += c.now
	c.now = 0
}

// moved counts a change of the phase that is a pause.
func (c *consumption) moved(from, to doze.Phase) {
	if from == doze.Suspending && to == doze.Standby {
		c.sleeps++
	}
}

// read takes note of what a driver says. The processes of a machine on disk wait for
// its next wake, and are not its own yet. A number that fell is of new processes.
func (c *consumption) read(t machine.Tier, cpu time.Duration) {
	switch {
	case t == machine.OnDisk:
	case cpu < c.now:
		c.restarted()
		fallthrough
	default:
		c.now = cpu
	}
}

// latency is how long requests waited for wakes.
func (c *consumption) latency() doze.WakeUsage {
	u := doze.WakeUsage{Count: c.wakes, Failures: c.failures}
	n := len(c.waits)
	if n == 0 {
		return u
	}
	u.LastUs = c.waits[(c.wakes-1)%int64(n)].Microseconds()
	sorted := slices.Sorted(slices.Values(c.waits))
	u.P50Us, u.P99Us = rank(sorted, 50).Microseconds(), rank(sorted, 99).Microseconds()
	return u
}

// rank is the smallest of sorted values that is not below the given percentage of them.
func rank(sorted []time.Duration, percent int) time.Duration {
	return sorted[(len(sorted)*percent+99)/100-1]
}

// stats asks a machine what it costs, and takes note of its processor time.
func (b *Box) stats(ctx context.Context, m machine.Machine) (machine.Stats, error) {
	t := m.Tier()
	s, err := m.Stats(ctx)
	if err == nil && t == m.Tier() {
		b.mu.Lock()
		b.spent.read(t, s.CPUTime)
		b.mu.Unlock()
	}
	return s, err
}

// consumption is what a box takes and has done, but for what its volumes and drives take
// of the disk. The cost is that of now, if err is nil. The limits are on record at control.
func (b *Box) consumption(ctx context.Context, cost Cost, err error) *doze.Usage {
	u := &doze.Usage{MeasuredAt: doze.Time{Time: time.Now()}}
	if err != nil && !errors.Is(err, errNoMachine) { // it ends, or its launcher is away; the rest is known
		slog.DebugContext(ctx, "what a sandbox takes is not known", "sandbox", b.order.UID, "err", err)
	}
	if !errors.Is(err, errNoMachine) {
		u.Tier, u.Disk.CheckpointBytes, u.Disk.StorageBytes = cost.Tier.String(), cost.DiskBytes, cost.StorageBytes
		u.Memory = doze.MemoryUsage{
			ResidentBytes: cost.MemoryBytes, GuestBytes: cost.GuestBytes, EngineBytes: cost.EngineBytes, CacheBytes: cost.CacheBytes, SwapBytes: cost.SwapBytes,
		}
		if u.Network, err = b.n.Traffic(b.n.machineOf(b)); err != nil {
			slog.DebugContext(ctx, "the traffic of a sandbox is not known", "sandbox", b.order.UID, "err", err)
		}
	}
	b.mu.Lock()
	u.CountedSince.Time, u.Sleeps, u.Wakes = b.spent.since, b.spent.sleeps, b.spent.latency()
	u.Processor.Seconds = (b.spent.before + b.spent.now).Seconds()
	b.mu.Unlock()
	all := b.wakes.traces.List()
	if i := slices.IndexFunc(all, func(t doze.Trace) bool { return t.Kind == doze.TraceWake }); i >= 0 {
		u.LastWake = &all[i]
	}
	return u
}

// machineOf returns the id of the machine of a box.
func (n *Node) machineOf(b *Box) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return b.made.config.ID
}

// Consumption implements [fleet.Node].
func (n *Node) Consumption(ctx context.Context, uids []string) (map[string]doze.Usage, error) {
	used, volumes := map[string]*doze.Usage{}, map[string][]*doze.Usage{}
	for _, uid := range uids {
		b := n.box(uid)
		if b == nil {
			continue
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		cost, err := costOf(ctx, b)
		used[uid] = b.consumption(ctx, cost, err)
		for _, v := range b.order.Volumes {
			if v.ID != "" {
				volumes[v.ID] = append(volumes[v.ID], used[uid])
			}
		}
	}
	disk, err := n.Usage(ctx)
	if err != nil {
		return nil, err
	}
	for _, use := range disk.Uses {
		if u := used[use.ID]; u != nil {
			own(&u.Disk, &use)
		}
		if use.Kind == fleet.DiskVolume {
			for _, u := range volumes[use.ID] {
				u.Disk.VolumeBytes += use.Total()
			}
		}
	}
	all := make(map[string]doze.Usage, len(used))
	for uid, u := range used {
		all[uid] = *u
	}
	return all, nil
}

// own adds what a thing of a sandbox takes of the disk. The machine knows the size of
// its checkpoint now. Logs outlive the sandbox, and other kinds are not of one.
func own(d *doze.DiskUsage, use *fleet.DiskUse) {
	switch use.Kind {
	case fleet.DiskArchive:
		d.ArchiveBytes += use.Total()
	case fleet.DiskDrive:
		d.DriveBytes += use.Total()
	case fleet.DiskScratch:
		d.ScratchBytes += use.Total()
	case fleet.DiskCheckpoint, fleet.DiskImage, fleet.DiskSnapshot, fleet.DiskVolume, fleet.DiskLog, fleet.DiskAhead, fleet.DiskBuilder:
	}
}
