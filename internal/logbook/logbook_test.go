package logbook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
)

// bench is a book that runs until the test ends.
type bench struct {
	*Book
	t    *testing.T
	stop func()
	at   int64
}

func start(t *testing.T, o Options) *bench {
	t.Helper()
	if o.Room == nil {
		o.Room = func(int64) (func(), error) { return func() {}, nil }
	}
	if o.Retention == 0 {
		o.Retention = time.Hour
	}
	if o.Quota == 0 {
		o.Quota = 1 << 30
	}
	b, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = b.Run(ctx) })
	stop := func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return &bench{b, t, stop, time.Now().Add(-time.Minute).UnixNano()}
}

// write appends output of a machine, whose name it has too.
func (b *bench) write(machine, stream, text string) {
	b.t.Helper()
	b.at += 1000
	b.append(machine, agentapi.Collected{Chunks: []agentapi.Chunk{{At: b.at, Process: "app", Stream: stream, Text: text}}})
}

func (b *bench) append(machine string, c agentapi.Collected) {
	b.t.Helper()
	if err := b.Append(b.t.Context(), machine, "w", "web", c); err != nil {
		b.t.Fatal(err)
	}
}

// ask returns the texts of lines, and the page.
func (b *bench) ask(q fleet.LogQuery) ([]string, fleet.LogPage) {
	b.t.Helper()
	if q.Workspace == "" {
		q.Workspace = "w"
	}
	q.Name = "web"
	if q.Limit == 0 {
		q.Limit = 1000
	}
	q.Bytes = 1 << 20
	p, err := b.Lines(b.t.Context(), q)
	if err != nil {
		b.t.Fatal(err)
	}
	var texts []string
	for _, l := range p.Lines {
		texts = append(texts, l.Text)
	}
	return texts, p
}

// TestLines: a log has each line once, and finds it by time, text, severity, process and
// type, also in a book that was opened again.
func TestLines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := start(t, Options{Dir: dir})
	b.write("m1", "stdout", "Hello\nworld\r\n")
	between := time.Unix(0, b.at+500)
	b.write("m1", "stderr", "oops\n")
	again := agentapi.Collected{Chunks: []agentapi.Chunk{{At: b.at, Process: "app", Stream: "stderr", Text: "oops\n"}}}
	b.append("m1", again) // the answer came twice
	b.write("m2", "stdout", "second machine\n")
	event := fleet.LogLine{LogPosition: fleet.LogPosition{At: b.at - 1500}, Severity: doze.LogWarning, Text: "it was noticed"}
	for range 2 {
		if err := b.End(t.Context(), []fleet.EndedLog{{Machine: "m1", Workspace: "w", Name: "web", Events: []fleet.LogLine{event}}}); err != nil {
			t.Fatal(err)
		}
	}
	check := func(b *bench) {
		for name, row := range map[string]struct {
			q    fleet.LogQuery
			want string
		}{
			"all":               {fleet.LogQuery{}, "second machine|oops|it was noticed|world|Hello"},
			"the oldest first":  {fleet.LogQuery{OldestFirst: true}, "Hello|world|it was noticed|oops|second machine"},
			"text, in any case": {fleet.LogQuery{Text: "hELLO"}, "Hello"},
			"severities":        {fleet.LogQuery{Severities: []string{doze.LogError, doze.LogWarning}}, "oops|it was noticed"},
			"a process":         {fleet.LogQuery{Process: "other"}, ""},
			"processes":         {fleet.LogQuery{Type: doze.LogProcess, Process: "app"}, "second machine|oops|world|Hello"},
			"events":            {fleet.LogQuery{Type: doze.LogEvent}, "it was noticed"},
			"until":             {fleet.LogQuery{To: between}, "world|Hello"},
			"from":              {fleet.LogQuery{From: between}, "second machine|oops|it was noticed"},
			"another workspace": {fleet.LogQuery{Workspace: "other"}, ""},
			"the newest":        {fleet.LogQuery{Limit: 1}, "second machine"},
		} {
			if texts, _ := b.ask(row.q); strings.Join(texts, "|") != row.want {
				t.Errorf("%s: %q, want %s", name, texts, row.want)
			}
		}
	}
	check(b)
	b.stop()
	again2 := start(t, Options{Dir: dir})
	check(again2)
	if stamp, err := again2.Stamp(t.Context(), "m1"); err != nil || stamp != b.at-1000 {
		t.Errorf("the stamp is %d, %v, want %d", stamp, err, b.at-1000)
	}
}

// TestPages: pages have all lines once, in both orders, over compressed segments.
func TestPages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := start(t, Options{Dir: dir})
	const lines = 6000
	for i := range lines {
		if i%2 == 0 {
			b.write("m"+fmt.Sprint(i/2%2), "stdout", fmt.Sprintf("%0200d\n%0200d\n", i, i+1))
		}
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "m0", "*"+packed)); len(files) == 0 {
		t.Fatal("nothing is compressed")
	}
	b.stop()
	b = start(t, Options{Dir: dir})
	for _, oldest := range []bool{true, false} {
		q := fleet.LogQuery{OldestFirst: oldest, Limit: 700}
		var got []string
		for {
			texts, p := b.ask(q)
			if got = append(got, texts...); !p.More {
				break
			}
			q.Past = &p.Next
		}
		if !oldest {
			slices.Reverse(got)
		}
		if len(got) != lines {
			t.Fatalf("oldest first %t: %d lines", oldest, len(got))
		}
		for i, text := range got {
			if want := fmt.Sprintf("%0200d", i); text != want {
				t.Fatalf("oldest first %t: line %d is %s", oldest, i, strings.TrimLeft(text, "0"))
			}
		}
	}
	if texts, _ := b.ask(fleet.LogQuery{Text: "04242"}); len(texts) != 1 {
		t.Errorf("%d lines are found", len(texts))
	}
}

// TestScanIsBounded: a search that finds nothing ends, and the next one goes on.
func TestScanIsBounded(t *testing.T) {
	t.Parallel()
	b := start(t, Options{Dir: t.TempDir()})
	text := strings.Repeat(strings.Repeat("y", 127)+"\n", 1<<10)
	b.write("m", "stdout", "needle\n")
	for range scanMax/len(text) + 10 {
		b.write("m", "stdout", text)
	}
	q, rounds := fleet.LogQuery{Text: "needle"}, 0
	for ; ; rounds++ {
		texts, p := b.ask(q)
		if len(texts) == 1 {
			break
		}
		if !p.More {
			t.Fatal("it is not found")
		}
		q.Past = &p.Next
	}
	if rounds != 1 {
		t.Errorf("it took %d rounds before", rounds)
	}
}

// TestBounds: a log, and the logs of a workspace, have the newest lines within their
// quotas. Another workspace loses none.
func TestBounds(t *testing.T) {
	t.Parallel()
	const quota = 2 << 20
	b := start(t, Options{Dir: t.TempDir(), Quota: quota})
	ctx := t.Context()
	if err := b.Append(ctx, "other", "v", "web", agentapi.Collected{Chunks: []agentapi.Chunk{{At: b.at, Text: "mine\n"}}}); err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 0, 64<<10) // does not compress
	for i := uint64(1); len(noise) < 60<<10; i = i*6364136223846793005 + 1442695040888963407 {
		noise = fmt.Appendf(noise, "%x\n", i)
	}
	for i := range 200 {
		b.write(fmt.Sprintf("m%d", i%5), "stdout", string(noise)+fmt.Sprintf("chunk %d\n", i))
	}
	var total int64
	for _, u := range b.Uses() {
		if u.Workspace == "w" {
			total += u.Bytes
		}
	}
	b.mu.Lock()
	counted := b.shares["w"].bytes
	b.mu.Unlock()
	if total > quota || total < quota/4 || total != counted { // the tails have just shrunk
		t.Errorf("the workspace takes %d, and %d are counted", total, counted)
	}
	texts, _ := b.ask(fleet.LogQuery{Text: "chunk"})
	if len(texts) < 10 || texts[0] != "chunk 199" || slices.Contains(texts, "chunk 0") {
		t.Errorf("it has %d chunks, the newest %s", len(texts), texts[0])
	}
	if texts, _ := b.ask(fleet.LogQuery{Workspace: "v"}); len(texts) != 1 {
		t.Error("another workspace lost its line")
	}
	for range segmentsMax + 20 { // compresses to nothing
		b.write("large", "stdout", strings.Repeat("z", segmentMax-2*headMin)+"\n")
	}
	b.mu.Lock()
	if n := len(b.logs["large"].segments); n > segmentsMax {
		t.Errorf("a log has %d segments", n)
	}
	b.mu.Unlock()
	if err := b.Drop(ctx, "w"); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(b.o.Dir); err != nil || len(left) != 1 || len(b.named) != 1 || len(b.shares) != 1 {
		t.Errorf("of a workspace that is gone there are %v, %v", left, err)
	}
}

// TestRetention: lines end with their time, and the directory with the last of them.
func TestRetention(t *testing.T) {
	t.Parallel()
	b := start(t, Options{Dir: t.TempDir(), Retention: 2 * time.Minute})
	b.write("m", "stdout", "old\n")
	if texts, _ := b.ask(fleet.LogQuery{}); len(texts) != 1 {
		t.Error("it is not there")
	}
	b.o.Retention = 30 * time.Second
	if texts, _ := b.ask(fleet.LogQuery{}); len(texts) != 0 {
		t.Error("it is there after its time")
	}
	b.sweep(t.Context(), time.Now())
	if left, err := os.ReadDir(b.o.Dir); err != nil || len(left) != 0 {
		t.Errorf("there is %v, %v", left, err)
	}
}

// TestHostile: what a sandbox says does not lead out of its own log, and costs no more
// than its bytes.
func TestHostile(t *testing.T) {
	t.Parallel()
	b := start(t, Options{Dir: t.TempDir()})
	future := time.Now().Add(time.Hour).UnixNano()
	b.append("m", agentapi.Collected{Lost: 7, Chunks: []agentapi.Chunk{
		{At: -9, Text: "never\n"},
		{At: 5, Process: "a\n#1 1 out 3 \"", Stream: "nonsense", Text: "early\n"},
		{At: 6, Process: strings.Repeat("\x00é", 1<<10), Text: strings.Repeat("w", 3*doze.LogLineMax)},
		{At: 7, Text: strings.Repeat("\n", batchMax)},
		{At: future, Stream: "stdout", Text: "#9 9 out 3 \"x\"\nab\n"},
	}})
	texts, p := b.ask(fleet.LogQuery{From: time.Unix(0, 1), OldestFirst: true})
	// Times before the retention are moved, if at all, by what came before.
	if len(texts) == 0 || texts[len(texts)-1] != fmt.Sprintf("%d bytes of output are missing here: processes wrote faster than the platform stores", 7+batchMax) {
		t.Fatalf("%q", texts)
	}
	for _, l := range p.Lines {
		if l.At > time.Now().UnixNano() || len(l.Text) > doze.LogLineMax {
			t.Errorf("a line of %d bytes at %v", len(l.Text), time.Unix(0, l.At))
		}
	}
	if !slices.Contains(texts, `#9 9 out 3 "x"`) || !slices.Contains(texts, "ab") {
		t.Errorf("%q", texts)
	}
}

// TestNoRoom: without disk nothing is stored and nothing is taken for stored, so that the
// agent is asked again.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	full := errors.New("full")
	room := full
	b := start(t, Options{Dir: t.TempDir(), Room: func(int64) (func(), error) { return func() {}, room }})
	c := agentapi.Collected{Chunks: []agentapi.Chunk{{At: b.at, Text: "later\n"}}}
	if err := b.Append(t.Context(), "m", "w", "web", c); !errors.Is(err, full) {
		t.Errorf("it says %v", err)
	}
	room = nil
	b.append("m", c)
	if texts, _ := b.ask(fleet.LogQuery{}); len(texts) != 1 {
		t.Errorf("%q", texts)
	}
}

// TestCrash: what a process left that ended as it wrote costs no other line.
func TestCrash(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := start(t, Options{Dir: dir})
	b.write("torn", "stdout", "whole\n")
	b.write("torn", "stdout", "cut off\n")
	b.write("twice", "stdout", strings.Repeat("x", 1000)+"\n")
	b.mu.Lock()
	l := b.logs["twice"]
	b.mu.Unlock()
	raw, err := os.ReadFile(filepath.Join(dir, "twice", tailName))
	if err != nil {
		t.Fatal(err)
	}
	if err := b.compress(l, l.segments[0], b.at); err != nil {
		t.Fatal(err)
	}
	b.stop()
	tail := filepath.Join(dir, "torn", tailName)
	if info, err := os.Stat(tail); err != nil || os.Truncate(tail, info.Size()-3) != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		os.WriteFile(filepath.Join(dir, "twice", tailName), raw, 0o600),
		os.WriteFile(filepath.Join(dir, "twice", "1-2-3.zst.new"), raw, 0o600),
		os.Mkdir(filepath.Join(dir, "empty"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	again := start(t, Options{Dir: dir})
	again.at = b.at
	texts, _ := again.ask(fleet.LogQuery{OldestFirst: true})
	if len(texts) != 2 || texts[0] != "whole" || len(texts[1]) != 1000 {
		t.Errorf("%d lines: %.20q", len(texts), texts)
	}
	again.write("torn", "stdout", "goes on\n")
	if texts, _ := again.ask(fleet.LogQuery{}); len(texts) != 3 || texts[0] != "goes on" {
		t.Errorf("%.20q", texts)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "twice")); len(left) != 2 {
		t.Errorf("there is %v", left)
	}
}

// FuzzParse: whatever a file has, it is read to an end, and what was written is read.
func FuzzParse(f *testing.F) {
	e := entry{at: 17, stamp: 4, kind: stderr, process: "a \"b\"\n", text: []byte("x\n#y\n")}
	f.Add(e.append(nil))
	f.Add([]byte("#1 2 out 3 \"\"\nab\n#9223372036854775807 0 info 2 \"\"\na\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		q := fleet.LogQuery{Limit: 10, Bytes: 1 << 10}
		if found := scan(&q, part{"m", segment{file: tailName}}, raw, nil); len(found) > q.Limit+1 {
			t.Errorf("%d lines", len(found))
		}
		e, _, ok := parse(raw)
		if !ok {
			return
		}
		if again, rest, ok := parse(e.append(nil)); !ok || len(rest) > 0 || again.at != e.at || again.process != e.process || string(again.text) != string(e.text) {
			t.Errorf("%+v became %+v", e, again)
		}
	})
}

// FuzzEntries: whatever an agent says becomes whole entries in order, none in the future,
// within the bound of a batch.
func FuzzEntries(f *testing.F) {
	f.Add(int64(5), "app", "stdout", "a\nb", int64(9), "c\n", int64(3))
	f.Add(int64(1<<62), "\xff\n", "", "\n\n", int64(-1), "", int64(0))
	now := time.Now()
	f.Fuzz(func(t *testing.T, at1 int64, process, stream, text1 string, at2 int64, text2 string, lost int64) {
		c := agentapi.Collected{Lost: lost, Chunks: []agentapi.Chunk{{At: at1, Process: process, Stream: stream, Text: text1}, {At: at2, Process: process, Text: text2}}}
		all, _ := entriesOf(c, 100, 3, now)
		last := int64(100)
		var raw []byte
		for _, e := range all {
			if e.at <= last {
				t.Errorf("%d comes after %d", e.at, last)
			}
			last = e.last()
			raw = e.append(raw)
		}
		if len(raw) > 2*batchMax+4*headMax {
			t.Errorf("%d bytes", len(raw))
		}
		for n := 0; len(raw) > 0; n++ {
			e, rest, ok := parse(raw)
			if !ok || string(e.text) != string(all[n].text) {
				t.Fatalf("entry %d cannot be read: %.100q", n, raw)
			}
			raw = rest
		}
	})
}

// FuzzCollected: whatever an agent answers, the book takes it or refuses it, and goes on.
func FuzzCollected(f *testing.F) {
	f.Add([]byte(`{"chunks":[{"at":17,"process":"app","stream":"stderr","text":"a\n\nb"}],"lost":3}`))
	f.Add([]byte(`{"chunks":[{"at":-1},{"at":1e18,"text":"\u0000#1 1 out 1 \"\"\n"}],"lost":-9}`))
	b, err := Open(Options{Dir: f.TempDir(), Retention: time.Hour, Quota: 1 << 20, Room: func(int64) (func(), error) { return func() {}, nil }})
	if err != nil {
		f.Fatal(err)
	}
	close(b.loaded)
	f.Fuzz(func(t *testing.T, raw []byte) {
		var c agentapi.Collected
		if json.Unmarshal(raw, &c) != nil {
			return
		}
		if err := b.Append(t.Context(), "m", "w", "web", c); err != nil {
			t.Error(err)
		}
		p, err := b.Lines(t.Context(), fleet.LogQuery{Workspace: "w", Name: "web", Limit: 10, Bytes: 1 << 10, OldestFirst: true})
		if err != nil || len(p.Lines) > 10 {
			t.Errorf("%d lines, %v", len(p.Lines), err)
		}
	})
}
