package output

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A reader that stands still holds the writer up, but not for ever.
func TestStalledReaderLosesBytes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		o := New("", filepath.Join(dir, "1"), testBudget(0), nil)
		f := o.Follow()
		began := time.Now()
		fillOutput(o)
		o.End()
		if waited := time.Since(began); waited != stallMax {
			t.Errorf("the writer waited for %v", waited)
		}
		var got bytes.Buffer
		lost := 0
		for {
			p, wait, ok := f.read(make([]byte, 5000))
			if !ok {
				if wait != nil {
					t.Error("the end does not come")
				}
				break
			}
			got.Write(p.Data)
			if p.Lost {
				lost++
			}
		}
		if got.Len() != ringStep || lost != 1 || !bytes.HasSuffix(got.Bytes(), []byte("999\n")) {
			t.Errorf("%d bytes, %d gaps", got.Len(), lost)
		}
		f.Close()
		o.Close()
	})
}

// Many readers that stand still hold the writer up no longer than one, whatever
// others do meanwhile; one that reads slowly loses nothing.
func TestStalledReadersCountOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		o := New("", filepath.Join(dir, "1"), testBudget(0), nil)
		for range 20 {
			o.Follow()
		}
		slow := o.Follow()
		var read sync.WaitGroup
		read.Go(func() {
			for {
				time.Sleep(stallMax / 4)
				p, wait, ok := slow.read(make([]byte, 100<<10))
				if p.Lost {
					t.Error("a slow reader lost bytes")
				}
				if !ok && wait == nil {
					return
				}
			}
		})
		began := time.Now()
		fillOutput(o)
		o.End()
		if waited := time.Since(began); waited < stallMax || waited > 3*stallMax {
			t.Errorf("the writer waited for %v", waited)
		}
		read.Wait()
	})
}

func TestReadersSeeOneOrder(t *testing.T) {
	t.Parallel()
	o := New("", filepath.Join(t.TempDir(), "1"), testBudget(1<<30), nil)
	defer o.Close()
	var want [2]strings.Builder
	for i := range 3 * runsMax {
		s := Stream(i % 2)
		text := fmt.Sprintf("%d\n", i)
		o.Write(s, []byte(text))
		want[s].WriteString(text)
	}
	o.End()
	if len(o.runs) > runsMax {
		t.Errorf("%d runs", len(o.runs))
	}
	f := o.Follow()
	defer f.Close()
	var got [2]strings.Builder
	last := Stdout
	rounds := 0
	for buf := make([]byte, 100); ; {
		p, _, ok := f.read(buf)
		if !ok {
			break
		}
		got[p.Of].Write(p.Data)
		if p.Of != last {
			last = p.Of
			rounds++
		}
	}
	for s := range got {
		if got[s].String() != want[s].String() {
			t.Errorf("%v differs", Stream(s))
		}
	}
	if rounds < runsMax/4 {
		t.Errorf("the streams take turns %d times only", rounds)
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	var got []string
	emit := func(s Stream, line string) { got = append(got, s.String()+":"+line) }
	var l Lines
	l.Add(Stdout, []byte("pa"), emit)
	l.Add(Stderr, []byte("e1\ne"), emit)
	l.Add(Stdout, []byte("rt\n\nx\ny"), emit)
	l.Add(Stderr, []byte("2\n"), emit)
	l.Flush(Stdout, emit)
	l.Flush(Stderr, emit)
	want := "stderr:e1|stdout:part|stdout:|stdout:x|stderr:e2|stdout:y"
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("got %s, want %s", s, want)
	}
	got = nil
	l.Add(Stdout, bytes.Repeat([]byte("x"), lineMax+1), emit)
	if len(got) != 1 {
		t.Error("an endless line is held back")
	}
}
