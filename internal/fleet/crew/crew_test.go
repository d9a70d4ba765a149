package crew_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/fleet/fleettest"
	"github.com/dozehq/doze/internal/placement"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// ledger is a [crew.Ledger] in memory. That of the store passes the same tests in its own
// package.
type ledger struct {
	mu  sync.Mutex
	all map[string]crew.Place // guarded by mu
	err error                 // guarded by mu; of each write
}

func (l *ledger) Places(context.Context) ([]crew.Place, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.all)), nil
}

func (l *ledger) Put(_ context.Context, p crew.Place) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.all[string(p.Kind)+"/"+p.ID] = p
	}
	return l.err
}

func (l *ledger) Remove(_ context.Context, k crew.Kind, id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, string(k)+"/"+id)
	return l.err
}

// yard is a crew of nodes in memory.
type yard struct {
	*crew.Crew

	ledger *ledger
	atlas  *fleet.Atlas
	shelf  *planetest.Shelf
	nodes  map[string]*planetest.Node
}

// newYard returns a crew of n nodes, the first of which is its home.
func newYard(t *testing.T, n int) *yard {
	t.Helper()
	y := &yard{ledger: &ledger{all: map[string]crew.Place{}}, atlas: fleet.NewAtlas(), shelf: planetest.NewShelf(), nodes: map[string]*planetest.Node{}}
	y.reopen(t)
	for i := range n {
		y.join(fmt.Sprint("n", i))
	}
	return y
}

// reopen is what a new process of control knows.
func (y *yard) reopen(t *testing.T) {
	t.Helper()
	var err error
	if y.Crew, err = crew.Open(t.Context(), y.ledger, "n0", y.atlas); err != nil {
		t.Fatal(err)
	}
	for id := range y.nodes {
		y.put(id)
	}
}

func (y *yard) join(id string) {
	n := planetest.NewNode()
	n.Report, n.Shelf = func(fleet.Report) {}, y.shelf
	y.nodes[id] = n
	y.put(id)
}

func (y *yard) put(id string) {
	y.Put(crew.Member{
		Info: fleet.NodeInfo{ID: id}, Node: y.nodes[id], Open: true,
		Load: fleet.Load{Memory: 16384, Processors: 2, Disk: 100_000},
	})
}

// beat has each node say what it has.
func (y *yard) beat() {
	for id, n := range y.nodes {
		l := fleet.Load{Memory: 16384, Processors: 2, Disk: 100_000, Sandboxes: n.Count()}
		n.Mu.Lock()
		for _, m := range n.Machines {
			if m.Phase == doze.Running {
				l.Reserved += m.Order.Memory
			}
		}
		n.Mu.Unlock()
		y.Beat(id, l)
	}
}

// TestCrewIsANode: many nodes keep the promises of one.
func TestCrewIsANode(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			fleettest.Run(t, fleettest.Host{Image: "base", Private: "example.com/private:1", Crew: true, Node: func(t *testing.T) fleet.Node {
				t.Helper()
				return newYard(t, n)
			}})
		})
	}
}

func order(uid string) fleet.Order {
	return fleet.Order{UID: uid, Name: uid, Workspace: "main", Image: "base", Memory: 1024, Network: new(doze.Network)}
}

// TestSpreads: new sandboxes go where there is room, and are found there by a new process
// and by edges.
func TestSpreads(t *testing.T) {
	t.Parallel()
	y := newYard(t, 3)
	for i := range 30 {
		if err := y.Create(t.Context(), order(fmt.Sprint("s", i))); err != nil {
			t.Fatal(err)
		}
		if i%7 == 0 {
			y.beat()
		}
	}
	for id, n := range y.nodes {
		if n.Count() != 10 {
			t.Errorf("%s has %d of 30", id, n.Count())
		}
	}
	follower := fleet.NewAtlas()
	y.atlas.Tell(func(machine string, at any) {
		var raw json.RawMessage
		if at != nil {
			raw = fmt.Appendf(nil, "%q", at)
		}
		if err := follower.Apply(machine, raw); err != nil {
			t.Error(err)
		}
	})
	y.reopen(t)
	for i := range 30 {
		uid := fmt.Sprint("s", i)
		at := y.Of(crew.Machine, uid)
		if follower.Node(uid) != at || y.nodes[at].Machines[uid] == nil {
			t.Errorf("%s is said to be on %s by the ledger, and on %s by the atlas", uid, at, follower.Node(uid))
		}
		if err := y.Delete(t.Context(), uid); err != nil {
			t.Error(err)
		}
	}
	if len(y.ledger.all) != 0 {
		t.Errorf("the ledger has %v", y.ledger.all)
	}
}

// TestNodeThatIsAway: what it has counts as there, and cannot be asked about. All else works.
func TestNodeThatIsAway(t *testing.T) {
	t.Parallel()
	y := newYard(t, 2)
	on := map[string]string{}
	for i := range 4 {
		uid := fmt.Sprint("s", i)
		if err := y.Create(t.Context(), order(uid)); err != nil {
			t.Fatal(err)
		}
		on[y.Of(crew.Machine, uid)] = uid
	}
	y.Remove("n1")
	if err := y.Delete(t.Context(), on["n1"]); !errors.Is(err, fleet.ErrUnreachable) {
		t.Errorf("a delete on a node that is away: %v", err)
	}
	if y.Of(crew.Machine, on["n1"]) != "n1" {
		t.Error("its place is forgotten")
	}
	got, err := y.Statuses(t.Context(), []string{on["n0"], on["n1"]})
	if _, there := got[on["n0"]]; !errors.Is(err, fleet.ErrUnreachable) || !there || len(got) != 1 {
		t.Errorf("statuses: %v, %v", got, err)
	}
	if now, err := y.Awake(t.Context(), "main"); err != nil || now.Sandboxes != 2 {
		t.Errorf("awake: %+v, %v", now, err)
	}
	if err := y.SetLimits(t.Context(), "main", nil); err != nil {
		t.Error(err)
	}
	if err := y.Create(t.Context(), order("new")); err != nil || y.Of(crew.Machine, "new") != "n0" {
		t.Errorf("a new one is on %s: %v", y.Of(crew.Machine, "new"), err)
	}
	y.put("n1")
	if err := y.Delete(t.Context(), on["n1"]); err != nil {
		t.Errorf("a delete when it is back: %v", err)
	}
}

// TestFullNode: a node that refuses is not the last word.
func TestFullNode(t *testing.T) {
	t.Parallel()
	y := newYard(t, 2)
	full := doze.Wrap(fleet.ErrFull, doze.Unavailable, "the node has no memory left")
	y.nodes["n0"].Set("create", full)
	if err := y.Create(t.Context(), order("a")); err != nil || y.Of(crew.Machine, "a") != "n1" {
		t.Errorf("it is on %s: %v", y.Of(crew.Machine, "a"), err)
	}
	y.nodes["n1"].Set("create", full)
	if err := y.Create(t.Context(), order("b")); !errors.Is(err, fleet.ErrFull) {
		t.Errorf("no node has room: %v", err)
	}
	y.nodes["n0"].Set("create", nil)
	if err := y.Create(t.Context(), order("b")); err != nil || y.nodes[y.Of(crew.Machine, "b")].Machines["b"] == nil {
		t.Errorf("it is on %s: %v", y.Of(crew.Machine, "b"), err)
	}
}

// TestTogether: a sandbox begins where its snapshot or its volumes are, and a disk where
// the disk is that it copies.
func TestTogether(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	y := newYard(t, 3)
	done := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range 9 {
		v, w := fmt.Sprint("v", i), fmt.Sprint("w", i)
		done(y.MakeVolume(ctx, v, 100, ""))
		done(y.MakeVolume(ctx, w, 100, v))
		o := order(fmt.Sprint("m", i))
		o.Volumes = []fleet.Volume{{ID: v, Path: "/v", Size: 100}, {ID: w, Path: "/w", Size: 100}}
		done(y.Create(ctx, o))
		s := order(fmt.Sprint("s", i))
		done(y.Create(ctx, s))
		_, err := y.Snapshot(ctx, s.UID, "snap-"+s.UID)
		done(err)
		f := order(fmt.Sprint("f", i))
		f.From = "snap-" + s.UID
		done(y.Create(ctx, f))
		if at := y.Of(crew.Volume, v); at != y.Of(crew.Volume, w) || at != y.Of(crew.Machine, o.UID) {
			t.Errorf("%s is on %s, %s on %s, its sandbox on %s", v, at, w, y.Of(crew.Volume, w), y.Of(crew.Machine, o.UID))
		}
		if y.Of(crew.Machine, s.UID) != y.Of(crew.Machine, f.UID) {
			t.Error("a fork is not where its snapshot is")
		}
	}
	apart := order("apart") // one of its volumes goes to the other
	for id := range y.nodes {
		for i := range 9 {
			if v := fmt.Sprint("v", i); y.Of(crew.Volume, v) == id {
				done(y.Delete(ctx, fmt.Sprint("m", i))) // a volume that a sandbox has does not move
				apart.Volumes = append(apart.Volumes, fleet.Volume{ID: v, Path: "/" + v, Size: 100})
				break
			}
		}
	}
	was := len(apart.Volumes)
	done(y.Create(ctx, apart))
	for _, v := range apart.Volumes {
		if at := y.Of(crew.Machine, apart.UID); y.Of(crew.Volume, v.ID) != at || y.nodes[at].Disks[v.ID].Size != 100 || was < 2 {
			t.Errorf("the sandbox is on %s, and its volume %s, one of %d, on %s", at, v.ID, was, y.Of(crew.Volume, v.ID))
		}
	}
}

// TestVolumeGoes: a volume that no sandbox has goes where the next one begins. If its node is away,
// the bucket must have its last state. Nobody takes an older one.
func TestVolumeGoes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	y := newYard(t, 2)
	done := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	with := func(uid string) fleet.Order {
		o := order(uid)
		o.Volumes = []fleet.Volume{{ID: "v", Path: "/v", Size: 100}}
		return o
	}
	done(y.MakeVolume(ctx, "v", 100, ""))
	first := y.Of(crew.Volume, "v")
	second := map[string]string{"n0": "n1", "n1": "n0"}[first]
	write := func(node, text string) {
		d := y.nodes[node].Disks["v"]
		d.Content = text
		y.nodes[node].Disks["v"] = d
	}
	write(first, "one")
	y.Update(first, func(m *crew.Member) { m.Open = false })
	done(y.Create(ctx, with("a")))
	if at := y.Of(crew.Volume, "v"); at != second || y.nodes[second].Disks["v"].Content != "one" {
		t.Fatalf("it is on %s as %+v", at, y.nodes[second].Disks["v"])
	}
	if _, stays := y.nodes[first].Disks["v"]; stays {
		t.Error("the node that it left still has it")
	}
	write(second, "two")
	y.Update(first, func(m *crew.Member) { m.Open = true })
	done(y.Delete(ctx, "a"))
	y.Remove(second)
	if err := y.Create(ctx, with("b")); doze.Public(err).Kind != doze.Unavailable || y.Of(crew.Volume, "v") != second {
		t.Errorf("its node is away, and the bucket has an older state: it is on %s, %v", y.Of(crew.Volume, "v"), err)
	}
	y.put(second)
	done(y.SaveVolume(ctx, "v"))
	y.Remove(second)
	done(y.Create(ctx, with("c")))
	if y.Of(crew.Volume, "v") != first || y.nodes[first].Disks["v"].Content != "two" {
		t.Errorf("it is on %s as %+v", y.Of(crew.Volume, "v"), y.nodes[first].Disks["v"])
	}
	write(first, "three")
	if y.Saved("v") {
		t.Error("a volume in use counts as saved")
	}
	// The node that comes back has the older one: it is removed, and never taken for the other.
	y.put(second)
	for _, m := range y.Members() {
		done(y.Tidy(ctx, m, slices.Collect(maps.Keys(y.nodes[m.Info.ID].Disks)), map[string]bool{"v": true}))
	}
	if _, stays := y.nodes[second].Disks["v"]; stays || y.nodes[first].Disks["v"].Content != "three" {
		t.Errorf("after that, they have %+v and %+v", y.nodes[first].Disks, y.nodes[second].Disks)
	}
	for _, m := range y.Members() {
		done(y.Tidy(ctx, m, slices.Collect(maps.Keys(y.nodes[m.Info.ID].Disks)), nil))
	}
	if len(y.nodes[first].Disks) != 0 {
		t.Errorf("a disk of no record stays: %+v", y.nodes[first].Disks)
	}
}

// TestSnapshotGoes: a sandbox begins from a snapshot elsewhere if the bucket has it, and not without.
func TestSnapshotGoes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	y := newYard(t, 2)
	done := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	done(y.Create(ctx, order("a")))
	at := y.Of(crew.Machine, "a")
	elsewhere := map[string]string{"n0": "n1", "n1": "n0"}[at]
	_, err := y.Snapshot(ctx, "a", "snap")
	done(err)
	fork := func(uid string) error {
		o := order(uid)
		o.From = "snap"
		return y.Create(ctx, o)
	}
	done(fork("near"))
	if y.Of(crew.Machine, "near") != at {
		t.Error("a fork is not where its snapshot is")
	}
	y.Update(at, func(m *crew.Member) { m.Open = false })
	if err := fork("early"); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("a fork elsewhere of what only its node has: %v", err)
	}
	if y.MayHave(elsewhere, crew.Snapshot, "snap") {
		t.Error("a node may have a snapshot that it does not need")
	}
	done(y.SaveSnapshot(ctx, "snap"))
	y.Remove(at)
	y.nodes[elsewhere].Set("create", fleet.ErrFull)
	if err := fork("full"); !errors.Is(err, fleet.ErrFull) {
		t.Errorf("no node has room: %v", err)
	}
	y.nodes[elsewhere].Set("create", nil)
	done(fork("far"))
	if y.Of(crew.Machine, "far") != elsewhere || y.MayHave(elsewhere, crew.Snapshot, "snap") {
		t.Errorf("a fork is on %s, whose node may have the snapshot still: %t", y.Of(crew.Machine, "far"), y.MayHave(elsewhere, crew.Snapshot, "snap"))
	}
	for _, m := range y.Members() {
		there, err := m.Node.Snapshots(ctx)
		done(errors.Join(err, y.TidySnapshots(ctx, m, there, nil)))
		if there, err = m.Node.Snapshots(ctx); len(there) > 0 || err != nil {
			t.Errorf("snapshots of no record stay: %v, %v", there, err)
		}
	}
}

// TestBuiltImages: an image that was built is on one node, and sandboxes of it begin there.
func TestBuiltImages(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	y := newYard(t, 3)
	built, err := y.Build(ctx, fleet.BuildOrder{ID: "b1", Workspace: "main", WorkspaceID: "w1", Network: new(doze.Network)},
		strings.NewReader(string(fleettest.Context(t))), func(fleet.BuildEvent) {})
	if err != nil {
		t.Fatal(err)
	}
	at := y.Of(crew.Image, built.Ref)
	if at != y.Of(crew.Builder, "w1") {
		t.Errorf("the image is on %s, its builder on %s", at, y.Of(crew.Builder, "w1"))
	}
	y.reopen(t)
	for i := range 3 {
		o := order(fmt.Sprint("s", i))
		o.Image = built.Ref
		if err := y.Create(ctx, o); err != nil || y.Of(crew.Machine, o.UID) != at {
			t.Errorf("it is on %s, not on %s: %v", y.Of(crew.Machine, o.UID), at, err)
		}
	}
	r, err := y.SaveImage(ctx, built.Ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := y.LoadImage(ctx, "l1", r)
	if _, rest := io.Copy(io.Discard, r); err != nil || rest != nil || y.Of(crew.Image, loaded.Ref) == "" {
		t.Errorf("it is loaded on %s: %v, %v", y.Of(crew.Image, loaded.Ref), err, rest)
	}
}

// TestImageOfLostNode: an image that the bucket has outlives its node. Until then, sandboxes of it
// wait for the node. A node that does not need it may not have it.
func TestImageOfLostNode(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	y := newYard(t, 2)
	built, err := y.Build(ctx, fleet.BuildOrder{ID: "b1", Workspace: "main", WorkspaceID: "w1", Network: new(doze.Network)},
		bytes.NewReader(fleettest.Context(t)), func(fleet.BuildEvent) {})
	if err != nil {
		t.Fatal(err)
	}
	at := y.Of(crew.Image, built.Ref)
	elsewhere := map[string]string{"n0": "n1", "n1": "n0"}[at]
	create := func(uid string) error {
		o := order(uid)
		o.Image = built.Ref
		return y.Create(ctx, o)
	}
	y.Update(at, func(m *crew.Member) { m.Open = false })
	if err := create("early"); doze.Public(err).Kind != doze.Unavailable {
		t.Errorf("a sandbox elsewhere of what only its node has: %v", err)
	}
	if err := y.SaveBuilt(ctx, built.Ref); err != nil {
		t.Fatal(err)
	}
	if y.MayHave(elsewhere, crew.Image, built.Ref) || !y.MayHave(at, crew.Image, built.Ref) {
		t.Error("a node may have an image that it does not need, or its node may not")
	}
	if err := create("full"); err != nil || y.Of(crew.Machine, "full") != elsewhere {
		t.Errorf("a sandbox when its node takes nothing is on %s: %v", y.Of(crew.Machine, "full"), err)
	}
	y.Update(at, func(m *crew.Member) { m.Open = true })
	if err := create("near"); err != nil || y.Of(crew.Machine, "near") != at {
		t.Errorf("a sandbox is on %s, its image on %s: %v", y.Of(crew.Machine, "near"), at, err)
	}
	y.Remove(at)
	if err := errors.Join(y.CheckImage(ctx, built.Ref), y.FetchImage(ctx, built.Ref, nil)); err != nil {
		t.Errorf("an image that is to be had: %v", err)
	}
	r, err := y.SaveImage(ctx, built.Ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !y.MayHave(elsewhere, crew.Image, built.Ref) {
		t.Error("the node that sends the image may not have it")
	}
	if err := errors.Join(r.Close(), r.Close()); err != nil || y.MayHave(elsewhere, crew.Image, built.Ref) {
		t.Errorf("the node that has sent the image may have it still: %v", err)
	}
	if err := create("far"); err != nil || y.Of(crew.Machine, "far") != elsewhere || y.MayHave(elsewhere, crew.Image, built.Ref) {
		t.Errorf("a sandbox is on %s, whose node may have the image still: %t, %v", y.Of(crew.Machine, "far"), y.MayHave(elsewhere, crew.Image, built.Ref), err)
	}
	if err := y.ReleaseImage(ctx, built.Ref); err != nil || y.Stored(crew.Image, built.Ref) {
		t.Errorf("a released image counts as there: %v", err)
	}
}

// TestRecordFirst: without a record of its place nothing begins.
func TestRecordFirst(t *testing.T) {
	t.Parallel()
	y := newYard(t, 2)
	broken := errors.New("the database is away")
	y.ledger.err = broken
	if err := y.Create(t.Context(), order("a")); !errors.Is(err, broken) {
		t.Errorf("it is %v", err)
	}
	for id, n := range y.nodes {
		if n.Count() != 0 {
			t.Errorf("%s has a machine of no record", id)
		}
	}
}

// TestMove: after a move, calls go to the other node. Edges go there when it has begun there.
func TestMove(t *testing.T) {
	t.Parallel()
	y := newYard(t, 2)
	if err := y.Create(t.Context(), order("a")); err != nil {
		t.Fatal(err)
	}
	from := y.Of(crew.Machine, "a")
	to := map[string]string{"n0": "n1", "n1": "n0"}[from]
	if err := y.nodes[to].Create(t.Context(), order("a")); err != nil {
		t.Fatal(err)
	}
	if err := y.Move(t.Context(), crew.Machine, "a", to); err != nil {
		t.Fatal(err)
	}
	if y.atlas.Node("a") != from {
		t.Error("edges look for it where it has not begun")
	}
	y.Arrived("a")
	if y.atlas.Node("a") != to {
		t.Errorf("edges look for it on %s", y.atlas.Node("a"))
	}
	y.reopen(t)
	if err := y.Sleep(t.Context(), "a", true); err != nil {
		t.Fatal(err)
	}
	for id, n := range y.nodes {
		if got := n.Machines["a"].Phase == doze.Standby; got != (id == to) {
			t.Errorf("on %s it sleeps: %t", id, got)
		}
	}
	if y.atlas.Node("a") != to {
		t.Errorf("edges look for it on %s", y.atlas.Node("a"))
	}
}

// TestAllot: of many that get another node at the same time, each node gets a part, also while no
// place is recorded yet. When a node has said what it has, nothing is counted twice.
func TestAllot(t *testing.T) {
	t.Parallel()
	y := newYard(t, 2)
	got, places := map[string]int{}, map[string]string{}
	for i := range 8 {
		uid := fmt.Sprint("m", i)
		at, err := y.Allot(uid, "main", placement.Want{Memory: 2048})
		if err != nil {
			t.Fatal(err)
		}
		got[at]++
		places[uid] = at
	}
	for uid, at := range places {
		if err := y.Move(t.Context(), crew.Machine, uid, at); err != nil {
			t.Fatal(err)
		}
	}
	if got["n0"] != 4 || got["n1"] != 4 {
		t.Errorf("they went to %v", got)
	}
	y.beat() // they sleep, and take nothing
	if _, err := y.Allot("large", "main", placement.Want{Memory: 16384}); err != nil {
		t.Error("what a node does not have is still counted:", err)
	}
}

// TestLogsMerge: the pages of several nodes have each line once, in order.
func TestLogsMerge(t *testing.T) {
	t.Parallel()
	y := newYard(t, 3)
	at := time.Unix(1_800_000_000, 0)
	want := 0
	for i := range 300 {
		n := y.nodes[fmt.Sprint("n", i*i%3)]
		line := fleet.LogLine{LogPosition: fleet.LogPosition{At: at.Add(time.Duration(i) * time.Second).UnixNano(), Origin: "m"}, Stream: "stdout", Text: fmt.Sprint(i)}
		n.Write("main", "s", line)
		want++
	}
	for _, oldest := range []bool{true, false} {
		q := fleet.LogQuery{Workspace: "main", Name: "s", Limit: 7, Bytes: 1 << 20, OldestFirst: oldest}
		var got []string
		for {
			p, err := y.Logs(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range p.Lines {
				got = append(got, l.Text)
			}
			if !p.More {
				break
			}
			q.Past = &p.Next
		}
		if len(got) != want {
			t.Errorf("oldest first %t: %d of %d lines", oldest, len(got), want)
		}
		for i, text := range got {
			if n := i; fmt.Sprint(n) != text && oldest {
				t.Fatalf("line %d is %s", i, text)
			}
		}
	}
}
