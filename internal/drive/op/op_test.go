package op

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// TestReadBody reads what is there, whatever its length is said to be.
func TestReadBody(t *testing.T) {
	t.Parallel()
	const text = "what is there"
	for _, length := range []int64{-1, 0, 1, int64(len(text)), 1 << 40} {
		got, err := ReadBody(strings.NewReader(text), length)
		if err != nil || string(got) != text {
			t.Errorf("with the length %d it reads %q, %v", length, got, err)
		}
	}
	cut := io.MultiReader(strings.NewReader(text), iotest.ErrReader(io.ErrUnexpectedEOF))
	if _, err := ReadBody(cut, int64(len(text))+1); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a body that is cut off ends with %v", err)
	}
}
