package fleet

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/dozehq/doze"
)

// LogLine is one line of the log of a sandbox.
type LogLine struct {
	LogPosition

	Severity string // doze.LogInfo and so on
	Process  string // empty for what the platform says
	Stream   string // stdout or stderr; empty for what the platform says
	Text     string
}

// LogPosition is where a line is among those of all sandboxes that had a name. No two
// lines have the same.
type LogPosition struct {
	At     int64  // unix nanoseconds
	Origin string // which sandbox it is of, and whether it is an event
}

// Compare orders positions by time.
func (p LogPosition) Compare(other LogPosition) int {
	return cmp.Or(cmp.Compare(p.At, other.At), cmp.Compare(p.Origin, other.Origin))
}

// LogQuery asks for lines of the sandboxes of a workspace that have, or had, a name.
type LogQuery struct {
	Workspace, Name string
	From, To        time.Time    // from one moment on and before the other; zero is any
	Past            *LogPosition // only what comes after it, in the order of the query
	OldestFirst     bool
	Severities      []string // only these; empty is all
	Process         string   // only lines of this process; empty is all
	Type            string   // doze.LogProcess or doze.LogEvent; empty is both
	Text            string   // only lines that have it, in any case
	Limit           int      // lines
	Bytes           int      // of the text of all lines; the first line always fits
}

// LogPage are the lines that answer a query, in its order.
type LogPage struct {
	Lines []LogLine
	More  bool
	Next  LogPosition // Past of the next query; zero if there was no line to pass
}

// Bounds are the first and the last nanosecond of what a query asks for.
func (q *LogQuery) Bounds() (from, to int64) {
	from, to = 0, int64(1<<63-1)
	if !q.From.IsZero() {
		from = q.From.UnixNano()
	}
	if !q.To.IsZero() {
		to = q.To.UnixNano() - 1
	}
	switch {
	case q.Past == nil:
	case q.OldestFirst:
		from = max(from, q.Past.At)
	default:
		to = min(to, q.Past.At)
	}
	return from, to
}

// Takes reports whether a line is asked for.
func (q *LogQuery) Takes(l LogLine) bool {
	from, to := q.Bounds()
	switch {
	case l.At < from, l.At > to, q.Past != nil && q.compare(l.LogPosition, *q.Past) <= 0:
		return false
	case len(q.Severities) > 0 && !slices.Contains(q.Severities, l.Severity):
		return false
	case q.Process != "" && l.Process != q.Process:
		return false
	case q.Type == doze.LogProcess && l.Stream == "", q.Type == doze.LogEvent && l.Stream != "":
		return false
	}
	return q.Text == "" || strings.Contains(strings.ToLower(l.Text), strings.ToLower(q.Text))
}

// compare orders positions as the query wants them.
func (q *LogQuery) compare(a, b LogPosition) int {
	if q.OldestFirst {
		return a.Compare(b)
	}
	return b.Compare(a)
}

// Page puts lines that [LogQuery.Takes] in order, and cuts them to what was asked for.
// Beyond the end, if there is one, nobody has looked.
func (q *LogQuery) Page(lines []LogLine, end *LogPosition) LogPage {
	slices.SortFunc(lines, func(a, b LogLine) int { return q.compare(a.LogPosition, b.LogPosition) })
	p := LogPage{More: end != nil}
	if q.Past != nil {
		p.Next = *q.Past
	}
	if end != nil {
		p.Next = *end
		if beyond := slices.IndexFunc(lines, func(l LogLine) bool { return q.compare(l.LogPosition, *end) > 0 }); beyond >= 0 {
			lines = lines[:beyond]
		}
	}
	size := 0
	for i, l := range lines {
		if size += len(l.Text); i >= q.Limit || i > 0 && size > q.Bytes {
			lines, p.More, end = lines[:i], true, nil
			break
		}
	}
	if n := len(lines); n > 0 && end == nil {
		p.Next = lines[n-1].LogPosition
	}
	p.Lines = slices.Clip(lines)
	return p
}

// Join adds lines that the query takes to a page of others.
func (q *LogQuery) Join(p LogPage, lines []LogLine) LogPage {
	var end *LogPosition
	if p.More {
		end = &p.Next
	}
	return q.Page(slices.Concat(p.Lines, lines), end)
}

// Merge makes one page of those that several nodes answered. Beyond the end of a page that
// has more, nobody knows what its node has: the page ends there.
func (q *LogQuery) Merge(pages []LogPage) LogPage {
	var lines []LogLine
	var end *LogPosition
	for _, p := range pages {
		lines = append(lines, p.Lines...)
		if p.More && (end == nil || q.compare(p.Next, *end) < 0) {
			end = &p.Next
		}
	}
	return q.Page(lines, end)
}

// EndedLog is the log of a sandbox whose record is about to be deleted.
type EndedLog struct {
	Machine, Workspace, Name string
	Events                   []LogLine // with the times alone in their positions
}

// EventOrigin is the origin of the events of a machine.
func EventOrigin(machine string) string { return machine + "+" }
