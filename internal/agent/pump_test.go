package agent

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
	p, fd, err := newPump(func(b []byte) {
		chunks.Add(1)
		bytes.Add(int64(len(b)))
	})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	go p.run()
	const writes = 5000
	for range writes {
		if _, err := syscall.Write(fd, []byte("line\n")); err != nil {
			t.Fatal(err)
		}
	}
	_ = syscall.Close(fd)
	<-p.ended
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
	p, fd, err := newPump(func(b []byte) {
		if total += len(b); total == len(b) {
			first <- len(b)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := syscall.Write(fd, make([]byte, chunkMax)); err != nil {
		t.Fatal(err)
	}
	go p.run()
	if n := <-first; n != chunkMax {
		t.Errorf("the first chunk has %d bytes", n)
	}
	if n, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0); n != pipeMax {
		t.Errorf("the pipe takes %d bytes, %v; want %d", n, err, pipeMax)
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
	<-p.ended
	if total != chunkMax+more {
		t.Errorf("%d of %d bytes came", total, chunkMax+more)
	}
}

// Whoever waits for a process does not wait for the rest of its pump.
func TestPumpHurries(t *testing.T) {
	t.Parallel()
	p, fd, err := newPump(func([]byte) {})
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
	p.run()
}
