package pump

import (
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Small chunks that come fast are collected: each would cost a dozen system calls.
func TestPumpRests(t *testing.T) {
	t.Parallel()
	var chunks, bytes atomic.Int64
	p, fd, err := New(func(b []byte) {
		chunks.Add(1)
		bytes.Add(int64(len(b)))
	})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	go p.Run()
	const writes = 5000
	for range writes {
		if _, err := syscall.Write(fd, []byte("line\n")); err != nil {
			t.Fatal(err)
		}
	}
	_ = syscall.Close(fd)
	<-p.Ended
	if bytes.Load() != 5*writes {
		t.Errorf("%d of %d bytes came", bytes.Load(), 5*writes)
	}
	// The first two come at once.
	if most := 3 + int64(time.Since(began)/pumpRest); chunks.Load() > most {
		t.Errorf("they came in %d chunks, want at most %d", chunks.Load(), most)
	}
}

// A process that fills its pipe gets a larger one, and loses nothing.
func TestPumpGrows(t *testing.T) {
	t.Parallel()
	total, first := 0, make(chan int, 1)
	p, fd, err := New(func(b []byte) {
		if total += len(b); total == len(b) {
			first <- len(b)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Write(fd, make([]byte, ChunkMax)); err != nil {
		t.Fatal(err)
	}
	go p.Run()
	if n := <-first; n != ChunkMax {
		t.Errorf("the first chunk has %d bytes", n)
	}
	if n, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0); n != Max {
		t.Errorf("the pipe takes %d bytes, %v; want %d", n, err, Max)
	}
	const more = 4 << 20
	for left := more; left > 0; {
		n, err := syscall.Write(fd, make([]byte, min(left, 128<<10)))
		if err != nil {
			t.Fatal(err)
		}
		left -= n
	}
	_ = syscall.Close(fd)
	<-p.Ended
	if total != ChunkMax+more {
		t.Errorf("%d of %d bytes came", total, ChunkMax+more)
	}
}

// Whoever waits for a process does not wait for the rest of its pump.
func TestPumpHurries(t *testing.T) {
	t.Parallel()
	p, fd, err := New(func([]byte) {})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	close(p.hurry)
	for range 1000 {
		p.last = time.Now()
		p.rest()
	}
	if took := time.Since(began); took >= 1000*pumpRest {
		t.Errorf("1000 rests took %v", took)
	}
	_ = syscall.Close(fd)
	p.Run()
}
