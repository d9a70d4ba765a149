package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// host is where and when a benchmark ran. It is the first line of its JSON.
type host struct {
	Bench      string    `json:"bench"`
	Began      time.Time `json:"began"`
	Processor  string    `json:"processor"`
	Processors int       `json:"processors"`
	MemoryMB   uint64    `json:"memory_mb"`
	Kernel     string    `json:"kernel"`
	Load       string    `json:"load"` // before it began, over 1, 5 and 15 minutes
}

// thisHost describes the host at this moment.
func thisHost(bench string) (host, error) {
	h := host{Bench: bench, Began: time.Now().UTC().Truncate(time.Second), Processor: "unknown", Processors: runtime.NumCPU()}
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return h, err
	}
	for line := range strings.Lines(string(info)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
			h.Processor = strings.TrimSpace(value)
			break
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
	return h, nil
}

// bounds says what bounds a row: the first pattern that matches the benchmark and
// the case. A row without one is a mistake.
var bounds = []struct {
	rows *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`^wake awake`), "the way through the edge, the link and the network stack of the sandbox"},
	{regexp.MustCompile(`^wake paused`), "as awake, and the thaw of the sandbox's threads, which have lost their caches"},
	{regexp.MustCompile(`^wake swapped`), "as paused, and the pages that the kernel reads back one fault at a time"},
	{regexp.MustCompile(`^wake disk .*page cache`), "as from disk, and the reads of the disk"},
	{regexp.MustCompile(`^wake disk .*at once`), "the processors: each wake decodes the engine's state"},
	{regexp.MustCompile(`^wake disk`), "the processes of a new engine, the decoding of its state, and the first touch of its pages"},
	{regexp.MustCompile(`^wake runsc`), "gVisor's own command line, with the same checkpoint"},
	{regexp.MustCompile(`^wake `), "the way through the edge"},
	{regexp.MustCompile(`^sleep .*in use`), "the way through the edge, and a Python server in the sandbox"},
	{regexp.MustCompile(`^sleep `), "the tier that the sandbox is in by then; a checkpoint that is under way ends for the request"},
	{regexp.MustCompile(`^create `), "the processes of the engine, its boot or its template, and the start of the agent"},
	{regexp.MustCompile(`^agent .*exec`), "the start of a process in the sandbox: each of its system calls is intercepted"},
	{regexp.MustCompile(`^agent `), "system calls in the sandbox, each of which is intercepted, and copies between three processes"},
	{regexp.MustCompile(`^control `), "the database, one writer at a time"},
	{regexp.MustCompile(`^egress `), "the relay of bytes between two sockets, and the handshake of TLS where it is intercepted"},
}

// boundOf returns what bounds a row.
func boundOf(r row) (string, error) {
	for _, b := range bounds {
		if b.rows.MatchString(r.Bench + " " + r.Case) {
			return b.by, nil
		}
	}
	return "", fmt.Errorf("nothing says what bounds %q of %s: add it to the table", r.Case, r.Bench)
}

// writePage writes the table of all benchmarks whose JSON is in files, for people.
func writePage(out io.Writer, files []string) error {
	w := bufio.NewWriter(out)
	fmt.Fprint(w, `# What Doze takes

`+"`make performance`"+` measures this page. A time is that of a caller: over HTTP, through the edge, until the whole answer is
there. A ratio compares the middle one (p50) with that of the yardstick in the same run, which the host slows down alike.
`)
	for _, name := range files {
		if err := section(w, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return w.Flush()
}

// section writes the table of one benchmark.
func section(w io.Writer, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	lines := json.NewDecoder(f)
	var h host
	if err := lines.Decode(&h); err != nil {
		return err
	}
	i := slices.IndexFunc(benches, func(b bench) bool { return b.name == h.Bench })
	if i < 0 {
		return fmt.Errorf("there is no benchmark %q", h.Bench)
	}
	fmt.Fprintf(w, "\n## %s\n\n%s.\n\n%s: %d × %s, %d MB, Linux %s, load before it %s.\n\n", h.Bench, capital(benches[i].text),
		h.Began.Format("2006-01-02 15:04"), h.Processors, h.Processor, h.MemoryMB, h.Kernel, h.Load)
	fmt.Fprint(w, "| Case | n | p50 ms | p99 ms | max ms | MB/s | CPU ms | p50 / yardstick | bounded by |\n|---|---|---|---|---|---|---|---|---|\n")
	for {
		var r row
		err := lines.Decode(&r)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		by, err := boundOf(r)
		if err != nil {
			return err
		}
		if r.Unsupported != "" {
			fmt.Fprintf(w, "| %s | | | | | | | | unsupported on this host |\n", r.Case)
			continue
		}
		ratio := ""
		if r.Vs > 0 {
			ratio = fmt.Sprintf("%.1f", r.P50/r.Vs)
		}
		fmt.Fprintf(w, "| %s | %d | %.1f | %.1f | %.1f | %s | %s | %s | %s |\n", r.Case, r.N, r.P50, r.P99, r.Max, some(r.Rate), some(r.Cost), ratio, by)
	}
}

// capital returns text that begins with a capital letter.
func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
