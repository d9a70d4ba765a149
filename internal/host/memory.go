package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/space"
	"github.com/dozehq/doze/internal/swap"
)

// Memory says what of the host's memory sandboxes get.
type Memory struct {
	Swap       string  // auto, off, host, zram, encrypted or plain: see swap.Parse
	ReserveMB  int64   // with less free memory, sleeping sandboxes move to disk early
	BudgetMB   int64   // with more memory than this in sandboxes, those that sleep move down early; 0: no limit
	SandboxMB  int64   // what all sandboxes can take together; 0: the host's memory but for ReserveMB
	Overcommit float64 // how many times that may be reserved for sandboxes in memory
	Ready      int     // how many sandboxes on disk keep a process; ReadyAuto: as the memory allows
}

// openMemory makes sure of the swap that the configuration allows, and finds out
// what sandboxes can take together. It comes after the volumes, whose reservations a
// file of swap leaves alone.
func (h *Host) openMemory(ctx context.Context) error {
	m := h.o.Memory
	host, err := TotalMemory()
	if err != nil {
		return err
	}
	choice, err := swap.Parse(m.Swap)
	if err != nil {
		return err
	}
	disk, err := h.disk.State()
	if err != nil {
		return err
	}
	h.swap, err = swap.Provide(ctx, choice, m.SwapOptions(h.o.Data, host, disk))
	if err != nil { // sandboxes sleep all the same
		slog.Warn("swap could not be had", "swap", m.Swap, "kind", h.swap.Kind, "cost", swap.Cost, "err", err)
		h.swap = swap.Plan{Kind: swap.Off, Why: "it could not be had: " + err.Error()}
	} else {
		logSwap(m.Swap, h.swap)
	}
	h.memory = m.sandboxMemory(host, h.swap.Held())
	return nil
}

// logSwap tells the operator what was chosen, and what it costs.
func logSwap(choice string, plan swap.Plan) {
	with := []any{"swap", choice, "kind", plan.Kind, "why", plan.Why}
	if plan.Bytes > 0 {
		with = append(with, "bytes", plan.Bytes)
	}
	if held := plan.Held(); held > 0 {
		with = append(with, "held", held) // memory that sandboxes do not get
	}
	switch {
	case plan.Some():
		slog.Info("memory of sleeping sandboxes is moved to swap", with...)
	case choice == swap.Off:
		slog.Info("memory of sleeping sandboxes is not moved to swap", append(with, "cost", swap.Cost)...)
	default:
		slog.Warn("memory of sleeping sandboxes is not moved to swap", append(with, "cost", swap.Cost)...)
	}
}

// swapAfter is after how long in a pause sandboxes are moved to swap: 0 is never.
func (h *Host) swapAfter() time.Duration {
	if !h.swap.Some() {
		return 0
	}
	return max(h.o.SwapAfter, h.o.SaveAfter, 1)
}

// ExpectedSwap is the swap that a start would get, or that the last one got. It
// makes nothing, and the data directory need not be there.
func (m Memory) ExpectedSwap(ctx context.Context, data string, disk space.Options) swap.Plan {
	choice, err := swap.Parse(m.Swap)
	if err != nil {
		return swap.Plan{Kind: swap.Off, Why: err.Error()}
	}
	host, err := TotalMemory()
	if err != nil {
		return swap.Plan{Kind: swap.Off, Why: err.Error()}
	}
	var free space.State
	if d, err := space.Open(nearest(data), disk); err == nil {
		free, _ = d.State() // what cannot be measured leaves no room
	}
	facts, err := swap.Examine(ctx, m.SwapOptions(data, host, free))
	if err != nil {
		return swap.Plan{Kind: swap.Off, Why: err.Error()}
	}
	return swap.Decide(choice, facts)
}

// nearest returns a directory, or the innermost one around it that is there.
func nearest(dir string) string {
	for dir != filepath.Dir(dir) {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// SwapOptions bound what swap of our own may take, on a host with so much memory
// and a disk in such a state.
func (m Memory) SwapOptions(data string, host doze.Megabytes, disk space.State) swap.Options {
	return swap.Options{Path: SwapFile(data), Room: disk.Free - disk.Reserve - disk.Pending, ZramMax: m.zramMax(host)}
}

// SwapFile is where swap of our own is.
func SwapFile(data string) string { return filepath.Join(data, "swap") }

// TotalMemory is how much memory the host has, without its swap.
func TotalMemory() (doze.Megabytes, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("how much memory the host has: %w", err)
	}
	return doze.Megabytes(info.Totalram * uint64(info.Unit) >> 20), nil
}

// sandboxMemory is what all sandboxes can take together, in bytes, on a host with so
// much memory. It is all but the reserve, and at least half. The part that compressed
// swap holds is taken off.
func (m Memory) sandboxMemory(host doze.Megabytes, held int64) int64 {
	if m.SandboxMB > 0 {
		return m.SandboxMB << 20 // spareMemory left room
	}
	return max(host.Bytes()-m.ReserveMB<<20, host.Bytes()/2) - held
}

const (
	// ReadyAuto says that the memory decides how many sandboxes on disk keep a
	// process.
	ReadyAuto = -1
	// readyShare is the part of what sandboxes can take that such processes take
	// then: so little that nobody who is awake misses it.
	readyShare = 100
	// readyBytes is what one takes.
	readyBytes = 11 << 20
)

// readyProcesses is how many sandboxes on disk keep a process, where all sandboxes
// can take so many bytes together.
func (m Memory) readyProcesses(memory int64) int {
	if m.Ready != ReadyAuto {
		return m.Ready
	}
	return int(max(1, memory/readyShare/readyBytes))
}

// zramMax is the most that compressed swap may take of the memory, in bytes. It is a
// share of the host's memory. If SandboxMB is set, it is also bounded by the memory
// that SandboxMB and the reserve leave.
func (m Memory) zramMax(host doze.Megabytes) int64 {
	const share = 4 // more would take from those that are awake what those that sleep rarely need
	most := host.Bytes() / share
	if m.SandboxMB > 0 {
		return min(most, host.Bytes()-(m.ReserveMB+m.SandboxMB)<<20)
	}
	return most
}

// largest is the largest sandbox that has all of its memory on a platform whose
// sandboxes can take so many bytes together.
func largest(all int64, t machine.Traits) doze.Megabytes {
	return doze.Megabytes((all - t.Overhead) >> 20)
}

// available returns how much memory sandboxes can still take: what the host can
// give, or less where they are near their own limit.
func available(host, below func() (int64, error)) func() (int64, error) {
	return func() (int64, error) {
		free, err := host()
		if err != nil {
			return 0, err
		}
		left, err := below()
		if err != nil {
			return 0, err
		}
		return min(free, left), nil
	}
}

// reserve is how much of what sandboxes can take is kept free by moving those
// that sleep to disk: the reserve of the host, but for a small limit.
func (m Memory) reserve(limit int64) int64 {
	const share = 4
	return min(m.ReserveMB<<20, limit/share)
}

// hostAvailable is MemAvailable of /proc/meminfo, in bytes.
func hostAvailable() (int64, error) {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}
