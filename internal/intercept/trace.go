package intercept

import (
	"bytes"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// escapers are the bytes that an escape begins with.
const escapers = `\%&+`

// short are the escapes of JSON, of programming languages and of HTML that are
// no number.
var short = map[rune][]string{
	'"': {`\"`, `&quot;`}, '\\': {`\\`}, '/': {`\/`}, '\'': {`\'`, `&apos;`}, '&': {`&amp;`}, '<': {`&lt;`}, '>': {`&gt;`},
	'\b': {`\b`}, '\f': {`\f`}, '\n': {`\n`}, '\r': {`\r`}, '\t': {`\t`}, ' ': {`+`},
}

// trace finds a secret in what comes back from who got it. Each character may be
// plain, or escaped as JSON, a URL, HTML or a programming language does it.
type trace struct {
	secret string
	marks  []*mark
	begins []byte // the bytes that the forms of the first character begin with
}

// mark is one character in all its forms.
type mark struct {
	plain   []byte
	escapes [][]byte // in either case
}

func newTrace(secret string) *trace {
	t := &trace{secret: secret}
	known := map[string]*mark{}
	for rest := secret; rest != ""; {
		r, size := utf8.DecodeRuneInString(rest)
		c := rest[:size]
		if known[c] == nil {
			known[c] = newMark(c, r)
		}
		t.marks, rest = append(t.marks, known[c]), rest[size:]
	}
	t.begins = []byte{secret[0]}
	for _, e := range t.marks[0].escapes {
		if !slices.Contains(t.begins, e[0]) {
			t.begins = append(t.begins, e[0])
		}
	}
	return t
}

func newMark(c string, r rune) *mark {
	m := &mark{plain: []byte(c)}
	add := func(form string) { m.escapes = append(m.escapes, []byte(form)) }
	var percent, hex, units strings.Builder
	for _, b := range m.plain {
		fmt.Fprintf(&percent, "%%%02x", b)
		fmt.Fprintf(&hex, `\x%02x`, b)
	}
	add(percent.String())
	add(hex.String())
	if !utf8.ValidString(c) {
		return m
	}
	for _, u := range utf16.Encode([]rune{r}) {
		fmt.Fprintf(&units, `\u%04x`, u)
	}
	add(units.String())
	add(fmt.Sprintf("&#%d;", r))
	add(fmt.Sprintf("&#x%x;", r))
	for _, form := range short[r] {
		add(form)
	}
	return m
}

// match returns where the secret ends that b begins with, 0 if it begins with
// none, and whether there may be more of one behind the end of b. A byte may be
// a character and the beginning of an escape, so all ways are followed at once.
func (t *trace) match(b []byte) (end int, more bool) {
	var one, other [8]int // more of them are rare
	at, next := one[:1], other[:0]
	for _, m := range t.marks {
		for _, i := range at {
			next, more = m.follow(b, i, next, more)
		}
		if len(next) == 0 {
			return 0, more
		}
		at, next = next, at[:0]
	}
	return slices.Max(at), more
}

// follow adds to ends where forms of m end that are at i.
func (m *mark) follow(b []byte, i int, ends []int, more bool) (_ []int, _ bool) {
	rest := b[i:]
	if bytes.HasPrefix(rest, m.plain) {
		ends = appendNew(ends, i+len(m.plain))
	} else if bytes.HasPrefix(m.plain, rest) {
		more = true
	}
	if len(rest) == 0 || strings.IndexByte(escapers, rest[0]) < 0 {
		return ends, more
	}
	for _, e := range m.escapes {
		n := min(len(e), len(rest))
		switch {
		case !bytes.EqualFold(e[:n], rest[:n]):
		case n < len(e):
			more = true
		default:
			ends = appendNew(ends, i+n)
		}
	}
	return ends, more
}

func appendNew(all []int, n int) []int {
	if slices.Contains(all, n) {
		return all
	}
	return append(all, n)
}

// names reports whether the name of a header has the secret in it, in whatever
// case, for names have none of their own.
func (t *trace) names(header string) bool {
	if plain, err := url.PathUnescape(header); err == nil {
		header = plain
	}
	return strings.Contains(strings.ToLower(header), strings.ToLower(t.secret))
}
