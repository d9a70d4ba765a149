package gvisor

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// cgroupRoot is where every host has its cgroups. On cgroup v2 it has the file
// of controllers.
const (
	cgroupRoot  = "/sys/fs/cgroup"
	controllers = "cgroup.controllers"
)

// Free returns how many bytes all machines may still take below their limit,
// counting as free what the kernel can drop.
func (d *Driver) Free() (int64, error) {
	if d.options.Memory == 0 {
		return math.MaxInt64, nil
	}
	dir, usage, total := filepath.Join(cgroupRoot, "memory", d.options.Cgroup), "memory.usage_in_bytes", "total_"
	if _, err := os.Stat(filepath.Join(cgroupRoot, controllers)); err == nil {
		dir, usage, total = filepath.Join(cgroupRoot, d.options.Cgroup), "memory.current", ""
	}
	raw, err := os.ReadFile(filepath.Join(dir, usage))
	if err != nil {
		return 0, fmt.Errorf("read the memory of all machines: %w", err)
	}
	used, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the memory of all machines: %w", err)
	}
	stat, err := os.ReadFile(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return 0, fmt.Errorf("read the memory of all machines: %w", err)
	}
	for line := range strings.Lines(string(stat)) {
		name, count, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name != total+"inactive_file" && name != total+"active_file" {
			continue
		}
		n, err := strconv.ParseInt(count, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the memory of all machines: %w", err)
		}
		used -= n
	}
	return d.options.Memory - used, nil
}
