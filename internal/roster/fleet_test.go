package roster_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/plane/planetest"
	"github.com/dozehq/doze/internal/roster"
	"github.com/dozehq/doze/internal/store"
)

const (
	// ttl is how long a lease is good in these tests, and over is when a node that
	// says nothing has lost it for sure, and its sandboxes are elsewhere.
	ttl  = 10 * time.Second
	over = 3 * ttl
)

// yard is a platform in virtual time with nodes in memory, which share a bucket.
type yard struct {
	t      *testing.T
	p      *planetest.Platform
	crew   *crew.Crew
	r      *roster.Roster
	shelf  *planetest.Shelf
	nodes  map[string]*planetest.Node
	stops  map[string]func() // of nodes that renew their leases
	leased map[string]bool   // which nodes have had a lease that ends
	stuck  map[string]bool   // which nodes do not answer when they are to begin a sandbox
	stop   func()            // of the roster
	// drivers say what drives the sandboxes of nodes; removed are nodes that the roster forgot.
	drivers map[string]string
	removed []string
	dialed  func()        // called when a node is about to join
	copies  roster.Copies // nil: the shelf, of which a sweep drops nothing
}

// copies is what the bucket has, of which a sweep drops nothing.
type copies struct{ *planetest.Shelf }

func (copies) List(context.Context) ([]string, error)        { return nil, nil }
func (copies) Drop(context.Context, string) error            { return nil }
func (copies) Dropped(context.Context, string) (bool, error) { return false, nil }
func (copies) Bytes(context.Context, string) (int64, error)  { return 1, nil }
func (copies) Now(context.Context) (time.Time, error)        { return time.Now(), nil }
func (copies) Needs(context.Context, string) ([]fleet.FileNeed, error) {
	return nil, nil
}

func (copies) Bury(context.Context, string, time.Duration) (bool, error) {
	return true, nil
}

// inYard runs fn with nodes that have joined.
func inYard(t *testing.T, fn func(y *yard), ids ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		y := &yard{t: t, p: planetest.Start(t, false), shelf: planetest.NewShelf(), nodes: map[string]*planetest.Node{}, stops: map[string]func(){}, leased: map[string]bool{}, stuck: map[string]bool{}}
		y.p.Stop()
		y.p.Crew = func(s *store.Store) fleet.Node {
			home, err := s.Setting(t.Context(), roster.HomeSetting)
			if err != nil {
				t.Fatal(err)
			}
			if y.crew, err = crew.Open(t.Context(), plane.Ledger{Store: s}, home, fleet.NewAtlas()); err != nil {
				t.Fatal(err)
			}
			return y.crew
		}
		y.open()
		for _, id := range ids {
			y.join(id)
		}
		// The first node had a lease without an end, until there were others.
		planetest.After(ttl)
		fn(y)
		y.close()
	})
}

// open begins a process of control.
func (y *yard) open() {
	y.t.Helper()
	y.p.Open(true)
	least, err := y.p.Store.LeastEpoch(y.t.Context())
	if err != nil {
		y.t.Fatal(err)
	}
	y.crew.SetLeast(least)
	var had roster.Copies = copies{y.shelf}
	if y.copies != nil {
		had = y.copies
	}
	y.r = roster.New(roster.Config{
		Store: y.p.Store, Crew: y.crew, Control: control.Link{Server: y.p.Ctl}, Quotas: y.p.Quotas, TTL: ttl, Copies: had, Master: []byte("0123456789abcdef0123456789abcdef"),
		Dial: func(n fleet.NodeInfo) fleet.Node {
			if y.dialed != nil {
				y.dialed()
			}
			return slow{y.nodes[n.ID], y.stuck[n.ID]}
		}, Met: func(fleet.NodeInfo) {},
		Removed: func(id string) { y.removed = append(y.removed, id) },
	})
	y.p.Rooms.Nodes.Roster = y.r
	ctx, cancel := context.WithCancel(y.t.Context())
	var loop sync.WaitGroup
	loop.Go(func() { _ = y.r.Run(ctx) })
	y.stop = func() {
		cancel()
		loop.Wait()
	}
}

// slow is a node that may not answer when it is to begin a sandbox.
type slow struct {
	*planetest.Node

	stuck bool
}

func (s slow) Revive(ctx context.Context, o fleet.Order, used time.Time, ran bool) (time.Time, error) {
	if s.stuck {
		<-ctx.Done()
		return time.Time{}, context.Cause(ctx)
	}
	return s.Node.Revive(ctx, o, used, ran)
}

// close ends the process of control. Nodes do not notice.
func (y *yard) close() {
	for _, stop := range y.stops {
		stop()
	}
	clear(y.stops)
	y.stop()
	y.p.Stop()
}

// join has a node join, and renew its lease until it is killed.
func (y *yard) join(id string) fleet.Lease {
	y.t.Helper()
	n := y.nodes[id]
	if n == nil {
		n = planetest.NewNode()
		n.Shelf = y.shelf
		y.nodes[id] = n
	}
	n.Mu.Lock()
	n.Report = y.p.Ctl.Report
	n.Mu.Unlock()
	l, err := y.r.Join(y.t.Context(), fleet.NodeInfo{
		ID: id, Incarnation: "1", URL: "https://" + id, Memory: 65536, Machines: slices.Sorted(maps.Keys(n.Has())), Held: n.Held(),
		SealKey: y.p.Opener.Sealer().Key(), BuildDisk: planetest.BuildDisk, Leased: y.leased[id], Driver: y.drivers[id],
	})
	if err != nil {
		y.t.Fatal(err)
	}
	seq, leased := uint64(0), l.TTL > 0
	y.leased[id] = leased
	renew := func() {
		seq++
		now, err := y.r.Renew(y.t.Context(), fleet.Renewal{Node: id, Incarnation: "1", Epoch: l.Epoch, Seq: seq, Leased: leased, Load: fleet.Load{
			Driver: y.drivers[id], Memory: 65536, Processors: 4, Disk: 1_000_000, Sandboxes: n.Count(),
		}})
		if err == nil {
			leased = now.TTL > 0
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			y.t.Errorf("the node %s cannot renew its lease: %v", id, err)
		}
	}
	renew()
	ctx, cancel := context.WithCancel(y.t.Context())
	var beats sync.WaitGroup
	beats.Go(func() {
		for tick := time.NewTicker(ttl / 6); ; {
			select {
			case <-tick.C:
				renew()
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	})
	y.stops[id] = func() {
		cancel()
		beats.Wait()
	}
	return l
}

// kill has a node be silent from now on.
func (y *yard) kill(id string) {
	y.stops[id]()
	delete(y.stops, id)
}

// make creates sandboxes on a node, and returns their machines by name.
func (y *yard) make(on string, names ...string) map[string]string {
	y.t.Helper()
	for id := range y.nodes {
		if id != on {
			y.want(200, "POST", "/platform/nodes/"+id+"/cordon", "")
		}
	}
	machines := map[string]string{}
	for _, name := range names {
		y.p.Create(planetest.Named(name))
		y.nodes[on].With(name, func(uid string, _ *planetest.Machine) { machines[name] = uid })
	}
	for id := range y.nodes {
		if id != on {
			y.want(200, "POST", "/platform/nodes/"+id+"/uncordon", "")
		}
	}
	if len(machines) != len(names) {
		y.t.Fatalf("of %v, %v are on %s", names, machines, on)
	}
	return machines
}

func (y *yard) want(status int, method, path, body string) string {
	y.t.Helper()
	w := y.p.Do(method, path, body)
	if w.Code != status {
		y.t.Errorf("%s %s: %d %s, want %d", method, path, w.Code, w.Body, status)
	}
	return w.Body.String()
}

// at returns which node has each machine, as the records and the nodes agree; otherwise it is
// an error.
func (y *yard) at(machines map[string]string) map[string]string {
	y.t.Helper()
	at := map[string]string{}
	for name, uid := range machines {
		for id, n := range y.nodes {
			if n.Has()[uid] && y.stops[id] != nil {
				at[name] += id
			}
		}
		if on := y.crew.Of(crew.Machine, uid); on != at[name] {
			y.t.Errorf("%s is on %q, and recorded on %q", name, at[name], on)
		}
	}
	return at
}

func (y *yard) stateOfN1() doze.NodeState {
	const id = "n1"
	y.t.Helper()
	n, err := y.p.Store.Node(y.t.Context(), id)
	if err != nil {
		y.t.Error(err)
	}
	return n.State
}

// TestRescue: the sandboxes of a node that is lost begin on others. The node is told so when
// it comes back. A sandbox without a copy fails.
func TestRescue(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n1", "a", "b", "c")
		fresh := y.make("n1", "fresh")
		for _, uid := range machines {
			y.nodes["n1"].Shelve(uid)
		}
		y.kill("n1")
		planetest.After(ttl)
		if s := y.stateOfN1(); s != doze.NodeReady {
			t.Errorf("before its lease is over, a silent node is %s", s)
		}
		planetest.After(over)
		if diff := cmp.Diff(map[string]string{"a": "n2", "b": "n2", "c": "n2"}, y.at(machines)); diff != "" || y.stateOfN1() != doze.NodeLost {
			t.Errorf("the node is %s; its sandboxes (-want +got):\n%s", y.stateOfN1(), diff)
		}
		if got := y.want(200, "GET", "/sandboxes/fresh", ""); !strings.Contains(got, `"FAILED"`) {
			t.Errorf("a sandbox without a copy is %s", got)
		}
		for name := range machines {
			if got := y.want(200, "GET", "/sandboxes/"+name, ""); !strings.Contains(got, `"DEPLOYED"`) {
				t.Errorf("%s is %s", name, got)
			}
		}
		l := y.join("n1")
		for _, uid := range slices.Concat(slices.Collect(maps.Values(machines)), slices.Collect(maps.Values(fresh))) {
			if !slices.Contains(l.Gone, uid) {
				t.Errorf("the node that comes back does not hear that %s is elsewhere: %v", uid, l.Gone)
			}
		}
		c := y.r.Census(t.Context())
		if c.Losses != 1 || c.Rescues[roster.Resumed] != 3 || c.Rescues[roster.Failed] != 1 || c.States["ready"] != 2 {
			t.Errorf("it is counted as %+v", c)
		}
		if l.Epoch != 2 || y.stateOfN1() != doze.NodeReady {
			t.Errorf("the node that comes back is %s and has the lease %+v", y.stateOfN1(), l)
		}
	}, "n1", "n2")
}

// TestRescueIsStuck: a node that does not answer keeps no other sandbox waiting. When it is lost, those
// that it was to have begin elsewhere.
func TestRescueIsStuck(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		first, second := y.make("n1", "a", "b"), y.make("n4", "c")
		for _, uid := range first {
			y.nodes["n1"].Shelve(uid)
		}
		y.nodes["n4"].Shelve(second["c"])
		y.stuck["n2"] = true
		y.kill("n2")
		y.join("n2") // control has another way to it
		y.want(200, "POST", "/platform/nodes/n3/cordon", "")
		y.want(200, "POST", "/platform/nodes/n4/cordon", "")
		y.kill("n1")
		planetest.After(over)
		for name, uid := range first {
			if on := y.crew.Of(crew.Machine, uid); on != "n2" || y.nodes["n2"].Count() > 0 {
				t.Fatalf("%s is to begin on %s, where %d have begun", name, on, y.nodes["n2"].Count())
			}
		}
		y.want(200, "POST", "/platform/nodes/n2/cordon", "")
		y.want(200, "POST", "/platform/nodes/n3/uncordon", "")
		y.kill("n4")
		planetest.After(over)
		if diff := cmp.Diff(map[string]string{"c": "n3"}, y.at(second)); diff != "" {
			t.Errorf("while others wait for a node that does not answer (-want +got):\n%s", diff)
		}
		y.kill("n2")
		planetest.After(over)
		if diff := cmp.Diff(map[string]string{"a": "n3", "b": "n3"}, y.at(first)); diff != "" {
			t.Errorf("when that node is lost (-want +got):\n%s", diff)
		}
	}, "n1", "n2", "n3", "n4")
}

// TestBackBeforeRescue: a node that was lost, and is back before others have its sandboxes, keeps
// them: nobody takes one that may run there.
func TestBackBeforeRescue(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n1", "a", "b")
		for _, uid := range machines {
			y.nodes["n1"].Shelve(uid)
		}
		y.want(200, "POST", "/platform/nodes/n2/cordon", "") // nobody has room
		y.kill("n1")
		planetest.After(ttl + over)
		if y.stateOfN1() != doze.NodeLost {
			t.Fatalf("a silent node is %s", y.stateOfN1())
		}
		if l := y.join("n1"); len(l.Gone) > 0 {
			t.Errorf("it hears that others have %v", l.Gone)
		}
		y.want(200, "POST", "/platform/nodes/n2/uncordon", "")
		planetest.After(time.Minute)
		if diff := cmp.Diff(map[string]string{"a": "n1", "b": "n1"}, y.at(machines)); diff != "" || y.nodes["n2"].Count() > 0 {
			t.Errorf("its sandboxes (-want +got), of which n2 has %d:\n%s", y.nodes["n2"].Count(), diff)
		}
	}, "n1", "n2")
}

// TestRescueOverRestart: a rescue that control did not end goes on in its next process.
func TestRescueOverRestart(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n1", "a")
		y.nodes["n1"].Shelve(machines["a"])
		y.nodes["n2"].Set("revive", doze.Errorf(doze.Unavailable, "the bucket does not answer"))
		y.kill("n1")
		planetest.After(over)
		if on := y.crew.Of(crew.Machine, machines["a"]); on != "n2" || y.nodes["n2"].Has()[machines["a"]] {
			t.Fatalf("the sandbox is placed on %q before it begins", on)
		}
		y.close()
		y.nodes["n2"].Set("revive", nil)
		y.open()
		y.join("n2")
		planetest.After(over)
		if diff := cmp.Diff(map[string]string{"a": "n2"}, y.at(machines)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}, "n1", "n2")
}

// TestRescueByDriver: a sandbox of a lost node goes where it can be run, also with a new control.
func TestRescueByDriver(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		y.drivers = map[string]string{"n1": "first", "n2": "second", "n3": "first"}
		for _, id := range []string{"n1", "n2", "n3"} {
			y.kill(id)
			y.join(id)
		}
		machines := y.make("n1", "a", "b")
		for _, uid := range machines {
			y.nodes["n1"].Shelve(uid)
		}
		y.kill("n1")
		y.close()
		y.open()
		y.join("n2")
		y.join("n3")
		planetest.After(over)
		if diff := cmp.Diff(map[string]string{"a": "n3", "b": "n3"}, y.at(machines)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}, "n1", "n2", "n3")
}

// TestQuotaOverRestart: a new control knows what workspaces may have awake on all nodes together.
func TestQuotaOverRestart(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		y.want(200, "PUT", "/workspaces/main/quotas", `{"quotas":{"sandboxesAwake":2}}`)
		machines := y.make("n1", "a")
		maps.Copy(machines, y.make("n2", "b"))
		full := func() {
			y.t.Helper()
			if text := y.want(429, "POST", "/sandboxes", planetest.Named("more")); !strings.Contains(text, doze.QuotaSandboxesAwake) {
				y.t.Error(text)
			}
		}
		full()
		y.close()
		y.open()
		y.join("n1")
		y.join("n2")
		planetest.After(over)
		full()
	}, "n1", "n2")
}

// TestLossOverRestart: a node that is silent while control is away is lost when the next
// process of control can tell so.
func TestLossOverRestart(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n1", "a")
		y.nodes["n1"].Shelve(machines["a"])
		y.close()
		y.open()
		y.join("n2")
		planetest.After(ttl / 2)
		if on := y.crew.Of(crew.Machine, machines["a"]); on != "n1" {
			t.Errorf("a node that may have a lease lost its sandbox to %s", on)
		}
		planetest.After(over)
		if diff := cmp.Diff(map[string]string{"a": "n2"}, y.at(machines)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}, "n1", "n2")
}

// TestMove: a sandbox moves to the node that is named, or to any. One that cannot move
// stays.
func TestMove(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n1", "a")
		move := func(status int, body, want string) {
			t.Helper()
			got := y.want(status, "POST", "/sandboxes/a/move", body)
			if on := y.at(machines)["a"]; on != want {
				t.Errorf("after %s the sandbox is on %q, want %s: %s", body, on, want, got)
			}
			if got := y.want(200, "GET", "/sandboxes/a/node", ""); strings.TrimSpace(got) != `{"node":"`+want+`"}` {
				t.Errorf("after %s operators hear of %s, want %s", body, got, want)
			}
		}
		move(200, `{"node":"n3"}`, "n3")
		move(200, `{"node":"n3"}`, "n3") // it is there
		move(200, `{"node":"n1"}`, "n1")
		move(404, `{"node":"n9"}`, "n1")
		y.want(200, "POST", "/platform/nodes/n2/cordon", "")
		move(503, `{"node":"n2"}`, "n1")
		y.want(200, "POST", "/platform/nodes/n3/cordon", "")
		for body, why := range map[string]string{`{}`: "all others are cordoned", `{"node":"n2"}`: "the node that was named takes nothing new"} {
			if got := y.want(503, "POST", "/sandboxes/a/move", body); !strings.Contains(got, why) {
				t.Errorf("with the others cordoned, a move to %s says %s", body, got)
			}
		}
		y.want(200, "POST", "/platform/nodes/n3/uncordon", "")
		move(200, `{}`, "n3")
		y.nodes["n3"].Set("depart "+machines["a"], doze.Errorf(doze.Conflict, "a stream is open"))
		move(409, `{}`, "n3")
		y.nodes["n3"].Set("depart "+machines["a"], nil)
		y.nodes["n1"].Set("revive", fleet.ErrFull)
		y.want(200, "POST", "/platform/nodes/n2/uncordon", "")
		move(200, `{}`, "n2") // n1 refuses it
		y.want(404, "POST", "/sandboxes/nope/move", `{}`)
		y.kill("n1")
		y.kill("n3")
		planetest.After(over)
		move(409, `{"node":"n3"}`, "n2")
		if got := y.want(503, "POST", "/sandboxes/a/move", `{}`); !strings.Contains(got, "no other node is here") {
			t.Errorf("with the others away, a move says %s", got)
		}
	}, "n1", "n2", "n3")
}

// TestDrain: all sandboxes leave a node but one that cannot, and none comes.
func TestDrain(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n1", "a", "b", "c")
		y.nodes["n1"].Set("depart "+machines["b"], doze.Errorf(doze.Conflict, "a stream is open"))
		if got := y.want(200, "POST", "/platform/nodes/n1/drain", ""); !strings.Contains(got, `"moved":2,"stayed":1`) {
			t.Errorf("a drain says %s", got)
		}
		if diff := cmp.Diff(map[string]string{"a": "n2", "b": "n1", "c": "n2"}, y.at(machines)); diff != "" || y.stateOfN1() != doze.NodeDraining {
			t.Errorf("the node is %s (-want +got):\n%s", y.stateOfN1(), diff)
		}
		y.nodes["n1"].Set("depart "+machines["b"], nil)
		if got := y.want(200, "POST", "/platform/nodes/n1/drain", ""); !strings.Contains(got, `"moved":1,"stayed":0`) {
			t.Errorf("the next drain says %s", got)
		}
		y.want(404, "POST", "/platform/nodes/n9/drain", "")
		for id, want := range map[string]string{"n1": `{"total":0,"sandboxes":[]}`, "n2": `{"total":3,"sandboxes":[{"workspace":"main","name":"`} {
			if got := y.want(200, "GET", "/platform/nodes/"+id+"/sandboxes", ""); !strings.HasPrefix(got, want) {
				t.Errorf("%s has %s, want %s…", id, got, want)
			}
		}
		y.want(404, "GET", "/platform/nodes/n9/sandboxes", "")
	}, "n1", "n2")
}

// TestCordon: a node takes nothing new while it is cordoned, also after it joins again.
func TestCordon(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		y.want(200, "POST", "/platform/nodes/n1/cordon", "")
		y.kill("n1")
		y.join("n1")
		for i := range 6 {
			y.p.Create(planetest.Named(fmt.Sprint("s", i)))
		}
		if n := y.nodes["n1"].Count(); n != 0 || y.nodes["n2"].Count() != 6 {
			t.Errorf("a cordoned node has %d of 6 new sandboxes", n)
		}
		y.want(200, "POST", "/platform/nodes/n1/uncordon", "")
		y.want(200, "POST", "/platform/nodes/n2/cordon", "")
		y.p.Create(planetest.Named("last"))
		if n := y.nodes["n1"].Count(); n != 1 {
			t.Errorf("a node that is not cordoned any more has %d of one new sandbox", n)
		}
		y.want(200, "POST", "/platform/nodes/n1/cordon", "")
		if got := y.want(503, "POST", "/sandboxes", planetest.Named("none")); got == "" {
			t.Error("nobody says why")
		}
	}, "n1", "n2")
}

// TestNodesSpeakOfTheirOwn: what a node says of the machine of another node is dropped, and
// it gets no key of it.
func TestNodesSpeakOfTheirOwn(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		uid := y.make("n1", "a")["a"]
		say := func(node string, phase doze.Phase, seq uint64) {
			t.Helper()
			if err := y.r.Record(t.Context(), node, []fleet.Report{{UID: uid, Seq: seq, Phase: phase, At: time.Now()}}); err != nil {
				t.Error(err)
			}
		}
		phase := func() doze.Phase {
			sb, err := y.p.Store.SandboxByName(t.Context(), "main", "a")
			if err != nil {
				t.Error(err)
			}
			return sb.Phase
		}
		say("n2", doze.Suspending, 100)
		if got := phase(); got != doze.Running {
			t.Errorf("another node says that the sandbox is %s, and is believed", got)
		}
		say("n1", doze.Suspending, 100)
		if got := phase(); got != doze.Suspending {
			t.Errorf("its node says that the sandbox falls asleep, and it is %s", got)
		}
		if _, err := y.r.Claim(t.Context(), "n2", uid); doze.Public(err).Kind != doze.Conflict {
			t.Errorf("another node claims the machine: %v", err)
		}
		c, err := y.r.Claim(t.Context(), "n1", uid)
		if err != nil || c.Epoch != 2 || len(c.Key) == 0 {
			t.Errorf("its node claims the machine: epoch %d, %v", c.Epoch, err)
		}
		for _, name := range []string{uid, "file-", "file-" + strings.Repeat("A", 64), "../x"} {
			if _, err := y.r.FileKey(t.Context(), "n2", name); doze.Public(err).Kind != doze.Invalid {
				t.Errorf("the key of the file %q: %v", name, err)
			}
		}
		if key, err := y.r.FileKey(t.Context(), "n2", "file-"+strings.Repeat("a", 64)); err != nil || len(key) == 0 {
			t.Errorf("the key of a shared file: %v", err)
		}
		for what, err := range map[string]error{
			"a report": y.r.Record(t.Context(), "n9", nil),
			"a claim":  func() error { _, err := y.r.Claim(t.Context(), "n9", uid); return err }(),
			"a file":   func() error { _, err := y.r.FileKey(t.Context(), "n9", "file-"+strings.Repeat("a", 64)); return err }(),
		} {
			if doze.Public(err).Name != "NODE_NOT_JOINED" {
				t.Errorf("%s of a node that has not joined: %v", what, err)
			}
		}
	}, "n1", "n2")
}

// TestRemoveDuringJoin: a node that joins while somebody removes it stays.
func TestRemoveDuringJoin(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		y.kill("n2")
		planetest.After(over)
		removed := make(chan int, 1)
		y.dialed = func() {
			y.dialed = nil
			go func() { removed <- y.p.Do("DELETE", "/platform/nodes/n2", "").Code }()
			synctest.Wait()
		}
		y.join("n2")
		if code := <-removed; code != 409 {
			y.t.Errorf("a node that joins is removed: %d", code)
		}
		if n, err := y.p.Store.Node(y.t.Context(), "n2"); err != nil {
			y.t.Errorf("the node that joined is %+v on record: %v", n, err)
		}
		y.kill("n2")
		planetest.After(over)
		y.want(200, "DELETE", "/platform/nodes/n2", "")
		y.want(404, "DELETE", "/platform/nodes/n2", "")
		y.join("n2") // as a new one
	}, "n1", "n2")
}

// TestRemoveHome: the first node can go as any other one, with what was made before places
// were recorded. Another node is the home after it.
func TestRemoveHome(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n1", "a", "b")
		if err := y.p.Store.RemovePlace(t.Context(), "machine", machines["a"]); err != nil {
			t.Fatal(err)
		}
		y.close()
		y.open()
		for _, id := range []string{"n1", "n2"} {
			y.join(id)
		}
		planetest.After(ttl)
		for _, name := range []string{"a", "b"} {
			y.nodes["n1"].Shelve(machines[name])
		}
		y.want(200, "POST", "/platform/nodes/n2/cordon", "")
		y.kill("n1")
		planetest.After(over)
		refused := func(machine, what string) {
			t.Helper()
			if got := y.want(409, "DELETE", "/platform/nodes/n1", ""); !strings.Contains(got, machine) {
				t.Errorf("a home that has a machine %s: %s", what, got)
			}
			if home, err := y.p.Store.Setting(t.Context(), roster.HomeSetting); home != "n1" || err != nil {
				t.Errorf("the home is %q: %v", home, err)
			}
		}
		refused(machines["b"], "on record")
		if err := y.p.Store.RemovePlace(t.Context(), "machine", machines["b"]); err != nil {
			t.Fatal(err)
		}
		refused("machine", "without a place")
		y.want(200, "POST", "/platform/nodes/n2/uncordon", "")
		planetest.After(over)
		if diff := cmp.Diff(map[string]string{"a": "n2", "b": "n2"}, y.at(machines)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		y.want(200, "DELETE", "/platform/nodes/n1", "")
		if home, err := y.p.Store.Setting(t.Context(), roster.HomeSetting); home != "n2" || err != nil {
			t.Errorf("the home is %q: %v", home, err)
		}
		y.close()
		y.open()
		y.join("n2")
		planetest.After(ttl)
		if got := y.want(200, "GET", "/platform/nodes", ""); strings.Contains(got, `"n1"`) {
			t.Errorf("the nodes are %s", got)
		}
		y.want(200, "GET", "/sandboxes/a", "")
		y.kill("n2")
		planetest.After(over)
		y.want(409, "DELETE", "/platform/nodes/n2", "") // nobody else could be the home
	}, "n1", "n2")
}

// TestRemove: a node that is stopped and has nothing can be forgotten.
func TestRemove(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n2", "a")
		y.want(409, "DELETE", "/platform/nodes/n2", "") // it runs
		y.nodes["n2"].Shelve(machines["a"])
		y.nodes["n1"].Set("revive", doze.Errorf(doze.Unavailable, "not now"))
		y.want(200, "POST", "/platform/nodes/n1/cordon", "")
		y.kill("n2")
		planetest.After(over)
		y.want(409, "DELETE", "/platform/nodes/n2", "") // its sandbox has no other place yet
		y.nodes["n1"].Set("revive", nil)
		y.want(200, "POST", "/platform/nodes/n1/uncordon", "")
		planetest.After(over)
		if diff := cmp.Diff(map[string]string{"a": "n1"}, y.at(machines)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if w := y.p.Do("DELETE", "/platform/nodes/n2", ""); w.Code >= 300 {
			t.Errorf("a node that has nothing stays: %d %s", w.Code, w.Body)
		}
		y.want(404, "DELETE", "/platform/nodes/n2", "")
		y.want(409, "DELETE", "/platform/nodes/n1", "") // it runs, and is the first
		if diff := cmp.Diff([]string{"n2"}, y.removed); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if got := y.want(200, "GET", "/platform/nodes", ""); strings.Contains(got, `"n2"`) || !strings.Contains(got, `"n1"`) {
			t.Errorf("the nodes are %s", got)
		}
	}, "n1", "n2")
}

// TestLostWhileJoining: a node that is slow to join keeps no other one from its lease. If it
// is lost meanwhile, it has to ask again, with what it has then.
func TestLostWhileJoining(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n1", "a")
		y.nodes["n1"].Shelve(machines["a"])
		y.kill("n1")
		slow := make(chan struct{})
		y.nodes["n1"].Hook = func() { <-slow }
		joined := make(chan error, 1)
		go func() {
			_, err := y.r.Join(t.Context(), fleet.NodeInfo{
				ID: "n1", Incarnation: "2", URL: "https://n1", Memory: 65536, SealKey: y.p.Opener.Sealer().Key(), BuildDisk: planetest.BuildDisk, Leased: true,
			})
			joined <- err
		}()
		planetest.After(time.Second)
		y.join("n3")
		planetest.After(over)
		if s := y.stateOfN1(); s != doze.NodeLost {
			t.Errorf("a node that is slow to join is %s", s)
		}
		close(slow)
		if err := <-joined; doze.Public(err).Kind != doze.Unavailable {
			t.Errorf("it was lost while it joined, and hears %v", err)
		}
		planetest.After(over)
		if l := y.join("n1"); !slices.Equal(l.Gone, []string{machines["a"]}) || l.Epoch < 2 {
			t.Errorf("then it gets %+v", l)
		}
	}, "n1", "n2")
}

// TestPendingOnFullNode: a sandbox that has a place, and has not begun there, goes elsewhere if
// the node is full by then.
func TestPendingOnFullNode(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n1", "a")
		y.nodes["n1"].Shelve(machines["a"])
		y.want(200, "POST", "/platform/nodes/n3/cordon", "")
		y.nodes["n2"].Set("revive", doze.Errorf(doze.Unavailable, "the bucket does not answer"))
		y.kill("n1")
		planetest.After(over)
		if on := y.crew.Of(crew.Machine, machines["a"]); on != "n2" {
			t.Fatalf("it is placed on %s", on)
		}
		y.want(503, "POST", "/sandboxes/a/move", `{}`) // that is no reason to give it up
		y.want(503, "POST", "/sandboxes/a/wake", "")
		y.nodes["n2"].Set("revive", fleet.ErrFull)
		y.want(200, "POST", "/platform/nodes/n3/uncordon", "")
		planetest.After(over)
		if diff := cmp.Diff(map[string]string{"a": "n3"}, y.at(machines)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if c := y.r.Census(t.Context()); c.Rescues[roster.Resumed] != 1 {
			t.Errorf("the rescues are %v", c.Rescues)
		}
	}, "n1", "n2", "n3")
}

// TestMissingAfterRestart: a sandbox that control placed on a node before it ended begins there,
// also if the node could not be asked when control began.
func TestMissingAfterRestart(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n1", "a")
		y.nodes["n1"].Shelve(machines["a"])
		y.nodes["n2"].Set("revive", doze.Errorf(doze.Unavailable, "the bucket does not answer"))
		y.kill("n1")
		planetest.After(over)
		y.close()
		y.nodes["n2"].Set("revive", nil)
		y.nodes["n2"].Set("statuses", doze.Errorf(doze.Unavailable, "not now"))
		y.open()
		y.join("n2")
		planetest.After(ttl)
		if diff := cmp.Diff(map[string]string{"a": "n2"}, y.at(machines)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}, "n1", "n2")
}

// TestDeletedWhileAway: what was deleted while the first node was away does not live on there.
func TestDeletedWhileAway(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		uid := y.make("n1", "a")["a"]
		y.nodes["n1"].Shelve(uid)
		y.kill("n1")
		planetest.After(over)
		y.want(200, "DELETE", "/sandboxes/a", "")
		planetest.After(over)
		if l := y.join("n1"); !slices.Equal(l.Gone, []string{uid}) {
			t.Errorf("it is to end %v", l.Gone)
		}
	}, "n1", "n2")
}

// TestArchivesOfLostNode: an archived sandbox is archived on another node, if the bucket has its archive.
// Otherwise it waits for its node: nothing older takes its place. A drain moves archives.
func TestArchivesOfLostNode(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n1", "a", "b")
		y.nodes["n1"].Shelve(machines["b"]) // its memory, before
		for name := range machines {
			y.want(200, "POST", "/sandboxes/"+name+"/archive", "")
		}
		planetest.After(time.Minute)
		phase := func(name, want string) {
			t.Helper()
			if got := y.want(200, "GET", "/sandboxes/"+name, ""); !strings.Contains(got, `"status":"`+want+`"`) {
				t.Errorf("%s is not %s: %s", name, want, got)
			}
		}
		phase("a", "ARCHIVED")
		phase("b", "ARCHIVED")
		y.nodes["n1"].Shelve(machines["a"])
		y.kill("n1")
		planetest.After(over)
		phase("a", "ARCHIVED")
		phase("b", "ARCHIVED")
		if a, b := y.crew.Of(crew.Machine, machines["a"]), y.crew.Of(crew.Machine, machines["b"]); a != "n2" || b != "n1" {
			t.Errorf("the archive that the bucket has is on %s, the other one on %s", a, b)
		}
		y.want(200, "POST", "/sandboxes/a/unarchive", "")
		planetest.After(time.Minute)
		phase("a", "DEPLOYED")
		y.join("n1")
		planetest.After(time.Minute)
		y.want(200, "POST", "/sandboxes/a/archive", "")
		planetest.After(time.Minute)
		y.want(200, "POST", "/platform/nodes/n2/drain", "")
		if a := y.crew.Of(crew.Machine, machines["a"]); a != "n1" {
			t.Errorf("after a drain, an archive is on %s", a)
		}
		phase("a", "ARCHIVED")
		for name := range machines {
			y.want(200, "POST", "/sandboxes/"+name+"/unarchive", "")
		}
		planetest.After(time.Minute)
		phase("a", "DEPLOYED")
		phase("b", "DEPLOYED")
	}, "n1", "n2")
}
