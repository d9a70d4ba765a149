package control_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit/postgres"
)

func TestMain(m *testing.M) { postgres.Main(m) }

// TestCrashAtEachStep stops the control plane before and after each order to
// the node, on each kind of database, and checks that the next one puts
// everything right.
func TestCrashAtEachStep(t *testing.T) {
	t.Parallel()
	const path = "/sandboxes/a"
	// holders are the statuses in which the sandbox may have its name afterwards.
	// One that was not there before and never ran is none.
	holders := map[string][]string{
		"create": {"DEPLOYED"}, "create disabled": {"DEPLOYED", "DEACTIVATED"}, "create fails": {"FAILED"},
		"redeploy": {"DEPLOYED"}, "disable and enable": {"DEPLOYED", "DEACTIVATED"}, "delete and create": {"DEPLOYED"},
		"snapshot and delete": {"DEPLOYED"}, "fork": {"DEPLOYED"}, "restore": {"DEPLOYED"}, "archive and unarchive": {"DEPLOYED", "ARCHIVED"},
		"schedule": {"DEPLOYED"},
	}
	courses := map[string]func(*platform){
		"create":          func(p *platform) { p.create(named("a")) },
		"create disabled": func(p *platform) { p.create(`{"metadata":{"name":"a"},"spec":{"enabled":false}}`) },
		"create fails": func(p *platform) {
			p.node.set("create", fmt.Errorf("no"))
			want[any](p, 500, "POST", "/sandboxes", named("a"))
		},
		"redeploy": func(p *platform) {
			p.create(named("a"))
			want[any](p, 200, "PUT", path, `{"spec":{"runtime":{"memory":2048}}}`)
		},
		"disable and enable": func(p *platform) {
			p.create(named("a"))
			want[any](p, 200, "PUT", path, `{"spec":{"enabled":false}}`)
			want[any](p, 200, "PUT", path, `{"spec":{"enabled":true}}`)
		},
		"delete and create": func(p *platform) {
			p.create(named("a"))
			want[any](p, 200, "DELETE", path, "")
			p.create(named("a"))
		},
		"snapshot and delete": func(p *platform) {
			p.create(named("a"))
			n := want[snapshot](p, 200, "POST", path+"/snapshots", "")
			p.do("DELETE", "/snapshots/"+n.ID, "")
		},
		"fork": func(p *platform) {
			p.create(named("a"))
			want[any](p, 200, "POST", path+"/fork", `{"targetName":"b","targetType":"sandbox"}`)
		},
		"restore": func(p *platform) {
			p.create(named("a"))
			want[any](p, 200, "POST", path+"/snapshots", `{"name":"n"}`)
			want[any](p, 200, "POST", path+"/snapshots/n/restore", "")
		},
		"archive and unarchive": func(p *platform) {
			p.create(named("a"))
			for _, step := range []string{"/archive", "/unarchive"} {
				want[any](p, 200, "POST", path+step, "")
				synctest.Wait()
			}
		},
		"schedule": func(p *platform) {
			p.create(named("a"))
			p.plan(`{"type":"sleep","value":"1s","input":{"command":"a"}}`)
			after(2 * time.Second)
		},
	}
	for kind, open := range map[string]func(*testing.T) records{"sqlite": inFile, "postgres": onServer} {
		for name, act := range courses {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				if kind == "postgres" && testing.Short() {
					t.Skip("it starts PostgreSQL's own processes a thousand times")
				}
				r := open(t) // a server is not of the bubble
				synctest.Test(t, func(t *testing.T) { crashAtEachStep(t, r, name, act, holders[name]) })
			})
		}
	}
}

// records are a database of which a test keeps what was there at some moments.
type records struct {
	address string
	// keep keeps what is there now; what it returns makes a database of that.
	keep func(*testing.T) func(*testing.T) (address string)
}

// inFile are records in SQLite.
func inFile(t *testing.T) records {
	t.Helper()
	file, dir, n := filepath.Join(t.TempDir(), "doze.db"), t.TempDir(), 0
	return records{file, func(t *testing.T) func(*testing.T) string {
		t.Helper()
		n++
		kept := filepath.Join(dir, fmt.Sprint(n))
		for _, ext := range []string{"", "-wal"} {
			b, err := os.ReadFile(file + ext)
			if err == nil {
				err = os.WriteFile(kept+ext, b, 0o600)
			}
			if err != nil {
				t.Error(err)
			}
		}
		return func(*testing.T) string { return kept }
	}}
}

// onServer are records in PostgreSQL.
func onServer(t *testing.T) records {
	t.Helper()
	address, again := postgres.Database(t), postgres.Database(t)
	startOn(t, again, false).stop() // so that it has the tables
	return records{address, func(t *testing.T) func(*testing.T) string {
		t.Helper()
		rows := postgres.Read(t, address)
		return func(t *testing.T) string {
			t.Helper()
			postgres.Write(t, again, rows)
			return again
		}
	}}
}

// crashAtEachStep is TestCrashAtEachStep of one course of things, after which the
// sandbox has its name in some statuses.
func crashAtEachStep(t *testing.T, r records, name string, act func(*platform), holders []string) {
	t.Helper()
	type crash struct {
		open func(*testing.T) string
		node *node
	}
	var crashes []crash
	p := startOn(t, r.address, true)
	p.node.hook = func() {
		// While no machine comes or goes, the records can only be what
		// a crash at this moment would leave.
		p.node.mu.Lock()
		defer p.node.mu.Unlock()
		crashes = append(crashes, crash{r.keep(t), p.node.clone()})
	}
	act(p)
	synctest.Wait()
	p.stop()
	if len(crashes) < 2 {
		t.Fatalf("only %d crashes", len(crashes))
	}
	for i, c := range crashes {
		after := *p
		after.file, after.node = c.open(t), c.node
		after.open(false)
		for _, sb := range want[[]sandbox](&after, 200, "GET", "/sandboxes", "") {
			if sb.Status == "DEPLOYING" && name != "redeploy" { // which goes on
				t.Errorf("crash %d: nobody will finish the start of %s", i, sb.Metadata.Name)
			}
		}
		after.reopen()
		settled(t, fmt.Sprint("crash ", i), &after)
		if left := want[[]snapshot](&after, 200, "GET", "/snapshots", ""); name == "fork" && len(left) != 0 {
			t.Errorf("crash %d: a fork that was cut short left %+v", i, left)
		}
		if again := after.started(); len(again) != 0 {
			t.Errorf("crash %d: what was claimed before is started after: %+v", i, again)
		}
		if ran := want[[]doze.Execution](&after, 200, "GET", "/schedule-executions", ""); name == "schedule" && i > 1 &&
			(len(ran) != 1 || ran[0].Status != doze.ExecutionFailed) { // 0 and 1 are of the create
			t.Errorf("crash %d: the execution that it cut short is %+v", i, ran)
		}
		if w := after.do("POST", "/sandboxes", named("a")); w.Code != 200 {
			usable := slices.Contains(holders, after.get().Status)
			if w.Code != 409 || !usable {
				t.Errorf("crash %d: the name is blocked: %d %s", i, w.Code, w.Body)
			}
		}
		if sb := want[sandbox](&after, 200, "POST", "/sandboxes?createIfNotExist=true", named("a")); !slices.Contains([]string{"DEPLOYED", "DEACTIVATED", "ARCHIVED"}, sb.Status) {
			t.Errorf("crash %d: then it is %s", i, sb.Status)
		}
		after.stop()
	}
}

// settled checks, some time after the last request, that nothing is unfinished,
// and that records, machines, snapshots and routes agree.
func settled(tb testing.TB, when string, p *platform) {
	tb.Helper()
	after(30 * time.Second)
	usable := 0
	for _, sb := range want[[]sandbox](p, 200, "GET", "/sandboxes", "") {
		r, routed := p.dir.Find("main", sb.Metadata.Name, time.Now())
		alive := false
		p.node.with(sb.Metadata.Name, func(uid string, m *machine) { alive = uid == r.UID })
		switch sb.Status {
		case "DEPLOYED", "DEACTIVATED", "ARCHIVED":
			usable++
			if !routed || !alive || r.Enabled != (sb.Status != "DEACTIVATED") {
				tb.Errorf("%s: %s is %s, machine %tb, route %+v", when, sb.Metadata.Name, sb.Status, alive, r)
			}
		case "FAILED":
			if !routed || r.Failed == alive { // its machine says why it failed, if it has one
				tb.Errorf("%s: a failed sandbox has the route %+v; a machine: %t", when, r, alive)
			}
		default:
			tb.Errorf("%s: %s is still %s", when, sb.Metadata.Name, sb.Status)
		}
	}
	if n := p.node.count(); n != usable {
		tb.Errorf("%s: %d machines for %d sandboxes", when, n, usable)
	}
	files, err := p.node.Snapshots(tb.Context())
	for _, n := range want[[]snapshot](p, 200, "GET", "/snapshots", "") {
		if _, there := files[n.ID]; n.Status == doze.SnapshotPending || there != (n.Status == doze.SnapshotReady) {
			tb.Errorf("%s: the snapshot %s is %s, and its files are there: %t", when, n.ID, n.Status, there)
		}
		delete(files, n.ID)
	}
	if err != nil || len(files) != 0 {
		tb.Errorf("%s: files of no snapshot: %v, %v", when, files, err)
	}
	if left, err := p.store.Leftovers(tb.Context(), 10); err != nil || len(left) != 0 {
		tb.Errorf("%s: leftovers %v, %v", when, left, err)
	}
}

// TestEverybodyAtOnce lets many callers do everything to a few names, with a
// node that fails now and then.
func TestEverybodyAtOnce(t *testing.T) {
	t.Parallel()
	for name, database := range map[string]func() string{
		"sqlite":   func() string { return filepath.Join(t.TempDir(), "doze.db") },
		"postgres": func() string { return postgres.Database(t) },
	} {
		t.Run(name, func(t *testing.T) {
			address := database() // its server is not of the bubble
			synctest.Test(t, func(t *testing.T) {
				p := startOn(t, address, true)
				everybodyAtOnce(t, p)
				p.reopen()
				settled(t, "after a restart", p)
				p.stop()
			})
		})
	}
}

// everybodyAtOnce is the course of TestEverybodyAtOnce.
func everybodyAtOnce(tb testing.TB, p *platform) {
	tb.Helper()
	seed := rand.Uint64()
	tb.Logf("seed %d", seed)
	var wg sync.WaitGroup
	for i := range 16 {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			for range 25 {
				name := string(rune('a' + r.IntN(3)))
				path := "/sandboxes/" + name
				switch r.IntN(14) {
				case 0:
					p.do("POST", "/sandboxes", named(name))
				case 1, 2:
					p.do("POST", "/sandboxes?createIfNotExist=true", named(name))
				case 3:
					p.do("DELETE", path, "")
				case 4:
					p.do("PUT", path, fmt.Sprintf(`{"spec":{"runtime":{"memory":%d}}}`, 1024+r.IntN(3)))
				case 5:
					p.do("PUT", path, fmt.Sprintf(`{"spec":{"enabled":%t}}`, r.IntN(2) == 0))
				case 6:
					p.do("PUT", path, `{"metadata":{"displayName":"x"},"spec":{"runtime":{"ttl":"1s"}}}`)
				case 7:
					p.node.with(name, func(uid string, m *machine) {
						if m.phase == doze.Running {
							p.node.move(uid, doze.Failed, "chance")
						}
					})
				case 8:
					call := []string{"create", "delete", "disable", "enable", "snapshot", "drop", "archive", "unarchive"}[r.IntN(8)]
					p.node.set(call, fmt.Errorf("chance"))
					time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
					p.node.set(call, nil)
				case 9:
					p.do("POST", path+"/snapshots", `{"name":"n"}`)
				case 10:
					p.do("POST", path+"/snapshots/n/restore", "")
					p.do("DELETE", path+"/snapshots/n", "")
				case 11:
					p.do("POST", path+[]string{"/archive", "/unarchive"}[r.IntN(2)], "")
				case 12:
					p.do("POST", path+"/fork", fmt.Sprintf(`{"targetName":"%c","targetType":"sandbox"}`, 'a'+rune(r.IntN(3))))
				case 13:
					p.do("POST", path+"/schedules", `{"type":"sleep","value":"1s","input":{"command":"a"}}`)
				}
				time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
			}
		})
	}
	wg.Wait()
	// A machine that fails stays on its node until its sandbox is deleted.
	for _, sb := range want[[]sandbox](p, 200, "GET", "/sandboxes", "") {
		if sb.Status == "FAILED" {
			p.do("DELETE", "/sandboxes/"+sb.Metadata.Name, "")
		}
	}
	settled(tb, "at the end", p)
}
