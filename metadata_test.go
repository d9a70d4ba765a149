package doze_test

import (
	"testing"

	"github.com/dozehq/doze"
)

func TestProblemsAreOneError(t *testing.T) {
	t.Parallel()
	var p doze.Problems
	if err := p.As(doze.Unprocessable); err != nil || p.Err() != nil {
		t.Fatalf("no problem is %v", err)
	}
	p.Missing("name")
	p.Add("size", "must be at most %d", 5)
	for kind, err := range map[doze.Kind]error{doze.Unprocessable: p.As(doze.Unprocessable), doze.Invalid: p.Err()} {
		const want = "name is required; size must be at most 5"
		if got := doze.Public(err); got.Kind != kind || got.Message != want || err.Error() != want {
			t.Errorf("got %v: %v, want %v: %s", got.Kind, err, kind, want)
		}
	}
}
