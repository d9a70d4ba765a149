package body

import (
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

// TestBodies: what all bodies hold together has a bound; one alone, and small
// ones, have none.
func TestBodies(t *testing.T) {
	t.Parallel()
	all := &Memory{max: 1 << 20}
	body := func() *Incoming { return &Incoming{all: all} }
	text := func(n int) io.Reader { return strings.NewReader(strings.Repeat("x", n)) }

	alone := body()
	if b, err := alone.readAll(text(5 << 20)); err != nil || len(b) != 5<<20 {
		t.Fatalf("one alone: %d bytes, %v", len(b), err)
	}
	other := body()
	if _, err := other.readAll(text(1 << 20)); !errors.Is(err, ErrCrowded) {
		t.Errorf("another beside it: %v", err)
	}
	if b, err := body().readAll(text(Free - 1)); err != nil || len(b) != Free-1 {
		t.Errorf("a small one: %d bytes, %v", len(b), err)
	}
	alone.Release()
	other.Release()
	for _, in := range []*Incoming{body(), body()} {
		if _, err := in.readAll(text(300 << 10)); err != nil { // with a copy, while it is put together
			t.Errorf("two that fit: %v", err)
		}
		defer func() {
			in.Release()
			if all.held < 0 || all.held > 512<<10 {
				t.Errorf("%d bytes are held after a release", all.held)
			}
		}()
	}
	third := body()
	if _, err := third.readAll(text(400 << 10)); !errors.Is(err, ErrCrowded) {
		t.Errorf("a third: %v", err)
	}
	third.Release()
}

// TestBodyIsNoGarbage: what has come of a body takes little more than its size,
// however long the rest takes. It counts what all tests take, so it runs alone.
func TestBodyIsNoGarbage(t *testing.T) {
	const size = 4 << 20
	in := &Incoming{all: &Memory{max: 1 << 30}}
	src := io.MultiReader(io.LimitReader(zeros{}, size), iotest.ErrReader(io.ErrUnexpectedEOF))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := in.readAll(src)
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; !errors.Is(err, io.ErrUnexpectedEOF) || took > size*3/2 {
		t.Errorf("%d bytes take %d, %v", size, took, err)
	}
	if in.held < size || in.held > size*3/2 {
		t.Errorf("it holds %d", in.held)
	}
}

// zeros is an endless body.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }
