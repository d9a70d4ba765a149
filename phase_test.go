package doze_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestTransitionsAreDeterministic(t *testing.T) {
	seen := map[[2]uint8]bool{}
	for _, tr := range doze.Transitions {
		for _, from := range tr.From {
			key := [2]uint8{uint8(from), uint8(tr.On)}
			if seen[key] {
				t.Errorf("two rows leave %v on %v", from, tr.On)
			}
			seen[key] = true
		}
	}
}

func TestEveryPhaseIsReachableAndEnds(t *testing.T) {
	reach := func(start doze.Phase) map[doze.Phase]bool {
		got := map[doze.Phase]bool{start: true}
		for range doze.Transitions { // a path is no longer than the table
			for _, tr := range doze.Transitions {
				for _, from := range tr.From {
					if got[from] {
						got[tr.To] = true
					}
				}
			}
		}
		return got
	}
	for _, p := range doze.Phases() {
		if !reach(doze.Pending)[p] {
			t.Errorf("%v is never reached", p)
		}
		if !reach(p)[doze.Terminated] {
			t.Errorf("%v never ends", p)
		}
		if p.String() == "" || p.Status() == "" {
			t.Errorf("phase %d has no name or status", p)
		}
	}
}

func TestStateDiagramIsCurrent(t *testing.T) {
	var b strings.Builder
	b.WriteString("stateDiagram-v2\n  [*] --> pending\n")
	for _, tr := range doze.Transitions {
		for _, from := range tr.From {
			fmt.Fprintf(&b, "  %s --> %s: %s\n", from, tr.To, tr.On)
		}
	}
	b.WriteString("  terminated --> [*]\n")

	const file = "testdata/phases.mmd"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("%s is stale: run go test . -update", file)
	}
}

func TestKindsHaveNamesAndStatuses(t *testing.T) {
	names := map[string]doze.Kind{}
	for k := doze.Internal; k <= doze.TooLarge; k++ {
		if k.String() == "" || k.Status() < 400 {
			t.Errorf("kind %d: name %q, status %d", k, k, k.Status())
		}
		if got := doze.ParseKind(k.String()); got != k {
			t.Errorf("ParseKind(%q) = %v", k, got)
		}
		names[k.String()] = k
	}
	if len(names) != int(doze.TooLarge)+1 {
		t.Errorf("names repeat: %v", slices.Sorted(maps.Keys(names)))
	}
}

func TestSecretsAreWriteOnly(t *testing.T) {
	var in doze.ProxyTarget
	if err := json.Unmarshal([]byte(`{"destinations":["*"],"secrets":{"k":"hunter2"}}`), &in); err != nil {
		t.Fatal(err)
	}
	if got := in.Secrets.Reveal()["k"]; got != "hunter2" {
		t.Fatalf("decoded %q", got)
	}
	out, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	nested := struct{ hidden doze.ProxyTarget }{in} // fmt asks no method of it
	s := string(out)
	for _, v := range []any{in, &in, nested, &nested, []any{nested}} {
		s += fmt.Sprintf("%v %+v %#v %s %x %d", v, v, v, v, v, v)
	}
	if strings.Contains(s, "hunter2") || strings.Contains(string(out), "secrets") {
		t.Errorf("a secret got out: %s", s)
	}
}
