package progress

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/buildapi"
	"github.com/google/go-cmp/cmp"
	"github.com/moby/buildkit/client"
	gateway "github.com/moby/buildkit/frontend/gateway/pb"
	"github.com/moby/buildkit/solver/errdefs"
	"github.com/moby/buildkit/solver/pb"
	"github.com/opencontainers/go-digest"
)

var (
	begin = time.Date(2026, 11, 25, 10, 0, 0, 0, time.UTC)
	end   = begin.Add(3 * time.Second)
	run   = digest.FromString("run")
)

// recorder returns one, and what it has emitted.
func recorder(secrets ...string) (*Recorder, *[]buildapi.Event) {
	var got []buildapi.Event
	return New(func(e buildapi.Event) {
		e.At, e.Vertex = time.Time{}, ""
		got = append(got, e)
	}, secrets), &got
}

func started(name string) *client.SolveStatus {
	return &client.SolveStatus{Vertexes: []*client.Vertex{{Digest: run, Name: name, Started: &begin}}}
}

func wrote(stream int, text string) *client.SolveStatus {
	return &client.SolveStatus{Logs: []*client.VertexLog{{Vertex: run, Stream: stream, Data: []byte(text), Timestamp: begin}}}
}

// texts are the lines of output.
func texts(events []buildapi.Event) (lines []string) {
	for _, e := range events {
		if e.Stream != "" {
			lines = append(lines, e.Stream+": "+e.Text)
		}
	}
	return lines
}

func TestStates(t *testing.T) {
	t.Parallel()
	v := func(name string, cached bool, mistake string) *client.Vertex {
		return &client.Vertex{Digest: digest.FromString(name), Name: name, Started: &begin, Completed: &end, Cached: cached, Error: mistake}
	}
	r, got := recorder()
	r.Place(digest.FromString("[web  2/12] RUN make"), 7)
	for range 2 { // BuildKit repeats itself
		err := r.Take(&client.SolveStatus{Vertexes: []*client.Vertex{
			v("[1/3] FROM busybox", true, ""), v("[web  1/12] FROM x", true, ""), v("[web  2/12] RUN make", false, ""), v("[internal] load .dockerignore", false, ""),
			v("[context doze/slim] load metadata for docker.io/doze/slim@sha256:1", false, ""), v("[context a] OCI load from client", false, "context canceled"),
			v("[3/3] COPY a b", false, "not found"), v("exporting to image", false, ""), v("[linux/amd64 web 2/2] RUN a\nb", false, ""),
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	took := 3 * time.Second
	want := []buildapi.Event{
		{Step: 2, Steps: 12, Stage: "web", Name: "RUN make", Line: 7, State: buildapi.StateStarted},
		{Step: 3, Steps: 3, Name: "COPY a b", State: buildapi.StateStarted},
		{Name: "exporting to image", State: buildapi.StateStarted},
		{Step: 2, Steps: 2, Stage: "linux/amd64 web", Name: "RUN a\nb", State: buildapi.StateStarted},
		{Step: 1, Steps: 3, Name: "FROM busybox", State: buildapi.StateCached, Took: took},
		{Step: 1, Steps: 12, Stage: "web", Name: "FROM x", State: buildapi.StateCached, Took: took},
		{Step: 2, Steps: 12, Stage: "web", Name: "RUN make", Line: 7, State: buildapi.StateDone, Took: took},
		{Step: 3, Steps: 3, Name: "COPY a b", State: buildapi.StateFailed, Took: took},
		{Name: "exporting to image", State: buildapi.StateDone, Took: took},
		{Step: 2, Steps: 2, Stage: "linux/amd64 web", Name: "RUN a\nb", State: buildapi.StateDone, Took: took},
	}
	if diff := cmp.Diff(want, *got); diff != "" {
		t.Error(diff)
	}
}

// TestNumbers: the first instruction is FROM, even if BuildKit gives it no number.
func TestNumbers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		names []string
		want  []int
	}{
		"a registry's": {[]string{"[a 1/3] FROM x", "[a 2/3] COPY", "[a 3/3] RUN"}, []int{1, 2, 3}},
		"put here":     {[]string{"[a 1/3] COPY", "[a 2/3] RUN"}, []int{2, 3}},
		"scratch":      {[]string{"[a 1/2] COPY", "[a 2/2] RUN"}, []int{1, 2}},
		"two stages":   {[]string{"[a 1/2] RUN", "[b 1/2] FROM x", "[b 2/2] RUN"}, []int{2, 1, 2}},
	} {
		r, got := recorder()
		s := &client.SolveStatus{}
		for _, name := range c.names {
			s.Vertexes = append(s.Vertexes, &client.Vertex{Digest: digest.FromString(name), Name: name, Started: &begin})
		}
		if err := r.Take(s); err != nil {
			t.Fatal(err)
		}
		var steps []int
		for _, e := range *got {
			steps = append(steps, e.Step)
		}
		if diff := cmp.Diff(c.want, steps); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   []string
		want []string
	}{
		"lines":        {[]string{"one\ntwo\n"}, []string{"stdout: one", "stdout: two"}},
		"in parts":     {[]string{"o", "ne\ntw", "o\n"}, []string{"stdout: one", "stdout: two"}},
		"an open line": {[]string{"one"}, []string{"stdout: one"}},
		"an empty one": {[]string{"\n\n"}, []string{"stdout: ", "stdout: "}},
		"a bar":        {[]string{"10%\r", "20%\r100%\n"}, []string{"stdout: 100%"}},
		"DOS":          {[]string{"one\r", "\ntwo\r\n"}, []string{"stdout: one", "stdout: two"}},
		"colors":       {[]string{"\x1b[32mok\x1b[0m\x1b[2K\n"}, []string{"stdout: \x1b[32mok\x1b[0m"}},
		"bytes":        {[]string{"a\xffb\x00\n"}, []string{"stdout: a\ufffdb"}},
		"long":         {[]string{strings.Repeat("x", 3*lineBuffer) + "\nnext\n"}, []string{"stdout: " + strings.Repeat("x", buildapi.LineMax), "stdout: next"}},
		"a secret":     {[]string{"a hunt", "er2 b\n"}, []string{"stdout: a *** b"}},
		"at the cut":   {[]string{strings.Repeat("x", buildapi.LineMax-3) + "hunter2\n"}, []string{"stdout: " + strings.Repeat("x", buildapi.LineMax-3) + "***"}},
		"two lines":    {[]string{"-----BEGIN\nKEYKEY\n"}, []string{"stdout: ***", "stdout: ***"}},
		"the longer":   {[]string{"hunter22\n"}, []string{"stdout: ***"}},
		"a short one":  {[]string{"abc\n"}, []string{"stdout: abc"}},
	} {
		r, got := recorder("hunter2", "hunter22", "-----BEGIN\nKEYKEY\n", "abc")
		for _, s := range append([]*client.SolveStatus{started("[1/1] RUN x")}, parts(c.in)...) {
			if err := r.Take(s); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		done := started("[1/1] RUN x")
		done.Vertexes[0].Completed = &end
		if err := r.Take(done); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(c.want, texts(*got)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// parts are chunks of output.
func parts(all []string) (statuses []*client.SolveStatus) {
	for _, p := range all {
		statuses = append(statuses, wrote(1, p))
	}
	return statuses
}

func TestStreamsAreApart(t *testing.T) {
	t.Parallel()
	r, got := recorder()
	for _, s := range []*client.SolveStatus{started("RUN x"), wrote(1, "ou"), wrote(2, "err\n"), wrote(1, "t\n")} {
		if err := r.Take(s); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"stderr: err", "stdout: out"}, texts(*got)); diff != "" {
		t.Error(diff)
	}
}

// TestOutputHasAnEnd: whatever form endless output has.
func TestOutputHasAnEnd(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]string{"lines": "\n", "no lines": strings.Repeat("x", 1<<16), "bars": "x\r", "nothing": "\x00"} {
		r, _ := recorder()
		data := strings.Repeat(part, 1<<16/len(part))
		n := 0
		for ; n <= buildapi.OutputMax; n += len(data) {
			if err := r.Take(wrote(1, data)); err != nil {
				if !errors.Is(err, ErrOutput) {
					t.Errorf("%s: %v", name, err)
				}
				break
			}
		}
		if n > buildapi.OutputMax {
			t.Errorf("%s: %d bytes are no error", name, n)
		}
	}
}

func TestProgress(t *testing.T) {
	t.Parallel()
	r, got := recorder()
	for i := range int64(100) {
		s := &client.VertexStatus{ID: "sha256:00", Vertex: run, Total: 100, Current: i, Timestamp: begin.Add(time.Duration(i) * 20 * time.Millisecond)}
		if i == 99 {
			s.Completed = &end
		}
		if err := r.Take(&client.SolveStatus{Statuses: []*client.VertexStatus{s}}); err != nil {
			t.Fatal(err)
		}
	}
	var seen []int64
	for _, e := range *got {
		seen = append(seen, e.Progress.Current)
	}
	if diff := cmp.Diff([]int64{0, 25, 50, 75, 99}, seen); diff != "" {
		t.Error(diff)
	}
}

func TestFailure(t *testing.T) {
	t.Parallel()
	inVertex := func(err error) error { return errdefs.WrapVertex(err, run) }
	exit := inVertex(fmt.Errorf("process %q did not complete successfully: %w", "/bin/sh -c hunter2", &gateway.ExitError{ExitCode: 7, Err: errors.New("exit code: 7")}))
	step := buildapi.Failure{Step: 5, Steps: 5, Name: "RUN make ***", Line: 9, Tail: []string{"one", "two"}}
	for name, c := range map[string]struct {
		err     error
		reason  buildapi.Reason
		step    bool
		code    int
		message string
	}{
		"a command": {exit, buildapi.FailedStep, true, 7, "line 9 of the Dockerfile: RUN make ***: exit code 7"},
		"a file that is not there": {
			inVertex(errors.New(`failed to compute cache key: failed to calculate checksum of ref abc::def: "/none": not found`)),
			buildapi.FailedStep, true, 0,
			`line 9 of the Dockerfile: there is no "/none" in the build context`,
		},
		"a file":          {inVertex(errors.New(`"/none": not found`)), buildapi.FailedStep, true, 0, `line 9 of the Dockerfile: "/none": not found`},
		"a full disk":     {inVertex(errors.New("write x: no space left on device")), buildapi.FailedDisk, true, 0, "--build-disk-mb"},
		"much output":     {inVertex(fmt.Errorf("process: %w", ErrOutput)), buildapi.FailedOutput, true, 0, "MB of output"},
		"a cancel":        {inVertex(context.Canceled), buildapi.FailedCanceled, true, 0, "canceled"},
		"no Dockerfile":   {errors.New("failed to read dockerfile: open Dockerfile: no such file or directory"), buildapi.FailedDockerfile, false, 0, "failed to read dockerfile"},
		"a mistake in it": {errors.New("dockerfile parse error on line 3: unknown instruction: FLY"), buildapi.FailedDockerfile, false, 0, "FLY"},
		"a base":          {errors.New("failed to solve: x: failed to resolve source metadata for docker.io/x: hunter2"), buildapi.FailedBase, false, 0, "docker.io/x: ***"},
		"ours":            {errors.New("the moon is full"), buildapi.FailedInternal, false, 0, "the builder failed: the moon is full"},
	} {
		r, _ := recorder("hunter2")
		r.Place(run, 9)
		for _, s := range []*client.SolveStatus{started("[5/5] RUN make hunter2"), wrote(2, "one\ntwo")} {
			if err := r.Take(s); err != nil {
				t.Fatal(err)
			}
		}
		want := buildapi.Failure{}
		if c.step {
			want = step
		}
		want.Reason, want.Code = c.reason, c.code
		got := *r.Failure(c.err)
		if !strings.Contains(got.Message, c.message) || strings.Contains(got.Message, "hunter2") {
			t.Errorf("%s: the message is %q, want %q", name, got.Message, c.message)
		}
		got.Message = ""
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestTailIsShort(t *testing.T) {
	t.Parallel()
	r, _ := recorder()
	if err := r.Take(started("[1/1] RUN x")); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if err := r.Take(wrote(1, fmt.Sprintln(i))); err != nil {
			t.Fatal(err)
		}
	}
	tail := r.Failure(errdefs.WrapVertex(errors.New("x"), run)).Tail
	if len(tail) != buildapi.TailMax || tail[len(tail)-1] != "99" {
		t.Errorf("got %q", tail)
	}
}

// TestTaken: a step that wants a port of the builder's own hears of that.
func TestTaken(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"Error: listen EADDRINUSE: address already in use :::8080":   true,
		"OSError: [Errno 98] Address already in use: 127.0.0.1:8079": true,
		"listen tcp :3000: bind: address already in use":             false,
		"listening on 8080": false,
		"listen tcp 127.0.0.1:18080: bind: address already in use": false,
	} {
		if got := taken([]string{"one", line}) != ""; got != want {
			t.Errorf("%q: %v", line, got)
		}
	}
}

// TestBase: an image that was put is a step of the log, and one that cannot be pulled has the
// number of its step.
func TestBase(t *testing.T) {
	t.Parallel()
	r, got := recorder("hunter2")
	r.Base("doze/slim", "one", 3, 1, true)
	r.Base("registry.test/hunter2", "two", 2, 7, false)
	if len(*got) != 1 {
		t.Fatalf("%+v", *got)
	}
	e := (*got)[0]
	if e.Step != 1 || e.Steps != 3 || e.Stage != "one" || e.Name != "FROM doze/slim" || e.Line != 1 || e.State != buildapi.StateStarted {
		t.Errorf("%+v", e)
	}
	err := errdefs.WithSource(errors.New("failed to resolve source metadata for registry.test/x"), &errdefs.Source{
		Ranges: []*pb.Range{{Start: &pb.Position{Line: 7}}},
	})
	f := r.Failure(err)
	if f.Reason != buildapi.FailedBase || f.Step != 1 || f.Steps != 2 || f.Stage != "two" || f.Name != "FROM registry.test/***" || f.Line != 7 {
		t.Errorf("%+v", f)
	}
}

// moment is some time after the begin of a test.
func moment(after time.Duration) *time.Time {
	at := begin.Add(after)
	return &at
}

// states returns what was emitted of steps: "1 FROM x: done", and "1 FROM x: 5/10 unpacked".
func states(events []buildapi.Event) (all []string) {
	for _, e := range events {
		what := e.State
		if e.Progress != nil {
			what = fmt.Sprintf("%d/%d %s", e.Progress.Current, e.Progress.Total, e.Text)
		}
		all = append(all, fmt.Sprintf("%d %s: %s", e.Step, e.Name, what))
	}
	return all
}

// The vertices of the tests of bases, in the order in which BuildKit runs them.
var (
	putVertex  = digest.FromString("put")
	fromVertex = digest.FromString("from")
)

// vertex is one with inputs. It runs from one moment to another; a negative one is none.
func vertexAt(d digest.Digest, name string, from, to time.Duration, inputs ...digest.Digest) *client.Vertex {
	v := &client.Vertex{Digest: d, Name: name, Inputs: inputs}
	if from >= 0 {
		v.Started = moment(from)
	}
	if to >= 0 {
		v.Completed = moment(to)
	}
	return v
}

// TestUnpacking: an image that was put is not there before its layers are unpacked. BuildKit
// ends its vertex before the first layer, and after each.
func TestUnpacking(t *testing.T) {
	t.Parallel()
	const name = "[context doze/slim::linux/amd64] OCI load from client"
	layer := digest.FromString("layer")
	read := int64(0)
	r, got := recorder()
	r.Unpacks(func(d digest.Digest) (int64, int64) {
		if d != layer {
			return 0, 0
		}
		return read, 10
	})
	take := func(s *client.SolveStatus) {
		t.Helper()
		if err := r.Take(s); err != nil {
			t.Fatal(err)
		}
	}
	extract := func(done *time.Time) *client.VertexStatus {
		return &client.VertexStatus{ID: "extracting " + layer.String(), Vertex: putVertex, Started: moment(2), Completed: done, Timestamp: begin}
	}
	r.Base("doze/slim:latest", "", 2, 1, true)
	take(&client.SolveStatus{Vertexes: []*client.Vertex{vertexAt(run, "[1/1] RUN x", -1, -1, putVertex), vertexAt(putVertex, name, -1, -1)}})
	take(&client.SolveStatus{Vertexes: []*client.Vertex{vertexAt(putVertex, name, 0, 1)}})
	take(&client.SolveStatus{Vertexes: []*client.Vertex{vertexAt(putVertex, name, 2, -1)}, Statuses: []*client.VertexStatus{extract(nil)}})
	r.Tick(end)
	read = 5
	r.Tick(end)
	r.Tick(end) // nothing is new
	take(&client.SolveStatus{Vertexes: []*client.Vertex{vertexAt(putVertex, name, 2, 3)}, Statuses: []*client.VertexStatus{extract(moment(3))}})
	r.Tick(end)
	take(&client.SolveStatus{Vertexes: []*client.Vertex{vertexAt(run, "[1/1] RUN x", 4, -1, putVertex)}})
	take(&client.SolveStatus{Vertexes: []*client.Vertex{vertexAt(run, "[1/1] RUN x", 4, 5, putVertex)}})
	r.Finish(true)
	want := []string{
		"1 FROM doze/slim:latest: started", "1 FROM doze/slim:latest: 5/10 unpacked", "1 FROM doze/slim:latest: 10/10 unpacked",
		"1 FROM doze/slim:latest: done", "1 RUN x: started", "1 RUN x: done",
	}
	if diff := cmp.Diff(want, states(*got)); diff != "" {
		t.Error(diff)
	}
}

// TestBases: what an image is at its end depends on what was done for it.
func TestBases(t *testing.T) {
	t.Parallel()
	const name = "[context doze/slim] OCI load from client"
	steps := func(from, to time.Duration) []*client.Vertex {
		return []*client.Vertex{vertexAt(run, "[2/2] RUN x", from, to, putVertex, fromVertex)}
	}
	extracting := &client.VertexStatus{ID: "extracting sha256:00", Vertex: putVertex, Started: moment(2), Timestamp: begin}
	for title, c := range map[string]struct {
		put     bool
		take    []*client.SolveStatus
		success bool
		want    []string
	}{
		"unpacked before": {true, []*client.SolveStatus{
			{Vertexes: []*client.Vertex{vertexAt(putVertex, name, 0, 1)}}, {Vertexes: steps(2, -1)}, {Vertexes: steps(2, 3)},
		}, true, []string{"1 FROM doze/slim: started", "1 FROM doze/slim: cached", "2 RUN x: started", "2 RUN x: done"}},
		"no step": {true, []*client.SolveStatus{{Vertexes: []*client.Vertex{vertexAt(putVertex, name, 0, 1)}}}, true, []string{
			"1 FROM doze/slim: started", "1 FROM doze/slim: cached",
		}},
		"canceled in the middle": {true, []*client.SolveStatus{
			{Vertexes: []*client.Vertex{vertexAt(putVertex, name, 0, 1)}}, {Statuses: []*client.VertexStatus{extracting}},
		}, false, []string{"1 FROM doze/slim: started", "1 FROM doze/slim: canceled"}},
		"pulled": {false, []*client.SolveStatus{
			{Vertexes: []*client.Vertex{vertexAt(fromVertex, "[1/2] FROM x", 0, 1)}},
			{Statuses: []*client.VertexStatus{
				{ID: "sha256:00", Vertex: fromVertex, Current: 1, Total: 5, Timestamp: *moment(time.Second)},
				{ID: "sha256:01", Vertex: fromVertex, Current: 2, Total: 20, Timestamp: *moment(2 * time.Second)},
			}},
			{Vertexes: []*client.Vertex{vertexAt(fromVertex, "[1/2] FROM x", 2, 3)}},
			{Vertexes: steps(4, -1)},
			{Vertexes: steps(4, 5)},
		}, true, []string{"1 FROM x: started", "1 FROM x: 1/5 pulled", "1 FROM x: 3/25 pulled", "1 FROM x: done", "2 RUN x: started", "2 RUN x: done"}},
		"to copy from": {false, []*client.SolveStatus{
			{Vertexes: []*client.Vertex{vertexAt(putVertex, name, 0, 1)}},
			{Statuses: []*client.VertexStatus{extracting}},
			{Vertexes: steps(2, -1)},
			{Vertexes: steps(2, 3)},
		}, true, []string{"0 unpack the image doze/slim: started", "0 unpack the image doze/slim: done", "2 RUN x: started", "2 RUN x: done"}},
	} {
		r, got := recorder()
		if c.put {
			r.Base("doze/slim", "", 2, 1, true)
		}
		if c.put || title == "to copy from" {
			r.vertexOf(digest.FromString("more"), "[1/2] FROM y") // the steps have their numbers
		}
		for _, s := range c.take {
			if err := r.Take(s); err != nil {
				t.Fatal(err)
			}
		}
		r.Finish(c.success)
		if diff := cmp.Diff(c.want, states(*got)); diff != "" {
			t.Errorf("%s: %s", title, diff)
		}
	}
}

// TestNotRun: BuildKit calls a step cached as soon as one that needs it begins, even if that
// one fails before it runs.
func TestNotRun(t *testing.T) {
	t.Parallel()
	first, second := digest.FromString("first"), digest.FromString("second")
	implied := func(d digest.Digest, name string, inputs ...digest.Digest) *client.Vertex {
		v := vertexAt(d, name, 7, 7, inputs...)
		v.Cached = true
		return v
	}
	failed := vertexAt(run, "[3/3] COPY none /", 7, 8, second)
	failed.Error = "not found"
	cached := vertexAt(run, "[3/3] COPY none /", 7, 8, second)
	cached.Cached = true
	both := []*client.Vertex{implied(first, "[1/3] RUN a"), implied(second, "[2/3] RUN b", first)}
	begun := vertexAt(run, "[3/3] COPY none /", 7, -1, second)
	stopped := vertexAt(run, "[3/3] COPY none /", 7, 8, second)
	stopped.Error = "process did not complete successfully: context canceled"
	says := vertexAt(run, "[3/3] COPY none /", 7, 8, second)
	says.Error = `process "/bin/sh -c echo context canceled; exit 1" did not complete successfully: exit code: 1`
	for title, c := range map[string]struct {
		take [][]*client.Vertex
		want []string
	}{
		"at once": {[][]*client.Vertex{append(slices.Clone(both), failed)}, []string{
			"3 COPY none /: started", "1 RUN a: canceled", "2 RUN b: canceled", "3 COPY none /: failed",
		}},
		"in two parts": {[][]*client.Vertex{append(slices.Clone(both), begun), {failed}}, []string{
			"3 COPY none /: started", "3 COPY none /: failed", "1 RUN a: canceled", "2 RUN b: canceled",
		}},
		"really cached": {[][]*client.Vertex{append(slices.Clone(both), cached)}, []string{
			"1 RUN a: cached", "2 RUN b: cached", "3 COPY none /: cached",
		}},
		"by its own words":       {[][]*client.Vertex{{begun}, {says}}, []string{"3 COPY none /: started", "3 COPY none /: failed"}},
		"beside one that failed": {[][]*client.Vertex{{begun}, {stopped}}, []string{"3 COPY none /: started", "3 COPY none /: canceled"}},
	} {
		r, got := recorder()
		for _, all := range c.take {
			if err := r.Take(&client.SolveStatus{Vertexes: all}); err != nil {
				t.Fatal(err)
			}
		}
		r.Finish(false)
		if diff := cmp.Diff(c.want, states(*got)); diff != "" {
			t.Errorf("%s: %s", title, diff)
		}
	}
}

// TestFailureIsBounded: lines without an end make no failure longer than its bound, and the last
// line stays.
func TestFailureIsBounded(t *testing.T) {
	t.Parallel()
	r, _ := recorder()
	if err := r.Take(started("[1/1] RUN x")); err != nil {
		t.Fatal(err)
	}
	for i := range 2 * buildapi.TailMax {
		text := fmt.Sprintf("%d %s", i, strings.Repeat("x", 1<<16))
		if i < 2*buildapi.TailMax-1 {
			text += "\n" // the last one has no end
		}
		if err := r.Take(wrote(1, text)); err != nil {
			t.Fatal(err)
		}
	}
	f := r.Failure(errdefs.WrapVertex(errors.New(strings.Repeat("why ", 1<<20)), run))
	n := len(f.Message)
	for _, line := range f.Tail {
		n += len(line)
	}
	if n > buildapi.FailureMax || len(f.Tail) < 2 || !strings.HasPrefix(f.Tail[len(f.Tail)-1], "39 x") {
		t.Errorf("%d bytes, %d lines", n, len(f.Tail))
	}
}

// TestAbsent: of a file that is to be copied and is not there, the message says where it is
// missed.
func TestAbsent(t *testing.T) {
	t.Parallel()
	const text = `failed to compute cache key: failed to calculate checksum of ref abc::def: "/none": not found`
	const left = `failed to compute cache key: failed to calculate checksum of ref abc::def: "/a/left": not found`
	ignored := func(path string) string {
		if path == "a/left" {
			return ".dockerignore"
		}
		return ""
	}
	for want, f := range map[string]*buildapi.Failure{
		`there is no "/none" in the build context`:                                     {Name: "COPY none /", Message: text},
		`"/a/left" is not in the build context: a line of .dockerignore leaves it out`: {Name: "COPY a/left /", Message: left},
		`there is no "/none" in what --from names`:                                     {Name: "COPY --from=a none /", Message: text},
		`there is no "/a/left" in what --from names`:                                   {Name: "COPY --from=a a/left /", Message: left},
		"another error": {Name: "COPY none /", Message: "another error"},
	} {
		if got := absent(f, ignored); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestWarn: a warning is told once, and its secrets are not.
func TestWarn(t *testing.T) {
	t.Parallel()
	var told []string
	r := New(func(e buildapi.Event) { told = append(told, e.Text) }, []string{"hush"})
	r.Warn("one hush")
	r.Warn("one hush")
	r.Warn("two")
	if len(told) != 2 || strings.Contains(told[0], "hush") || told[1] != "warning: two" {
		t.Errorf("%q", told)
	}
}
