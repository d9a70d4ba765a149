package search

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/dozehq/doze"
)

const (
	grepDefault = 100
	contextMax  = 50 // lines before and after
	// lineMax bounds a line: the rest of a longer one is not searched.
	lineMax = 64 << 10
	// skipMax is how many times lineMax is skipped in one go. What then remains
	// of the line counts as another, so that time is looked at.
	skipMax = 1024
	// textMax bounds what a match repeats of its line.
	textMax = 2 << 10
	// answerMax bounds the texts of an answer together.
	answerMax = 8 << 20
	// peek is how much of a file decides whether it is text.
	peek = 8 << 10
)

// Grep looks for text in files. Make it with [ParseGrep] or [Regexp].
type Grep struct {
	scope
	query   string
	context int
	exclude []string                // globs of files
	find    func(line []byte) []int // where the query begins and ends; nil without
}

// Hits is what a [Grep] found.
type Hits struct {
	Query      string `json:"query"`
	Matches    []Hit  `json:"matches"` // in the order of a walk
	Total      int    `json:"total"`   // of matches here
	Incomplete bool   `json:"incomplete,omitzero"`
}

// Hit is one line with the query in it.
type Hit struct {
	Path    string `json:"path"`   // relative to the root
	Line    int    `json:"line"`   // from 1
	Column  int    `json:"column"` // of the first occurrence, in bytes from 1
	Text    string `json:"text"`   // the line, at most 2 KiB of it
	Context string `json:"context,omitempty"`
	Match   string `json:"-"` // what the query found, at most 2 KiB of it
	Offset  int64  `json:"-"` // of the line in the file, in bytes
}

// ParseGrep reads a query: query, a plain text; caseSensitive, contextLines,
// filePattern, maxResults and excludeDirs. Errors are Invalid.
func ParseGrep(q url.Values) (g Grep, err error) {
	var p doze.Problems
	g.scope = parseScope(q, grepDefault, &p)
	g.hidden = true
	g.patterns = nil
	if glob := q.Get("filePattern"); glob != "" {
		g.patterns = []string{glob}
	}
	checkGlobs(&p, "filePattern", g.patterns)
	g.query = q.Get("query")
	if text := q.Get("contextLines"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			p.Add("contextLines", "must be a number from 0 to %d", contextMax)
		}
		g.context = min(n, contextMax)
	}
	if g.query == "" {
		p.Add("query", "is required")
	}
	checkLength(&p, g.query)
	if err := p.Err(); err != nil {
		return g, err
	}
	g.find = finder(g.query, q.Get("caseSensitive") == "true")
	return g, nil
}

// Regexp returns a [Grep] for a regular expression in the syntax of Go, in files
// whose base name or path matches include, if it is not empty, and not exclude.
// Errors are Invalid.
func Regexp(query string, caseSensitive bool, include, exclude string) (g Grep, err error) {
	g = Grep{scope: scope{skip: skippedDirs, hidden: true, max: grepDefault}, query: query}
	if include != "" {
		g.patterns = []string{include}
	}
	if exclude != "" {
		g.exclude = []string{exclude}
	}
	flags := ""
	if !caseSensitive {
		flags = "(?i)"
	}
	var p doze.Problems
	if checkLength(&p, query) {
		if re, err := regexp.Compile(flags + query); err != nil {
			p.Add("query", "is not a regular expression: %v", err)
		} else {
			g.find = re.FindIndex
		}
	}
	checkGlobs(&p, "includePattern", g.patterns)
	checkGlobs(&p, "excludePattern", g.exclude)
	return g, p.Err()
}

// finder returns a function that finds query in a line.
func finder(query string, exact bool) func([]byte) []int {
	want := []byte(query)
	if exact {
		return func(line []byte) []int { return span(bytes.Index(line, want), len(want)) }
	}
	ascii := !slices.ContainsFunc(want, func(b byte) bool { return b >= utf8.RuneSelf })
	if !ascii && utf8.Valid(want) {
		// Letters beyond ASCII may change their length with their case.
		return regexp.MustCompile("(?i)" + regexp.QuoteMeta(query)).FindIndex
	}
	want = lower(nil, want)
	var buf []byte
	return func(line []byte) []int {
		buf = lower(buf[:0], line)
		return span(bytes.Index(buf, want), len(want))
	}
}

// span is what a finder returns of n bytes that are at a place, or nowhere.
func span(at, n int) []int {
	if at < 0 {
		return nil
	}
	return []int{at, at + n}
}

// lower appends b with its ASCII letters in lower case.
func lower(to, b []byte) []byte {
	to = append(to, b...)
	for i, c := range to {
		if 'A' <= c && c <= 'Z' {
			to[i] = c + 'a' - 'A'
		}
	}
	return to
}

// In searches root, absolute. Files that are not text are left out. Errors are
// those of [Find.In], but for a root that is not there, which is Invalid, too.
func (g Grep) In(ctx context.Context, root string) (Hits, error) {
	out := Hits{Query: g.query, Matches: []Hit{}}
	in := bufio.NewReaderSize(nil, lineMax)
	size, short := 0, false
	cut, err := g.walk(ctx, root, func(e entry) error {
		if e.kind != file || !e.mode.IsRegular() || !g.wants(e.rel) {
			return nil
		}
		return g.file(ctx, filepath.Join(root, e.rel), in, func(h Hit) error {
			h.Path = e.rel
			size += len(h.Text) + len(h.Context)
			add, more := g.take(len(out.Matches))
			if short = size > answerMax || !add; short {
				return errEnough
			}
			out.Matches = append(out.Matches, h)
			if !more {
				return errEnough
			}
			return nil
		})
	})
	if p := doze.Public(err); err != nil && p.Kind == doze.NotFound {
		err = doze.Wrap(err, doze.Invalid, "%s", p.Message)
	}
	out.Total, out.Incomplete = len(out.Matches), cut || short
	return out, err
}

// wants reports whether a file is searched.
func (g Grep) wants(rel string) bool {
	matches := func(patterns []string) bool {
		return matchesAny(patterns, path.Base(rel)) || matchesAny(patterns, rel)
	}
	return matches(g.patterns) && (len(g.exclude) == 0 || !matches(g.exclude))
}

// file calls hit for every line of a text file with the query in it.
func (g Grep) file(ctx context.Context, name string, in *bufio.Reader, hit func(Hit) error) error {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil // it is gone, or not ours to read
	}
	defer func() { _ = f.Close() }()
	from := &counter{Reader: f}
	in.Reset(from)
	if head, _ := in.Peek(peek); bytes.IndexByte(head, 0) >= 0 {
		return nil
	}
	around := window{size: g.context}
	for n := 1; ; n++ {
		offset := from.n - int64(in.Buffered())
		line, err := readLine(in)
		if err != nil {
			return around.flush(hit)
		}
		if (n%1024 == 0 || len(line) == lineMax) && ctx.Err() != nil {
			return ctx.Err()
		}
		if err := around.add(line, hit); err != nil {
			return err
		}
		if at := g.find(line); at != nil {
			h := Hit{Line: n, Column: at[0] + 1, Text: clip(line), Match: clip(line[at[0]:at[1]]), Offset: offset}
			if err := around.found(h, hit); err != nil {
				return err
			}
		}
	}
}

// counter counts what is read.
type counter struct {
	io.Reader
	n int64
}

func (c *counter) Read(b []byte) (n int, err error) {
	n, err = c.Reader.Read(b)
	c.n += int64(n)
	return n, err
}

// readLine returns the next line without its end, at most lineMax of it. It is
// valid until the next call. Any error ends a file.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		line = bytes.Clone(line) // skipping reuses it
		for n := 0; errors.Is(err, bufio.ErrBufferFull) && n < skipMax; n++ {
			_, err = in.ReadSlice('\n')
		}
		return line, nil // what follows fails the next time
	}
	if len(line) == 0 && err != nil {
		return nil, err
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), err
}

// clip returns the beginning of a line as text.
func clip(line []byte) string {
	if len(line) > textMax {
		line = line[:textMax]
		for len(line) > 0 && !utf8.RuneStart(line[len(line)-1]) {
			line = line[:len(line)-1]
		}
		if len(line) > 0 && line[len(line)-1] >= utf8.RuneSelf {
			line = line[:len(line)-1] // the first byte of a character that is cut
		}
	}
	return string(line)
}

// window gives hits the lines around them.
type window struct {
	size    int
	before  []string // the last lines
	pending []waiting
}

// waiting is a hit whose context is not complete yet.
type waiting struct {
	Hit
	lines []string
	left  int
}

// add takes the next line in.
func (w *window) add(line []byte, hit func(Hit) error) error {
	if w.size == 0 {
		return nil
	}
	text := clip(line)
	for i := range w.pending {
		w.pending[i].lines = append(w.pending[i].lines, text)
		w.pending[i].left--
	}
	for len(w.pending) > 0 && w.pending[0].left == 0 {
		if err := w.deliver(hit); err != nil {
			return err
		}
	}
	if w.before = append(w.before, text); len(w.before) > w.size+1 {
		w.before = w.before[1:]
	}
	return nil
}

// found takes a hit in the line that was just added.
func (w *window) found(h Hit, hit func(Hit) error) error {
	if w.size == 0 {
		return hit(h)
	}
	w.pending = append(w.pending, waiting{h, slices.Clone(w.before), w.size})
	return nil
}

// deliver hands out the oldest hit.
func (w *window) deliver(hit func(Hit) error) error {
	h := w.pending[0]
	w.pending = w.pending[1:]
	h.Context = strings.Join(h.lines, "\n")
	return hit(h.Hit)
}

// flush hands out what is left at the end of a file.
func (w *window) flush(hit func(Hit) error) error {
	for len(w.pending) > 0 {
		if err := w.deliver(hit); err != nil {
			return err
		}
	}
	return nil
}
