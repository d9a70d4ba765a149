package main

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

// TestProgress draws a line where somebody looks on, and wipes it off.
func TestProgress(t *testing.T) {
	t.Parallel()
	screen, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	a := app{err: tty}
	p := a.watch("pulling", 10e6)
	if _, err := io.Copy(io.Discard, p.counts(strings.NewReader(strings.Repeat("x", 5e6)))); err != nil {
		t.Fatal(err)
	}
	seen, r := "", bufio.NewReader(screen)
	read := func(until string) {
		for !strings.Contains(seen, until) {
			b, err := r.ReadByte()
			if err != nil {
				t.Fatalf("%v after %q", err, seen)
			}
			seen += string(b)
		}
	}
	read("pulling [============ ")
	p.end()
	p.end()
	tty.Close()
	rest, _ := io.ReadAll(r) // it may have drawn once more before its end
	if !strings.HasSuffix(string(rest), wipe) {
		t.Errorf("at its end %q is on the screen", rest)
	}
}

func TestWhoLooksOn(t *testing.T) {
	t.Parallel()
	screen, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	defer tty.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "err"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for name, tt := range map[string]struct {
		a    app
		want bool
	}{
		"a terminal": {app{err: tty}, true},
		"JSON":       {app{err: tty, format: formatJSON}, false},
		"a file":     {app{err: file}, false},
		"a buffer":   {app{err: io.Discard}, false},
	} {
		if got := tt.a.watched(); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestLineOfProgress(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		total, done int64
		took        time.Duration
		want        string
	}{
		"time alone":    {0, 0, 3500 * time.Millisecond, "it, 3 s"},
		"no total":      {0, 4 << 20, 2 * time.Second, "it, 4.0 MB, 2.0 MB/s"},
		"half":          {10 << 20, 5 << 20, 2 * time.Second, "it [============            ] 50%, 5.0 of 10.0 MB, 2.5 MB/s"},
		"all":           {1, 1, time.Second, "it [========================] 100%, 0.0 of 0.0 MB, 0.0 MB/s"},
		"more than all": {10 << 20, 11 << 20, time.Second, "it [========================] 100%, 10.0 of 10.0 MB, 11.0 MB/s"},
	} {
		p := &progress{what: "it", total: tt.total}
		p.done.Store(tt.done)
		if got := p.line(tt.took); got != tt.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
