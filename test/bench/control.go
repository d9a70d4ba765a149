package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/testkit"
)

const (
	// controlRounds of each case, in turn, so that all meet the same host.
	controlRounds = 300
	// insertsAlone and insertsAtOnce are the creates of records that are
	// measured: one by one, and by so many callers.
	insertsAlone, insertsAtOnce, inserters = 500, 4000, 16

	controlWorkspace = "main"
)

// recordCounts are how many sandboxes the store knows; the cases of the first
// are the yardsticks of those of the next.
var recordCounts = []int{10_000, 100_000}

// questions are the cases: what is asked, of a platform with so many records, in
// the round i.
var questions = []struct {
	name string
	path func(i, records int) string
}{
	{"by external id", func(i, records int) string { return "/sandboxes/by-external-id/" + externalID(spread(i, records)) }},
	{"by name", func(i, records int) string { return "/sandboxes/" + recordName(spread(i, records)) }},
	{"list, a page of 50", func(int, int) string { return "/sandboxes?limit=50" }},
	{"list by name, a page of 50", func(int, int) string { return "/sandboxes?limit=50&sort=name:asc" }},
	{"list, the last page of 50", func(int, int) string { return "/sandboxes?limit=50&anchor=end" }},
	{"list of an external id", func(i, records int) string { return "/sandboxes?externalId=" + externalID(spread(i, records)) }},
	{"search for one", func(i, records int) string { return "/sandboxes?q=" + recordName(spread(i, records))[2:] }},
	{"search for what all have", func(int, int) string { return "/sandboxes?limit=50&q=ecord" }},
	{"search for what none has", func(int, int) string { return "/sandboxes?q=nowhere" }},
	{"list of a rare status", func(int, int) string { return "/sandboxes?status=DEPLOYED" }},
}

func recordName(i int) string { return fmt.Sprintf("record-%06d", i) }
func externalID(i int) string { return fmt.Sprintf("external-%06d", i) }

// spread is a record for each round, far from that of the round before.
func spread(i, records int) int { return i * 7919 % records }

// recordTable has the latencies of calls and the rate of creates.
type recordTable struct {
	calls latencies
	rates []row
}

// report implements [table].
func (r recordTable) report(people, machine io.Writer, bench string) error {
	if err := r.calls.report(people, machine, bench); err != nil {
		return err
	}
	for _, t := range r.rates {
		t.Bench = bench
		fmt.Fprintf(people, "%s: %.0f per second (%d)\n", t.Case, t.PerSecond, t.N)
		if machine != nil {
			if err := json.NewEncoder(machine).Encode(t); err != nil {
				return err
			}
		}
	}
	return nil
}

const controlYardstick = "health, which knows no record"

func insertCase(count int) string { return fmt.Sprintf("create a record, %d there", count) }

func questionCase(name string, count int) string { return fmt.Sprintf("%s, of %d", name, count) }

func rateCase(count int) string {
	return fmt.Sprintf("create records, %d callers, %d there", inserters, count)
}

// controlCases names all rows of the benchmark.
func controlCases() []string {
	names := []string{controlYardstick}
	for _, count := range recordCounts {
		names = append(names, insertCase(count), rateCase(count))
		for _, q := range questions {
			names = append(names, questionCase(q.name, count))
		}
	}
	return names
}

// control asks for records of sandboxes in a store that has few and many. The
// records have no machines: their start failed, as one can that nobody deleted.
func control(ctx context.Context, dir string, only *regexp.Regexp) (_ table, err error) {
	var all recordTable
	p, err := testkit.Start(ctx, testkit.Options{Dir: dir, Fast: true, Args: []string{"--log", "warn", "--images", ""}})
	if err != nil {
		return all, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	health := &series{name: controlYardstick}
	all.calls = latencies{health}
	before := make([]*series, len(questions))
	var inserts []*series
	var files []string
	there := 0
	for _, count := range recordCounts {
		if err := p.Stop(); err != nil {
			return all, err
		}
		files = append(files, filepath.Join(dir, fmt.Sprintf("records-%d.db", count)))
		rate, err := fill(ctx, p, there, count, files[len(files)-1])
		if err != nil {
			return all, fmt.Errorf("%d records: %w", count, err)
		}
		there = count + insertsAtOnce
		insert := &series{name: insertCase(count)}
		if len(inserts) > 0 {
			insert.against = inserts[0]
		}
		inserts = append(inserts, insert)
		if err := p.Restart(ctx); err != nil {
			return all, err
		}
		var now []*series
		for i, q := range questions {
			s := &series{name: questionCase(q.name, count), against: before[i]}
			now = append(now, s)
			if only.MatchString(s.name) {
				all.calls = append(all.calls, s)
			}
		}
		if err := questionAll(ctx, p, count, only, health, now); err != nil {
			return all, err
		}
		before = now
		all.rates = append(all.rates, rate)
	}
	all.calls = append(all.calls, inserts...)
	return all, insertInTurn(ctx, p, files, inserts, nil)
}

// insertInTurn adds records to the stores in files, one by one and in turn, so that
// all meet the same disk; open are those of the files before.
func insertInTurn(ctx context.Context, p *testkit.Platform, files []string, took []*series, open []*store.Store) error {
	if len(open) < len(files) {
		return withStore(ctx, p, files[len(open)], func(st *store.Store) error {
			return insertInTurn(ctx, p, files, took, append(open, st))
		})
	}
	for i := range insertsAlone {
		for j, st := range open {
			began := time.Now()
			if err := record(ctx, st, recordCounts[j]+i); err != nil {
				return err
			}
			took[j].add(time.Since(began))
		}
	}
	return nil
}

// questionAll asks every question in every round.
func questionAll(ctx context.Context, p *testkit.Platform, records int, only *regexp.Regexp, health *series, now []*series) error {
	for i := range times(controlRounds) {
		took, err := read(ctx, p, "/health")
		if err != nil {
			return err
		}
		health.add(took)
		for j, q := range questions {
			if !only.MatchString(now[j].name) {
				continue
			}
			if took, err = read(ctx, p, q.path(i, records)); err != nil {
				return fmt.Errorf("%s: %w", now[j].name, err)
			}
			now[j].add(took)
		}
	}
	return nil
}

// read asks the control API, in the version with pages, and returns the time
// until the whole answer was there.
func read(ctx context.Context, p *testkit.Platform, path string) (time.Duration, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Address+"/v0"+path, http.NoBody)
	if err != nil {
		return 0, err
	}
	r.Header.Set("Authorization", "Bearer "+p.Key)
	r.Header.Set("Blaxel-Version", "2026-04-28")
	began := time.Now()
	resp, err := reader.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (resp.StatusCode != http.StatusOK || n == 0) {
		err = fmt.Errorf("%s: %s", path, resp.Status)
	}
	return time.Since(began), err
}

var reader = &http.Client{Timeout: time.Minute}

// fill adds records up to a count, keeps a copy of the store with these, then
// measures creates of more by many callers. The platform must have stopped.
func fill(ctx context.Context, p *testkit.Platform, from, count int, name string) (rate row, err error) {
	file := filepath.Join(p.Data, "doze.db")
	err = inMemory(file, func(file string) error {
		return withStore(ctx, p, file, func(st *store.Store) error {
			for i := from; i < count; i++ {
				if err := record(ctx, st, i); err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return rate, err
	}
	if err := clone(file, name); err != nil {
		return rate, err
	}
	err = withStore(ctx, p, file, func(st *store.Store) error {
		var together errgroup.Group
		together.SetLimit(inserters)
		began := time.Now()
		for i := range insertsAtOnce {
			together.Go(func() error { return record(ctx, st, count+i) })
		}
		err := together.Wait()
		rate = row{
			Case: rateCase(count), N: insertsAtOnce,
			PerSecond: insertsAtOnce / time.Since(began).Seconds(),
		}
		return err
	})
	return rate, err
}

// inMemory lets fn change a file where nothing waits for the disk: what fills
// the store is not measured.
func inMemory(file string, fn func(file string) error) error {
	dir, err := os.MkdirTemp("/dev/shm", "doze-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	away := filepath.Join(dir, filepath.Base(file))
	if err := clone(file, away); err != nil {
		return err
	}
	if err := fn(away); err != nil {
		return err
	}
	return clone(away, file)
}

// clone copies a file to another file system.
func clone(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

// withStore opens the store of a platform that has stopped, in a file.
func withStore(ctx context.Context, p *testkit.Platform, file string, fn func(*store.Store) error) (err error) {
	cipher, err := seal.Open(filepath.Join(p.Data, "seal.key"))
	if err != nil {
		return err
	}
	st, err := store.Open(ctx, file, cipher)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	// A list is measured with more records than a workspace has by default.
	st.SetDefaultLimits(doze.Limits{doze.QuotaSandboxes: doze.QuotaLimitMax})
	return fn(st)
}

// record creates the record of a sandbox and fails its start: two transactions.
func record(ctx context.Context, st *store.Store, i int) error {
	now := time.Now()
	sb := store.Sandbox{UID: store.NewID(), LastUsed: now}
	sb.Metadata = doze.Metadata{
		Name: recordName(i), ExternalID: externalID(i), Workspace: controlWorkspace, Labels: map[string]string{"batch": fmt.Sprint(i / 1000)},
		CreatedAt: doze.Time{Time: now}, UpdatedAt: doze.Time{Time: now}, CreatedBy: "admin", UpdatedBy: "admin",
	}
	sb.Spec.Region = "local"
	sb, err := st.InsertSandbox(ctx, sb)
	if err == nil {
		_, err = st.Apply(ctx, sb.UID, store.Step{On: doze.Broke, At: now})
	}
	return err
}
