// Command bench measures the built platform as its users meet it: over HTTP,
// through the edge, with real sandboxes. Every benchmark compares its cases with
// a yardstick from the same run.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"
)

// A bench is one benchmark; its cases are the series that it returns. One that
// is interrupted returns what it has.
type bench struct {
	name, text string
	cases      func() []string // all that it can have
	run        func(ctx context.Context, dir string, only *regexp.Regexp) (table, error)
}

// table is what came of a benchmark: it is printed for people and, if machine is
// not nil, as JSON lines.
type table interface {
	report(people, machine io.Writer, bench string) error
}

var benches = []bench{
	{"wake", "a request to a sandbox that is awake, paused, in swap, or on disk; through the edge, until the whole answer is there", wakeCases, wake},
	{"sleep", "a request after every idle time up to a minute, to sandboxes of several sizes that change a part of their memory", sleepCases, sleeps},
	{"create", "from the create call until the answer of the first exec", createCases, create},
	{"agent", "calls of the API inside a sandbox, and large transfers, through the edge", agentCases, agentCalls},
	{"control", "calls about records, and creates of them, in a store with 10,000 and with 100,000", controlCases, control},
	{"build", "builds of Dockerfiles, and what follows until a sandbox runs: with a builder of the platform, and with BuildKit and runc on the host", buildCases, buildImages},
	{"drive", "files on a drive, whose bucket is an S3 server on this machine, and the same in the sandbox's own files", driveCases, drives},
	{"inside", "what people do in a sandbox: natively in a chroot of its image, and in sandboxes with files in memory and on disk", insideCases, insideWork},
	{"egress", "a request over TLS to a server on this machine: directly, by a relay, and by the proxy of sandboxes", egressCases, egressPaths},
	{"roles", "the same questions to a platform of three processes, and of one", rolesCases, roles},
	{"fleet", "creates and wakes in three processes and in one; a killed node, heartbeats, the choice of a node, and 100,000 routes", fleetCases, fleetPaths},
	{"density", "what idle sandboxes take of the host in each tier", densityCases, density},
}

// idleStep is that of the benchmark sleep.
var idleStep = flag.Duration("step", 250*time.Millisecond, "`time` from one idle time to the next")

// sleepMany is how many sandboxes of each size the benchmark sleep asks.
var sleepMany = flag.Int("many", 1, "ask this `number` of sandboxes of each size at the same time, in the benchmark sleep")

// most bounds how often a case is measured.
var most = flag.Int("rounds", 0, "measure each case at most this `number` of times, for a quick look; 0 as often as its figures need")

// times is how often a case is measured that needs so many rounds.
func times(rounds int) int {
	if *most > 0 {
		return min(rounds, *most)
	}
	return rounds
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop has run
	}
}

func run(ctx context.Context) (err error) {
	file := flag.String("json", "", "`file` to write the rows to, as JSON lines")
	only := flag.String("only", "", "`pattern` of the cases to measure, with their yardsticks; all by default")
	flag.Parse()
	cases, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	switch flag.Arg(0) {
	case "page":
		return writePage(os.Stdout, flag.Args()[1:])
	case "quiet":
		return quiet(ctx)
	}
	for _, b := range benches {
		if b.name != flag.Arg(0) {
			continue
		}
		return measureOne(ctx, b, cases, *file)
	}
	var known []string
	for _, b := range benches {
		known = append(known, b.name)
	}
	return errors.New("which benchmark, or page, or quiet? " + fmt.Sprint(known))
}

// measureOne runs a benchmark. With a file it waits for a quiet machine first, and
// the file tells what came of it, also if it failed.
func measureOne(ctx context.Context, b bench, cases *regexp.Regexp, file string) error {
	if file == "" {
		return runOne(ctx, b, cases, nil)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	others, err := awaitQuiet(ctx)
	if err != nil {
		return err
	}
	where, err := thisHost(ctx, b.name)
	if err != nil {
		return err
	}
	where.Busy = others
	if err := json.NewEncoder(f).Encode(where); err != nil {
		return err
	}
	before, err := readTicks()
	if err != nil {
		return err
	}
	began := time.Now()
	err = runOne(ctx, b, cases, f)
	after, bad := readTicks()
	end := ending{Seconds: time.Since(began).Seconds(), Stolen: (after.stolen - before.stolen) / max(1, after.all-before.all)}
	if err = errors.Join(err, bad); err != nil {
		end.Error = err.Error()
	}
	return errors.Join(err, json.NewEncoder(f).Encode(map[string]ending{"end": end}))
}

// runOne runs a benchmark in a directory that is gone when it returns. It prints
// the rows, and writes them to machine if that is not nil.
func runOne(ctx context.Context, b bench, cases *regexp.Regexp, machine io.Writer) (err error) {
	dir, err := os.MkdirTemp(dataDir, "doze-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fmt.Printf("%s: %s\n", b.name, b.text)
	all, err := b.run(ctx, dir, cases)
	if all == nil {
		return err
	}
	return errors.Join(err, all.report(os.Stdout, machine, b.name))
}

// dataDir is on a disk: a tmpfs takes no swap, and has no files that are not in
// memory.
const dataDir = "/var/tmp"
