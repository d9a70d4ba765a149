package checkpoint

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// TestReadData reads a file with holes at every offset of interest: the buffer has what
// an ordinary read would put there, and zeros behind the end.
func TestReadData(t *testing.T) {
	t.Parallel()
	const page, pages = 4096, 16
	file, err := os.Create(filepath.Join(t.TempDir(), "layer"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	want := make([]byte, (pages+2)*page)
	source := rand.NewChaCha8([32]byte{1})
	for _, number := range []int{0, 3, 4, 9, 14} {
		data := want[number*page : (number+1)*page]
		_, _ = source.Read(data)
		if _, err := file.WriteAt(data, int64(number*page)); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Truncate(pages * page); err != nil { // a hole at the end
		t.Fatal(err)
	}
	for from := 0; from < pages*page; from += page / 2 {
		for _, length := range []int{1, page, 5*page + 7, pages * page} {
			end := min(from+length, len(want))
			got := bytes.Repeat([]byte{0xaa}, end-from)
			if err := readData(file, got, int64(from)); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want[from:end]) {
				t.Errorf("%d bytes at %d differ", length, from)
			}
		}
	}
}
