package roster_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// withVolume creates a sandbox with a volume of its own on n1, and returns its machine and the id of
// the volume.
func (y *yard) withVolume(name string) (machine, disk string) {
	y.t.Helper()
	for id := range y.nodes {
		if id != "n1" {
			y.want(200, "POST", "/platform/nodes/"+id+"/cordon", "")
		}
	}
	y.want(200, "POST", "/volumes", planetest.Named("v-"+name))
	y.p.Create(`{"metadata":{"name":"` + name + `"},"spec":{"volumes":[{"name":"v-` + name + `","mountPath":"/data"}]}}`)
	for id := range y.nodes {
		if id != "n1" {
			y.want(200, "POST", "/platform/nodes/"+id+"/uncordon", "")
		}
	}
	y.nodes["n1"].With(name, func(uid string, m *planetest.Machine) {
		machine, disk = uid, m.Order.Volumes[0].ID
	})
	return machine, disk
}

func (y *yard) content(node, disk string) (text string, there bool) {
	n := y.nodes[node]
	n.Mu.Lock()
	defer n.Mu.Unlock()
	d, there := n.Disks[disk]
	return d.Content, there
}

// write changes a volume on n1.
func (y *yard) write(disk, text string) {
	n := y.nodes["n1"]
	n.Mu.Lock()
	defer n.Mu.Unlock()
	d := n.Disks[disk]
	d.Content = text
	n.Disks[disk] = d
}

// TestVolumesOfLostNode: a volume is where its sandbox goes on, as it was copied with it. One of
// which there is no copy stays where it is, and is not removed there.
func TestVolumesOfLostNode(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machine, disk := y.withVolume("a")
		_, fresh := y.withVolume("fresh")
		y.write(fresh, "never copied")
		y.write(disk, "copied")
		y.nodes["n1"].Shelve(machine)
		y.write(disk, "lost")
		y.kill("n1")
		planetest.After(over)
		if text, _ := y.content("n2", disk); text != "copied" || y.crew.Of(crew.Volume, disk) != "n2" {
			t.Errorf("its volume is on %s as %q", y.crew.Of(crew.Volume, disk), text)
		}
		if at := y.crew.Of(crew.Volume, fresh); at != "n1" {
			t.Errorf("a volume of which there is no copy is on %s", at)
		}
		if got := y.want(200, "GET", "/sandboxes/fresh", ""); !strings.Contains(got, `"FAILED"`) {
			t.Errorf("a sandbox without a copy is %s", got)
		}
		y.want(200, "DELETE", "/sandboxes/fresh", "")
		planetest.After(time.Minute)
		y.join("n1")
		planetest.After(15 * time.Minute)
		if _, stays := y.content("n1", disk); stays {
			t.Error("the node that came back still has a volume of another one")
		}
		if text, _ := y.content("n1", fresh); text != "never copied" {
			t.Errorf("the only copy of a volume is %q", text)
		}
		y.p.Create(`{"metadata":{"name":"next"},"spec":{"volumes":[{"name":"v-fresh","mountPath":"/data"}]}}`)
	}, "n1", "n2")
}

// TestMoveWithVolume: a volume goes with its sandbox, and the node that it left has it no more.
func TestMoveWithVolume(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machine, disk := y.withVolume("a")
		y.write(disk, "one")
		epoch := y.crew.Epoch(crew.Volume, disk)
		for _, to := range []string{"n2", "n1"} {
			y.want(200, "POST", "/sandboxes/a/move", `{"node":"`+to+`"}`)
			from := map[string]string{"n2": "n1", "n1": "n2"}[to]
			text, _ := y.content(to, disk)
			if _, stays := y.content(from, disk); stays || text != "one" || y.crew.Of(crew.Volume, disk) != to {
				t.Errorf("moved to %s, its volume is on %s, there as %q, and still on %s: %t", to, y.crew.Of(crew.Volume, disk), text, from, stays)
			}
			if next := y.crew.Epoch(crew.Volume, disk); next <= epoch {
				t.Errorf("its epoch was %d, and is %d", epoch, next)
			} else {
				epoch = next
			}
		}
		claim, err := y.r.Claim(t.Context(), "n1", fleet.VolumeObject(disk))
		if err != nil || claim.Epoch != epoch || len(claim.Key) == 0 {
			t.Errorf("its node claims the volume: epoch %d, %v", claim.Epoch, err)
		}
		if _, err := y.r.Claim(t.Context(), "n2", fleet.VolumeObject(disk)); doze.Public(err).Kind != doze.Conflict {
			t.Errorf("another node claims the volume: %v", err)
		}
		if on := y.at(map[string]string{"a": machine})["a"]; on != "n1" {
			t.Errorf("the sandbox is on %s", on)
		}
	}, "n1", "n2")
}

// TestFreeVolumesAreSaved: a volume that no sandbox has is saved without being asked for, and is
// there when its node is lost.
func TestFreeVolumesAreSaved(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		_, disk := y.withVolume("a")
		y.write(disk, "one")
		y.nodes["n1"].Set("save", doze.Errorf(doze.Unavailable, "the bucket does not answer"))
		y.want(200, "DELETE", "/sandboxes/a", "")
		planetest.After(2 * time.Minute)
		if y.crew.Saved(disk) {
			t.Error("what could not be saved counts as saved")
		}
		y.nodes["n1"].Set("save", nil)
		planetest.After(2 * time.Minute)
		if !y.crew.Saved(disk) {
			t.Error("a free volume is not saved")
		}
		y.kill("n1")
		planetest.After(over)
		y.p.Create(`{"metadata":{"name":"next"},"spec":{"volumes":[{"name":"v-a","mountPath":"/data"}]}}`)
		if text, _ := y.content("n2", disk); text != "one" || y.crew.Saved(disk) {
			t.Errorf("the next sandbox finds %q", text)
		}
	}, "n1", "n2")
}

// TestSnapshotsAreSaved: a snapshot is saved without being asked for, and forks begin elsewhere when
// its node is lost. Nobody else gets its key.
func TestSnapshotsAreSaved(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		y.make("n1", "a")
		var made doze.Snapshot
		if err := json.Unmarshal([]byte(y.want(200, "POST", "/sandboxes/a/snapshots", `{"name":"before"}`)), &made); err != nil {
			t.Fatal(err)
		}
		planetest.After(time.Minute)
		if !y.crew.Stored(crew.Snapshot, made.ID) {
			t.Error("a snapshot is not saved")
		}
		object := fleet.SnapshotObject(made.ID)
		if c, err := y.r.Claim(t.Context(), "n1", object); err != nil || len(c.Key) == 0 {
			t.Errorf("the node that made it has no key: %v", err)
		}
		if _, err := y.r.Claim(t.Context(), "n2", object); doze.Public(err).Kind != doze.Conflict {
			t.Errorf("another node gets the key: %v", err)
		}
		y.kill("n1")
		planetest.After(over)
		y.want(200, "POST", "/sandboxes/a/fork", `{"targetName":"b","targetType":"sandbox","snapshotId":"`+made.ID+`"}`)
		if n := y.nodes["n2"].Count(); n != 1 {
			t.Errorf("the other node has %d sandboxes", n)
		}
	}, "n1", "n2")
}

// build builds an image, and returns what its tag means.
func (y *yard) build() string {
	y.t.Helper()
	b := planetest.Want[doze.Build](y.p, 200, "POST", "/builds", `{"name":"own-app"}`)
	y.p.Upload(b.UploadURL, planetest.Tar(map[string]string{"Dockerfile": "FROM doze/slim\n"}))
	if b = y.p.Ended(b.ID); b.Status != doze.BuildBuilt {
		y.t.Fatalf("the build is %+v", b)
	}
	refs, err := y.p.Store.ImageRefs(y.t.Context())
	if err != nil || len(refs) != 1 {
		y.t.Fatalf("the records name the images %v: %v", refs, err)
	}
	return refs[0]
}

// TestBuiltImagesAreSaved: an image that was built is saved without being asked for. Sandboxes of it
// begin elsewhere when its node is lost, also with a control that began after that. Then its node
// can be removed.
func TestBuiltImagesAreSaved(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		ref := y.build()
		at := y.crew.Of(crew.Image, ref)
		other := map[string]string{"n1": "n2", "n2": "n1"}[at]
		y.nodes[at].Set("save", doze.Errorf(doze.Unavailable, "the bucket does not answer"))
		planetest.After(time.Minute)
		if y.crew.Stored(crew.Image, ref) {
			t.Error("what could not be saved counts as saved")
		}
		y.nodes[at].Set("save", nil)
		planetest.After(2 * time.Minute)
		if !y.crew.Stored(crew.Image, ref) {
			t.Error("an image is not saved")
		}
		if c, err := y.r.Claim(t.Context(), at, ref); err != nil || len(c.Key) == 0 {
			t.Errorf("the node that made it has no key: %v", err)
		}
		if _, err := y.r.Claim(t.Context(), other, ref); doze.Public(err).Kind != doze.Conflict {
			t.Errorf("another node gets the key: %v", err)
		}
		y.kill(at)
		planetest.After(over)
		create := func(name string) {
			t.Helper()
			y.p.Create(`{"metadata":{"name":"` + name + `"},"spec":{"runtime":{"image":"own-app"}}}`)
		}
		create("a")
		if n := y.nodes[other].Count(); n != 1 {
			t.Errorf("the other node has %d sandboxes", n)
		}
		y.close()
		y.open()
		y.join(other)
		planetest.After(2 * over)
		create("b")
		if n := y.nodes[other].Count(); n != 2 {
			t.Errorf("with a new control, the other node has %d sandboxes", n)
		}
		y.want(200, "DELETE", "/platform/nodes/"+at, "")
		if now := y.crew.Of(crew.Image, ref); now != other {
			t.Errorf("the image of a removed node is on %s", now)
		}
		create("c")
		if w := y.p.Do("DELETE", "/platform/nodes/"+other, ""); w.Code != 409 {
			t.Errorf("the last node is removed: %d", w.Code)
		}
		second := planetest.Want[doze.Build](y.p, 200, "POST", "/builds", `{"name":"own-app"}`)
		y.p.Upload(second.UploadURL, planetest.Tar(map[string]string{"Dockerfile": "FROM doze/slim\n"}))
		if b := y.p.Ended(second.ID); b.Status != doze.BuildBuilt {
			t.Errorf("a build after the builder of the workspace was lost: %+v", b)
		}
	}, "n1", "n2")
}

// TestTemplatesAreSaved: a volume template is saved without being asked for. Volumes are made of it
// elsewhere when its node is lost, or removed, also with a control that began after that.
func TestTemplatesAreSaved(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		address := y.p.Offer("POST", "/volume_templates?upload=true", planetest.Named("seed"))
		planetest.Want[any](y.p, 200, "PUT", y.p.Path(address), planetest.Tar(map[string]string{"seed.txt": "grain"}), "Authorization", "", "Content-Type", "application/x-tar")
		ids, err := y.p.Store.TemplateDisks(t.Context())
		if err != nil || len(ids) != 1 {
			t.Fatalf("the records name the disks %v: %v", ids, err)
		}
		id := ids[0]
		at := y.crew.Of(crew.Volume, id)
		other := map[string]string{"n1": "n2", "n2": "n1"}[at]
		was, _ := y.content(at, id)
		planetest.After(time.Minute)
		if !y.crew.Stored(crew.Volume, id) {
			t.Error("a template is not saved")
		}
		volume := func(name string) {
			t.Helper()
			y.want(200, "POST", "/volumes", `{"metadata":{"name":"`+name+`"},"spec":{"template":"seed:latest"}}`)
		}
		volume("near")
		if text, there := y.content(other, id); there {
			t.Errorf("another node has the template without need: %q", text)
		}
		y.kill(at)
		planetest.After(over)
		y.close()
		y.open()
		y.join(other)
		planetest.After(2 * over)
		volume("far")
		if text, _ := y.content(other, id); text != was || y.crew.Of(crew.Volume, id) != other || was == "" {
			t.Errorf("the template is on %s, and has %q, not %q", y.crew.Of(crew.Volume, id), text, was)
		}
		if epoch := y.crew.Epoch(crew.Volume, id); epoch < 3 {
			t.Errorf("its epoch is %d, as if it had never been elsewhere", epoch)
		}
		if got := y.want(409, "DELETE", "/platform/nodes/"+at, ""); !strings.Contains(got, "volume") {
			t.Errorf("a node with a volume of its own: %s", got)
		}
		y.want(200, "DELETE", "/volumes/near", "")
		y.join(at)
		planetest.After(15 * time.Minute)
		if _, stays := y.content(at, id); stays {
			t.Error("the node that came back still has the template")
		}
	}, "n1", "n2")
}
