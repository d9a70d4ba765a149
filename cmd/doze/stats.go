package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

func (a *app) stats() *cobra.Command {
	return &cobra.Command{
		Use: "stats [NAME…]", Short: "Show what sandboxes take and have done",
		Long: `Show what sandboxes take and have done: where their memory is, memory, swap and
checkpoint, time of processors, traffic, wakes and sleeps, and how long requests
waited for wakes. Nobody is woken. Without a NAME, all sandboxes are shown.`,
		Args: takes(0, -1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.connect()
			if err != nil {
				return err
			}
			all, err := usages(cmd.Context(), c, args)
			if err != nil {
				return err
			}
			return a.show(all, usageRows(all))
		},
	}
}

// usages returns those of the named sandboxes, or of all.
func usages(ctx context.Context, c *client.Client, names []string) ([]doze.SandboxUsage, error) {
	all := []doze.SandboxUsage{} // [] in JSON
	var errs []error
	for _, name := range names {
		u, err := c.Usage(ctx, name)
		if err != nil {
			errs = append(errs, nameError{name, err})
			continue
		}
		all = append(all, u)
	}
	if len(names) > 0 {
		return all, errors.Join(errs...)
	}
	for u, err := range c.Usages(ctx, client.Filter{}) {
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, nil
}

func usageRows(all []doze.SandboxUsage) [][]string {
	rows := [][]string{{
		"NAME", "TIER", "MEMORY", "LIMIT", "SWAP", "CHECKPOINT", "CPU SECONDS", "RECEIVED", "SENT", "WAKES", "SLEEPS", "WAKE P50", "WAKE P99",
		extra + "GUEST", extra + "ENGINE", extra + "CACHE", extra + "WAKE LAST", extra + "WAKE FAILURES", extra + "VOLUMES", extra + "SCRATCH", extra + "STORAGE", extra + "STATUS", extra + "COUNTED SINCE",
	}}
	for _, u := range all {
		rows = append(rows, []string{
			u.Name, u.Tier, size(u.Memory.ResidentBytes), size(u.Memory.LimitBytes), size(u.Memory.SwapBytes), size(u.Disk.CheckpointBytes),
			fmt.Sprintf("%.1f", u.Processor.Seconds), size(u.Network.ReceivedBytes), size(u.Network.SentBytes),
			strconv.FormatInt(u.Wakes.Count, 10), strconv.FormatInt(u.Sleeps, 10), wait(u.Wakes, u.Wakes.P50Us), wait(u.Wakes, u.Wakes.P99Us),
			size(u.Memory.GuestBytes), size(u.Memory.EngineBytes), size(u.Memory.CacheBytes), wait(u.Wakes, u.Wakes.LastUs), strconv.FormatInt(u.Wakes.Failures, 10), size(u.Disk.VolumeBytes), size(u.Disk.ScratchBytes), size(u.Disk.StorageBytes), u.Status, moment(u.CountedSince),
		})
	}
	return rows
}

// wait is a latency of wakes in milliseconds; empty without a wake.
func wait(w doze.WakeUsage, us int64) string {
	if w.Count == 0 {
		return ""
	}
	return millis(us) + " ms"
}

// size is a number of bytes in the unit that leaves one to four digits.
func size(bytes int64) string {
	const unit = 1024
	n, units := float64(bytes), []string{"B", "KB", "MB", "GB", "TB"}
	for len(units) > 1 && n >= unit {
		n, units = n/unit, units[1:]
	}
	if bytes < unit || n >= 10 {
		return fmt.Sprintf("%.0f %s", n, units[0])
	}
	return fmt.Sprintf("%.1f %s", n, units[0])
}

// topRows is how many sandboxes top shows: as many as a screen has lines.
const topRows = 40

func (a *app) top() *cobra.Command {
	most := topRows
	cmd := &cobra.Command{
		Use: "top", Short: "Show the sandboxes that compute most, again and again", Args: takes(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.whole() {
				return usagef("doze top prints tables only: use doze stats -o %s", a.format)
			}
			if most < 1 {
				return usagef("--lines must be at least 1")
			}
			c, err := a.connect()
			if err != nil {
				return err
			}
			var before map[string]doze.SandboxUsage
			return a.repeat(cmd.Context(), func() error {
				all, err := usages(cmd.Context(), c, nil)
				if err != nil {
					return err
				}
				rows := rank(all, before)
				before = byName(all)
				return a.table(rows[:min(len(rows), most+1)])
			})
		},
	}
	cmd.Flags().IntVar(&most, "lines", most, "show at most this `number` of sandboxes")
	return cmd
}

func byName(all []doze.SandboxUsage) map[string]doze.SandboxUsage {
	by := map[string]doze.SandboxUsage{}
	for _, u := range all {
		by[u.Name] = u
	}
	return by
}

// rank is a table of sandboxes, those that computed most since the last look first, and
// those of equal use by their memory. One that the last look did not see has no share
// yet, and the place of its mean since it is counted.
func rank(all []doze.SandboxUsage, before map[string]doze.SandboxUsage) [][]string {
	share, place := map[string]string{}, map[string]float64{}
	for _, u := range all {
		was, ok := before[u.Name]
		if took := u.MeasuredAt.Sub(was.MeasuredAt.Time); ok && took > 0 {
			place[u.Name] = max(0, u.Processor.Seconds-was.Processor.Seconds) / took.Seconds()
			share[u.Name] = fmt.Sprintf("%.1f", 100*place[u.Name])
		} else if counted := u.MeasuredAt.Sub(u.CountedSince.Time); counted > 0 {
			place[u.Name] = u.Processor.Seconds / counted.Seconds()
		}
	}
	all = slices.SortedStableFunc(slices.Values(all), func(a, b doze.SandboxUsage) int {
		return cmp.Or(cmp.Compare(place[b.Name], place[a.Name]), cmp.Compare(b.Memory.ResidentBytes, a.Memory.ResidentBytes))
	})
	rows := [][]string{{"NAME", "CPU %", "MEMORY", "LIMIT", "SWAP", "TIER", "RECEIVED/S", "SENT/S", "WAKES", "SLEEPS"}}
	for _, u := range all {
		was, ok := before[u.Name]
		took := u.MeasuredAt.Sub(was.MeasuredAt.Time)
		rate := func(now, was int64) string {
			if !ok || took <= 0 {
				return ""
			}
			return size(max(0, now-was) * int64(time.Second) / int64(took))
		}
		rows = append(rows, []string{
			u.Name, share[u.Name], size(u.Memory.ResidentBytes), size(u.Memory.LimitBytes), size(u.Memory.SwapBytes), u.Tier,
			rate(u.Network.ReceivedBytes, was.Network.ReceivedBytes), rate(u.Network.SentBytes, was.Network.SentBytes),
			strconv.FormatInt(u.Wakes.Count, 10), strconv.FormatInt(u.Sleeps, 10),
		})
	}
	return rows
}
