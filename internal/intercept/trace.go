package intercept

import (
	"encoding/base64"
	"net/url"
	"strings"
)

const (
	// longestPart and longestMore bound what may belong to one occurrence of a
	// secret: so many bytes for each of its own, and so many zeros and the like. An
	// answer with more of them breaks off, since all has to be held back.
	longestPart = 24
	longestMore = 4 << 10
)

// trace finds a secret in what comes back from the server that got it. Each character may be
// plain, or in any of escapes.
type trace struct {
	secret string
	// text is what is looked for: the secret, or what base64 makes of it.
	text    string
	encoded bool
	begins  [256]bool // the bytes that the first character may begin with
	longest int
}

// newTraces returns what finds a secret: as it is, and in base64, behind any number
// of bytes.
func newTraces(secret string) []*trace {
	all := []*trace{newTrace(secret, secret, false)}
	for before := range 3 {
		// The first and the last character may have bits of others.
		const bits, perChar = 8, 6
		first, last := (before*bits+perChar-1)/perChar, (before+len(secret))*bits/perChar
		text := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("\x00", before) + secret))[first:last]
		if len(text) >= redactMin { // it always is, but in tests
			all = append(all, newTrace(secret, text, true))
		}
	}
	return all
}

func newTrace(secret, text string, encoded bool) *trace {
	t := &trace{secret: secret, text: text, encoded: encoded, begins: known.escapers, longest: longestPart*len(text) + longestMore}
	t.begins['+'] = text[0] == ' '
	for c := range t.begins {
		t.begins[c] = t.begins[c] || t.same(byte(c), text[0])
	}
	return t
}

// same reports whether a byte may stand for one that is looked for: base64 has two
// alphabets.
func (t *trace) same(c, want byte) bool {
	return c == want || t.encoded && (c == '-' && want == '+' || c == '_' && want == '/')
}

// follows returns the length of what is looked for at k if it begins with b.
func (t *trace) follows(b []byte, k int) (n int, ok bool) {
	if len(b) > len(t.text)-k {
		return 0, false
	}
	for i, c := range b {
		if !t.same(c, t.text[k+i]) {
			return 0, false
		}
	}
	return len(b), true
}

// place is how far a way through a text has come.
type place struct {
	found, end int
	broke      bool // the last that it saw was the end of a line
}

// match returns where the secret ends that b begins with, 0 if it begins with
// none, and whether there may be more of one behind the end of b. A byte may be
// a character and the beginning of an escape, so all ways are followed.
func (t *trace) match(b []byte) (end int, more bool) {
	in := text{table: known, b: b}
	var room [8]place // more ways are rare
	branches := append(room[:0], place{})
	var seen map[place]bool
	for len(branches) > 0 {
		at := branches[len(branches)-1]
		branches = branches[:len(branches)-1]
		if at.found == len(t.text) {
			end = max(end, at.end)
			continue
		}
		if seen[at] {
			continue
		}
		before := len(branches)
		branches = t.step(&in, at, branches)
		if len(branches) > before+1 && seen == nil {
			seen = map[place]bool{}
		}
		if seen != nil {
			seen[at] = true
		}
	}
	return end, in.more
}

// step adds the places to which a way leads that has come to at.
func (t *trace) step(in *text, at place, branches []place) []place {
	if at.end >= len(in.b) {
		in.more = true
		return branches
	}
	c := in.b[at.end]
	if t.same(c, t.text[at.found]) {
		branches = append(branches, place{at.found + 1, at.end + 1, false})
	}
	if t.encoded && at.found > 0 && !at.broke {
		switch rest := in.b[at.end:]; {
		case c == '\n':
			branches = append(branches, place{at.found, at.end + 1, true})
		case len(rest) == 1:
			in.more = in.more || c == '\r'
		case c == '\r' && rest[1] == '\n':
			branches = append(branches, place{at.found, at.end + 2, true})
		}
	}
	if !in.escapers[c] {
		return branches
	}
	for _, r := range in.escaped(at.end, layers, nil) {
		var bytes [4]byte
		empty := r.value == nothing || t.encoded && (r.value == '\n' || r.value == '\r')
		if empty && at.found > 0 && !at.broke {
			branches = append(branches, place{at.found, r.end, r.value != '\r'})
			continue
		}
		if n, ok := t.follows(r.bytes(bytes[:0]), at.found); ok && n > 0 {
			branches = append(branches, place{at.found + n, r.end, false})
		}
	}
	return branches
}

// names reports whether the name of a header has the secret in it, in whatever
// case, for names have none of their own.
func (t *trace) names(header string) bool {
	if plain, err := url.PathUnescape(header); err == nil {
		header = plain
	}
	return strings.Contains(strings.ToLower(header), strings.ToLower(t.text))
}
