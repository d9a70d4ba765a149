package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/doctor"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	wakeRounds = 30
	// The checkpoints of large sizes take a while to write.
	largeRounds, large = 15, 512
	hugeRounds, huge   = 10, 1024
	// costRounds are those in which the time of processors is taken: it varies less.
	costRounds = 5
	pauseAfter = 150 * time.Millisecond
	settle     = 60 * time.Second // for one move to a lower tier
	lying      = 30 * time.Millisecond
	// inUse is how many requests an awake sandbox has answered before the one that
	// counts. The first ones after a wake from disk meet untouched pages.
	inUse = 20
)

// paths are the ways down that are measured, each on a platform of its own: a
// checkpoint is not in the page cache any more after its sandbox was in swap. Those
// to swap make their own, which the kernel uses before that of the host.
var paths = []struct {
	args  []string
	sizes []int // what a process in the sandbox holds, in MB, touched and random
	tiers []tier
	swap  string // what dozed makes in its data directory for swap of its own; empty: none
	// storms says that wakes from disk are measured that are not alone, too.
	storms bool
}{
	{ // where nothing is written while the sandbox is paused, as in its first minute
		args: []string{"--swap", "off", "--save-after", "1h", "--disk-after", "2h"}, sizes: []int{0, 512, 2048},
		tiers: []tier{{name: "awake %d MB", state: "running"}, {name: "awake %d MB, after as long a rest", state: "running", rests: true}, {name: "paused %d MB", state: "paused"}},
	},
	{
		args: []string{"--swap", "off", "--disk-after", "500ms"}, sizes: []int{0, 64, 512, 2048}, storms: true,
		tiers: []tier{{name: "awake %d MB", state: "running"}, {name: "disk %d MB", state: "disk", cycles: true}, {name: "disk %d MB, not in the page cache", state: "disk", cold: true}},
	},
	{
		args: []string{"--swap", "plain:2G", "--swap-after", "100ms", "--disk-after", "1h"}, sizes: []int{256}, swap: "swap",
		tiers: []tier{{name: "awake %d MB", state: "running"}, {name: "swapped %d MB", state: "swapped", learns: true}},
	},
	{ // what sandboxes hold here is random, the worst case of compressed memory
		args: []string{"--swap", "zram:1G", "--swap-after", "100ms", "--disk-after", "1h"}, sizes: []int{256}, swap: "swap.zram",
		tiers: []tier{{name: "awake %d MB", state: "running"}, {name: "swapped to compressed memory, %d MB", state: "swapped", learns: true}},
	},
}

// tier is one case.
type tier struct {
	name, state string
	rests       bool // nobody asks for as long as a sandbox takes to be paused
	cold        bool // its checkpoint is not in the page cache
	learns      bool // the first wake is one of its own kind, and a case of its own
	cycles      bool // its sandbox comes back to it, and rests
}

// first is the name of the case of a tier's first wake.
func first(name string) string { return name + ", the first time" }

// wakeCases names all rows of the benchmark.
func wakeCases() (names []string) {
	for _, path := range paths {
		for _, mb := range path.sizes {
			for _, t := range path.tiers {
				name := fmt.Sprintf(t.name, mb)
				if names = append(names, name); t.learns {
					names = append(names, first(name))
				}
			}
		}
	}
	names = append(names, stormSingle, stormTogether, stormHeld)
	for _, mb := range commandSizes {
		names = append(names, restoreCase(mb))
	}
	return names
}

// wake asks for the agent's health, round by round in every tier, so that all
// cases meet the same host.
func wake(ctx context.Context, dir string, only *regexp.Regexp) (_ table, err error) {
	var all latencies
	for _, f := range doctor.Examine(doctor.Host{Data: dir}) {
		if f.Check == "huge pages" {
			fmt.Printf("this host's huge pages are %s\n", f.Text)
		}
	}
	for i, path := range paths {
		own := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(own, 0o700); err != nil {
			return all, err
		}
		args := append([]string{"--pause-after", pauseAfter.String(), "--save-after", "100ms", "--log", "warn"}, path.args...)
		p, err := testkit.Start(ctx, testkit.Options{Dir: own, Fast: true, Args: args, Account: true})
		if err != nil {
			return all, err
		}
		var rows []*series
		if _, bad := os.Stat(filepath.Join(p.Data, path.swap)); bad == nil {
			rows, err = wakePath(ctx, p, path.sizes, path.tiers, only)
		} else {
			rows = unsupported(path.sizes, path.tiers, p.Tail())
		}
		all = append(all, rows...)
		if path.storms && err == nil {
			rows, err = besides(ctx, p, only, all)
			all = append(all, rows...)
		}
		if err := errors.Join(err, p.Close()); err != nil {
			return all, err
		}
	}
	return all, nil
}

// unsupported are the rows of a way that this host cannot go.
func unsupported(sizes []int, tiers []tier, why string) (all latencies) {
	for _, mb := range sizes {
		for _, t := range tiers[1:] { // the yardstick is the same in all ways
			all = append(all, &series{name: fmt.Sprintf(t.name, mb), unsupported: why})
		}
	}
	return all
}

// besides measures what the wakes of one sandbox from disk are compared with:
// many at once, and gVisor's own command line.
func besides(ctx context.Context, p *testkit.Platform, only *regexp.Regexp, disk latencies) (all latencies, err error) {
	for _, more := range []struct {
		name string
		do   func(context.Context, *testkit.Platform) ([]*series, error)
	}{{"at once", wakeStorm}, {"runsc restore", restoreByCommand}} {
		if !only.MatchString(more.name) {
			continue
		}
		rows, err := more.do(ctx, p)
		all = append(all, rows...)
		if err != nil {
			return all, fmt.Errorf("%s: %w: %s", more.name, err, p.Tail())
		}
	}
	// The command line does what the wake of the same size does.
	for _, mb := range commandSizes {
		for _, s := range all {
			if i := slices.IndexFunc(disk, func(d *series) bool { return d.name == fmt.Sprintf("disk %d MB", mb) }); i >= 0 && s.name == restoreCase(mb) {
				s.against = disk[i]
			}
		}
	}
	return all, nil
}

// wakePath measures one way down in all sizes, and what is measured beside it.
func wakePath(ctx context.Context, p *testkit.Platform, sizes []int, tiers []tier, only *regexp.Regexp) (all latencies, err error) {
	for _, mb := range sizes {
		rows, err := wakeSize(ctx, p, mb, tiers, only)
		all = append(all, rows...)
		if err != nil {
			return all, fmt.Errorf("%d MB: %w", mb, err)
		}
	}
	return all, nil
}

// wakeSize measures the tiers of one size; the first is the yardstick.
func wakeSize(ctx context.Context, p *testkit.Platform, mb int, tiers []tier, only *regexp.Regexp) (all []*series, err error) {
	cases := map[*series]tier{}
	for i, t := range tiers {
		s := &series{name: fmt.Sprintf(t.name, mb)}
		if i > 0 {
			s.against = all[0]
		}
		if i == 0 || only.MatchString(s.name) {
			all = append(all, s)
			cases[s] = t
		}
	}
	if len(all) == 1 {
		return nil, nil
	}
	c, err := p.Client()
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("wake-%d", mb)
	sb, agent, err := testkit.Create(ctx, c, name, roomFor(mb))
	if err != nil {
		return nil, err
	}
	if err := hold(ctx, agent, mb); err != nil {
		return nil, err
	}
	ask := asker(p, sb)
	firsts := map[*series]*series{}
	for s, t := range cases {
		if t.learns {
			firsts[s] = &series{name: first(s.name), against: all[0]}
		}
	}
	defer func() { all = slices.AppendSeq(all, maps.Values(firsts)) }()
	for round := range rounds(mb) {
		for _, s := range all {
			if err := await(ctx, p, cases[s].state); err != nil {
				return all, fmt.Errorf("wait for %s: %w: %s", s.name, err, p.Tail())
			}
			if cases[s].cold {
				if err := forget(p, name); err != nil {
					return all, fmt.Errorf("%s: %w", s.name, err)
				}
			}
			took, err := timed(ctx, p, sb, cases[s], ask)
			if err != nil {
				return all, fmt.Errorf("%s: %w", s.name, err)
			}
			if first := firsts[s]; first != nil && round == 0 {
				s = first
			}
			s.add(took)
		}
		fmt.Fprint(os.Stderr, ".")
	}
	fmt.Fprintln(os.Stderr)
	for range times(costRounds) {
		for _, s := range all {
			if cases[s].cold {
				continue // it costs what it does from the page cache, and waits for the disk
			}
			if err := wakeCost(ctx, p, sb, cases[s], s); err != nil {
				return all, fmt.Errorf("%s: %w", s.name, err)
			}
		}
	}
	_, err = c.Delete(ctx, name)
	return all, err
}

// timed asks a sandbox that is in a tier, and returns how long the answer took.
func timed(ctx context.Context, p *testkit.Platform, sb doze.Sandbox, t tier, ask func(context.Context) (time.Duration, error)) (took time.Duration, err error) {
	if t.rests {
		release, err := holdAwake(ctx, p, sb)
		if err != nil {
			return 0, err
		}
		defer release()
		time.Sleep(pauseAfter + lying)
		return ask(ctx)
	}
	took, err = ask(ctx)
	for range inUse {
		if t.state == "running" && err == nil {
			took, err = ask(ctx)
		}
	}
	return took, err
}

// wakeCost takes the time of processors of one wake, from the request until the
// platform rests. The sandbox is kept awake until then, so that it does not fall
// asleep meanwhile. The time of a whole cycle ends when it has.
func wakeCost(ctx context.Context, p *testkit.Platform, sb doze.Sandbox, t tier, s *series) error {
	if t.state == "running" { // after the round before it sleeps
		release, err := holdAwake(ctx, p, sb)
		if err != nil {
			return err
		}
		defer release()
	}
	if err := await(ctx, p, t.state); err != nil {
		return err
	}
	// A sandbox that is paused does not rest: it moves on.
	before, err := p.Used()
	if t.state != "paused" {
		before, err = p.Rest(ctx)
	}
	if err != nil {
		return err
	}
	release, err := holdAwake(ctx, p, sb)
	if err != nil {
		return err
	}
	answered, failed := p.Used()
	after, err := p.Rest(ctx)
	release()
	if err := errors.Join(failed, err); err != nil {
		return err
	}
	s.answers, s.costs = append(s.answers, answered-before), append(s.costs, after-before)
	if !t.cycles {
		return nil
	}
	over, err := restIn(ctx, p, t.state)
	s.cycle += (over - before) / time.Duration(times(costRounds))
	return err
}

// restIn waits until the platform's only sandbox is in a tier and the platform
// rests, and returns what it had used by then. It asks seldom: asking costs
// processors, too.
func restIn(ctx context.Context, p *testkit.Platform, state string) (used time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	for {
		if used, err = p.Rest(ctx); err != nil {
			return used, err
		}
		if now, err := p.Tier(ctx); err != nil || now == state {
			return used, err
		}
	}
}

// holdAwake sends a request that wakes a sandbox, and whose answer has no end: the
// stream of changes in a directory in which nothing changes. The sandbox stays awake
// until release is called.
func holdAwake(ctx context.Context, p *testkit.Platform, sb doze.Sandbox) (release func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, sb.Metadata.URL+"/watch/filesystem/mnt", http.NoBody)
	if err != nil {
		cancel()
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+p.Key)
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		cancel()
		return nil, err
	}
	release = func() {
		cancel()
		_ = resp.Body.Close() // it was cut short
	}
	if resp.StatusCode != http.StatusOK {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, saidMax))
		release()
		return nil, fmt.Errorf("%s: %s", resp.Status, said)
	}
	return release, nil
}

// saidMax bounds what is shown of an answer that is no success, in bytes.
const saidMax = 1 << 10

// roomFor is the size of a sandbox in which a process holds mb megabytes.
func roomFor(mb int) doze.Megabytes { return doze.Megabytes(max(1024, 2*mb)) }

func rounds(mb int) int {
	switch {
	case mb >= huge:
		return times(hugeRounds)
	case mb >= large:
		return times(largeRounds)
	}
	return times(wakeRounds)
}

// forget drops the files of a sandbox's checkpoint from the page cache.
func forget(p *testkit.Platform, name string) error {
	checkpoint, err := p.Checkpoint(name)
	if err != nil {
		return err
	}
	files, err := os.ReadDir(checkpoint)
	if err != nil {
		return err
	}
	for _, entry := range files {
		f, err := os.Open(filepath.Join(checkpoint, entry.Name()))
		if err != nil {
			return err
		}
		err = errors.Join(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close())
		if err != nil {
			return err
		}
	}
	return nil
}

func await(ctx context.Context, p *testkit.Platform, tier string) error {
	ctx, cancel := context.WithTimeout(ctx, settle)
	defer cancel()
	if err := p.Await(ctx, tier); err != nil {
		return err
	}
	if tier == "disk" {
		if err := p.AwaitReady(ctx); err != nil {
			return err
		}
	}
	// A sandbox sleeps for longer than it takes to lie down: its record is
	// written, and what it was is cleared away.
	time.Sleep(lying)
	return nil
}

// hold starts a process that keeps mb megabytes of random, touched memory; for
// none, nothing runs but the agent.
func hold(ctx context.Context, agent *client.Agent, mb int) error {
	if mb == 0 {
		return nil
	}
	script := fmt.Sprintf(`python3 -c 'import os,time; b=os.urandom(%d<<20); print("held",flush=True); time.sleep(1e9)'`, mb)
	return begin(ctx, agent, client.Command{Command: script})
}

// begin starts a command and waits until it says that it holds its memory.
func begin(ctx context.Context, agent *client.Agent, command client.Command) error {
	held, err := agent.Start(ctx, command)
	if err != nil {
		return err
	}
	for {
		logs, err := agent.Logs(ctx, held.PID)
		if err != nil {
			return err
		}
		if logs.Stdout == "held\n" {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// asker returns a request as clients send it: over a kept connection to the
// edge. What it times ends with the last byte of the answer.
func asker(p *testkit.Platform, sb doze.Sandbox) func(context.Context) (time.Duration, error) {
	ask := &http.Client{Transport: &http.Transport{}, Timeout: settle}
	return func(ctx context.Context) (time.Duration, error) {
		return answer(ctx, ask, http.MethodGet, sb.Metadata.URL+"/health", p.Key, "")
	}
}
