package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/testkit"
)

const (
	// A machine is quiet if programs that are not ours use less than quietShare of
	// its processors, over quietWindow.
	quietShare, quietWindow = 0.05, 3 * time.Second
	// quietPatience is for what came before: a build, or the end of a benchmark.
	quietPatience = time.Minute
	// stolenShare is how much of the processors a hypervisor may give to others
	// without a note.
	stolenShare = 0.01
	// To see what a page fault takes, faulted bytes are touched. To see what a process takes,
	// started ones run.
	faulted, started = 16 << 20, 20
)

// host is where, when and how a benchmark ran. It is the first line of its JSON.
type host struct {
	Bench      string    `json:"bench"`
	Command    string    `json:"command"`
	Commit     string    `json:"commit"`
	Began      time.Time `json:"began"`
	Processor  string    `json:"processor"`
	Processors int       `json:"processors"`
	MemoryMB   uint64    `json:"memory_mb"`
	Kernel     string    `json:"kernel"`
	Virtual    string    `json:"virtual"`
	HugePages  string    `json:"huge_pages"`
	Disk       string    `json:"disk"`
	Load       string    `json:"load"`                 // before it began, over 1, 5 and 15 minutes
	Busy       float64   `json:"busy"`                 // share of the processors that others used just before
	FaultUS    float64   `json:"fault_us,omitempty"`   // what a first touch of a page takes
	ProcessMS  float64   `json:"process_ms,omitempty"` // what a program takes that does nothing
}

// fact is one thing about a machine.
type fact struct{ name, text string }

// facts are what all benchmarks of a page have in common.
func (h host) facts() []fact {
	all := []fact{
		{"Processors", fmt.Sprintf("%d × %s", h.Processors, h.Processor)},
		{"Memory", fmt.Sprintf("%d MB", h.MemoryMB)},
		{"Kernel", "Linux " + h.Kernel},
		{"Virtualization", h.Virtual},
		{"Transparent huge pages", h.HugePages},
		{"File system of the data", h.Disk},
		{"Commit", h.Commit},
	}
	if h.FaultUS > 0 { // an older run did not look
		all = append(all,
			fact{"A page fault", fmt.Sprintf("%.2g µs", h.FaultUS)},
			fact{"A process that does nothing", fmt.Sprintf("%.2g ms", h.ProcessMS)},
		)
	}
	return all
}

// pageFault is how long the first touch of a page takes, in microseconds. Virtual machines
// differ in it by a factor of twenty, and each create and wake has thousands.
func pageFault() (float64, error) {
	memory, err := unix.Mmap(-1, 0, faulted, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return 0, err
	}
	if err := unix.Madvise(memory, unix.MADV_NOHUGEPAGE); err != nil {
		return 0, errors.Join(err, unix.Munmap(memory))
	}
	begin, page := time.Now(), os.Getpagesize()
	for at := 0; at < len(memory); at += page {
		memory[at] = 1
	}
	took := time.Since(begin)
	return float64(took.Microseconds()) / float64(len(memory)/page), unix.Munmap(memory)
}

// process is how long a program takes that does nothing, in milliseconds.
func process(ctx context.Context) (float64, error) {
	begin := time.Now()
	for range started {
		if err := exec.CommandContext(ctx, "true").Run(); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(begin).Microseconds()) / 1000 / started, nil
}

// thisHost describes the host at this moment.
func thisHost(ctx context.Context, bench string) (host, error) {
	h := host{Bench: bench, Began: time.Now().UTC().Truncate(time.Second), Processor: "unknown", Processors: runtime.NumCPU(), Virtual: "none"}
	h.Command = "go run ./test/bench " + strings.Join(arguments(os.Args[1:]), " ")
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return h, err
	}
	for line := range strings.Lines(string(info)) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "model name":
			h.Processor = strings.TrimSpace(value)
		case "flags":
			if strings.Contains(value, " hypervisor") {
				h.Virtual = strings.TrimSpace("a virtual machine " + maker())
			}
		}
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return h, err
	}
	if f := strings.Fields(string(load)); len(f) > 2 {
		h.Load = strings.Join(f[:3], " ")
	}
	var memory unix.Sysinfo_t
	var name unix.Utsname
	if err := errors.Join(unix.Sysinfo(&memory), unix.Uname(&name)); err != nil {
		return h, err
	}
	h.MemoryMB = memory.Totalram * uint64(memory.Unit) >> 20
	h.Kernel = unix.ByteSliceToString(name.Release[:])
	h.HugePages, h.Disk, h.Commit = hugePages(), fileSystem(dataDir), commit(ctx)
	var none, broken error
	h.FaultUS, none = pageFault()
	h.ProcessMS, broken = process(ctx)
	return h, errors.Join(none, broken)
}

// arguments are those that say what is measured, and not where it is written.
func arguments(args []string) (rest []string) {
	for i := 0; i < len(args); i++ {
		if args[i] == "-json" {
			i++
			continue
		}
		rest = append(rest, args[i])
	}
	return rest
}

// maker is who made a virtual machine, if the hypervisor says so.
func maker() string {
	var all []string
	for _, file := range []string{"sys_vendor", "product_name"} {
		raw, _ := os.ReadFile("/sys/class/dmi/id/" + file) // many have none
		if text := strings.TrimSpace(string(raw)); text != "" {
			all = append(all, text)
		}
	}
	if len(all) == 0 {
		return ""
	}
	return "of " + strings.Join(all, " ")
}

// hugePages says what the kernel does with huge pages.
func hugePages() string {
	var all []string
	for _, f := range []struct{ file, of string }{{"enabled", "processes"}, {"shmem_enabled", "shared memory"}} {
		raw, _ := os.ReadFile("/sys/kernel/mm/transparent_hugepage/" + f.file) // a kernel without them has none
		_, rest, _ := strings.Cut(string(raw), "[")
		if mode, _, ok := strings.Cut(rest, "]"); ok {
			all = append(all, fmt.Sprintf("%s for %s", mode, f.of))
		}
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

// fileSystem names the type of the file system that a directory is on.
func fileSystem(dir string) string {
	raw, _ := os.ReadFile("/proc/self/mountinfo")
	longest, kind := "", "unknown"
	for line := range strings.Lines(string(raw)) {
		mount, super, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(mount), strings.Fields(super)
		if !ok || len(f) < 5 || len(g) < 2 {
			continue
		}
		within := f[4] == "/" || dir == f[4] || strings.HasPrefix(dir, f[4]+"/")
		if within && len(f[4]) >= len(longest) {
			longest, kind = f[4], g[0]+" on "+filepath.Base(g[1])
		}
	}
	return kind
}

// commit names what is measured. The page itself may have changed.
func commit(ctx context.Context) string {
	git := func(args ...string) (string, error) {
		cmd := exec.CommandContext(ctx, "git", append([]string{"-C", testkit.Root(), "-c", "safe.directory=*"}, args...)...) //nolint:gosec // G204: fixed words
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	name, err := git("rev-parse", "--short", "HEAD")
	if err != nil {
		return "unknown"
	}
	if changed, err := git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs/performance.md"); err != nil || changed != "" {
		name += ", with changes"
	}
	return name
}

// ticks are what processors did since the start of the host, in USER_HZ.
type ticks struct{ all, busy, stolen float64 }

func readTicks() (t ticks, err error) {
	raw, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, err
	}
	line, _, _ := strings.Cut(string(raw), "\n")
	for i, field := range strings.Fields(line)[1:] {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return t, fmt.Errorf("/proc/stat begins with %q: %w", line, err)
		}
		const idle, waits, steal, guest = 3, 4, 7, 8 // time of guests is in another field, too
		if i >= guest {
			break
		}
		t.all += n
		switch i {
		case idle, waits:
		case steal:
			t.stolen += n
		default:
			t.busy += n
		}
	}
	return t, nil
}

// busy returns the share of the processors that is used for a while.
func busy(ctx context.Context) (float64, error) {
	before, err := readTicks()
	if err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-time.After(quietWindow):
	}
	after, err := readTicks()
	return (after.busy - before.busy) / max(1, after.all-before.all), err
}

// awaitQuiet waits until the machine is quiet, for a time, and returns the share of
// its processors that others use.
func awaitQuiet(ctx context.Context) (share float64, err error) {
	for deadline := time.Now().Add(quietPatience); ; {
		share, err = busy(ctx)
		if err != nil || share <= quietShare || time.Now().After(deadline) {
			return share, err
		}
	}
}

// quiet fails on a machine that is not quiet.
func quiet(ctx context.Context) error {
	share, err := awaitQuiet(ctx)
	if err == nil && share > quietShare {
		err = fmt.Errorf("other programs use %.0f %% of the processors: end them; or add BUSY=1, and the page says so", 100*share)
	}
	return err
}
