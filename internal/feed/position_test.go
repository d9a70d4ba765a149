package feed_test

import (
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/feed"
)

// TestPosition: an id is read as it was written, and nothing else is an id.
func TestPosition(t *testing.T) {
	t.Parallel()
	for _, p := range []feed.Position{{Epoch: "ABCDEFGHIJKL", Seq: 0}, {Epoch: "ABCDEFGHIJKL", Seq: 1<<64 - 1}} {
		if got := feed.ParsePosition(p.String()); got != p {
			t.Errorf("%v is read as %v", p, got)
		}
	}
	for _, text := range []string{"", ".", "ABCDEFGHIJKL", "ABCDEFGHIJKL.", "ABCDEFGHIJKL.01", "ABCDEFGHIJKL.-1", "ABCDEFGHIJKL.+1", "ABC.1", "ABCDEFGHIJKL.18446744073709551616", "ABCDEFGHIJKL.1.1"} {
		if got := feed.ParsePosition(text); got != (feed.Position{}) {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

// FuzzPosition: whatever is read writes itself again.
func FuzzPosition(f *testing.F) {
	f.Add("ABCDEFGHIJKL.17")
	f.Add("ABCDEFGHIJKL.0\n")
	f.Fuzz(func(t *testing.T, text string) {
		p := feed.ParsePosition(text)
		if p != (feed.Position{}) && (p.String() != text || strings.Count(text, ".") == 0) {
			t.Errorf("%q is read as %v", text, p)
		}
	})
}
