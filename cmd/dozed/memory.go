package main

import (
	"fmt"

	"golang.org/x/sys/unix"

	"doze"
	"doze/internal/machine"
)

// hostMemory is how much memory the host has, without its swap.
func hostMemory() (doze.Megabytes, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("how much memory the host has: %w", err)
	}
	return doze.Megabytes(info.Totalram * uint64(info.Unit) >> 20), nil
}

// sandboxMemory is what all sandboxes can take together, in bytes, on a host
// with so much memory: all but the reserve, and at least half on a host that is
// hardly larger than that. What compressed swap holds is not theirs.
func (c *config) sandboxMemory(host doze.Megabytes, held int64) int64 {
	if c.SandboxMB > 0 {
		return c.SandboxMB << 20 // spareMemory left room
	}
	return max(host.Bytes()-c.ReserveMB<<20, host.Bytes()/2) - held
}

const (
	// readyAuto says that the memory decides how many sandboxes on disk keep a
	// process.
	readyAuto = -1
	// readyShare is the part of what sandboxes can take that such processes take
	// then: so little that nobody who is awake misses it.
	readyShare = 100
	// readyBytes is what one takes.
	readyBytes = 11 << 20
)

// readyProcesses is how many sandboxes on disk keep a process, where all sandboxes
// can take so many bytes together.
func (c *config) readyProcesses(memory int64) int {
	if c.Ready != readyAuto {
		return c.Ready
	}
	return int(max(1, memory/readyShare/readyBytes))
}

// spareMemory is the most that compressed swap may take of the memory, in bytes: a
// part of what sandboxes get, or of what is left of the host if that is a number.
func (c *config) spareMemory(host doze.Megabytes) int64 {
	const share = 4 // more would take from those that are awake what those that sleep rarely need
	most := host.Bytes() / share
	if c.SandboxMB > 0 {
		return min(most, host.Bytes()-(c.ReserveMB+c.SandboxMB)<<20)
	}
	return most
}

// largest is the largest sandbox that has all of its memory on a platform whose
// sandboxes can take so many bytes together.
func largest(all int64) doze.Megabytes { return doze.Megabytes((all - machine.EngineMemory) >> 20) }

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
func (c *config) reserve(limit int64) int64 {
	const share = 4
	return min(c.ReserveMB<<20, limit/share)
}
