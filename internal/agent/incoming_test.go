package agent

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// TestBodies: what all bodies hold together has a bound; one alone, and small
// ones, have none.
func TestBodies(t *testing.T) {
	t.Parallel()
	all := &bodies{max: 1 << 20}
	body := func() *incoming { return &incoming{all: all} }
	text := func(n int) io.Reader { return strings.NewReader(strings.Repeat("x", n)) }

	alone := body()
	if b, err := alone.readAll(text(5 << 20)); err != nil || len(b) != 5<<20 {
		t.Fatalf("one alone: %d bytes, %v", len(b), err)
	}
	other := body()
	if _, err := other.readAll(text(1 << 20)); !errors.Is(err, errCrowded) {
		t.Errorf("another beside it: %v", err)
	}
	if b, err := body().readAll(text(bodyFree - 1)); err != nil || len(b) != bodyFree-1 {
		t.Errorf("a small one: %d bytes, %v", len(b), err)
	}
	alone.release()
	other.release()
	for _, in := range []*incoming{body(), body()} {
		if _, err := in.readAll(text(400 << 10)); err != nil { // in 512 KiB
			t.Errorf("two that fit: %v", err)
		}
		defer func() {
			in.release()
			if all.held < 0 || all.held > 512<<10 {
				t.Errorf("%d bytes are held after a release", all.held)
			}
		}()
	}
	if _, err := body().readAll(text(bodyFree + 1)); !errors.Is(err, errCrowded) {
		t.Errorf("a third: %v", err)
	}
}
