package main

import (
	"fmt"

	"golang.org/x/sys/unix"

	"doze"
)

// hostMemory is how much memory the host has, without its swap.
func hostMemory() (doze.Megabytes, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return 0, fmt.Errorf("how much memory the host has: %w", err)
	}
	return doze.Megabytes(info.Totalram * uint64(info.Unit) >> 20), nil
}
