package state

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"reflect"
	"testing"
)

// part is a struct that others have, point to, and have arrays of. A second encoding of one
// would have a second object for its values.
type part struct {
	number int
	values []uint64
	within small
}

// small is a struct within a struct.
type small struct{ number uint32 }

func (*small) StateTypeName() string                      { return "doze.small" }
func (*small) StateFields() []string                      { return []string{"number"} }
func (s *small) StateSave(to Sink)                        { to.Save(0, &s.number) }
func (s *small) StateLoad(_ context.Context, from Source) { from.Load(0, &s.number) }
func (*part) StateTypeName() string                       { return "doze.part" }
func (*part) StateFields() []string                       { return []string{"number", "values", "within"} }
func (p *part) StateSave(to Sink) {
	to.SaveValue(1, append([]uint64(nil), p.values...))
	to.Save(0, &p.number)
	to.Save(2, &p.within)
}

func (p *part) StateLoad(_ context.Context, from Source) {
	from.LoadValue(1, new([]uint64), func(v any) { p.values = v.([]uint64) })
	from.Load(0, &p.number)
	from.Load(2, &p.within)
}

// whole has parts in each way.
type whole struct {
	first  part
	many   [3]part
	bytes  [200]byte
	zeros  [200]byte
	shorts [4]uint16
}

func (*whole) StateTypeName() string { return "doze.whole" }
func (*whole) StateFields() []string {
	return []string{"first", "many", "bytes", "zeros", "shorts"}
}

func (w *whole) StateSave(to Sink) {
	to.Save(0, &w.first)
	to.Save(1, &w.many)
	to.Save(2, &w.bytes)
	to.Save(3, &w.zeros)
	to.Save(4, &w.shorts)
}

func (w *whole) StateLoad(_ context.Context, from Source) {
	from.Load(0, &w.first)
	from.Load(1, &w.many)
	from.Load(2, &w.bytes)
	from.Load(3, &w.zeros)
	from.Load(4, &w.shorts)
}

// holder has what is found late: after the parts that are pointed to were encoded.
type holder struct {
	whole *whole
	all   []part
}

func (*holder) StateTypeName() string { return "doze.holder" }
func (*holder) StateFields() []string { return []string{"whole", "all"} }

func (h *holder) StateSave(to Sink) {
	to.Save(0, &h.whole)
	to.Save(1, &h.all)
}

func (h *holder) StateLoad(_ context.Context, from Source) {
	from.Load(0, &h.whole)
	from.Load(1, &h.all)
}

// graph is met part by part: what contains something is found after it.
type graph struct {
	deep           *small
	early          *part
	element, third *part
	late           *holder
	content, half  []byte
	numbers        []uint64
	low, mixed     []uint32
	one, two       any
	named          map[string]*part
	within         map[int]any
}

func (*graph) StateTypeName() string { return "doze.graph" }
func (*graph) StateFields() []string {
	return []string{
		"deep", "early", "element", "third", "late", "content", "half", "numbers", "low", "mixed", "one", "two", "named", "within",
	}
}

func (g *graph) members() []any {
	return []any{
		&g.deep, &g.early, &g.element, &g.third, &g.late, &g.content, &g.half, &g.numbers, &g.low, &g.mixed, &g.one, &g.two, &g.named, &g.within,
	}
}

func (g *graph) StateSave(to Sink) {
	for i, m := range g.members() {
		to.Save(i, m)
	}
}

func (g *graph) StateLoad(_ context.Context, from Source) {
	for i, m := range g.members() {
		from.Load(i, m)
	}
}

func init() {
	Register((*small)(nil))
	Register((*part)(nil))
	Register((*whole)(nil))
	Register((*holder)(nil))
	Register((*graph)(nil))
}

func newPart(n int) part {
	return part{number: n, values: []uint64{uint64(n), 1 << 40}, within: small{uint32(n)}}
}

func newGraph() *graph {
	w := &whole{first: newPart(1), shorts: [4]uint16{1, 255, 256, 3}}
	for i := range w.many {
		w.many[i] = newPart(10 + i)
	}
	for i := range w.bytes {
		w.bytes[i] = byte(i * 7)
	}
	all := make([]part, 5)
	for i := range all {
		all[i] = newPart(100 + i)
	}
	content := append([]byte(nil), w.bytes[:]...)
	var shared any = small{7}
	return &graph{
		deep: &w.many[2].within, early: &w.first, element: &w.many[1], third: &all[3], late: &holder{w, all},
		content: content, half: content[:50], numbers: []uint64{1, 2, 1 << 63}, low: []uint32{0, 127, 128, 255}, mixed: []uint32{5, 255, 256, 70_000},
		one: shared, two: shared, named: map[string]*part{"early": &w.first}, within: map[int]any{3: small{3}},
	}
}

// TestEncoding tells what the encoder makes of a graph of all kinds of objects: the changed
// one makes the same as the other. The graph is the same after a load.
func TestEncoding(t *testing.T) {
	ctx := context.Background()
	var out bytes.Buffer
	if _, err := Save(ctx, &out, newGraph()); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(os.Stdout, "encoding %x\n", sha256.Sum256(out.Bytes()))
	for name, from := range map[string]io.Reader{
		"a reader of bytes": bytes.NewReader(out.Bytes()), "a reader": io.LimitReader(bytes.NewReader(out.Bytes()), int64(out.Len())),
	} {
		var back graph
		if _, err := Load(ctx, from, &back); err != nil {
			t.Fatal(name, err)
		}
		if want := newGraph(); !reflect.DeepEqual(&back, want) {
			t.Errorf("loaded: %+v, want %+v", back, want)
		}
		if back.early != &back.late.whole.first || back.deep != &back.late.whole.many[2].within || back.third != &back.late.all[3] || &back.half[0] != &back.content[0] {
			t.Error("what pointed to the same does no more")
		}
	}
	for length := range out.Len() {
		var back graph
		if _, err := Load(ctx, bytes.NewReader(out.Bytes()[:length]), &back); err == nil {
			t.Fatalf("%d of %d bytes were loaded", length, out.Len())
		}
	}
}
