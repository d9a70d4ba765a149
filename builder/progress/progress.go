// Package progress turns what BuildKit tells of a build into the events of the protocol, and
// its errors into failures.
package progress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/dozehq/doze/internal/buildapi"
	"github.com/moby/buildkit/client"
	gateway "github.com/moby/buildkit/frontend/gateway/pb"
	"github.com/moby/buildkit/solver/errdefs"
	"github.com/opencontainers/go-digest"
)

const (
	// progressEvery is the pause between two events about the progress of one thing.
	progressEvery = 500 * time.Millisecond
	// maskMin is the least length of a secret that is hidden in output, in bytes: a shorter
	// one occurs everywhere.
	maskMin = 4
	// masked stands for a secret.
	masked = "***"
	// lineBuffer holds a line with a secret at its end, so that no part of one is left when the
	// line is cut.
	lineBuffer = buildapi.LineMax + buildapi.ArgBytesMax
	// warningsMax bounds the warnings about a Dockerfile.
	warningsMax = 50
)

// ErrOutput is why a build was ended that wrote too much.
var ErrOutput = fmt.Errorf("the build wrote more than %d MB of output, or more than %d lines; redirect what nobody reads to a file or to /dev/null",
	buildapi.OutputMax>>20, buildapi.LinesMax)

// A Recorder is of one build. Its methods may be called at the same time.
type Recorder struct {
	emit func(buildapi.Event)
	mask *strings.Replacer

	mu       sync.Mutex
	vertices map[digest.Digest]*vertex // guarded by mu
	stages   map[string]*stage         // guarded by mu; by name
	lines    map[digest.Digest]int     // guarded by mu; where the Dockerfile has a vertex
	loud     digest.Digest             // guarded by mu; whose output was too much
	bytes    int                       // guarded by mu; of output
	count    int                       // guarded by mu; of its lines
	warnings map[string]bool           // guarded by mu
	ignored  func(string) string       // guarded by mu; see Ignored
	bases    map[int]buildapi.Event    // guarded by mu; by the line of the Dockerfile
	open     []*base                   // guarded by mu; that have begun and not ended
	held     []digest.Digest           // guarded by mu; vertices that have ended, and nobody knows how
	last     map[string]time.Time      // guarded by mu; of events about progress
	unpacked Unpacked                  // guarded by mu; nil if nobody counts
}

// vertex is a step, or what BuildKit does besides.
type vertex struct {
	name, stage string
	step, steps int
	hidden      bool
	started     time.Time
	state       string
	inputs      []digest.Digest
	context     string         // of an image that was put here: its name, as contextName writes it
	completed   *client.Vertex // its end, while what it means is not known
	failed      bool
	cached      bool               // BuildKit says so
	implied     bool               // see implied
	pulls       map[string]amount  // by what BuildKit pulls
	layers      map[string]*amount // that are unpacked, by digest
	told        int64              // bytes of these in the last event
	partial     [3]partial         // by the number of the stream
	tail        []string
}

// stage is what is known of the numbers in a stage. BuildKit counts FROM, but gives it no
// number if the image was put here. Then the first number is that of the second instruction.
type stage struct {
	highest, total int
	from           bool // FROM has a number
}

// partial is a line that has not ended.
type partial struct {
	text     []byte
	returned bool // a carriage return came last: what follows overwrites the line
}

// New returns a recorder that calls emit for each event, one at a time. No event has one of
// the secrets.
func New(emit func(buildapi.Event), secrets []string) *Recorder {
	var pairs []string
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) }) // the longest match counts
	for _, s := range secrets {
		// A line of output has at most a line of it.
		for line := range strings.Lines(s) {
			if line = strings.TrimRight(line, "\r\n"); len(line) >= maskMin {
				pairs = append(pairs, line, masked)
			}
		}
	}
	return &Recorder{
		emit: emit, mask: strings.NewReplacer(pairs...), vertices: map[digest.Digest]*vertex{}, stages: map[string]*stage{}, lines: map[digest.Digest]int{},
		warnings: map[string]bool{}, bases: map[int]buildapi.Event{}, last: map[string]time.Time{},
	}
}

// Place tells in which line of the Dockerfile a vertex is.
func (r *Recorder) Place(d digest.Digest, line int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines[d] = line
}

// Base tells of a FROM that is the first step of a stage. BuildKit gives it no number if the
// image was put here. It unpacks such an image before the first step that needs its files.
func (r *Recorder) Base(image, stage string, steps, line int, put bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := buildapi.Event{
		At: time.Now().UTC(), Step: 1, Steps: steps, Stage: stage, Name: r.mask.Replace("FROM " + image), Line: line, Vertex: fmt.Sprintf("from-%d", line),
	}
	r.bases[line] = e
	if put {
		r.openBase(&base{event: e, context: ContextName(image)})
	}
}

// Ignored gives the recorder a function that tells which file, such as .dockerignore, leaves a
// path out of the build context. It returns nothing for other paths.
func (r *Recorder) Ignored(by func(path string) string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ignored = by
}

// Take emits what is new. It returns ErrOutput if the build wrote too much.
func (r *Recorder) Take(s *client.SolveStatus) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range s.Vertexes {
		v := r.vertexOf(c.Digest, c.Name)
		v.failed, v.cached, v.implied = v.failed || c.Error != "", v.cached || c.Cached, v.implied || implied(c)
		if len(c.Inputs) > 0 {
			v.inputs = c.Inputs
		}
	}
	for _, v := range s.Vertexes {
		r.begin(v)
	}
	for _, l := range s.Logs {
		if err := r.output(l); err != nil {
			return err
		}
	}
	for _, st := range s.Statuses {
		r.progress(st)
	}
	for _, v := range s.Vertexes {
		r.end(v)
	}
	r.settle()
	for _, w := range s.Warnings {
		r.warning(w)
	}
	return nil
}

// numbered is the name of a vertex that is an instruction: "[stage 2/5] RUN make".
var numbered = regexp.MustCompile(`^\[(?:(\S+(?: \S+)*) )? *(\d+)/(\d+)\] (?s)(.*)$`)

// inner begins the names of vertices that are no instruction. Contexts are images of the
// platform: the platform tells itself that it loads them, by the names that users write.
var inner = regexp.MustCompile(`^\[(internal|auth|context .*)\]`)

// putName is the name of the vertex that reads and unpacks an image that was put here.
var putName = regexp.MustCompile(`^\[context (\S+?)(?:::\S+)?\] OCI load from client$`)

// parse reads the name of a vertex.
func parse(name string) *vertex {
	v := &vertex{name: name, hidden: inner.MatchString(name)}
	if m := numbered.FindStringSubmatch(name); m != nil {
		v.stage, v.name = m[1], m[4]
		v.step, _ = strconv.Atoi(m[2])
		v.steps, _ = strconv.Atoi(m[3])
	}
	if m := putName.FindStringSubmatch(name); m != nil {
		v.context = ContextName(m[1])
	}
	return v
}

// vertexOf returns a vertex that may be new. Callers hold mu.
func (r *Recorder) vertexOf(d digest.Digest, name string) *vertex {
	v, ok := r.vertices[d]
	if !ok {
		v = parse(r.mask.Replace(name))
		r.vertices[d] = v
		r.number(v)
	}
	return v
}

// number takes note of the number of a step. Callers hold mu.
func (r *Recorder) number(v *vertex) {
	if v.step == 0 {
		return
	}
	s, ok := r.stages[v.stage]
	if !ok {
		s = &stage{}
		r.stages[v.stage] = s
	}
	s.highest, s.total = max(s.highest, v.step), max(s.total, v.steps)
	s.from = s.from || strings.HasPrefix(v.name, "FROM ")
}

// stepOf returns the number of a step in its stage. Callers hold mu.
func (r *Recorder) stepOf(v *vertex) int {
	if s := r.stages[v.stage]; s != nil && v.step > 0 && !s.from && s.highest < s.total {
		return v.step + 1
	}
	return v.step
}

// event returns one about a vertex. Callers hold mu.
func (r *Recorder) event(d digest.Digest, v *vertex, at time.Time) buildapi.Event {
	return buildapi.Event{
		At: at.UTC(), Vertex: d.Encoded()[:min(12, len(d.Encoded()))], Step: r.stepOf(v), Steps: v.steps, Stage: v.stage, Name: v.name, Line: r.lines[d],
	}
}

// begin emits that a vertex has started. Callers hold mu.
func (r *Recorder) begin(c *client.Vertex) {
	v := r.vertexOf(c.Digest, c.Name)
	if c.Started == nil || v.state != "" {
		return
	}
	v.started, v.state = *c.Started, buildapi.StateStarted
	if c.Cached { // it has ended already
		return
	}
	if c.Error == "" {
		r.closeBases(v.inputs, *c.Started)
	}
	if v.hidden {
		return
	}
	e := r.event(c.Digest, v, *c.Started)
	if v.isBase() {
		r.openBase(&base{event: e, vertex: c.Digest})
		return
	}
	e.State = v.state
	r.emit(e)
}

// isBase reports whether a vertex is an image that BuildKit pulls.
func (v *vertex) isBase() bool { return v.step > 0 && strings.HasPrefix(v.name, "FROM ") }

// end emits that a vertex has ended. BuildKit starts some of them again, to compute what they
// are in the cache: then the first end counts, unless it fails. Callers hold mu.
func (r *Recorder) end(c *client.Vertex) {
	if c.Completed == nil {
		return
	}
	v := r.vertexOf(c.Digest, c.Name)
	for stream := range v.partial {
		r.flush(c.Digest, v, stream, *c.Completed)
	}
	state := r.stateOf(c)
	if implied(c) && v.state == buildapi.StateStarted {
		var known bool
		if state, known = r.meaning(c); !known {
			v.completed = c
			r.held = append(r.held, c.Digest)
			return
		}
	}
	r.finish(c, state)
}

// stateOf returns what the end of a vertex is. Of the steps that end because another one has
// failed, BuildKit says that they were canceled. Callers hold mu.
func (r *Recorder) stateOf(c *client.Vertex) string {
	switch {
	case canceled(c.Error) && c.Digest != r.loud:
		return buildapi.StateCanceled
	case c.Error != "":
		return buildapi.StateFailed
	case c.Cached:
		return buildapi.StateCached
	}
	return buildapi.StateDone
}

// canceled reports whether the error of a vertex is the end of its build. The command of a step
// is a part of the text.
func canceled(text string) bool {
	if _, cause, ran := strings.Cut(text, "did not complete successfully: "); ran {
		text = cause
	}
	return strings.Contains(text, context.Canceled.Error())
}

// finish emits the end of a vertex. Callers hold mu.
func (r *Recorder) finish(c *client.Vertex, state string) {
	v := r.vertexOf(c.Digest, c.Name)
	bad := state == buildapi.StateFailed || state == buildapi.StateCanceled
	if v.state == state || v.state != buildapi.StateStarted && v.state != "" && !bad {
		return
	}
	if !bad {
		r.closeBases(v.inputs, *c.Completed)
	}
	if v.hidden && state != buildapi.StateFailed {
		v.state = state
		return
	}
	if v.isBase() && state == buildapi.StateDone { // its layers may come later
		return
	}
	v.state = state
	r.open = slices.DeleteFunc(r.open, func(b *base) bool { return b.vertex == c.Digest })
	e := r.event(c.Digest, v, *c.Completed)
	e.State = state
	if !v.started.IsZero() {
		e.Took = max(c.Completed.Sub(v.started), 0)
	}
	r.emit(e)
}

// implied reports whether BuildKit calls a step cached only because a step that needs it has
// begun. It does so, too, if that one fails before it runs, as a COPY of a missing file.
func implied(c *client.Vertex) bool {
	return c.Cached && c.Started != nil && c.Completed != nil && c.Started.Equal(*c.Completed)
}

// meaning returns what became of a step that is cached by implication, if that is known: the
// step that needs it has ended. Callers hold mu.
func (r *Recorder) meaning(c *client.Vertex) (state string, known bool) {
	cause := r.causeOf(c.Digest, *c.Started)
	switch {
	case cause == nil || cause.cached || cause.state == buildapi.StateDone:
		return buildapi.StateCached, true
	case cause.failed:
		return buildapi.StateCanceled, true
	}
	return "", false
}

// causeOf returns the vertex that began at a moment and, perhaps by others, needs another one.
// Callers hold mu.
func (r *Recorder) causeOf(d digest.Digest, at time.Time) *vertex {
	for other, v := range r.vertices {
		switch {
		case other == d || !slices.Contains(v.inputs, d) || !v.started.Equal(at):
		case v.implied:
			return r.causeOf(other, at) // a build has no circles
		default:
			return v
		}
	}
	return nil
}

// settle emits what became of the steps that are cached by implication, as far as that is
// known. Callers hold mu.
func (r *Recorder) settle() {
	r.held = slices.DeleteFunc(r.held, func(d digest.Digest) bool {
		state, known := r.meaning(r.vertices[d].completed)
		if known {
			r.resolve(d, state)
		}
		return known
	})
}

// resolve ends a step that was held. Callers hold mu.
func (r *Recorder) resolve(d digest.Digest, state string) {
	v := r.vertices[d]
	c := v.completed
	v.completed = nil
	r.finish(c, state)
}

// output splits output into lines. Callers hold mu.
func (r *Recorder) output(l *client.VertexLog) error {
	if r.bytes += len(l.Data); r.bytes > buildapi.OutputMax {
		r.loud = l.Vertex
		return ErrOutput
	}
	v := r.vertexOf(l.Vertex, "")
	stream := min(max(l.Stream, 0), len(v.partial)-1)
	p := &v.partial[stream]
	for data := l.Data; len(data) > 0; {
		at := bytes.IndexAny(data, "\r\n")
		part := data
		if at >= 0 {
			part = data[:at]
		}
		if len(part) > 0 {
			if p.returned {
				p.text, p.returned = p.text[:0], false
			}
			p.text = append(p.text, part[:min(len(part), lineBuffer-len(p.text))]...)
		}
		if at < 0 {
			break
		}
		if data[at] == '\r' {
			p.returned = true
		} else {
			if r.count++; r.count > buildapi.LinesMax {
				r.loud = l.Vertex
				return ErrOutput
			}
			r.line(l.Vertex, v, stream, l.Timestamp)
		}
		data = data[at+1:]
	}
	return nil
}

// flush emits a line that has no end. Callers hold mu.
func (r *Recorder) flush(d digest.Digest, v *vertex, stream int, at time.Time) {
	if len(v.partial[stream].text) > 0 {
		r.line(d, v, stream, at)
	}
}

// line emits a line. Callers hold mu.
func (r *Recorder) line(d digest.Digest, v *vertex, stream int, at time.Time) {
	p := &v.partial[stream]
	text := buildapi.Clean(r.mask.Replace(string(p.text)), buildapi.LineMax)
	p.text, p.returned = p.text[:0], false
	v.tail = append(v.tail, text)
	if len(v.tail) > buildapi.TailMax {
		v.tail = v.tail[1:]
	}
	e := r.event(d, v, at)
	e.Stream, e.Text = buildapi.Stdout, text
	if stream == stderr {
		e.Stream = buildapi.Stderr
	}
	r.emit(e)
}

// stderr is the number of that stream.
const stderr = 2

// progress takes note of how much of something is done, and emits it. Callers hold mu.
func (r *Recorder) progress(s *client.VertexStatus) {
	v := r.vertexOf(s.Vertex, "")
	if layer, ok := strings.CutPrefix(s.ID, extracting); ok {
		r.unpacking(s, v, layer)
		return
	}
	if v.hidden || s.Total <= 0 {
		return
	}
	r.work(s.Vertex, v)
	if v.pulls == nil {
		v.pulls = map[string]amount{}
	}
	v.pulls[s.ID] = amount{s.Current, s.Total}
	var sum amount
	for _, a := range v.pulls {
		sum.current, sum.total = sum.current+a.current, sum.total+a.total
	}
	key := s.Vertex.String()
	if s.Completed == nil && s.Timestamp.Sub(r.last[key]) < progressEvery {
		return
	}
	r.last[key] = s.Timestamp
	e := r.event(s.Vertex, v, s.Timestamp)
	e.Text, e.Progress = pulled, &buildapi.Progress{Current: sum.current, Total: sum.total}
	r.emit(e)
}

// Warn emits a mistake that does not end the build, once.
func (r *Recorder) Warn(text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.warn(text, 0)
}

// warning emits a mistake in the Dockerfile that BuildKit forgives. Callers hold mu.
func (r *Recorder) warning(w *client.VertexWarning) {
	line := 0
	if len(w.Range) > 0 && w.Range[0].Start != nil {
		line = int(w.Range[0].Start.Line)
	}
	r.warn(string(w.Short), line)
}

// warn emits a warning that is new. Callers hold mu.
func (r *Recorder) warn(text string, line int) {
	text = "warning: " + r.mask.Replace(text)
	if r.warnings[text] || len(r.warnings) >= warningsMax {
		return
	}
	r.warnings[text] = true
	r.emit(buildapi.Event{At: time.Now().UTC(), Text: buildapi.Clean(text, buildapi.LineMax), Line: line})
}

// mistakes are texts by which errors of BuildKit and of kernels are known.
var mistakes = []struct {
	text   string
	reason buildapi.Reason
}{
	{ErrOutput.Error(), buildapi.FailedOutput},
	{"no space left on device", buildapi.FailedDisk},
	{"the Dockerfile ", buildapi.FailedDockerfile}, // of package recipe
	{"failed to read dockerfile", buildapi.FailedDockerfile},
	{"dockerfile parse error", buildapi.FailedDockerfile},
	{"failed to parse", buildapi.FailedDockerfile},
	{"target stage", buildapi.FailedDockerfile},
	{"base name", buildapi.FailedDockerfile},
	{"is not allowed", buildapi.FailedDockerfile}, // of what only an operator may allow
	{"failed to resolve source metadata", buildapi.FailedBase},
	{"pull access denied", buildapi.FailedBase},
	{"failed to authorize", buildapi.FailedBase},
	{"failed to do request", buildapi.FailedBase},
	{"failed to copy: ", buildapi.FailedBase},
}

// Failure says why a build failed.
func (r *Recorder) Failure(err error) *buildapi.Failure {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := r.mask.Replace(strings.TrimPrefix(err.Error(), "failed to solve: "))
	f := &buildapi.Failure{Reason: buildapi.FailedInternal, Message: text}
	for _, s := range errdefs.Sources(err) {
		if len(s.Ranges) > 0 && s.Ranges[0].Start != nil && f.Line == 0 {
			f.Line = int(s.Ranges[0].Start.Line)
			f.Reason = buildapi.FailedDockerfile
		}
	}
	var broken *errdefs.VertexError
	switch {
	case errors.As(err, &broken):
		f.Reason = buildapi.FailedStep
		r.describe(f, digest.Digest(broken.Digest))
	case errors.Is(err, ErrOutput):
		r.describe(f, r.loud)
	}
	if e, ok := r.bases[f.Line]; ok && f.Step == 0 {
		f.Step, f.Steps, f.Stage, f.Name = e.Step, e.Steps, e.Stage, e.Name
	}
	var exit *gateway.ExitError
	if errors.As(err, &exit) && exit.ExitCode != gateway.UnknownExitStatus {
		f.Code = int(exit.ExitCode)
	}
	for _, m := range mistakes {
		if strings.Contains(text, m.text) {
			f.Reason = m.reason
			break
		}
	}
	if errors.Is(err, context.Canceled) && f.Reason != buildapi.FailedOutput {
		f.Reason = buildapi.FailedCanceled
	}
	f.Message = buildapi.CleanText(r.message(f), maxMessage)
	f.Shorten()
	return f
}

// describe says which step has failed, and with which last words. Callers hold mu.
func (r *Recorder) describe(f *buildapi.Failure, d digest.Digest) {
	if v, ok := r.vertices[d]; ok {
		f.Step, f.Steps, f.Stage, f.Name = r.stepOf(v), v.steps, v.stage, v.name
		for stream := range v.partial {
			r.flush(d, v, stream, time.Now())
		}
		f.Tail = slices.Clone(v.tail)
	}
	if f.Line == 0 {
		f.Line = r.lines[d]
	}
}

// notFound is BuildKit's error for a COPY or ADD of a file that is not there.
var notFound = regexp.MustCompile(`failed to calculate checksum of ref \S+: ("[^"]*"): not found`)

// absent returns the message of a step that failed. If a file to be copied is not there, it
// says in which place. Ignored may be nil: see [Recorder.Ignored].
func absent(f *buildapi.Failure, ignored func(string) string) string {
	m := notFound.FindStringSubmatch(f.Message)
	switch {
	case m == nil:
		return f.Message
	case strings.Contains(f.Name, "--from="):
		return "there is no " + m[1] + " in what --from names"
	case ignored != nil:
		if file := ignored(strings.Trim(m[1], `"/`)); file != "" {
			return m[1] + " is not in the build context: a line of " + file + " leaves it out"
		}
	}
	return "there is no " + m[1] + " in the build context"
}

// inUse is what servers say of a port that another program has. BuiltIn finds ports of ours.
var (
	inUse   = regexp.MustCompile(`(?i)address (is )?(already )?in use|EADDRINUSE`)
	builtIn = regexp.MustCompile(`\b80(79|80)\b`) // [buildapi.Port], and that of the agent
)

// taken says what to do if a step wanted a port of the builder's own.
func taken(tail []string) string {
	if text := strings.Join(tail, "\n"); !inUse.MatchString(text) || !builtIn.MatchString(text) {
		return ""
	}
	return "; the builder has ports 8079 and 8080: use another one"
}

// maxMessage bounds the text of a failure, in bytes.
const maxMessage = 4 << 10

// message says what failed in the words of the user. Callers hold mu.
func (r *Recorder) message(f *buildapi.Failure) string {
	where := ""
	if f.Line > 0 {
		where = fmt.Sprintf("line %d of the Dockerfile: ", f.Line)
	}
	switch f.Reason {
	case buildapi.FailedStep:
		if f.Code != 0 && f.Name != "" {
			return fmt.Sprintf("%s%s: exit code %d%s", where, f.Name, f.Code, taken(f.Tail))
		}
		return where + absent(f, r.ignored)
	case buildapi.FailedOutput:
		return where + ErrOutput.Error()
	case buildapi.FailedDisk:
		const full = "the disk of the builder is full; make the build smaller, or have the operator raise --build-disk-mb"
		if f.Code != 0 && f.Name != "" { // it may have failed for another reason
			return fmt.Sprintf("%s%s: exit code %d, and %s%s", where, f.Name, f.Code, full, taken(f.Tail))
		}
		return where + full
	case buildapi.FailedCanceled:
		return "the build was canceled"
	case buildapi.FailedDockerfile, buildapi.FailedBase:
		return where + f.Message
	case buildapi.FailedInternal:
		return "the builder failed: " + f.Message
	}
	return f.Message
}
