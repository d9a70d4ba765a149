package scratch

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// counted remembers how large writes were.
type counted struct {
	bytes.Buffer

	writes []int
}

func (c *counted) Write(b []byte) (int, error) {
	c.writes = append(c.writes, len(b))
	return c.Buffer.Write(b)
}

func TestCopy(t *testing.T) {
	for name, size := range map[string]int{
		"nothing": 0, "a byte": 1, "a small piece": smallSize, "more": smallSize + 1,
		"large": smallSize + Size, "larger": smallSize + Size + 1, "much": 10 << 20,
	} {
		for reader, slowed := range map[string]func(io.Reader) io.Reader{
			"at once":      func(r io.Reader) io.Reader { return r },
			"by halves":    iotest.HalfReader,
			"with its end": iotest.DataErrReader,
		} {
			t.Run(name+" "+reader, func(t *testing.T) {
				want := bytes.Repeat([]byte("0123456789abcdef!"), size/17+1)[:size]
				var got counted
				if err := Copy(&got, slowed(bytes.NewReader(want))); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got.Bytes(), want) {
					t.Errorf("%d of %d bytes came, or others", got.Len(), size)
				}
				if most := 1 + (max(0, size-smallSize)+Size-1)/Size; len(got.writes) > most {
					t.Errorf("%d writes of %v bytes, want at most %d", len(got.writes), got.writes, most)
				}
				if n := lent.Load(); n != 0 {
					t.Errorf("%d are lent still", n)
				}
			})
		}
	}
}

func TestCopyByPieces(t *testing.T) {
	var got counted
	if err := Copy(&got, iotest.OneByteReader(bytes.NewReader(make([]byte, 2*smallSize)))); err != nil || got.Len() != 2*smallSize || len(got.writes) != 2 {
		t.Errorf("%d bytes in %v, %v", got.Len(), got.writes, err)
	}
}

// What came before an error is written, and the error is that of the source.
func TestCopyBroken(t *testing.T) {
	broken := errors.New("broken")
	for _, size := range []int{0, 10, smallSize, smallSize + Size + 10} {
		var got counted
		err := Copy(&got, io.MultiReader(bytes.NewReader(make([]byte, size)), iotest.ErrReader(broken)))
		if !errors.Is(err, broken) || got.Len() != size {
			t.Errorf("%d of %d bytes, %v", got.Len(), size, err)
		}
	}
	full := errors.New("full")
	if err := Copy(failing{full}, bytes.NewReader(make([]byte, 10))); !errors.Is(err, full) {
		t.Errorf("the error of the destination is %v", err)
	}
	if n := lent.Load(); n != 0 {
		t.Errorf("%d are lent still", n)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestLendIsBounded(t *testing.T) {
	var all []*[Size]byte
	for b := Lend(); b != nil; b = Lend() {
		if all = append(all, b); len(all) > lentMax {
			t.Fatal("there is no bound")
		}
	}
	if len(all) != lentMax {
		t.Errorf("%d were lent, want %d", len(all), lentMax)
	}
	var got counted
	if err := Copy(&got, bytes.NewReader(make([]byte, 10*smallSize))); err != nil || got.Len() != 10*smallSize || len(got.writes) != 10 {
		t.Errorf("without memory, %d bytes came in %v, %v", got.Len(), got.writes, err)
	}
	for _, b := range all {
		Return(b)
	}
	if b := Lend(); b == nil {
		t.Error("what was given back is not lent again")
	} else {
		Return(b)
	}
}
