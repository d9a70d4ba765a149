package state

import (
	"bytes"
	"context"
	"errors"
	"testing"
)

// node is one of many objects.
type node struct {
	value int64
	next  *node
	saved func(int64)
}

func (*node) StateTypeName() string { return "doze.node" }
func (*node) StateFields() []string { return []string{"value", "next"} }

func (n *node) StateSave(to Sink) {
	if n.saved != nil {
		n.saved(n.value)
	}
	to.Save(0, &n.value)
	to.Save(1, &n.next)
}

func (n *node) StateLoad(_ context.Context, from Source) {
	from.Load(0, &n.value)
	from.Load(1, &n.next)
}

func init() { Register((*node)(nil)) }

// list returns a list of nodes, and counts those that are saved.
func list(length int, saved func(int64)) *node {
	var first *node
	for i := length; i > 0; i-- {
		first = &node{value: int64(i), next: first, saved: saved}
	}
	return first
}

func TestStop(t *testing.T) {
	const length = 10_000
	ctx := context.Background()
	whole := func(save func(*bytes.Buffer, *node) error) {
		t.Helper()
		var out bytes.Buffer
		if err := save(&out, list(length, nil)); err != nil {
			t.Fatal(err)
		}
		var back node
		if _, err := Load(ctx, &out, &back); err != nil {
			t.Fatal(err)
		}
		n := 0
		for at := &back; at != nil; at = at.next {
			if n++; at.value != int64(n) {
				t.Fatalf("node %d has the value %d", n, at.value)
			}
		}
		if n != length {
			t.Errorf("%d nodes came back, want %d", n, length)
		}
	}
	stoppable := func(out *bytes.Buffer, root *node) error { _, err := SaveUntilStopped(ctx, out, root); return err }

	whole(stoppable) // that nobody stops
	for _, at := range []int64{1, length / 2, length} {
		last := int64(0)
		var out bytes.Buffer
		err := stoppable(&out, list(length, func(value int64) {
			if last = value; value == at {
				saveStop.Store(true)
			}
		}))
		if !errors.Is(err, ErrStopped) {
			t.Errorf("a save that is stopped at %d returns %v", at, err)
		}
		if len(err.Error()) > 1<<16 {
			t.Errorf("its error has %d bytes: it prints objects", len(err.Error()))
		}
		if last != at {
			t.Errorf("it is stopped at %d and goes on to %d", at, last)
		}
		// Another save is none that a request waits for.
		whole(func(out *bytes.Buffer, root *node) error { _, err := Save(ctx, out, root); return err })
		ForgetStop()
		whole(stoppable)
	}
	saveStop.Store(true) // before the save begins
	if err := stoppable(new(bytes.Buffer), list(length, nil)); !errors.Is(err, ErrStopped) {
		t.Errorf("a save that is stopped before it begins returns %v", err)
	}
}
