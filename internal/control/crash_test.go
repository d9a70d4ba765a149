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
	"github.com/dozehq/doze/internal/plane/planetest"
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
	courses := map[string]func(*planetest.Platform){
		"create":          func(p *planetest.Platform) { p.Create(planetest.Named("a")) },
		"create disabled": func(p *planetest.Platform) { p.Create(`{"metadata":{"name":"a"},"spec":{"enabled":false}}`) },
		"create fails": func(p *planetest.Platform) {
			p.Node.Set("create", fmt.Errorf("no"))
			planetest.Want[any](p, 500, "POST", "/sandboxes", planetest.Named("a"))
		},
		"redeploy": func(p *planetest.Platform) {
			p.Create(planetest.Named("a"))
			planetest.Want[any](p, 200, "PUT", path, `{"spec":{"runtime":{"memory":2048}}}`)
		},
		"disable and enable": func(p *planetest.Platform) {
			p.Create(planetest.Named("a"))
			planetest.Want[any](p, 200, "PUT", path, `{"spec":{"enabled":false}}`)
			planetest.Want[any](p, 200, "PUT", path, `{"spec":{"enabled":true}}`)
		},
		"delete and create": func(p *planetest.Platform) {
			p.Create(planetest.Named("a"))
			planetest.Want[any](p, 200, "DELETE", path, "")
			p.Create(planetest.Named("a"))
		},
		"snapshot and delete": func(p *planetest.Platform) {
			p.Create(planetest.Named("a"))
			n := planetest.Want[snapshot](p, 200, "POST", path+"/snapshots", "")
			p.Do("DELETE", "/snapshots/"+n.ID, "")
		},
		"fork": func(p *planetest.Platform) {
			p.Create(planetest.Named("a"))
			planetest.Want[any](p, 200, "POST", path+"/fork", `{"targetName":"b","targetType":"sandbox"}`)
		},
		"restore": func(p *planetest.Platform) {
			p.Create(planetest.Named("a"))
			planetest.Want[any](p, 200, "POST", path+"/snapshots", `{"name":"n"}`)
			planetest.Want[any](p, 200, "POST", path+"/snapshots/n/restore", "")
		},
		"archive and unarchive": func(p *planetest.Platform) {
			p.Create(planetest.Named("a"))
			for _, step := range []string{"/archive", "/unarchive"} {
				planetest.Want[any](p, 200, "POST", path+step, "")
				synctest.Wait()
			}
		},
		"schedule": func(p *planetest.Platform) {
			p.Create(planetest.Named("a"))
			p.Plan(`{"type":"sleep","value":"1s","input":{"command":"a"}}`)
			planetest.After(2 * time.Second)
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
	// copy copies what is there now; what it returns makes a database of that.
	copy func(*testing.T) func(*testing.T) (address string)
}

// inFile are records in SQLite.
func inFile(t *testing.T) records {
	t.Helper()
	file, dir, n := filepath.Join(t.TempDir(), "doze.db"), t.TempDir(), 0
	return records{file, func(t *testing.T) func(*testing.T) string {
		t.Helper()
		n++
		copied := filepath.Join(dir, fmt.Sprint(n))
		for _, ext := range []string{"", "-wal"} {
			b, err := os.ReadFile(file + ext)
			if err == nil {
				err = os.WriteFile(copied+ext, b, 0o600)
			}
			if err != nil {
				t.Error(err)
			}
		}
		return func(*testing.T) string { return copied }
	}}
}

// onServer are records in PostgreSQL.
func onServer(t *testing.T) records {
	t.Helper()
	address, again := postgres.Database(t), postgres.Database(t)
	planetest.StartOn(t, again, false).Stop() // so that it has the tables
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
func crashAtEachStep(t *testing.T, r records, name string, act func(*planetest.Platform), holders []string) {
	t.Helper()
	type crash struct {
		open func(*testing.T) string
		node *planetest.Node
	}
	var crashes []crash
	p := planetest.StartOn(t, r.address, true)
	p.Node.Hook = func() {
		// While no machine comes or goes, the records can only be what
		// a crash at this moment would leave.
		p.Node.Mu.Lock()
		defer p.Node.Mu.Unlock()
		crashes = append(crashes, crash{r.copy(t), p.Node.Clone()})
	}
	act(p)
	synctest.Wait()
	p.Stop()
	if len(crashes) < 2 {
		t.Fatalf("only %d crashes", len(crashes))
	}
	for i, c := range crashes {
		after := *p
		after.File, after.Node = c.open(t), c.node
		after.Open(false)
		for _, sb := range planetest.Want[[]planetest.Sandbox](&after, 200, "GET", "/sandboxes", "") {
			if sb.Status == "DEPLOYING" && name != "redeploy" { // which goes on
				t.Errorf("crash %d: nobody will finish the start of %s", i, sb.Metadata.Name)
			}
		}
		after.Reopen()
		settled(t, fmt.Sprint("crash ", i), &after)
		if left := planetest.Want[[]snapshot](&after, 200, "GET", "/snapshots", ""); name == "fork" && len(left) != 0 {
			t.Errorf("crash %d: a fork that was cut short left %+v", i, left)
		}
		if again := after.Started(); len(again) != 0 {
			t.Errorf("crash %d: what was claimed before is started after: %+v", i, again)
		}
		if ran := planetest.Want[[]doze.Execution](&after, 200, "GET", "/schedule-executions", ""); name == "schedule" && i > 1 &&
			(len(ran) != 1 || ran[0].Status != doze.ExecutionFailed) { // 0 and 1 are of the create
			t.Errorf("crash %d: the execution that it cut short is %+v", i, ran)
		}
		if w := after.Do("POST", "/sandboxes", planetest.Named("a")); w.Code != 200 {
			usable := slices.Contains(holders, after.Get().Status)
			if w.Code != 409 || !usable {
				t.Errorf("crash %d: the name is blocked: %d %s", i, w.Code, w.Body)
			}
		}
		if sb := planetest.Want[planetest.Sandbox](&after, 200, "POST", "/sandboxes?createIfNotExist=true", planetest.Named("a")); !slices.Contains([]string{"DEPLOYED", "DEACTIVATED", "ARCHIVED"}, sb.Status) {
			t.Errorf("crash %d: then it is %s", i, sb.Status)
		}
		after.Stop()
	}
}

// settled checks, some time after the last request, that nothing is unfinished,
// and that records, machines, snapshots and routes agree.
func settled(tb testing.TB, when string, p *planetest.Platform) {
	tb.Helper()
	planetest.After(30 * time.Second)
	usable := 0
	for _, sb := range planetest.Want[[]planetest.Sandbox](p, 200, "GET", "/sandboxes", "") {
		r, routed := p.Dir.Find("main", sb.Metadata.Name, time.Now())
		alive := false
		p.Node.With(sb.Metadata.Name, func(uid string, m *planetest.Machine) { alive = uid == r.UID })
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
	if n := p.Node.Count(); n != usable {
		tb.Errorf("%s: %d machines for %d sandboxes", when, n, usable)
	}
	files, err := p.Node.Snapshots(tb.Context())
	for _, n := range planetest.Want[[]snapshot](p, 200, "GET", "/snapshots", "") {
		if _, there := files[n.ID]; n.Status == doze.SnapshotPending || there != (n.Status == doze.SnapshotReady) {
			tb.Errorf("%s: the snapshot %s is %s, and its files are there: %t", when, n.ID, n.Status, there)
		}
		delete(files, n.ID)
	}
	if err != nil || len(files) != 0 {
		tb.Errorf("%s: files of no snapshot: %v, %v", when, files, err)
	}
	if left, err := p.Store.Leftovers(tb.Context(), 10); err != nil || len(left) != 0 {
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
				p := planetest.StartOn(t, address, true)
				everybodyAtOnce(t, p)
				p.Reopen()
				settled(t, "after a restart", p)
				p.Stop()
			})
		})
	}
}

// everybodyAtOnce is the course of TestEverybodyAtOnce.
func everybodyAtOnce(tb testing.TB, p *planetest.Platform) {
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
					p.Do("POST", "/sandboxes", planetest.Named(name))
				case 1, 2:
					p.Do("POST", "/sandboxes?createIfNotExist=true", planetest.Named(name))
				case 3:
					p.Do("DELETE", path, "")
				case 4:
					p.Do("PUT", path, fmt.Sprintf(`{"spec":{"runtime":{"memory":%d}}}`, 1024+r.IntN(3)))
				case 5:
					p.Do("PUT", path, fmt.Sprintf(`{"spec":{"enabled":%t}}`, r.IntN(2) == 0))
				case 6:
					p.Do("PUT", path, `{"metadata":{"displayName":"x"},"spec":{"runtime":{"ttl":"1s"}}}`)
				case 7:
					p.Node.With(name, func(uid string, m *planetest.Machine) {
						if m.Phase == doze.Running {
							p.Node.Move(uid, doze.Failed, "chance")
						}
					})
				case 8:
					call := []string{"create", "delete", "disable", "enable", "snapshot", "drop", "archive", "unarchive"}[r.IntN(8)]
					p.Node.Set(call, fmt.Errorf("chance"))
					time.Sleep(time.Duration(r.IntN(100)) * time.Millisecond)
					p.Node.Set(call, nil)
				case 9:
					p.Do("POST", path+"/snapshots", `{"name":"n"}`)
				case 10:
					p.Do("POST", path+"/snapshots/n/restore", "")
					p.Do("DELETE", path+"/snapshots/n", "")
				case 11:
					p.Do("POST", path+[]string{"/archive", "/unarchive"}[r.IntN(2)], "")
				case 12:
					p.Do("POST", path+"/fork", fmt.Sprintf(`{"targetName":"%c","targetType":"sandbox"}`, 'a'+rune(r.IntN(3))))
				case 13:
					p.Do("POST", path+"/schedules", `{"type":"sleep","value":"1s","input":{"command":"a"}}`)
				}
				time.Sleep(time.Duration(r.IntN(50)) * time.Millisecond)
			}
		})
	}
	wg.Wait()
	// A machine that fails stays on its node until its sandbox is deleted.
	for _, sb := range planetest.Want[[]planetest.Sandbox](p, 200, "GET", "/sandboxes", "") {
		if sb.Status == "FAILED" {
			p.Do("DELETE", "/sandboxes/"+sb.Metadata.Name, "")
		}
	}
	settled(tb, "at the end", p)
}
