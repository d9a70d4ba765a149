package output

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze/internal/agentapi"
)

// collected are chunks as text, with process and stream.
func collected(c agentapi.Collected) string {
	var all []string
	for _, chunk := range c.Chunks {
		all = append(all, fmt.Sprintf("%s/%s:%s", chunk.Process, chunk.Stream, chunk.Text))
	}
	return strings.Join(all, "|")
}

// TestFeed: a host gets whole lines of all outputs in their order, each once, and an
// open line with the end of its process.
func TestFeed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var f Feed
		a, b := New("a", filepath.Join(dir, "a"), testBudget(1<<30), &f), New("b", filepath.Join(dir, "b"), testBudget(1<<30), &f)
		defer a.Close()
		defer b.Close()
		write := func(o *Output, s Stream, text string) {
			o.Write(s, []byte(text))
			time.Sleep(time.Second)
		}
		write(a, Stdout, "one\ntwo\nthr")
		write(b, Stderr, "bad\n")
		write(a, Stdout, "ee")
		got := f.Collect(0)
		if text := collected(got); text != "a/stdout:one\ntwo\n|b/stderr:bad\n" || got.Lost != 0 {
			t.Errorf("%q, lost %d", text, got.Lost)
		}
		if again := collected(f.Collect(got.Chunks[0].At)); again != "b/stderr:bad\n" {
			t.Errorf("after the first chunk comes %q", again)
		}
		last := got.Chunks[1].At
		began := time.Now()
		wait := func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			f.Await(ctx, last)
		}
		if wait(); len(f.Collect(last).Chunks) != 0 || time.Since(began) != time.Minute {
			t.Errorf("there is something after %v", time.Since(began))
		}
		go write(a, Stdout, "\nopen")
		wait()
		if text := collected(f.Collect(last)); text != "a/stdout:three\n" {
			t.Errorf("%q", text)
		}
		a.End()
		if text := collected(f.Collect(f.served)); text != "a/stdout:open" {
			t.Errorf("at the end comes %q", text)
		}
		time.Sleep(2 * time.Second) // the writer rests
		write(b, Stderr, "more\n")
		if f.Reset(); len(f.Collect(0).Chunks) != 0 {
			t.Error("a copy has the output of another sandbox")
		}
	})
}

// TestFeedInParts: a batch is bounded, ends with a line, and the next one goes on there,
// also when the answer was lost on the way.
func TestFeedInParts(t *testing.T) {
	t.Parallel()
	var f Feed
	o := New("a", filepath.Join(t.TempDir(), "a"), testBudget(1<<30), &f)
	defer o.Close()
	fillOutput(o)
	var text strings.Builder
	after := int64(0)
	for rounds := 0; ; rounds++ {
		f.Collect(after) // nobody gets this answer
		got := f.Collect(after)
		if len(got.Chunks) == 0 {
			break
		}
		size := 0
		for _, c := range got.Chunks {
			if c.At <= after || !strings.HasSuffix(c.Text, "\n") {
				t.Fatalf("a chunk at %d after %d ends with %q", c.At, after, c.Text[len(c.Text)-1:])
			}
			after, size = c.At, size+len(c.Text)
			text.WriteString(c.Text)
		}
		if size > CollectMax || rounds > 20 {
			t.Fatalf("%d bytes in one batch, %d batches", size, rounds)
		}
	}
	if lines := strings.Fields(text.String()); len(lines) != 1000 || strings.TrimLeft(lines[999], "0") != "999" {
		t.Errorf("%d lines", len(lines))
	}
	if len(f.marks) != 0 {
		t.Errorf("%d marks are left", len(f.marks))
	}
}

// TestFeedLoses: a process that writes more than its ring has does not wait for a host.
// The host learns how much is missing.
func TestFeedLoses(t *testing.T) {
	t.Parallel()
	var f Feed
	o := New("a", filepath.Join(t.TempDir(), "a"), testBudget(0), &f) // the floor alone
	defer o.Close()
	fillOutput(o)
	o.Write(Stderr, []byte(strings.Repeat("x", openMax+1)))
	total := 0
	lost, after := int64(0), int64(0)
	for {
		got := f.Collect(after)
		lost += got.Lost
		if len(got.Chunks) == 0 {
			break
		}
		for _, c := range got.Chunks {
			after, total = c.At, total+len(c.Text)
		}
	}
	if want := int64(1000<<10 - ringStep); lost != want || total != ringStep+openMax+1 {
		t.Errorf("lost %d, want %d; got %d", lost, want, total)
	}
	for i := range 3 * marksMax {
		o.Write(Stream(i%2), []byte("y\n"))
	}
	if len(f.marks) > marksMax {
		t.Errorf("%d marks", len(f.marks))
	}
	if got := f.Collect(after); got.Lost == 0 {
		t.Error("nothing is lost")
	}
}
