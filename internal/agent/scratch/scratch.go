// Package scratch lends memory through which large contents are copied. In a
// sandbox a system call takes as long as copying some hundred kilobytes, so that
// what moves in small pieces moves slowly.
package scratch

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

const (
	// Size is how much memory is lent. A file is written twice as fast by 1 MiB as
	// by 256 KiB, and no faster by 4 MiB.
	Size = 1 << 20
	// lentMax bounds what is lent at the same time: 16 MiB. A caller that gets none
	// copies in small pieces.
	lentMax = 16
	// smallSize is what Copy begins with. Most contents need no more.
	smallSize = 32 << 10
)

var (
	lent  atomic.Int32
	large = sync.Pool{New: func() any { return new([Size]byte) }}
	small = sync.Pool{New: func() any { return new([smallSize]byte) }}
)

// Lend returns memory, which the caller gives back with [Return]. It is nil when
// too much is lent.
func Lend() *[Size]byte {
	if lent.Add(1) > lentMax {
		lent.Add(-1)
		return nil
	}
	b, _ := large.Get().(*[Size]byte)
	return b
}

// Return gives memory back.
func Return(b *[Size]byte) {
	large.Put(b)
	lent.Add(-1)
}

// Copy copies src to dst up to its end. It collects what comes slowly: dst must
// be nothing that somebody waits for.
func Copy(dst io.Writer, src io.Reader) error {
	first, _ := small.Get().(*[smallSize]byte)
	defer small.Put(first)
	buf := first[:]
	for {
		n, err := fill(src, buf)
		if n > 0 {
			if _, e := dst.Write(buf[:n]); e != nil {
				return e
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case len(buf) == Size:
			continue
		}
		if more := Lend(); more != nil {
			defer Return(more)
			buf = more[:]
		}
	}
}

// fill reads until b is full, or until an error.
func fill(src io.Reader, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = src.Read(b[n:])
		n += m
	}
	return n, err
}
