package owner

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/place"
)

// A source that fails is told from a disk that does.
func TestReplaceCleansUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broken := io.MultiReader(strings.NewReader("half"), errReader{})
	err := AsAgent.Write(place.Place{Abs: dir + "/f", Shown: "f"}, Always(FileMode), broken)
	if doze.Public(err).Kind != doze.Invalid {
		t.Errorf("got %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("files: %v", entries)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
