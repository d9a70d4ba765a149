package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/store"
)

// TestNodes: a node that was lost is ready again in another epoch when it comes back, and
// anything else that an operator said of it stays.
func TestNodes(t *testing.T) {
	onBoth(t, func(d database) {
		t, s := d.t, d.open(d.t)
		want := func(what string, got store.Node, err error, state doze.NodeState, epoch uint64) {
			t.Helper()
			if err != nil || got.State != state || got.Epoch != epoch {
				t.Errorf("%s: %+v, %v", what, got, err)
			}
		}
		b := store.NodeBody{URL: "https://n1", Version: "1", Driver: "d", Memory: 512}
		n, err := s.PutNode(t.Context(), "n1", b, epoch)
		want("a new node", n, err, doze.NodeReady, 1)
		if !n.CreatedAt.Equal(epoch) || n.Body != b {
			t.Errorf("it is recorded as %+v", n)
		}
		if err := s.SetNodeState(t.Context(), "n1", doze.NodeCordoned); err != nil {
			t.Error(err)
		}
		b.URL = "https://elsewhere"
		n, err = s.PutNode(t.Context(), "n1", b, epoch.Add(time.Hour))
		want("a cordoned node that joins again", n, err, doze.NodeCordoned, 1)
		if !n.CreatedAt.Equal(epoch) || n.Body != b {
			t.Errorf("it is recorded as %+v", n)
		}
		if err := s.LoseNode(t.Context(), "n1", 2); doze.Public(err).Kind != doze.NotFound {
			t.Errorf("a node in another epoch is lost: %v", err)
		}
		if err := s.LoseNode(t.Context(), "n1", 1); err != nil {
			t.Error(err)
		}
		if err := s.LoseNode(t.Context(), "n1", 1); doze.Public(err).Kind != doze.NotFound {
			t.Errorf("a node is lost twice: %v", err)
		}
		n, err = s.Node(t.Context(), "n1")
		want("a lost node", n, err, doze.NodeLost, 2)
		n, err = s.PutNode(t.Context(), "n1", b, epoch)
		want("a lost node that joins again", n, err, doze.NodeReady, 2)

		if _, err := s.PutNode(t.Context(), "n0", b, epoch); err != nil {
			t.Error(err)
		}
		all, err := s.Nodes(t.Context())
		if err != nil || len(all) != 2 || all[0].ID != "n0" || all[1].ID != "n1" {
			t.Errorf("%+v, %v", all, err)
		}
		for what, err := range map[string]error{
			"a read":  func() error { _, err := s.Node(t.Context(), "n9"); return err }(),
			"a state": s.SetNodeState(t.Context(), "n9", doze.NodeReady), "a removal": s.RemoveNode(t.Context(), "n9"),
		} {
			if doze.Public(err).Kind != doze.NotFound {
				t.Errorf("%s of a node that is not there: %v", what, err)
			}
		}
	})
}

// TestPlaces: a thing is at one place, and a node that has something is not forgotten.
func TestPlaces(t *testing.T) {
	onBoth(t, func(d database) {
		t, s := d.t, d.open(d.t)
		if _, err := s.PutNode(t.Context(), "n1", store.NodeBody{}, epoch); err != nil {
			t.Fatal(err)
		}
		m, v := store.Place{Kind: "machine", ID: "a", Node: "n1", Epoch: 2}, store.Place{Kind: "volume", ID: "a", Node: "n1", Epoch: 2}
		put := func(p store.Place) {
			t.Helper()
			if err := s.PutPlace(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		put(v)
		put(m)
		m.Node, m.Epoch = "n2", 3
		put(m)
		all, err := s.Places(t.Context())
		if diff := cmp.Diff([]store.Place{m, v}, all); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		if err := s.RemoveNode(t.Context(), "n1"); doze.Public(err).Kind != doze.Conflict {
			t.Errorf("a node that has a volume is removed: %v", err)
		}
		for range 2 { // a place that is gone is no error
			if err := s.RemovePlace(t.Context(), "volume", "a"); err != nil {
				t.Error(err)
			}
		}
		if err := s.RemoveNode(t.Context(), "n1"); err != nil {
			t.Error(err)
		}
	})
}

// TestCheckPlaced: what has no place on record is found.
func TestCheckPlaced(t *testing.T) {
	onBoth(t, func(d database) {
		t, s := d.t, d.open(d.t)
		workspaces(t, s, "main")
		if err := s.CheckPlaced(t.Context()); err != nil {
			t.Errorf("with nothing: %v", err)
		}
		put := func(kind, id string) {
			t.Helper()
			if err := s.PutPlace(t.Context(), store.Place{Kind: kind, ID: id, Node: "n1", Epoch: 2}); err != nil {
				t.Fatal(err)
			}
		}
		meta := doze.Metadata{Name: "a", Workspace: "main"}
		if err := s.InsertVolume(t.Context(), store.Volume{ID: "v", Volume: doze.Volume{Metadata: meta}}); err != nil {
			t.Fatal(err)
		}
		put("machine", "v")
		if err := s.CheckPlaced(t.Context()); doze.Public(err).Kind != doze.Conflict || !strings.Contains(err.Error(), "volume v") {
			t.Errorf("with a volume that has no place: %v", err)
		}
		put("volume", "v")
		if err := s.CheckPlaced(t.Context()); err != nil {
			t.Errorf("with a volume that has one: %v", err)
		}
		if _, err := s.PutNode(t.Context(), "n2", store.NodeBody{}, epoch); err != nil {
			t.Fatal(err)
		}
		if err := s.PutPlace(t.Context(), store.Place{Kind: "builder", ID: "main", Node: "n2", Epoch: 2}); err != nil {
			t.Fatal(err)
		}
		if err := s.RemoveNode(t.Context(), "n2"); err != nil {
			t.Errorf("a node with a cache of builds: %v", err)
		}
	})
}

// TestJoinTokens: a token is there until its time is over.
func TestJoinTokens(t *testing.T) {
	onBoth(t, func(d database) {
		t, s := d.t, d.open(d.t)
		put := func(id string, now time.Time) {
			t.Helper()
			if err := s.PutJoinToken(t.Context(), id, "hash of "+id, now.Add(time.Hour), now); err != nil {
				t.Fatal(err)
			}
		}
		hash := func(id string, now time.Time) string {
			h, err := s.JoinToken(t.Context(), id, now)
			if err != nil && doze.Public(err).Kind != doze.NotFound {
				t.Error(err)
			}
			return h
		}
		put("a", epoch)
		if h := hash("a", epoch.Add(59*time.Minute)); h != "hash of a" {
			t.Errorf("a token that is good is %q", h)
		}
		if h := hash("a", epoch.Add(time.Hour)); h != "" {
			t.Errorf("a token that is over is %q", h)
		}
		put("b", epoch.Add(2*time.Hour))
		if h := hash("a", epoch); h != "" {
			t.Error("a token that is over stays on record")
		}
		if h := hash("b", epoch.Add(2*time.Hour)); h != "hash of b" {
			t.Errorf("the other token is %q", h)
		}
	})
}
