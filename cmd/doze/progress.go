package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/term"
)

const (
	// progressAfter is how long something may take without a word.
	progressAfter = time.Second
	// progressEvery is how often it is told how far it is.
	progressEvery = 200 * time.Millisecond
	barWidth      = 24
	wipe          = "\r\x1b[K" // the line
)

// A progress tells a user who looks on how far something is that takes long.
type progress struct {
	what  string
	total int64 // bytes; 0 if nobody knows
	began time.Time
	done  atomic.Int64 // bytes
	end   func()
}

// watch begins to tell how far something is. The caller calls end. Nothing is
// printed in the first second, nor where nobody looks on.
func (a *app) watch(what string, total int64) *progress {
	p := &progress{what: what, total: total, began: time.Now(), end: func() {}}
	if !a.watched() {
		return p
	}
	stop := make(chan struct{})
	var task sync.WaitGroup
	task.Go(func() { p.draw(a.err, stop) })
	p.end = sync.OnceFunc(func() {
		close(stop)
		task.Wait()
	})
	return p
}

// watched reports whether somebody looks on.
func (a *app) watched() bool {
	f, ok := a.err.(*os.File)
	return ok && !a.whole() && term.IsTerminal(int(f.Fd()))
}

// draw draws one line again and again, and wipes it off at the end.
func (p *progress) draw(w io.Writer, stop <-chan struct{}) {
	timer := time.NewTimer(progressAfter)
	defer timer.Stop()
	for drawn := false; ; drawn = true {
		select {
		case <-stop:
			if drawn {
				_, _ = io.WriteString(w, wipe)
			}
			return
		case now := <-timer.C:
			_, _ = io.WriteString(w, wipe+p.line(now.Sub(p.began)))
			timer.Reset(progressEvery)
		}
	}
}

// line is how far it is after some time.
func (p *progress) line(took time.Duration) string {
	done, seconds := p.done.Load(), int64(took/time.Second)
	if done == 0 && p.total == 0 {
		return fmt.Sprintf("%s, %d s", printable(p.what), seconds)
	}
	rate := megabytes(done/max(seconds, 1)) + " MB/s"
	if p.total == 0 {
		return fmt.Sprintf("%s, %s MB, %s", p.what, megabytes(done), rate)
	}
	done = min(done, p.total) // a file may have grown
	bar := make([]byte, barWidth)
	for i := range bar {
		bar[i] = ' '
		if int64(i)*p.total < done*barWidth {
			bar[i] = '='
		}
	}
	return fmt.Sprintf("%s [%s] %d%%, %s of %s MB, %s", p.what, bar, done*100/p.total, megabytes(done), megabytes(p.total), rate)
}

// megabytes is a number of bytes in the unit of memory, volumes and images.
func megabytes(n int64) string { return fmt.Sprintf("%.1f", float64(n)/(1<<20)) }

// counts reads r and counts what was read.
func (p *progress) counts(r io.Reader) io.Reader { return countingReader{r, p} }

type countingReader struct {
	io.Reader
	p *progress
}

func (r countingReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.p.done.Add(int64(n))
	return n, err
}
