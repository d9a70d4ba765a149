// Package memory knows how much memory the sandbox has, and gives back what
// requests have left behind.
package memory

import "syscall"

// Total returns how many bytes of memory there are.
func Total() int64 {
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit) //nolint:gosec // it fits
}
