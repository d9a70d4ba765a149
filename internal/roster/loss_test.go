package roster_test

import (
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/plane/planetest"
	"github.com/dozehq/doze/internal/roster"
)

// force removes n1 by force, and returns what was lost, as kind and name.
func (y *yard) force() (lost []string) {
	y.t.Helper()
	var gone doze.RemovedNode
	if err := json.Unmarshal([]byte(y.want(200, "DELETE", "/platform/nodes/n1?force=true", "")), &gone); err != nil {
		y.t.Fatal(err)
	}
	for _, l := range gone.Lost {
		text := string(l.Kind) + " " + l.Workspace + "/" + l.Name
		if l.Older {
			text = "older " + text
		}
		lost = append(lost, text)
	}
	slices.Sort(lost)
	if gone.Total != len(lost) {
		y.t.Errorf("%d are lost, and the answer names %v", gone.Total, lost)
	}
	return lost
}

// status is what the API says of a thing.
func (y *yard) status(path string) string {
	y.t.Helper()
	var got struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal([]byte(y.want(200, "GET", path, "")), &got); err != nil {
		y.t.Fatal(err)
	}
	return got.Status
}

// TestRemoveDestroyed: a node that alone has something is removed by force, and by nothing else.
// What the bucket has goes on elsewhere. What it does not have fails or goes, and the answer names it.
func TestRemoveDestroyed(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		y.want(200, "POST", "/platform/nodes/n2/cordon", "")
		machines := y.make("n1", "kept", "packed")
		_, free := y.withVolume("a")
		holder, _ := y.withVolume("b")
		y.nodes["n1"].Shelve(machines["kept"])
		y.nodes["n1"].Shelve(machines["packed"]) // its memory, before
		y.want(200, "POST", "/sandboxes/packed/archive", "")
		y.want(200, "DELETE", "/sandboxes/a", "")
		planetest.After(time.Minute) // the bucket has the free volume
		y.write(free, "since then")
		y.nodes["n1"].Set("save", doze.Errorf(doze.Unavailable, "the bucket does not answer"))
		y.want(200, "POST", "/platform/nodes/n2/cordon", "")
		y.build()
		y.want(200, "POST", "/volumes", planetest.Named("fresh"))
		y.want(200, "POST", "/sandboxes/kept/snapshots", `{"name":"before"}`)
		address := y.p.Offer("POST", "/volume_templates?upload=true", planetest.Named("seed"))
		planetest.Want[any](y.p, 200, "PUT", y.p.Path(address), planetest.Tar(map[string]string{"seed.txt": "grain"}), "Authorization", "", "Content-Type", "application/x-tar")
		y.want(200, "POST", "/platform/nodes/n2/uncordon", "")
		if on := y.crew.Of(crew.Machine, holder); on != "n1" {
			t.Fatalf("the sandbox is on %s", on)
		}

		if got := y.want(409, "DELETE", "/platform/nodes/n1?force=true", ""); !strings.Contains(got, "lease") {
			t.Errorf("a node that runs is removed by force: %s", got)
		}
		y.kill("n1")
		y.want(409, "DELETE", "/platform/nodes/n1?force=true", "") // its lease is not over
		planetest.After(over)
		y.close()
		y.open() // it does not know whether the copies of volumes are the last state
		y.join("n2")
		planetest.After(2 * over)
		got := y.want(409, "DELETE", "/platform/nodes/n1", "")
		for _, want := range []string{"sandbox: 1 (main/packed)", "older volume: 1 (main/v-a)", "volume: 2 (", "main/fresh", "main/v-b", "snapshot: 1 (main/before)", "image: 1 (main/own-app:latest)", "volumeTemplate: 1 (main/seed:1)", "--force"} {
			if !strings.Contains(got, want) {
				t.Errorf("the refusal has no %q: %s", want, got)
			}
		}
		want := []string{"image main/own-app:latest", "older volume main/v-a", "sandbox main/packed", "snapshot main/before", "volume main/fresh", "volume main/v-b", "volumeTemplate main/seed:1"}
		if diff := cmp.Diff(want, y.force()); diff != "" {
			t.Errorf("what is lost (-want +got):\n%s", diff)
		}
		if on := y.at(map[string]string{"kept": machines["kept"]})["kept"]; on != "n2" {
			t.Errorf("a sandbox that the bucket has is on %q", on)
		}
		for path, want := range map[string]string{"/sandboxes/kept": "DEPLOYED", "/sandboxes/packed": "FAILED", "/sandboxes/b": "FAILED", "/snapshots/before": string(doze.SnapshotFailed)} {
			if got := y.status(path); got != want {
				t.Errorf("%s is %s, not %s", path, got, want)
			}
		}
		if events := y.want(200, "GET", "/sandboxes/packed", ""); !strings.Contains(events, "destroyed") {
			t.Errorf("no event says why: %s", events)
		}
		y.want(404, "GET", "/volumes/fresh", "")
		if got := y.want(200, "GET", "/volume_templates/seed", ""); !strings.Contains(got, `"FAILED"`) {
			t.Errorf("the version that was lost is ready: %s", got)
		}
		if on := y.crew.Of(crew.Volume, free); on != "n2" {
			t.Errorf("a volume that the bucket has is on %s", on)
		}
		if got := y.want(200, "GET", "/volumes/v-a", ""); !strings.Contains(got, "copied last") {
			t.Errorf("no event says that a volume is older: %s", got)
		}
		if refs, err := y.p.Store.ImageRefs(t.Context()); len(refs) > 0 || err != nil {
			t.Errorf("the image that was lost is on record: %v, %v", refs, err)
		}
		y.want(404, "DELETE", "/platform/nodes/n1", "")
		y.want(200, "DELETE", "/sandboxes/b", "")
		planetest.After(time.Minute)
		if got := y.status("/sandboxes/b"); got != "TERMINATED" {
			t.Errorf("a sandbox whose volume was lost is deleted, and is %s", got)
		}
		l := y.join("n1") // it was not destroyed after all
		for _, machine := range []string{machines["kept"], machines["packed"], holder} {
			if !slices.Contains(l.Gone, machine) {
				t.Errorf("it is to end %v, and not %s", l.Gone, machine)
			}
		}
	}, "n1", "n2")
}

// TestRemoveFirst: the only node had no lease, so nobody noticed that it was destroyed. When another
// node is there, an operator says so, and what the bucket has goes on.
func TestRemoveFirst(t *testing.T) {
	t.Parallel()
	inYard(t, func(y *yard) {
		t := y.t
		machines := y.make("n1", "a", "b")
		y.nodes["n1"].Shelve(machines["a"])
		y.kill("n1")
		if got := y.want(409, "DELETE", "/platform/nodes/n1?force=true", ""); !strings.Contains(got, "only node") {
			t.Errorf("the only node is removed: %s", got)
		}
		y.join("n2")
		y.want(409, "DELETE", "/platform/nodes/n1?force=true", "") // it spoke a moment ago
		planetest.After(2 * time.Minute)
		if s := y.stateOfN1(); s != doze.NodeReady {
			t.Errorf("a node without a lease is %s", s)
		}
		if got := y.want(200, "GET", "/platform/nodes", ""); strings.Count(got, `"present":true`) != 1 {
			t.Errorf("a node that says nothing is here: %s", got)
		}
		if got := y.want(409, "DELETE", "/platform/nodes/n1", ""); !strings.Contains(got, "does not answer") {
			t.Errorf("a node that says nothing is removed, or runs: %s", got)
		}
		y.want(200, "POST", "/platform/nodes/n2/cordon", "")
		y.want(503, "DELETE", "/platform/nodes/n1?force=true", "") // nothing is given up for want of room
		if on := y.crew.Of(crew.Machine, machines["a"]); on != "n1" {
			t.Errorf("a sandbox that no node takes is on %s", on)
		}
		y.want(200, "POST", "/platform/nodes/n2/uncordon", "")
		planetest.After(over)
		if diff := cmp.Diff([]string(nil), y.force()); diff != "" { // the loss of the node was enough for b
			t.Errorf("what is lost (-want +got):\n%s", diff)
		}
		if on := y.at(map[string]string{"a": machines["a"]})["a"]; on != "n2" {
			t.Errorf("a sandbox that the bucket has is on %q", on)
		}
		if got := y.status("/sandboxes/b"); got != "FAILED" {
			t.Errorf("a sandbox that nobody has is %s", got)
		}
		if got := y.want(200, "GET", "/platform/nodes", ""); strings.Contains(got, `"n1"`) {
			t.Errorf("the nodes are %s", got)
		}
		y.close()
		y.open()
		y.join("n2") // the home
		planetest.After(ttl)
		y.want(200, "GET", "/sandboxes/a", "")
	}, "n1")
}

// TestRescueIsTold: the log says that sandboxes went to other nodes only if they did.
func TestRescueIsTold(t *testing.T) {
	t.Parallel()
	for failed, want := range []string{"level=INFO msg=\"brought sandboxes", "level=WARN msg=\"some sandboxes", "level=WARN msg=\"no sandbox"} {
		var log strings.Builder
		roster.Rescued(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), 2, failed)
		if !strings.Contains(log.String(), want) {
			t.Errorf("with %d of 2 it is %s, want %s", failed, log.String(), want)
		}
	}
}
