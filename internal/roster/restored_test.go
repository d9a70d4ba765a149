package roster_test

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/plane/planetest"
	"github.com/dozehq/doze/internal/roster"
	"github.com/dozehq/doze/internal/store"
)

// save makes a backup of the records.
func (y *yard) save() (file string) {
	y.t.Helper()
	file = filepath.Join(y.t.TempDir(), "backup.db")
	if _, err := (store.Copying{From: y.p.File, To: file}).Do(y.t.Context()); err != nil {
		y.t.Fatal(err)
	}
	return file
}

// restore loses the records and all processes of control. Its next one has those of a backup.
func (y *yard) restore(file string) {
	y.t.Helper()
	y.close()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		_ = os.Remove(y.p.File + suffix) // it may not be there
	}
	if _, err := (store.Copying{From: file, To: y.p.File}).Do(y.t.Context()); err != nil {
		y.t.Fatal(err)
	}
	y.p.Open(false)
	err := y.p.Store.MarkRestored(y.t.Context(), time.Now())
	y.p.Stop()
	if err != nil {
		y.t.Fatal(err)
	}
	y.open()
}

// rejoin has a node join, and end what it hears that others have.
func (y *yard) rejoin(id string) fleet.Lease {
	y.t.Helper()
	l := y.join(id)
	for _, uid := range l.Gone {
		if err := y.nodes[id].Leave(y.t.Context(), uid); err != nil {
			y.t.Fatal(err)
		}
	}
	return l
}

// unrecorded are the sandboxes of each node that are not on record.
func (y *yard) unrecorded() map[string]int {
	y.t.Helper()
	all, err := y.r.List(y.t.Context())
	if err != nil {
		y.t.Fatal(err)
	}
	counts := map[string]int{}
	for _, n := range all {
		counts[n.ID] = n.Unrecorded
	}
	return counts
}

// move moves a sandbox.
func (y *yard) move(name, to string) {
	y.t.Helper()
	y.want(http.StatusOK, "POST", "/sandboxes/"+name+"/move", `{"node":"`+to+`"}`)
}

// TestRestored: after a restore, what records know is where nodes say it is. What they do not
// know stays, until an operator settles them. Then it ends, and what moved stays where it is.
func TestRestored(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n1", "stays", "moves", "returns")
		y.move("returns", "n2")
		file := y.save()
		late := y.make("n2", "late")
		y.move("moves", "n2")
		y.move("returns", "n1")
		y.restore(file)
		for _, id := range []string{"n1", "n2"} {
			if l := y.rejoin(id); len(l.Gone) > 0 {
				t.Errorf("%s is to end %v", id, l.Gone)
			}
		}
		planetest.After(over)
		want := map[string]string{"stays": "n1", "moves": "n2", "returns": "n1"}
		if diff := cmp.Diff(want, y.at(machines)); diff != "" {
			t.Errorf("sandboxes are elsewhere (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]int{"n1": 0, "n2": 1}, y.unrecorded()); diff != "" || !y.nodes["n2"].Has()[late["late"]] {
			t.Errorf("not on record (-want +got):\n%s", diff)
		}
		if claim, err := y.r.Claim(t.Context(), "n2", late["late"]); err != nil || claim.Epoch < 2 {
			t.Errorf("what is not on record gets the claim %+v, %v", claim, err)
		}
		got := y.want(http.StatusConflict, "POST", "/platform/nodes/settle", "")
		if !strings.Contains(got, "No record names these, and they end: sandbox: 1 (main/late). doze node settle --force") {
			t.Errorf("it is refused with %s", got)
		}
		if !y.r.Census(t.Context()).Restored {
			t.Error("no metric says that the records are to be settled")
		}
		if !y.nodes["n2"].Has()[late["late"]] {
			t.Error("a settlement that was refused ended a sandbox")
		}
		if got := y.want(http.StatusOK, "POST", "/platform/nodes/settle?force=true", ""); !strings.Contains(got, `"late"`) || !strings.Contains(got, `"total":1`) {
			t.Errorf("it says %s", got)
		}
		if diff := cmp.Diff(map[string]int{"n1": 0, "n2": 0}, y.unrecorded()); diff != "" || y.nodes["n2"].Has()[late["late"]] {
			t.Errorf("after the settlement (-want +got):\n%s", diff)
		}
		planetest.After(over)
		if diff := cmp.Diff(want, y.at(machines)); diff != "" {
			t.Errorf("after the settlement, sandboxes are elsewhere (-want +got):\n%s", diff)
		}
		got = y.want(http.StatusConflict, "POST", "/platform/nodes/settle?force=true", "")
		if !strings.Contains(got, "nothing is to be settled") || y.r.Census(t.Context()).Restored {
			t.Errorf("the second settlement says %s", got)
		}
	}, "n1", "n2")
}

// TestRestoredEpochs: after a restore, a sandbox gets an epoch that nobody had, whatever was
// given since the backup. A second restore of the same backup gives later ones.
func TestRestoredEpochs(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machine := y.make("n1", "a")["a"]
		file := y.save()
		highest := uint64(0)
		for range 2 {
			for range 3 {
				y.move("a", "n2")
				y.move("a", "n1")
			}
			if epoch := y.crew.Epoch(crew.Machine, machine); epoch <= highest {
				t.Errorf("it gets the epoch %d after %d", epoch, highest)
			} else {
				highest = epoch
			}
			planetest.After(time.Minute)
			y.restore(file)
			y.rejoin("n1")
			y.rejoin("n2")
			if epoch := y.crew.Epoch(crew.Machine, machine); epoch != highest {
				t.Errorf("the node has it since the epoch %d, and %d is on record", highest, epoch)
			}
		}
	}, "n1", "n2")
}

// TestRestoredOvertaken: a node that was lost after the backup, and comes back after the restore, ends
// what another node got later. It does not matter which of both joins first.
func TestRestoredOvertaken(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{"n1", "n2"}, {"n2", "n1"}} {
		t.Run(strings.Join(order, " "), func(t *testing.T) {
			t.Parallel()
			inYard(t, func(y *yard) {
				machines := y.make("n1", "a")
				y.nodes["n1"].Shelve(machines["a"])
				file := y.save()
				late := y.make("n1", "late")
				y.nodes["n1"].Shelve(late["late"])
				y.kill("n1")
				planetest.After(over)
				y.restore(file)
				all := map[string]string{"a": machines["a"], "late": late["late"]}
				for _, id := range order {
					var want []string
					if id == "n1" { // also what no record names
						want = slices.Sorted(maps.Values(all))
					}
					if l := y.rejoin(id); !slices.Equal(l.Gone, want) {
						y.t.Errorf("%s is to end %v, want %v", id, l.Gone, want)
					}
				}
				planetest.After(over)
				if diff := cmp.Diff(map[string]string{"a": "n2", "late": "n2"}, y.at(all)); diff != "" {
					y.t.Errorf("-want +got:\n%s", diff)
				}
			}, "n1", "n2")
		})
	}
}

// TestRestoredReclaim: a node that waits for a lease hears what another node got later, also one that
// the records do not know.
func TestRestoredReclaim(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		file := y.save()
		y.join("n3")
		planetest.After(ttl)
		machines := y.make("n3", "a", "b")
		y.nodes["n3"].Shelve(machines["a"])
		y.move("b", "n1") // and back
		y.move("b", "n3")
		had, held := slices.Sorted(maps.Keys(y.nodes["n3"].Has())), y.nodes["n3"].Held()
		y.move("a", "n1")
		y.kill("n3")
		y.restore(file)
		l, err := y.r.Reclaim(t.Context(), "n3", had, held)
		if err != nil || !slices.Equal(l.Gone, []string{machines["a"]}) {
			t.Errorf("it gets the lease %+v, %v", l, err)
		}
	}, "n1", "n2")
}

// TestRestoredTakesNothing: nobody begins sandboxes elsewhere, drops copies or removes disks, while
// the records may name the wrong node of a thing. When they are settled, what is nowhere goes on from the bucket, or
// fails.
func TestRestoredTakesNothing(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n1", "copied", "fresh")
		file := y.save()
		y.nodes["n1"].Shelve(machines["copied"])
		y.restore(file)
		for _, uid := range machines { // they went to a node that does not come back
			if err := y.nodes["n1"].Leave(t.Context(), uid); err != nil {
				t.Fatal(err)
			}
		}
		y.rejoin("n1")
		y.rejoin("n2")
		y.kill("n2")
		planetest.After(time.Hour)
		for id, n := range y.nodes {
			if n.Count() > 0 {
				t.Errorf("%s has begun %v", id, n.Has())
			}
		}
		if _, err := y.r.ImageRefs(t.Context()); err == nil {
			t.Error("nodes may remove images that the records do not name")
		}
		y.want(http.StatusConflict, "DELETE", "/platform/nodes/n2?force=true", "")
		got := y.want(http.StatusConflict, "POST", "/platform/nodes/settle", "")
		if !strings.Contains(got, "lost: n2. Wait") || !strings.Contains(got, "bucket: older sandbox: 1 (main/copied)") || !strings.Contains(got, "fail: sandbox: 1 (main/fresh)") || strings.Contains(got, "No record") {
			t.Errorf("it is refused with %s", got)
		}
		y.want(http.StatusOK, "POST", "/platform/nodes/settle?force=true", "")
		planetest.After(over)
		if !y.nodes["n1"].Has()[machines["copied"]] {
			t.Errorf("what the bucket has did not begin: %v", y.nodes["n1"].Has())
		}
		if got := y.want(http.StatusOK, "GET", "/sandboxes/fresh", ""); !strings.Contains(got, `"FAILED"`) {
			t.Errorf("what is nowhere is %s", got)
		}
	}, "n1", "n2")
}

// TestRestoredSweep: the bucket loses nothing while the records may not name it.
func TestRestoredSweep(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		c := &cemetery{copies: copies{y.shelf}, dropped: map[string]time.Time{"of-late": {}}}
		y.copies = c
		y.restore(y.save())
		y.rejoin("n1")
		planetest.After(3 * time.Hour)
		if len(c.dropped) != 1 || c.asked != 0 {
			t.Errorf("the bucket has %v, and was asked %d times to drop something", c.dropped, c.asked)
		}
		y.want(http.StatusOK, "POST", "/platform/nodes/settle", "")
		planetest.After(time.Hour)
		if c.asked == 0 {
			t.Error("when the records count again, nothing is dropped")
		}
	}, "n1")
}

// TestRestoredVolumes: volumes are where nodes have them in the latest epoch.
func TestRestoredVolumes(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		_, id := y.withVolume("a")
		file := y.save()
		y.move("a", "n2")
		y.restore(file)
		y.rejoin("n1")
		y.rejoin("n2")
		if at, epoch := y.crew.Of(crew.Volume, id), y.crew.Epoch(crew.Volume, id); at != "n2" || epoch != y.nodes["n2"].Disks[id].Epoch {
			t.Errorf("the volume is recorded on %s in the epoch %d; the node says %d", at, epoch, y.nodes["n2"].Disks[id].Epoch)
		}
		y.move("a", "n1")
		if d := y.nodes["n1"].Disks[id]; d.Epoch < uint64(time.Now().Add(-time.Hour).UnixMilli()) {
			t.Errorf("it moves in the epoch %d", d.Epoch)
		}
	}, "n1", "n2")
}

// TestRestoredNodes: a node that was lost or had a lease at the time of the backup is neither, until it
// says so.
func TestRestoredNodes(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		y.make("n1", "a")
		y.kill("n1")
		planetest.After(over)
		y.restore(y.save())
		all, err := y.p.Store.Nodes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range all {
			if n.State != doze.NodeReady || n.Leased {
				t.Errorf("the node %+v", n)
			}
		}
		y.rejoin("n2")
		planetest.After(over)
		if c := y.r.Census(t.Context()); c.States[roster.Away] != 1 || c.States[string(doze.NodeReady)] != 1 {
			t.Errorf("nodes are %v", c.States)
		}
	}, "n1", "n2")
}

// TestRestoredOrphans: disks and snapshots that were made after the backup are named, and go when the records
// are settled. So their node can be removed.
func TestRestoredOrphans(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		_, older := y.withVolume("a")
		y.make("n1", "b")
		file := y.save()
		_, late := y.withVolume("late")
		y.want(http.StatusOK, "DELETE", "/sandboxes/late", "")
		y.want(http.StatusOK, "POST", "/sandboxes/b/snapshots", `{"name":"after"}`)
		snapshots, err := y.nodes["n1"].Snapshots(t.Context())
		if err != nil || len(snapshots) != 1 {
			t.Fatalf("the node has the snapshots %v, %v", snapshots, err)
		}
		snapshot := slices.Collect(maps.Keys(snapshots))[0]
		y.restore(file)
		y.rejoin("n1")
		y.rejoin("n2")
		got := y.want(http.StatusConflict, "POST", "/platform/nodes/settle", "")
		if !strings.Contains(got, "volume: 1 ("+late+")") || !strings.Contains(got, "snapshot: 1 ("+snapshot+")") {
			t.Errorf("it is refused with %s", got)
		}
		if _, there := y.content("n1", late); !there {
			t.Error("a settlement that was refused removed a disk")
		}
		got = y.want(http.StatusOK, "POST", "/platform/nodes/settle?force=true", "")
		if !strings.Contains(got, late) || !strings.Contains(got, snapshot) || !strings.Contains(got, `"total":2`) {
			t.Errorf("it says %s", got)
		}
		_, there := y.content("n1", late)
		if snapshots, err := y.nodes["n1"].Snapshots(t.Context()); there || len(snapshots) > 0 || err != nil {
			t.Errorf("the node still has the disk: %t, the snapshots %v, %v", there, snapshots, err)
		}
		if _, there := y.content("n1", older); !there {
			t.Error("a disk on record is gone")
		}
		for _, p := range y.crew.On("n1") {
			if p.ID == late || p.ID == snapshot {
				t.Errorf("there is a place of the %s %s", p.Kind, p.ID)
			}
		}
		y.move("a", "n2")
		y.move("b", "n2")
		planetest.After(over)
		y.kill("n1")
		planetest.After(3 * time.Second)
		if got := y.want(http.StatusConflict, "DELETE", "/platform/nodes/n1", ""); !strings.Contains(got, "its lease is over, within ") || strings.Contains(got, "within 1 ") {
			t.Errorf("a node that was stopped a moment ago: %s", got)
		}
		planetest.After(over)
		y.want(http.StatusOK, "DELETE", "/platform/nodes/n1", "")
	}, "n1", "n2")
}

// TestRemoveOrphans: places that no record names keep no node. If the node is removed by force, they are
// named.
func TestRemoveOrphans(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		y.kill("n2")
		planetest.After(over)
		for _, force := range []bool{false, true} {
			y.join("n2")
			planetest.After(ttl)
			if err := y.crew.Found(t.Context(), crew.Volume, "orphan", "n2", 7); err != nil {
				t.Fatal(err)
			}
			y.kill("n2")
			planetest.After(over)
			path := "/platform/nodes/n2"
			if force {
				path += "?force=true"
			}
			if got := y.want(http.StatusOK, "DELETE", path, ""); strings.Contains(got, `"name":"orphan"`) != force {
				t.Errorf("by force %t, it says %s", force, got)
			}
		}
	}, "n1", "n2")
}
