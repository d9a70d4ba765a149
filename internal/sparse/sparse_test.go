package sparse_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/sparse"
)

const block = 1 << 20 // of a whole number of blocks on any file system

// file returns a file of size bytes, which has one block of ones at each offset.
func file(t *testing.T, size int64, offsets ...int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	for _, at := range offsets {
		if _, err := f.WriteAt(bytes.Repeat([]byte{1}, block), at); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestExtents(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		size, look int64
		offsets    []int64
		bytes      int64 // at least, in extents; a file system may make them longer
	}{
		"empty":        {0, 0, nil, 0},
		"a hole":       {8 * block, 8 * block, nil, 0},
		"two":          {8 * block, 8 * block, []int64{block, 5 * block}, 2 * block},
		"the last one": {8 * block, 8 * block, []int64{7 * block}, block},
		"not all":      {8 * block, 2 * block, []int64{block, 5 * block}, block},
		"cut":          {8 * block, block + 1, []int64{block}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := file(t, tc.size, tc.offsets...)
			var got, end int64
			for e, err := range sparse.Extents(f, tc.look) {
				if err != nil {
					t.Fatal(err)
				}
				if e.Offset < end || e.Length <= 0 || e.Offset+e.Length > tc.look {
					t.Errorf("%+v after %d, in %d bytes", e, end, tc.look)
				}
				got, end = got+e.Length, e.Offset+e.Length
			}
			if got < tc.bytes || got > tc.bytes+2*block && got != tc.look {
				t.Errorf("%d bytes are no hole, want about %d", got, tc.bytes)
			}
		})
	}
}

func TestCopy(t *testing.T) {
	t.Parallel()
	const size = 8 * block
	from, to := file(t, size, block, 5*block), file(t, size)
	if err := sparse.Copy(t.Context(), to, from, size); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(from.Name())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to.Name()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy differs, err = %v", err)
	}
	ended, end := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	end(why)
	if err := sparse.Copy(ended, to, from, size); !errors.Is(err, why) {
		t.Errorf("err = %v, want %v", err, why)
	}
}

// TestClone makes a copy that is as long as the original, holes and all. Whether they can
// share blocks is the file system's business.
func TestClone(t *testing.T) {
	t.Parallel()
	const size = 8 * block
	from, to := file(t, size, block, 5*block), file(t, 0)
	if sparse.Shares(to, from) != (unix.IoctlFileClone(int(file(t, 0).Fd()), int(from.Fd())) == nil) {
		t.Error("what it says of the file system is wrong")
	}
	if err := sparse.Clone(t.Context(), to, from); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(from.Name())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to.Name()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the copy has %d bytes and differs, %v", len(got), err)
	}
}
