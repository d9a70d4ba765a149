package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/placement"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	fleetRounds = 40
	// placeRounds and findRounds are samples of placeMany choices, and of findMany routes that are
	// found: one alone takes less than a clock shows.
	placeRounds, findRounds = 200, 200
	placeMany, findMany     = 100, 1000

	// takenMany sandboxes of a killed node sleep, and as many run.
	takenMany = 25

	takenSlept = "first answer elsewhere of a sandbox that slept, after the lease of its killed node"
	takenRan   = "first answer elsewhere of a sandbox that ran, after the lease of its killed node"

	fleetCreate, fleetWake = "create a sandbox", "a request that wakes a sandbox from disk"
)

// placeCounts are how many nodes there are, and routeCounts how many routes. The first of each is
// the yardstick.
var placeCounts, routeCounts = []int{10, 1000}, []int{1000, 100_000}

func placeCase(nodes int) string { return fmt.Sprintf("%d choices among %d nodes", placeMany, nodes) }

func findCase(routes int) string { return fmt.Sprintf("find %d of %d routes", findMany, routes) }

func routesCase(routes int) string { return fmt.Sprintf("%d routes in an edge", routes) }

// fleetCases names all rows of the benchmark.
func fleetCases() []string {
	names := []string{inOne(fleetCreate), fleetCreate, inOne(fleetWake), fleetWake}
	for _, n := range placeCounts {
		names = append(names, placeCase(n))
	}
	for _, n := range routeCounts {
		names = append(names, findCase(n))
	}
	names = append(names, takenSlept, takenRan, beatControl, beatOfNodes)
	return append(names, routesCase(routeCounts[len(routeCounts)-1]))
}

// fleetTable has times, and what routes take of memory.
type fleetTable struct {
	times  latencies
	routes weights
}

// report implements [table].
func (t fleetTable) report(people, machine io.Writer, bench string) error {
	if err := t.times.report(people, machine, bench); err != nil {
		return err
	}
	for _, w := range t.routes {
		w.Bench = bench
		fmt.Fprintf(people, "%s: %.1f MB\n", w.Case, w.PSS)
		if machine != nil {
			if err := json.NewEncoder(machine).Encode(w); err != nil {
				return err
			}
		}
	}
	return nil
}

// fleetPaths measures what a fleet adds to creates and wakes, next to one process. It also
// measures what grows with nodes and sandboxes.
func fleetPaths(ctx context.Context, dir string, only *regexp.Regexp) (_ table, err error) {
	var all fleetTable
	if only.MatchString(fleetCreate) || only.MatchString(fleetWake) {
		if all.times, err = fleetCalls(ctx, dir, only); err != nil {
			return all, err
		}
	}
	if only.MatchString(takenSlept) || only.MatchString(takenRan) {
		taken, err := takeovers(ctx, dir)
		if err != nil {
			return all, err
		}
		all.times = append(all.times, taken...)
	}
	if only.MatchString(beatControl) || only.MatchString(beatOfNodes) {
		home := filepath.Join(dir, "beats")
		if err := os.Mkdir(home, 0o700); err != nil {
			return all, err
		}
		beats, err := heartbeats(ctx, home)
		all.times = append(all.times, beats...)
		if err != nil {
			return all, err
		}
	}
	all.times = append(all.times, places(only)...)
	found, held := findRoutes(only)
	all.times, all.routes = append(all.times, found...), held
	return all, ctx.Err()
}

// fleetCalls asks a platform of one process and one of three, in turn.
func fleetCalls(ctx context.Context, dir string, only *regexp.Regexp) (all latencies, err error) {
	var sides [2]*testkit.Platform
	defer func() {
		for _, p := range sides {
			if p != nil {
				err = errors.Join(err, p.Close())
			}
		}
	}()
	var urls [2]string
	for i, name := range []string{"one", "three"} {
		home := filepath.Join(dir, name)
		if err := os.Mkdir(home, 0o700); err != nil {
			return nil, err
		}
		p, err := testkit.Start(ctx, testkit.Options{Dir: home, Fast: true, Roles: i == 1, Args: []string{"--pause-after", "1h", "--log", "warn", "--key-requests", "0"}})
		if err != nil {
			return nil, err
		}
		sides[i] = p
		c, err := p.Client()
		if err != nil {
			return nil, err
		}
		sb, err := c.Create(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: "bench"}}, false)
		if err != nil {
			return nil, err
		}
		urls[i] = sb.Metadata.URL
	}
	ask := &http.Client{Transport: &http.Transport{}, Timeout: settle}
	for _, work := range []struct {
		name string
		do   func(i, round int) (time.Duration, error)
	}{
		{fleetCreate, func(i, round int) (time.Duration, error) {
			name, base := "made-"+strconv.Itoa(round), sides[i].Address+"/v0/sandboxes"
			took, err := answer(ctx, ask, http.MethodPost, base, sides[i].Key, `{"metadata":{"name":"`+name+`"},"spec":{"runtime":{"memory":512}}}`)
			if err == nil {
				_, err = answer(ctx, ask, http.MethodDelete, base+"/"+name, sides[i].Key, "")
			}
			return took, err
		}},
		{fleetWake, func(i, _ int) (time.Duration, error) {
			record := sides[i].Address + "/v0/sandboxes/bench"
			if _, err := answer(ctx, ask, http.MethodPut, record, sides[i].Key, `{"spec":{"enabled":false}}`); err != nil {
				return 0, err
			}
			if err := sides[i].AwaitTier(ctx, "bench", "disk"); err != nil {
				return 0, err
			}
			if _, err := answer(ctx, ask, http.MethodPut, record, sides[i].Key, `{"spec":{"enabled":true}}`); err != nil {
				return 0, err
			}
			return answer(ctx, ask, http.MethodGet, urls[i]+"/health", sides[i].Key, "")
		}},
	} {
		if !only.MatchString(work.name) {
			continue
		}
		own := &series{name: inOne(work.name)}
		s := &series{name: work.name, against: own}
		all = append(all, own, s)
		for round := range times(fleetRounds) { // in turn: what the machine does besides hits both
			for i, of := range []*series{own, s} {
				took, err := work.do(i, round)
				if err != nil {
					return all, fmt.Errorf("%s: %w", of.name, err)
				}
				of.add(took)
			}
			time.Sleep(200 * time.Millisecond) // the next machine is made ahead
		}
	}
	return all, nil
}

// takeovers kills a node of three, and measures how soon its sandboxes answer elsewhere.
func takeovers(ctx context.Context, dir string) (latencies, error) {
	answers, many := filepath.Join(dir, "answers.json"), strconv.Itoa(times(takenMany))
	cmd := exec.CommandContext(ctx, "go", "run", "./test/fleet", "takeover", "-asleep", many, "-awake", many, "-answers", answers) //nolint:gosec // G204: our own command
	cmd.Dir, cmd.Stdout, cmd.Stderr = testkit.Root(), os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("take over the sandboxes of a killed node: %w", err)
	}
	raw, err := os.ReadFile(answers)
	if err != nil {
		return nil, err
	}
	var after struct{ Slept, Ran []time.Duration }
	if err := json.Unmarshal(raw, &after); err != nil {
		return nil, err
	}
	return latencies{{name: takenSlept, samples: after.Slept}, {name: takenRan, samples: after.Ran}}, nil
}

// places chooses nodes.
func places(only *regexp.Regexp) (all latencies) {
	var few *series
	for _, count := range placeCounts {
		nodes := make([]placement.Node, count)
		for i := range nodes {
			nodes[i] = placement.Node{
				ID: "node-" + strconv.Itoa(i), Open: i%17 != 0, Driver: "gvisor", Memory: 28_000, Reserved: doze.Megabytes(i * 37 % 24_000),
				Disk: 400_000, Processors: 8, Busy: float64(i % 8), Sandboxes: i % 300, Has: func(string) bool { return i%3 == 0 },
			}
		}
		s := &series{name: placeCase(count), against: few}
		if few == nil {
			few = s
		}
		if !only.MatchString(s.name) {
			continue
		}
		for range times(placeRounds) {
			began := time.Now()
			for range placeMany {
				if _, _, ok := placement.Choose(placement.Want{Memory: 4096, Disk: 1000, Image: "base"}, nodes); !ok {
					s.fail(errors.New("no node was chosen"))
				}
			}
			s.add(time.Since(began))
		}
		all = append(all, s)
	}
	return all
}

// findRoutes finds sandboxes as an edge does, and weighs what it keeps for that.
func findRoutes(only *regexp.Regexp) (all latencies, held weights) {
	var few *series
	for i, count := range routeCounts {
		s := &series{name: findCase(count), against: few}
		if few == nil {
			few = s
		}
		if !only.MatchString(s.name) && !only.MatchString(routesCase(count)) {
			continue
		}
		before := heap()
		directory, atlas := fleet.NewDirectory(), fleet.NewAtlas()
		for r := range count {
			uid := fmt.Sprintf("%020d", r)
			directory.Put(fleet.Upstream{UID: uid, Workspace: "workspace-" + strconv.Itoa(r%100), Name: recordName(r), Enabled: true})
			atlas.Put(uid, fmt.Sprintf("%026d", r%1000))
		}
		taken := heap() - before
		names := make([][2]string, findMany)
		for range times(findRounds) {
			for n := range names {
				r := spread(n, count)
				names[n] = [2]string{"workspace-" + strconv.Itoa(r%100), recordName(r)}
			}
			began := time.Now()
			for _, name := range names {
				if up, ok := directory.Find(name[0], name[1], began); !ok || atlas.Node(up.UID) == "" {
					s.fail(errors.New("a route is not there"))
				}
			}
			s.add(time.Since(began))
		}
		all = append(all, s)
		if i == len(routeCounts)-1 {
			held = append(held, row{Case: routesCase(count), N: count, memory: memory{PSS: taken}})
		}
		runtime.KeepAlive(directory)
		runtime.KeepAlive(atlas)
	}
	return all, held
}

// heap is what the heap of this process has in use, in MB.
func heap() float64 {
	runtime.GC()
	runtime.GC() // what finalizers let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}
