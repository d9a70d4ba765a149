package placement_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/placement"
)

func has(images ...string) func(string) bool {
	return func(image string) bool { return slices.Contains(images, image) }
}

func TestChoose(t *testing.T) {
	t.Parallel()
	empty := placement.Node{ID: "empty", Open: true, Driver: "first", Memory: 8192, Disk: 10_000, Processors: 4, Has: has()}
	half := placement.Node{ID: "half", Open: true, Driver: "first", Memory: 8192, Reserved: 4096, Disk: 10_000, Processors: 4, Has: has("python")}
	warm := placement.Node{ID: "warm", Open: true, Driver: "first", Memory: 8192, Reserved: 1024, Disk: 10_000, Processors: 4, Has: has("python")}
	busy := placement.Node{ID: "busy", Open: true, Driver: "first", Memory: 8192, Disk: 10_000, Processors: 4, Busy: 4, Has: has("python")}
	few := placement.Node{ID: "few", Open: true, Memory: 8192, Processors: 4, Busy: 3}
	many := placement.Node{ID: "many", Open: true, Memory: 8192, Processors: 16, Busy: 6}
	second := placement.Node{ID: "second", Open: true, Driver: "second", Memory: 8192, Disk: 10_000, Processors: 4, Has: has("python")}
	closed := placement.Node{ID: "closed", Driver: "first", Memory: 8192, Disk: 10_000, Processors: 4}
	tests := map[string]struct {
		want  placement.Want
		nodes []placement.Node
		id    string
		why   placement.Reason
	}{
		"the emptier one":                   {placement.Want{Memory: 512}, []placement.Node{half, empty}, "empty", placement.Reason{}},
		"one that has the image":            {placement.Want{Memory: 512, Image: "python"}, []placement.Node{empty, warm}, "warm", placement.Reason{}},
		"not at any price":                  {placement.Want{Memory: 512, Image: "python"}, []placement.Node{empty, half}, "empty", placement.Reason{}},
		"not where the processors are busy": {placement.Want{Memory: 512}, []placement.Node{busy, half}, "half", placement.Reason{}},
		"processors count by their number":  {placement.Want{Memory: 512}, []placement.Node{few, many}, "many", placement.Reason{}},
		"the same driver, however full":     {placement.Want{Memory: 512, Driver: "first"}, []placement.Node{second, half}, "half", placement.Reason{}},
		"no room, whatever the image":       {placement.Want{Memory: 4097, Image: "python"}, []placement.Node{half, empty}, "empty", placement.Reason{}},
		"its volume is where no room is":    {placement.Want{Memory: 4097, On: "half"}, []placement.Node{half, empty}, "", placement.Reason{Memory: 1}},
		"all of it at once":                 {placement.Want{Memory: 4097, Disk: 1, Image: "python", Driver: "first", Not: []string{"warm"}}, []placement.Node{warm, half, closed, second, empty}, "empty", placement.Reason{}},
		"equal ones by their ids":           {placement.Want{Memory: 1}, []placement.Node{{ID: "b", Open: true}, {ID: "a", Open: true}}, "a", placement.Reason{}},
		"what is reserved is never sold":    {placement.Want{Memory: 4097}, []placement.Node{half}, "", placement.Reason{Memory: 1}},
		"to the last megabyte":              {placement.Want{Memory: 4096}, []placement.Node{half}, "half", placement.Reason{}},
		"disk":                              {placement.Want{Disk: 10_001}, []placement.Node{empty}, "", placement.Reason{Disk: 1}},
		"another driver":                    {placement.Want{Driver: "process"}, []placement.Node{empty}, "", placement.Reason{Driver: 1}},
		"closed":                            {placement.Want{}, []placement.Node{closed}, "", placement.Reason{Closed: 1}},
		"its volume is there":               {placement.Want{On: "half"}, []placement.Node{empty, half}, "half", placement.Reason{}},
		"its volume is away":                {placement.Want{On: "closed"}, []placement.Node{empty, closed}, "", placement.Reason{Closed: 1, Away: true}},
		"it refused":                        {placement.Want{Not: []string{"empty"}}, []placement.Node{empty}, "", placement.Reason{Refused: 1}},
		"not back where it was":             {placement.Want{From: "empty"}, []placement.Node{empty, half}, "half", placement.Reason{}},
		"it leaves, and no other is open":   {placement.Want{From: "empty"}, []placement.Node{empty, closed}, "", placement.Reason{Closed: 1, Left: true}},
		"it leaves, and no other is here":   {placement.Want{From: "empty"}, []placement.Node{empty}, "", placement.Reason{Left: true}},
		"it leaves, and no other has room":  {placement.Want{From: "empty", Memory: 4097}, []placement.Node{empty, half, closed}, "", placement.Reason{Closed: 1, Memory: 1, Left: true}},
		"the one that was named":            {placement.Want{To: "half"}, []placement.Node{empty, half}, "half", placement.Reason{}},
		"that one is closed":                {placement.Want{To: "closed", From: "half"}, []placement.Node{empty, half, closed}, "", placement.Reason{Closed: 1, Named: true}},
		"none":                              {placement.Want{}, nil, "", placement.Reason{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id, why, ok := placement.Choose(test.want, test.nodes)
			if id != test.id || ok != (test.id != "") || (!ok && why != test.why) {
				t.Errorf("it is %q, %+v, want %q, %+v", id, why, test.id, test.why)
			}
			if !ok && why.String() == "" {
				t.Error("there is no reason")
			}
		})
	}
}

// TestNeverOverbooks: whatever is asked, in whatever order, no node has more reserved than
// its memory.
func TestNeverOverbooks(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("the seed is %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	nodes := fleetOf(50, r)
	for range 20_000 {
		w := placement.Want{Memory: doze.Megabytes(64 << r.IntN(7))}
		id, why, ok := placement.Choose(w, nodes)
		for i := range nodes {
			if nodes[i].ID == id {
				nodes[i].Reserved += w.Memory
			}
			if nodes[i].Reserved > nodes[i].Memory {
				t.Fatalf("%s has %d MB reserved of %d", nodes[i].ID, nodes[i].Reserved, nodes[i].Memory)
			}
			if !ok && nodes[i].Open && nodes[i].Reserved+w.Memory <= nodes[i].Memory {
				t.Fatalf("%s has room for %d MB, and the answer is: %s", nodes[i].ID, w.Memory, why.String())
			}
		}
		if i := r.IntN(len(nodes)); r.IntN(3) > 0 { // some fall asleep
			nodes[i].Reserved /= 2
		}
	}
}

func fleetOf(n int, r *rand.Rand) []placement.Node {
	nodes := make([]placement.Node, n)
	for i := range nodes {
		nodes[i] = placement.Node{
			ID: fmt.Sprint("node-", i), Open: r.IntN(10) > 0, Driver: "first", Memory: doze.Megabytes(4096 << r.IntN(5)),
			Disk: 100_000, Processors: float64(int(2) << r.IntN(5)), Sandboxes: r.IntN(1000), Has: has("python"),
		}
		nodes[i].Busy = nodes[i].Processors * r.Float64()
	}
	return nodes
}

// BenchmarkChoose is a choice among 1,000 nodes.
func BenchmarkChoose(b *testing.B) {
	nodes := fleetOf(1000, rand.New(rand.NewPCG(1, 2)))
	for b.Loop() {
		placement.Choose(placement.Want{Memory: 512, Image: "python"}, nodes)
	}
}

// TestReasons: what somebody hears is the reason, and not a lack of memory that others do not have.
func TestReasons(t *testing.T) {
	t.Parallel()
	for want, why := range map[string]placement.Reason{
		"no node has the memory":                {Memory: 1, Closed: 1, Left: true},
		"no other node takes sandboxes":         {Closed: 2, Left: true},
		"no other node is here":                 {Left: true},
		"no node takes new sandboxes":           {Closed: 1},
		"the node that was named":               {Closed: 1, Named: true},
		"the node that has its volume":          {Closed: 1, Away: true},
		"no node has joined: start a node, or ": {},
	} {
		if got := why.String(); !strings.HasPrefix(got, want) {
			t.Errorf("%+v is %q, want %q", why, got, want)
		}
	}
}
