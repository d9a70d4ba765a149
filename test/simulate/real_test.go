package simulate_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// memoryDir is a file system in memory: the database of a simulation is to be as the real one is,
// and need not survive the host.
const memoryDir = "/dev/shm"

// databaseOf is where the records of a simulation are.
func databaseOf(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(memoryDir, "doze-simulate-") //nolint:usetesting // a directory of tests is on a disk
	if err != nil {
		dir = t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "doze.db")
}

// monotonic is the real time, of which virtual time says nothing.
func monotonic() time.Duration { return clock(unix.CLOCK_MONOTONIC) }

// processor is what this thread has had of processors.
func processor() time.Duration { return clock(unix.CLOCK_THREAD_CPUTIME_ID) }

func clock(id int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// peak is the most memory that this process has had, in bytes.
func peak() int64 {
	raw, _ := os.ReadFile("/proc/self/status") // 0 is shown then
	_, rest, _ := strings.Cut(string(raw), "VmHWM:")
	field, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
	kb, _ := strconv.ParseInt(field, 10, 64)
	return kb << 10
}
