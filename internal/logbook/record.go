package logbook

import (
	"bytes"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// A file of a log is a sequence of entries: a head, and lines below it.
//
//	#<time> <stamp> <kind> <bytes> <process>
//	first line
//	second line
//
// The time is that of the first line, in unix nanoseconds. Each further line is a
// nanosecond later. The stamp is what the agent said. The bytes are those of the lines.
// The name of the process is quoted, and the rest of its head.

const (
	// headMax bounds a head, in bytes.
	headMax = 512
	// nameMax bounds the name of a process in a head. A longer one is cut.
	nameMax = 128
)

// kind is what the lines of an entry are.
type kind string

const (
	stdout  kind = "out"
	stderr  kind = "err"
	info    kind = "info" // this one and those below are of the platform
	warning kind = "warning"
	failure kind = "error"
)

// kinds say how a line of each kind looks.
var kinds = map[kind]fleet.LogLine{
	stdout:  {Severity: doze.LogInfo, Stream: "stdout"},
	stderr:  {Severity: doze.LogError, Stream: "stderr"},
	info:    {Severity: doze.LogInfo},
	warning: {Severity: doze.LogWarning},
	failure: {Severity: doze.LogError},
}

// kindOf is the kind of a line of the platform.
func kindOf(severity string) kind {
	for _, k := range []kind{warning, failure} {
		if kinds[k].Severity == severity {
			return k
		}
	}
	return info
}

// entry is lines that came at once.
type entry struct {
	at      int64 // of the first line
	stamp   int64
	kind    kind
	process string
	text    []byte // whole lines
}

// last is the time of the last line.
func (e *entry) last() int64 { return e.at + int64(bytes.Count(e.text, []byte("\n"))) - 1 }

// append adds an entry to what a file has.
func (e *entry) append(to []byte) []byte {
	to = append(to, '#')
	to = strconv.AppendInt(to, e.at, 10)
	to = append(to, ' ')
	to = strconv.AppendInt(to, e.stamp, 10)
	to = append(to, ' ')
	to = append(to, e.kind...)
	to = append(to, ' ')
	to = strconv.AppendInt(to, int64(len(e.text)), 10)
	to = append(to, ' ')
	to = strconv.AppendQuoteToASCII(to, e.process)
	to = append(to, '\n')
	return append(to, e.text...)
}

// parse reads the first entry of what a file has, and returns the rest. It reports
// false for what is no whole entry: the end of a file that was cut, or damage.
func parse(raw []byte) (e entry, rest []byte, ok bool) {
	head, _, found := bytes.Cut(raw[:min(len(raw), headMax)], []byte("\n"))
	if !found || len(head) == 0 || head[0] != '#' {
		return e, nil, false
	}
	body := raw[len(head)+1:]
	f := strings.SplitN(string(head[1:]), " ", 5)
	if len(f) != 5 {
		return e, nil, false
	}
	at, err1 := strconv.ParseInt(f[0], 10, 64)
	stamp, err2 := strconv.ParseInt(f[1], 10, 64)
	size, err3 := strconv.ParseUint(f[3], 10, 31)
	process, err4 := strconv.Unquote(f[4])
	_, known := kinds[kind(f[2])]
	if err1 != nil || err2 != nil || err3 != nil || err4 != nil || !known || at < 0 || at > timeMax || size == 0 || int(size) > len(body) || body[size-1] != '\n' {
		return e, nil, false
	}
	return entry{at, stamp, kind(f[2]), process, body[:size]}, body[size:], true
}

// timeMax is the latest time of a line, so that further lines can be later.
const timeMax = 1 << 62

// lines cuts text from an agent into whole lines of at most [doze.LogLineMax] bytes.
func lines(text string) []byte {
	out := make([]byte, 0, len(text)+1)
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		for len(line) > doze.LogLineMax {
			n := doze.LogLineMax
			for n > doze.LogLineMax-utf8.UTFMax && !utf8.RuneStart(line[n]) {
				n--
			}
			out = append(append(out, line[:n]...), '\n')
			line = line[n:]
		}
		out = append(append(out, line...), '\n')
	}
	return out
}

// clip bounds the name of a process.
func clip(name string) string {
	if len(name) > nameMax {
		name = strings.ToValidUTF8(name[:nameMax], "")
	}
	for len(strconv.QuoteToASCII(name)) > headMax/2 {
		name = strings.ToValidUTF8(name[:len(name)/2], "")
	}
	return name
}
