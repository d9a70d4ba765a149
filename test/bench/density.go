package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	densityCount  = 100
	densityMemory = 256 // MB that each may use; what runs in it is its agent
	densityAtOnce = 4
	densityTime   = 20 * time.Minute // for all of them to reach a tier
	// densityLeast of them must be in a tier when no more come to it: a process
	// of a next wake that could not be made is not tried again.
	densityLeast, densityStill = 90, 15 * time.Second
)

// stage is a tier, with the flags by which idle sandboxes come to it from the one
// before and stay there.
type stage struct {
	tier, metric string
	args         []string
}

// stages are the tiers of one platform.
var stages = []stage{
	{"running", "awake", []string{"--pause-after", "24h"}},
	{"paused", "paused", []string{"--pause-after", "1s", "--save-after", "24h", "--disk-after", "24h"}},
	{"paused, checkpoint on disk", "saved", []string{"--pause-after", "1s", "--save-after", "0s", "--disk-after", "24h"}},
	{"in swap", "swapped", []string{"--swap", "plain:8G", "--pause-after", "1s", "--save-after", "0s", "--swap-after", "0s", "--disk-after", "24h"}},
	{"on disk, process prepared", "prepared", []string{"--pause-after", "1s", "--disk-after", "1s", "--ready", strconv.Itoa(densityCount)}},
	{"on disk", "disk", []string{"--pause-after", "1s", "--disk-after", "1s", "--ready", "0"}},
}

// compressed is the tier of another platform: swap stays on until its platform ends.
var compressed = stage{"in compressed swap", "swapped", []string{"--swap", "zram:2G", "--pause-after", "1s", "--save-after", "0s", "--swap-after", "0s", "--disk-after", "24h"}}

// densityCases names all rows of the benchmark.
func densityCases() (names []string) {
	for _, s := range append(stages, compressed) {
		names = append(names, s.tier)
	}
	return names
}

// weights are rows that have a memory.
type weights []row

// density weighs many idle sandboxes in each tier.
func density(ctx context.Context, dir string, only *regexp.Regexp) (_ table, err error) {
	all, err := weighTiers(ctx, filepath.Join(dir, "tiers"), only)
	if err != nil || !only.MatchString(compressed.tier) {
		return all, err
	}
	w, err := weighCompressed(ctx, filepath.Join(dir, "compressed"))
	if err != nil {
		return all, fmt.Errorf("%s: %w", compressed.tier, err)
	}
	w.VsPSS, w.Yardstick = all[0].PSS, all[0].Case
	return append(all, w), nil
}

// weighTiers weighs the same sandboxes in one tier after the other. The first one
// is the yardstick.
func weighTiers(ctx context.Context, dir string, only *regexp.Regexp) (all weights, err error) {
	p, names, err := densityPlatform(ctx, dir, stages[0].args)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	for i, s := range stages {
		w, err := weigh(ctx, p, names, s, i == 0 || only.MatchString(s.tier))
		if err != nil {
			return all, fmt.Errorf("%s: %w: %s", s.tier, err, p.Tail())
		}
		if w.Case == "" {
			continue
		}
		if i > 0 {
			w.VsPSS, w.Yardstick = all[0].PSS, all[0].Case
		}
		all = append(all, w)
	}
	return all, nil
}

// weighCompressed weighs sandboxes whose memory is compressed, and stays memory.
func weighCompressed(ctx context.Context, dir string) (w row, err error) {
	p, names, err := densityPlatform(ctx, dir, append([]string{"--pause-after", "24h"}, compressed.args[:2]...))
	if err != nil {
		return w, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if _, bad := os.Stat(filepath.Join(p.Data, "swap.zram")); bad != nil {
		return row{Case: compressed.tier, Unsupported: p.Tail()}, nil
	}
	return weigh(ctx, p, names, compressed, true)
}

// densityPlatform starts a platform with many sandboxes.
func densityPlatform(ctx context.Context, dir string, args []string) (p *testkit.Platform, names []string, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, nil, err
	}
	p, err = testkit.Start(ctx, testkit.Options{Dir: dir, Fast: true, Args: append([]string{"--log", "warn"}, args...)})
	if err != nil {
		return nil, nil, err
	}
	if names, err = crowd(ctx, p); err != nil {
		return nil, nil, errors.Join(err, p.Close())
	}
	return p, names, nil
}

// weigh leads sandboxes to a tier. What they weigh there is asked for if it is
// wanted: otherwise the row is empty.
func weigh(ctx context.Context, p *testkit.Platform, names []string, s stage, wanted bool) (w row, err error) {
	if err := restart(ctx, p, append([]string{"--log", "warn"}, s.args...)); err != nil {
		return w, err
	}
	now, err := gather(ctx, p, s.metric)
	if err != nil || !wanted {
		return w, err
	}
	fmt.Fprintln(os.Stderr, s.tier)
	there := now[inTier("doze_sandboxes", s.metric)]
	each := func(name string) float64 { return now[name] / (1 << 20) / there }
	w = row{Case: s.tier, N: int(there)}
	w.Charged, w.Swap, w.Disk = each(inTier("doze_memory_bytes", s.metric)), each(inTier("doze_swap_bytes", s.metric)), each(inTier("doze_checkpoint_bytes", s.metric))
	w.Compressed = each("doze_compressed_memory_bytes")
	for _, name := range names {
		pss, err := mapped(p, name)
		if err != nil {
			return w, err
		}
		w.PSS += pss / there
	}
	return w, nil
}

// crowd makes the sandboxes and returns their names.
func crowd(ctx context.Context, p *testkit.Platform) (names []string, err error) {
	c, err := p.Client()
	if err != nil {
		return nil, err
	}
	var together errgroup.Group
	together.SetLimit(densityAtOnce)
	for i := range densityCount {
		name := fmt.Sprintf("idle-%d", i)
		names = append(names, name)
		together.Go(func() error {
			_, agent, err := testkit.Create(ctx, c, name, densityMemory)
			if err != nil {
				return err
			}
			_, err = agent.Start(ctx, client.Command{Command: "true", Wait: true}) // it has been used
			return err
		})
	}
	return names, together.Wait()
}

// gather waits until all sandboxes are in a tier, or nearly all and no more come,
// and returns the metrics then.
func gather(ctx context.Context, p *testkit.Platform, tier string) (map[string]float64, error) {
	ctx, cancel := context.WithTimeout(ctx, densityTime)
	defer cancel()
	last, since := 0.0, time.Now()
	for {
		now, err := metrics(ctx, p)
		if err != nil {
			return nil, err
		}
		there := now[inTier("doze_sandboxes", tier)]
		if there != last {
			last, since = there, time.Now()
		}
		if there == densityCount || there >= densityLeast && time.Since(since) > densityStill {
			return now, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%v are there: %w", there, context.Cause(ctx))
		case <-time.After(time.Second):
		}
	}
}

// inTier names a metric of one tier.
func inTier(metric, tier string) string { return metric + `{tier="` + tier + `"}` }

// metrics asks for all metrics.
func metrics(ctx context.Context, p *testkit.Platform) (map[string]float64, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+p.Key)
	resp, err := http.DefaultTransport.RoundTrip(r) // the caller has a deadline
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	all, lines := map[string]float64{}, bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), " "); ok && name != "#" {
			all[name], _ = strconv.ParseFloat(value, 64) // names with spaces in their labels are not ours
		}
	}
	return all, lines.Err()
}

// mapped returns what the processes of a sandbox have mapped, in MB.
func mapped(p *testkit.Platform, name string) (mb float64, err error) {
	pids, err := p.Processes(name)
	if err != nil {
		return 0, err
	}
	var seen []int
	for _, pid := range pids {
		n, err := strconv.Atoi(pid)
		if err != nil {
			return 0, err
		}
		if slices.ContainsFunc(seen, func(other int) bool { return sameMemory(n, other) }) {
			continue
		}
		seen = append(seen, n)
		raw, err := os.ReadFile("/proc/" + pid + "/smaps_rollup")
		if err != nil {
			continue // it has no memory, or ended just now
		}
		_, rest, _ := bytes.Cut(raw, []byte("\nPss:"))
		var kib float64
		if _, err := fmt.Sscan(string(rest), &kib); err != nil {
			return 0, fmt.Errorf("/proc/%s/smaps_rollup is %q", pid, raw)
		}
		mb += kib / 1024
	}
	return mb, nil
}

// sameMemory reports whether two processes have one address space: those in which
// the threads of a guest's process run do.
func sameMemory(a, b int) bool {
	const kcmpVM = 1 // KCMP_VM of linux/kcmp.h
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpVM, 0, 0, 0)
	return errno == 0 && order == 0
}

// report implements [table].
func (ws weights) report(people, machine io.Writer, bench string) error {
	out := tabwriter.NewWriter(people, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(out, "each of\tin tier\tPSS MB\tcharged MB\tswap MB\tcompressed MB\tdisk MB\tPSS / yardstick\t")
	var reasons strings.Builder
	for _, w := range ws {
		w.Bench = bench
		ratio := ""
		if w.VsPSS > 0 {
			ratio = fmt.Sprintf("%.2f × %s", w.ratio(), w.Yardstick)
		}
		if w.Unsupported != "" {
			ratio = "unsupported"
			fmt.Fprintf(&reasons, "%s: unsupported here: %s\n", w.Case, w.Unsupported)
		}
		fmt.Fprintf(out, "%d\t%s\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%s\t\n", w.N, w.Case, w.PSS, w.Charged, w.Swap, w.Compressed, w.Disk, ratio)
		if machine != nil {
			if err := json.NewEncoder(machine).Encode(w); err != nil {
				return err
			}
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(people, reasons.String())
	return err
}
