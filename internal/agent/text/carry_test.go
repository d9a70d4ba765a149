package text

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func FuzzCarry(f *testing.F) {
	f.Add([]byte("aü€😀"), 1)
	f.Add([]byte("\xf0\x9f\x98"), 2)
	f.Add([]byte("\xff\xc3\xc3\xbc"), 3)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		var c Carry
		var got strings.Builder
		for rest := b; len(rest) > 0; {
			k := min(max(1, n), len(rest))
			piece := c.Add(rest[:k])
			if utf8.Valid(b) && !utf8.ValidString(piece) {
				t.Errorf("%q is cut into %q", b, piece)
			}
			got.WriteString(piece)
			rest = rest[k:]
		}
		if len(c.held) >= utf8.UTFMax {
			t.Errorf("%d bytes are held back", len(c.held))
		}
		got.WriteString(c.Rest())
		if got.String() != string(b) {
			t.Errorf("%q became %q", b, got.String())
		}
	})
}
