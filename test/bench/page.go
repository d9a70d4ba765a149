package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// bounds says what bounds a row: the first pattern that matches the benchmark and
// the case. A row without one is a mistake.
var bounds = []struct {
	rows *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`^wake awake`), "the edge, the link, and the network stack of the sandbox"},
	{regexp.MustCompile(`^wake paused`), "as awake, and the thaw of the sandbox's threads, whose caches are cold"},
	{regexp.MustCompile(`^wake swapped.*first time`), "as paused, and one fault in swap for each page that the wake touches"},
	{regexp.MustCompile(`^wake swapped to compressed`), "as paused, and the decompression of the pages that the last wake touched"},
	{regexp.MustCompile(`^wake swapped`), "as paused, and the reads of the pages that the last wake touched"},
	{regexp.MustCompile(`^wake disk .*page cache`), "as from disk, and the reads of the disk"},
	{regexp.MustCompile(`^wake disk .*one by one`), "as from disk, and the checkpoints of those that fall asleep meanwhile"},
	{regexp.MustCompile(`^wake disk .*kept awake`), "the processors: CPU ms × sandboxes / processors"},
	{regexp.MustCompile(`^wake disk .*at once`), "the processors: cycle CPU ms × sandboxes / processors at most"},
	{regexp.MustCompile(`^wake disk [1-9]`), "as 0 MB, and the first touch of its pages; most of the CPU time is the copy of its memory, after the answer"},
	{regexp.MustCompile(`^wake disk`), "the decoding of the engine's state, and the first touch of its pages"},
	{regexp.MustCompile(`^wake runsc`), "the start of the engine's processes, and the decoding of the same checkpoint"},
	{regexp.MustCompile(`^sleep .*in use`), "the edge, and a Python server in the sandbox"},
	{regexp.MustCompile(`^sleep .*kept awake`), "the load of the sandboxes that fall asleep and wake beside it"},
	{regexp.MustCompile(`^sleep `), "the tier that the sandbox is in by then; a request ends a checkpoint that is under way"},
	{regexp.MustCompile(`^create exec in`), "the start of a process in the sandbox, each of whose system calls is intercepted"},
	{regexp.MustCompile(`^create .*at once`), "the processors: CPU ms × sandboxes / processors"},
	{regexp.MustCompile(`^create .*by a boot`), "the start of the engine's processes, the boot of its kernel, and the start of the agent"},
	{regexp.MustCompile(`^create .*spare`), "the network of the sandbox, and the thaw of a machine that is there"},
	{regexp.MustCompile(`^create podman`), "the start of podman, conmon and crun, twice"},
	{regexp.MustCompile(`^create gVisor`), "the start of the engine's processes, and the boot of its kernel"},
	{regexp.MustCompile(`^agent .*(alone|plain server)`), "the host, or the sandbox's network: what the row after it is compared with"},
	{regexp.MustCompile(`^roles .*in one process`), "the host: what the row after it is compared with"},
	{regexp.MustCompile(`^roles .*record`), "as in one process, a second connection, and the wait until the edge knows what changed"},
	{regexp.MustCompile(`^roles `), "as in one process, and a tunnel of its own for each request"},
	{regexp.MustCompile(`^fleet .*in one process`), "the host: what the row after it is compared with"},
	{regexp.MustCompile(`^fleet .*(create|wakes)`), "as in one process, and the calls between control, node and edge"},
	{regexp.MustCompile(`^fleet .*(choices|find)`), "the memory of the host"},
	{regexp.MustCompile(`^fleet first answer`), "the processors of the other nodes, and the copies in the bucket; before that, the lease, which is 30 s by default"},
	{regexp.MustCompile(`^fleet .*a second of`), "calls over TLS: their JSON, and a system call or two for each"},
	{regexp.MustCompile(`^fleet .*routes in an edge`), "the names of sandboxes, and two maps"},
	{regexp.MustCompile(`^agent exec|^agent .*shell`), "the start of a process in the sandbox, each of whose system calls is intercepted"},
	{regexp.MustCompile(`^agent `), "system calls in the sandbox, each of which is intercepted, and copies between three processes"},
	{regexp.MustCompile(`^control `), "the database, one writer at a time"},
	{regexp.MustCompile(`^egress `), "the relay of bytes between two sockets, and the handshake of TLS where it is intercepted"},
	{regexp.MustCompile(`^drive .*own files`), "the sandbox's memory: what the row after it is compared with"},
	{regexp.MustCompile(`^drive (write|read) 1 GB`), "the copies between the sandbox, the host and the bucket, and the sums that S3 wants"},
	{regexp.MustCompile(`^drive `), "one or two calls to the bucket for each file"},
	{regexp.MustCompile(`^inside .*native$`), "the host: what the rows after it are compared with"},
	{regexp.MustCompile(`^inside npm`), "the registry and its link, and the files of the modules"},
	{regexp.MustCompile(`^inside (PostgreSQL|Redis)`), "the network stack of the sandbox, and switches between its processes"},
	{regexp.MustCompile(`^inside 100,000 system calls`), "a switch to the engine and one back for each"},
	{regexp.MustCompile(`^inside 10,000 bytes`), "the wake of a thread in each process, on another processor if one is free"},
	{regexp.MustCompile(`^inside 500 forks`), "the copy of an address space, for each of whose mappings the host is asked"},
	{regexp.MustCompile(`^inside (git|10,000|SQLite)`), "system calls for files, each of which is intercepted"},
	{regexp.MustCompile(`^inside write 1 GB`), "the first touch of the pages of the file"},
	{regexp.MustCompile(`^inside (gcc|Python)`), "starts of processes, page faults, and reads of the image"},
	{regexp.MustCompile(`^build .*BuildKit with runc`), "the host: what the row after it is compared with"},
	{regexp.MustCompile(`^build .*new builder`), "the boot of the builder, and the transfer of the base image into it"},
	{regexp.MustCompile(`^build FROM`), "BuildKit in a sandbox, whose system calls are intercepted; of a new layer, the conversion of the image"},
	{regexp.MustCompile(`^build (RUN|COPY)`), "the system calls of the step, each of which is intercepted"},
	{regexp.MustCompile(`^build tar`), "the host: what the row after it is compared with"},
	{regexp.MustCompile(`^build import`), "the copy of the archive, a tree of its files, and mkfs.erofs with its sync"},
	{regexp.MustCompile(`^build (first )?start`), "a boot: no spare machine has this image"},
	{regexp.MustCompile(`^build cached .*on disk`), "as with a builder in memory, and its wake from disk"},
	{regexp.MustCompile(`^build cached`), "a build from the cache, and a boot"},
	{regexp.MustCompile(`^density running|^density paused`), "the heap of the engine, and the pages that the guest touched"},
	{regexp.MustCompile(`^density in `), "the engine's pages that stay, and page tables"},
	{regexp.MustCompile(`^density on disk, process`), "the process of the next wake, which has decoded nothing yet"},
	{regexp.MustCompile(`^density on disk`), "records in dozed"},
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

// measure is a figure of a row that can have a target.
type measure struct {
	name, unit string
	of         func(row) float64
	least      bool // the target is the least, and not the most
	without    bool // rows may lack the figure; otherwise one without it missed the target
}

var (
	ofP50      = measure{name: "p50", unit: " ms", of: func(r row) float64 { return r.P50 }}
	ofP99      = measure{name: "p99", unit: " ms", of: func(r row) float64 { return r.P99 }}
	ofMax      = measure{name: "max", unit: " ms", of: func(r row) float64 { return r.Max }}
	ofCost     = measure{name: "CPU", unit: " ms", of: func(r row) float64 { return r.Cost }}
	ofRate     = measure{name: "rate", unit: " MB/s", of: func(r row) float64 { return r.Rate }, least: true}
	ofRatio    = measure{name: "p50 / yardstick", of: row.ratio}
	ofDistance = measure{name: "p50 − yardstick", unit: " ms", of: func(r row) float64 { return r.P50 - r.Vs }}
	ofPSS      = measure{name: "memory", unit: " MB", of: func(r row) float64 { return r.PSS }}
	ofFailed   = measure{name: "failed", of: func(r row) float64 { return float64(r.Failed) }, without: true}
)

// target is what a figure of some rows is meant to be at most, or at least.
type target struct {
	rows *regexp.Regexp
	measure
	limit float64
}

func (t target) String() string {
	sign := "≤"
	if t.least {
		sign = "≥"
	}
	return fmt.Sprintf("%s %s %v%s", t.name, sign, t.limit, t.unit)
}

// met reports whether a row is there.
func (t target) met(r row) bool {
	got := t.of(r)
	switch {
	case r.Unsupported != "":
		return false
	case t.least:
		return got >= t.limit
	}
	return got <= t.limit && (got != 0 || t.without)
}

// targets are what rows are meant to reach.
var targets = []target{
	{regexp.MustCompile(`^wake paused`), ofDistance, 1.5},
	{regexp.MustCompile(`^wake swapped 256 MB$`), ofP50, 15},
	{regexp.MustCompile(`^wake swapped 256 MB$`), ofP99, 25},
	{regexp.MustCompile(`^wake disk 0 MB$`), ofP50, 30},
	{regexp.MustCompile(`^wake disk 64 MB$`), ofP50, 50},
	{regexp.MustCompile(`^wake disk (512|2048) MB$`), ofP50, 75},
	{regexp.MustCompile(`^wake disk \d+ MB$`), ofCost, 50},
	{regexp.MustCompile(`^wake disk .*one by one`), ofP50, 60},
	{regexp.MustCompile(`^wake disk .*50 at once$`), ofP50, 1200},
	{regexp.MustCompile(`^sleep .*idle 0s to 1m0s`), ofMax, 150},
	{regexp.MustCompile(`^sleep .*idle 0s to 1m0s`), ofP99, 50},
	{regexp.MustCompile(`^sleep .*while a snapshot is taken`), ofMax, 150},
	{regexp.MustCompile(`^create create \+ exec, (by a boot|with a spare machine)`), ofCost, 60},
	{regexp.MustCompile(`^create create .*20 at once, defaults`), ofP50, 500},
	{regexp.MustCompile(`^create create .*100 at once, defaults`), ofP50, 2500},
	{regexp.MustCompile(`^create create .*at once`), ofFailed, 0},
	{regexp.MustCompile(`^build (RUN|COPY)[^,]*(2,000 files)?$`), ofRatio, 2.5},
	{regexp.MustCompile(`^build cached rebuild`), ofP50, 2000},
	{regexp.MustCompile(`^drive write 8 MB.*, drive$`), ofP50, 1000},
	{regexp.MustCompile(`^drive (write|read) 1 GB.*, drive$`), ofRate, 100},
	{regexp.MustCompile(`^inside (PostgreSQL|Redis).*in memory$`), ofRatio, 4},
	{regexp.MustCompile(`^inside 500 forks.*in memory$`), ofRatio, 3},
	{regexp.MustCompile(`^inside .*next to in memory$`), ofRatio, 1.5},
	{regexp.MustCompile(`^fleet 100 choices among 1000 nodes$`), ofP50, 100},
	{regexp.MustCompile(`^fleet find 1000 of 100000 routes$`), ofP50, 10},
	{regexp.MustCompile(`^fleet .*routes in an edge$`), ofPSS, 100},
	{regexp.MustCompile(`^agent exec true and wait$`), ofP50, 6},
	{regexp.MustCompile(`^agent upload (100|500) MB$`), ofRate, 300},
	{regexp.MustCompile(`^agent stream 100 MB of output$`), ofRatio, 1.5},
}

// goal is one target of one row.
type goal struct {
	row  row
	text string // what was wanted
	got  string // what came
	met  bool
}

// goals returns the targets of a row.
func goals(r row) (all []goal) {
	for _, t := range targets {
		if !t.rows.MatchString(r.Bench + " " + r.Case) {
			continue
		}
		all = append(all, goal{r, t.String(), fmt.Sprintf("%.4g%s", t.of(r), t.unit), t.met(r)})
	}
	return all
}

// columns of the tables. A table lacks those that none of its rows has.
var columns = []struct {
	name string
	cell func(row) string
}{
	{"n", func(r row) string { return some(float64(r.N)) }},
	{"failed", func(r row) string { return some(float64(r.Failed)) }},
	{"p50 ms", func(r row) string { return tenths(r.P50) }},
	{"p99 ms", func(r row) string { return tenths(r.P99) }},
	{"max ms", func(r row) string { return tenths(r.Max) }},
	{"MB/s", func(r row) string { return some(r.Rate) }},
	{"kB", func(r row) string { return some(r.Wire) }},
	{"per second", func(r row) string { return some(r.PerSecond) }},
	{"answer CPU ms", func(r row) string { return tenths(r.Answer) }},
	{"CPU ms", func(r row) string { return tenths(r.Cost) }},
	{"cycle CPU ms", func(r row) string { return tenths(r.Cycle) }},
	{"PSS MB", func(r row) string { return r.megabytes(r.PSS) }},
	{"charged MB", func(r row) string { return r.megabytes(r.Charged) }},
	{"swap MB", func(r row) string { return r.megabytes(r.Swap) }},
	{"compressed MB", func(r row) string { return r.megabytes(r.Compressed) }},
	{"disk MB", func(r row) string { return r.megabytes(r.Disk) }},
	{"ratio", func(r row) string {
		if r.ratio() == 0 {
			return ""
		}
		return fmt.Sprintf("%.2g × %s", r.ratio(), r.Yardstick)
	}},
	{"target", func(r row) string {
		var texts []string
		for _, g := range goals(r) {
			verdict := "**missed**"
			if g.met {
				verdict = "met"
			}
			texts = append(texts, g.text+": "+verdict)
		}
		return strings.Join(texts, "<br>")
	}},
}

// megabytes shows memory of a row that is about memory, in which nothing is a figure.
func (r row) megabytes(x float64) string {
	if r.memory == (memory{}) {
		return ""
	}
	return fmt.Sprintf("%.1f", x)
}

// tenths shows a figure that a row may not have.
func tenths(x float64) string {
	if x == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", x)
}

// section is what a file says of one benchmark.
type section struct {
	name  string
	where host
	rows  []row
	end   *ending // nil if the benchmark was killed

	mistakes []error // in the tables of this program
}

// readSection reads the JSON of a benchmark. One without a file did not begin.
func readSection(file string) (s section, err error) {
	s.name = strings.TrimSuffix(filepath.Base(file), ".json")
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	defer func() { _ = f.Close() }()
	lines := json.NewDecoder(f)
	if err := lines.Decode(&s.where); errors.Is(err, io.EOF) {
		return s, nil
	} else if err != nil {
		return s, err
	}
	s.name = s.where.Bench
	i := slices.IndexFunc(benches, func(b bench) bool { return b.name == s.name })
	if i < 0 {
		return s, fmt.Errorf("there is no benchmark %q", s.name)
	}
	known := benches[i].cases()
	for {
		var line struct {
			row
			End *ending `json:"end"`
		}
		err := lines.Decode(&line)
		switch {
		case errors.Is(err, io.EOF):
			return s, nil
		case err != nil:
			return s, err
		case line.End != nil:
			s.end = line.End
		default:
			if !slices.Contains(known, line.Case) {
				s.mistakes = append(s.mistakes, fmt.Errorf("the benchmark %s has no case %q: add it to its cases", s.name, line.Case))
			}
			s.rows = append(s.rows, line.row)
		}
	}
}

const pageHead = `# Performance

` + "`make performance`" + ` measures this page. Do not edit it.

A time is that of a caller: over HTTP, through the edge, until the whole answer is there. Clients, the platform and its sandboxes
share the machine.

| Column | Meaning |
|---|---|
| n, failed | samples with a time, and samples that failed |
| p50, p99, max | time that half of the samples took at most, 99 % of them, and all |
| CPU ms | processor time of the platform for one sample: dozed, the launcher, and everything in sandboxes. Of a wake: until its work is over, while the sandbox is kept awake. Of all else: until the answer is there. |
| answer CPU ms | of a wake: the part of it until the answer is there |
| cycle CPU ms | the same until the platform rests again. Of a wake, that includes the next checkpoint. Of a create, the delete and the next spare machine. |
| kB | what a sample sends and receives between roles |
| PSS, charged | memory of one sandbox: what its processes have mapped, each page divided by how many have it; what its cgroup is charged for |
| ratio | p50 (or PSS) over that of the yardstick that is named, in the same run, which the host slows down alike |
| target | what the row is meant to reach, and whether it did |
| bounded by | where most of the time goes |
`

// writePage writes the tables of all benchmarks whose JSON is in files, for people.
// A row that a table of this program lacks is written, too, and is an error then.
func writePage(out io.Writer, files []string) error {
	var all []section
	for _, name := range files {
		s, err := readSection(name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, s)
	}
	w := bufio.NewWriter(out)
	fmt.Fprint(w, pageHead)
	where := machineOf(all)
	fmt.Fprint(w, "\n## The machine\n\n| | |\n|---|---|\n")
	for _, f := range where.facts() {
		fmt.Fprintf(w, "| %s | %s |\n", f.name, f.text)
	}
	writeGoals(w, all)
	var mistakes []error
	for _, s := range all {
		mistakes = append(mistakes, s.mistakes...)
		mistakes = append(mistakes, s.write(w, where)...)
	}
	return errors.Join(append(mistakes, w.Flush())...)
}

// machineOf returns the machine of the first benchmark that began.
func machineOf(all []section) host {
	for _, s := range all {
		if s.where.Bench != "" {
			return s.where
		}
	}
	return host{}
}

// writeGoals says which targets were met, missed and not measured.
func writeGoals(w io.Writer, all []section) {
	var missed []goal
	of := 0
	measured := map[string]bool{}
	for _, s := range all {
		for _, r := range s.rows {
			for _, g := range goals(r) {
				if of++; !g.met {
					missed = append(missed, g)
				}
			}
			measured[r.Bench+" "+r.Case] = true
		}
	}
	fmt.Fprintf(w, "\n## Targets\n\n%d of %d targets were met.\n", of-len(missed), of)
	writeMissed(w, missed)
	var left []string
	for _, b := range benches {
		for _, name := range b.cases() {
			if measured[b.name+" "+name] {
				continue
			}
			for _, t := range targets {
				if t.rows.MatchString(b.name + " " + name) {
					left = append(left, fmt.Sprintf("- %s %s: %s\n", b.name, name, t))
				}
			}
		}
	}
	if len(left) > 0 {
		fmt.Fprintf(w, "\nThese have no row on this page:\n\n%s", strings.Join(left, ""))
	}
}

func writeMissed(w io.Writer, missed []goal) {
	if len(missed) == 0 {
		return
	}
	fmt.Fprint(w, "These were missed:\n\n| Benchmark | Case | Target | Measured |\n|---|---|---|---|\n")
	for _, g := range missed {
		got := g.got
		if g.row.Unsupported != "" {
			got = "unsupported on this host"
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", g.row.Bench, g.row.Case, g.text, got)
	}
}

// write writes what there is of a benchmark, and returns what the tables lack.
func (s section) write(w io.Writer, where host) (mistakes []error) {
	fmt.Fprintf(w, "\n## %s\n\n", s.name)
	if i := slices.IndexFunc(benches, func(b bench) bool { return b.name == s.name }); i >= 0 {
		fmt.Fprintf(w, "%s.\n\n", capital(benches[i].text))
	}
	if s.where.Bench == "" {
		fmt.Fprint(w, "**Not measured:** the benchmark did not begin.\n")
		return nil
	}
	fmt.Fprintf(w, "`%s`, %s. Before it, load %s; other programs used %.0f %% of the processors.\n", s.where.Command, s.where.Began.Format("2006-01-02 15:04 MST"), s.where.Load, 100*s.where.Busy)
	if s.where.Busy > quietShare {
		fmt.Fprint(w, "**The machine was not quiet:** these figures are too high.\n")
	}
	for _, f := range s.where.facts() {
		if !slices.Contains(where.facts(), f) {
			fmt.Fprintf(w, "**%s differs:** %s.\n", f.name, f.text)
		}
	}
	switch {
	case s.end == nil:
		fmt.Fprint(w, "**It was cut short:** rows are missing.\n")
	case s.end.Error != "":
		fmt.Fprintf(w, "**It failed after %v, and rows may be missing:** %s\n", s.end.took(), oneLine(s.end.Error))
	default:
		fmt.Fprintf(w, "It took %v.", s.end.took())
		if s.end.Stolen > stolenShare {
			fmt.Fprintf(w, " **The hypervisor took away %.0f %% of the processors.**", 100*s.end.Stolen)
		}
		fmt.Fprintln(w)
	}
	if len(s.rows) == 0 {
		return nil
	}
	var shown []int
	for i, c := range columns {
		if slices.ContainsFunc(s.rows, func(r row) bool { return r.Unsupported == "" && c.cell(r) != "" }) {
			shown = append(shown, i)
		}
	}
	head, line := "\n| Case |", "|---|"
	for _, i := range shown {
		head, line = head+" "+columns[i].name+" |", line+"---|"
	}
	fmt.Fprintf(w, "%s bounded by |\n%s---|\n", head, line)
	for _, r := range s.rows {
		by, err := boundOf(r)
		if err != nil {
			mistakes = append(mistakes, err)
		}
		fmt.Fprintf(w, "| %s |", r.Case)
		if r.Unsupported != "" {
			fmt.Fprintf(w, "%s unsupported on this host: %s |\n", strings.Repeat(" |", len(shown)), oneLine(r.Unsupported))
			continue
		}
		for _, i := range shown {
			fmt.Fprintf(w, " %s |", columns[i].cell(r))
		}
		fmt.Fprintf(w, " %s |\n", by)
	}
	return mistakes
}

// ending is the last line of a benchmark's JSON.
type ending struct {
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
	Stolen  float64 `json:"stolen"` // share of the processors that the hypervisor gave to others meanwhile
}

func (e ending) took() time.Duration {
	return time.Duration(e.Seconds * float64(time.Second)).Round(time.Second)
}

// oneLine is what fits in a cell of a table.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, "|", "/")), " ")
	if len(text) > lineMax {
		text = strings.ToValidUTF8(text[:lineMax], "") + "…"
	}
	return text
}

// lineMax bounds a text from outside in a cell, in bytes.
const lineMax = 300

// capital returns text that begins with a capital letter.
func capital(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
