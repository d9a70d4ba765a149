package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

func testBudget(total int64) *budget {
	return &budget{total: total, free: func() bool { return false }}
}

// fillOutput writes n numbered blocks of 1 KiB to stdout.
func fillOutput(o *output, from, n int) {
	for i := from; i < from+n; i++ {
		o.write(stdout, fmt.Appendf(nil, "%01023d\n", i))
	}
}

func TestRingKeepsTheEnd(t *testing.T) {
	t.Parallel()
	o := newOutput(filepath.Join(t.TempDir(), "logs/1"), testBudget(0)) // the floor alone
	defer o.close()
	fillOutput(o, 0, 1000)
	b, cut := o.rings[stdout].tail(ringMax)
	if !cut || len(b) != ringStep {
		t.Fatalf("%d bytes are kept, cut %v", len(b), cut)
	}
	for i, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if want := fmt.Sprintf("%01023d", 1000-ringStep/1024+i); line != want {
			t.Fatalf("line %d is %q", i, line[1000:])
		}
	}
	if info, err := os.Stat(o.rings[stdout].path); err != nil || info.Size() != ringStep {
		t.Errorf("the file: %v, %v", info, err)
	}
	if got := o.text(stdout, 10); got != truncate+"000000999\n" {
		t.Errorf("a short tail is %q", got)
	}
	used := o.rings[stdout].budget.used.Load()
	o.drop()
	if left := o.rings[stdout].budget.used.Load(); used != ringStep || left != 0 {
		t.Errorf("used %d, then %d", used, left)
	}
	o.write(stdout, []byte("late")) // of a child that was left behind
	if got := o.text(stdout, 10); got != truncate {
		t.Errorf("after the drop: %q", got)
	}
}

func TestBudgetEvictsTheOldest(t *testing.T) {
	t.Parallel()
	tab := newTable(launcher{}, t.TempDir())
	tab.budget.total = 4 * ringStep
	var all []*process
	for i := range 3 {
		p := &process{out: newOutput(filepath.Join(tab.dir, fmt.Sprint(i)), tab.budget)}
		defer p.out.close()
		all = append(all, p)
		tab.all = append(tab.all, p)
		fillOutput(p.out, 0, 1)
		if i < 2 {
			p.ended.Store(1)
		}
	}
	fillOutput(all[2].out, 1, 2*ringStep/1024) // three steps, where two are left
	if all[0].out.kept() || !all[1].out.kept() {
		t.Errorf("kept: %v, %v", all[0].out.kept(), all[1].out.kept())
	}
	if b, cut := all[2].out.rings[stdout].tail(ringMax); cut || len(b) != 2*ringStep+1024 {
		t.Errorf("the running one has %d bytes, cut %v", len(b), cut)
	}
	if all[1].ended.Store(0); tab.forgetOutput() {
		t.Error("output of a running process was given up")
	}
}

func TestPruneByAge(t *testing.T) {
	t.Parallel()
	tab := newTable(launcher{}, t.TempDir())
	now := time.Now()
	for _, ended := range []time.Time{now.Add(-25 * time.Hour), now.Add(-23 * time.Hour), {}} {
		p := &process{out: newOutput("", tab.budget)}
		if !ended.IsZero() {
			p.ended.Store(ended.UnixNano())
		}
		tab.all = append(tab.all, p)
	}
	if tab.prune(now); len(tab.all) != 2 {
		t.Errorf("%d are left", len(tab.all))
	}
}

// What a caller makes large is bounded in sum, the oldest goes first.
func TestPruneByText(t *testing.T) {
	t.Parallel()
	tab := newTable(launcher{}, t.TempDir())
	large := strings.Repeat("x", finishedText/4)
	for i := range 10 {
		p := &process{out: newOutput("", tab.budget), pid: i}
		p.Command = large
		if i != 0 { // which runs
			p.ended.Store(time.Now().UnixNano())
		}
		tab.all = append(tab.all, p)
	}
	tab.prune(time.Now())
	var left []int
	for _, p := range tab.all {
		left = append(left, p.pid)
	}
	if diff := cmp.Diff([]int{0, 6, 7, 8, 9}, left); diff != "" {
		t.Errorf("what is left (-want +got):\n%s", diff)
	}
}

// A reader that stands still holds the writer up, but not for ever.
func TestStalledReaderLosesBytes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		o := newOutput(filepath.Join(dir, "1"), testBudget(0))
		f := o.follow()
		began := time.Now()
		fillOutput(o, 0, 1000)
		o.end()
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
			got.Write(p.data)
			if p.lost {
				lost++
			}
		}
		if got.Len() != ringStep || lost != 1 || !bytes.HasSuffix(got.Bytes(), []byte("999\n")) {
			t.Errorf("%d bytes, %d gaps", got.Len(), lost)
		}
		f.close()
		o.close()
	})
}

// Many readers that stand still hold the writer up no longer than one, whatever
// others do meanwhile; one that reads slowly loses nothing.
func TestStalledReadersCountOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		o := newOutput(filepath.Join(dir, "1"), testBudget(0))
		for range 20 {
			o.follow()
		}
		slow := o.follow()
		var read sync.WaitGroup
		read.Go(func() {
			for {
				time.Sleep(stallMax / 4)
				p, wait, ok := slow.read(make([]byte, 100<<10))
				if p.lost {
					t.Error("a slow reader lost bytes")
				}
				if !ok && wait == nil {
					return
				}
			}
		})
		began := time.Now()
		fillOutput(o, 0, 1000)
		o.end()
		if waited := time.Since(began); waited < stallMax || waited > 3*stallMax {
			t.Errorf("the writer waited for %v", waited)
		}
		read.Wait()
	})
}

func TestReadersSeeOneOrder(t *testing.T) {
	t.Parallel()
	o := newOutput(filepath.Join(t.TempDir(), "1"), testBudget(1<<30))
	defer o.close()
	var want [2]strings.Builder
	for i := range 3 * runsMax {
		s := stream(i % 2)
		text := fmt.Sprintf("%d\n", i)
		o.write(s, []byte(text))
		want[s].WriteString(text)
	}
	o.end()
	if len(o.runs) > runsMax {
		t.Errorf("%d runs", len(o.runs))
	}
	f := o.follow()
	defer f.close()
	var got [2]strings.Builder
	last := stdout
	turns := 0
	for buf := make([]byte, 100); ; {
		p, _, ok := f.read(buf)
		if !ok {
			break
		}
		got[p.of].Write(p.data)
		if p.of != last {
			last = p.of
			turns++
		}
	}
	for s := range got {
		if got[s].String() != want[s].String() {
			t.Errorf("%v differs", stream(s))
		}
	}
	if turns < runsMax/4 {
		t.Errorf("the streams take turns %d times only", turns)
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	var got []string
	emit := func(s stream, line string) { got = append(got, s.String()+":"+line) }
	var l lines
	l.add(stdout, []byte("pa"), emit)
	l.add(stderr, []byte("e1\ne"), emit)
	l.add(stdout, []byte("rt\n\nx\ny"), emit)
	l.add(stderr, []byte("2\n"), emit)
	l.flush(stdout, emit)
	l.flush(stderr, emit)
	want := "stderr:e1|stdout:part|stdout:|stdout:x|stderr:e2|stdout:y"
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("got %s, want %s", s, want)
	}
	got = nil
	l.add(stdout, bytes.Repeat([]byte("x"), lineMax+1), emit)
	if len(got) != 1 {
		t.Error("an endless line is held back")
	}
}

func FuzzCarry(f *testing.F) {
	f.Add([]byte("aü€😀"), 1)
	f.Add([]byte("\xf0\x9f\x98"), 2)
	f.Add([]byte("\xff\xc3\xc3\xbc"), 3)
	f.Fuzz(func(t *testing.T, b []byte, n int) {
		var c carry
		var got strings.Builder
		for rest := b; len(rest) > 0; {
			k := min(max(1, n), len(rest))
			piece := c.add(rest[:k])
			if utf8.Valid(b) && !utf8.ValidString(piece) {
				t.Errorf("%q is cut into %q", b, piece)
			}
			got.WriteString(piece)
			rest = rest[k:]
		}
		if len(c.held) >= utf8.UTFMax {
			t.Errorf("%d bytes are held back", len(c.held))
		}
		got.WriteString(c.rest())
		if got.String() != string(b) {
			t.Errorf("%q became %q", b, got.String())
		}
	})
}

// FuzzUpload checks that no body makes a half-written or a stray file.
func FuzzUpload(f *testing.F) {
	const head = "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n"
	for _, s := range []string{
		head + "content\r\n--b--\r\n", head + "cut", "--b--\r\n", "", head, "--b\r\n\r\n\r\n--b--",
		"--b\r\nContent-Disposition: form-data; name=permissions\r\n\r\n0755\r\n" + head + "\r\n--b--",
		strings.ReplaceAll(head, "x", "../../x") + "up\r\n--b--\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		dir := t.TempDir()
		file := path.Join(dir, "f")
		if err := os.WriteFile(file, []byte("old"), 0o640); err != nil {
			t.Fatal(err)
		}
		_, err := asAgent.writeUpload(place{file, file}, multipart.NewReader(bytes.NewReader(b), "b"))
		got, readErr := os.ReadFile(file)
		if readErr != nil {
			t.Fatal(readErr)
		}
		if err != nil {
			if e, ok := errors.AsType[*doze.Error](err); !ok || e.Kind != doze.Invalid {
				t.Errorf("%v", err)
			}
			if string(got) != "old" {
				t.Errorf("a broken upload left %q", got)
			}
		}
		if info, _ := os.Stat(file); info.Mode().Perm() != 0o640 {
			t.Errorf("the mode is %v", info.Mode())
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Errorf("files: %v", entries)
		}
	})
}

// A source that fails is told from a disk that does.
func TestReplaceCleansUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broken := io.MultiReader(strings.NewReader("half"), errReader{})
	err := asAgent.writeTo(place{dir + "/f", "f"}, always(fileMode), broken)
	if doze.Public(err).Kind != doze.Invalid {
		t.Errorf("got %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("files: %v", entries)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
