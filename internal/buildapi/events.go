package buildapi

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// ErrTruncated is what [ReadEvents] returns for a stream that ends without a result: the
// program or its machine has ended.
var ErrTruncated = errors.New("the builder ended before the build did")

// outputBytesMax bounds the text of all events that a node reads. The builder stops at
// OutputMax; the rest is for its own lines.
const outputBytesMax = OutputMax + 4<<20

// stepMax bounds numbers of steps and lines: none is larger in a Dockerfile of
// DockerfileMax bytes.
const stepMax = DockerfileMax

// durationMax bounds how long a step can have taken.
const durationMax = 7 * 24 * time.Hour

// ReadEvents reads the answer of a build, and calls emit for each event but the last one and
// those that say nothing: see [Heartbeat]. It
// returns the Result of that one, or a *FailedError with its Failure.
//
// The stream is as hostile as the machine that writes it. An event is bounded, and so are
// all together. Text is valid UTF-8 without control characters but tabs and
// colors, and numbers are within their ranges. Any other stream is an error.
func ReadEvents(r io.Reader, emit func(Event)) (Result, error) {
	lines := bufio.NewReaderSize(r, 64<<10)
	events, bytes := 0, 0
	for {
		line, err := readLine(lines)
		switch {
		case errors.Is(err, io.EOF) && len(line) == 0:
			return Result{}, ErrTruncated
		case errors.Is(err, io.EOF): // a line without its end was cut
			return Result{}, ErrTruncated
		case err != nil:
			return Result{}, err
		}
		if events++; events > eventsMax {
			return Result{}, fmt.Errorf("the builder sent more than %d events", eventsMax)
		}
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return Result{}, fmt.Errorf("read an event of the builder: %w", err)
		}
		e.sanitize()
		if bytes += len(e.Text); bytes > outputBytesMax {
			return Result{}, fmt.Errorf("the builder sent more than %d bytes of output", outputBytesMax)
		}
		switch {
		case e.Failure != nil:
			return Result{}, &FailedError{*e.Failure}
		case e.Result != nil:
			return *e.Result, nil
		}
		if e.State != "" || e.Stream != "" || e.Text != "" || e.Progress != nil {
			emit(e)
		}
	}
}

// readLine reads a line of at most eventBytesMax bytes, without its end. At the end of the
// stream it returns io.EOF with what there is of a line.
func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > eventBytesMax {
			return nil, fmt.Errorf("the builder sent an event of more than %d bytes", eventBytesMax)
		}
		if err == nil {
			return line[:len(line)-1], nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// sanitize moves what an event has into the ranges that its comments name.
func (e *Event) sanitize() {
	e.Step, e.Steps, e.Line = clamp(e.Step), clamp(e.Steps), clamp(e.Line)
	e.Stage, e.Name, e.Vertex = Clean(e.Stage, nameMax), Clean(e.Name, nameMax), Clean(e.Vertex, idMax)
	e.Text = Clean(e.Text, LineMax)
	e.Took = min(max(e.Took, 0), durationMax)
	if !slices.Contains([]string{"", StateStarted, StateCached, StateDone, StateFailed, StateCanceled}, e.State) {
		e.State = ""
	}
	if e.Stream != "" && e.Stream != Stderr {
		e.Stream = Stdout
	}
	if y := e.At.Year(); y < 1970 || y > 9999 { // what JSON cannot say, or no clock does
		e.At = time.Unix(0, 0).UTC()
	}
	if p := e.Progress; p != nil {
		p.Total = max(p.Total, 0)
		p.Current = max(p.Current, 0)
	}
	if r := e.Result; r != nil {
		r.Digest, r.Config = Clean(r.Digest, idMax), Clean(r.Config, idMax)
		r.Layers, r.Bytes = clamp(r.Layers), max(r.Bytes, 0)
	}
	if f := e.Failure; f != nil {
		f.sanitize()
	}
}

// sanitize is the same for a failure.
func (f *Failure) sanitize() {
	if !slices.Contains(reasons, f.Reason) {
		f.Reason = FailedInternal
	}
	f.Step, f.Steps, f.Line = clamp(f.Step), clamp(f.Steps), clamp(f.Line)
	f.Stage, f.Name, f.Message = Clean(f.Stage, nameMax), Clean(f.Name, nameMax), CleanText(f.Message, messageMax)
	if len(f.Tail) > TailMax {
		f.Tail = f.Tail[len(f.Tail)-TailMax:]
	}
	for i, line := range f.Tail {
		f.Tail[i] = Clean(line, LineMax)
	}
	f.Code = min(max(f.Code, 0), 255)
	f.Shorten()
}

// Shorten bounds the text of a failure by [FailureMax]. The last lines count the most.
func (f *Failure) Shorten() {
	f.Message = cut(f.Message, messageMax)
	left := FailureMax - len(f.Message)
	for i, line := range slices.Backward(f.Tail) {
		if left -= len(line); left < 0 {
			f.Tail = f.Tail[i+1:]
			return
		}
	}
}

// clamp moves a number into the range of steps and lines.
func clamp(n int) int { return min(max(n, 0), stepMax) }

// Clean returns a line of text in at most so many bytes: valid UTF-8, without control
// characters but tabs and colors.
func Clean(s string, most int) string {
	s = control.ReplaceAllStringFunc(s, func(seq string) string {
		if color.MatchString(seq) {
			return seq
		}
		return ""
	})
	s = cut(strings.ToValidUTF8(s, "\ufffd"), most)
	if at := strings.LastIndexByte(s, '\x1b'); at >= 0 && !strings.Contains(s[at:], "m") {
		s = s[:at] // the cut is within a color
	}
	return s
}

// CleanText is Clean for a text of several lines, without colors.
func CleanText(s string, most int) string {
	s = control.ReplaceAllStringFunc(s, func(seq string) string {
		if seq == "\n" {
			return seq
		}
		return ""
	})
	return cut(strings.ToValidUTF8(s, "\ufffd"), most)
}

var (
	// control finds sequences of terminals, of which some write to the clipboard of those who
	// look, and control characters but tabs.
	control = regexp.MustCompile(`\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(\x07|\x1b\\)?|\x1b[ -~]?|[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f\x{80}-\x{9f}]`)
	// color finds those that change color and weight of text, and nothing else.
	color = regexp.MustCompile(`^\x1b\[[0-9;:]*m$`)
)

// cut shortens valid UTF-8 to at most so many bytes.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}
