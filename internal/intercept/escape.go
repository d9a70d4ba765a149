package intercept

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// layers is how often a character may be escaped over its first escape: "%2553" is
// "%53" with one layer more. More layers than that hide something.
const layers = 2

// An escape is a way to write a character that formats and languages have.
type escape struct {
	name   string
	begins byte   // the first byte
	next   string // the bytes that may be the second one; empty is all
	// read adds what the escape stands for whose first byte is before i. Its other
	// characters have so many layers of escapes at most.
	read func(t *text, i, depth int, out []reading) []reading
}

// escapes are those that are undone when a secret is looked for. Digits may be in
// either case, and numbers may have any number of zeros in front.
var escapes = []escape{
	{"octal, as \\123, \\0123 and \\o{123}", '\\', "01234567o", readOctal},
	{"hexadecimal, as \\x53, \\x0053 and \\x{53}", '\\', "xX", readHex},
	{"a unit of UTF-16, as \\u0053, \\uu0053 and \\u{53}", '\\', "uU", readUnit},
	{"a code point, as \\U00000053", '\\', "U", readWide},
	{"a letter or a sign, as \\n and \\/", '\\', "", readShort},
	{"a byte of a URL, as %53", '%', hexDigits, readByte},
	{"a unit of a URL, as %u0053", '%', "uU", readUnit},
	{"a space of a form, as +", '+', "", readSpace},
	{"a byte of quoted-printable, as =53", '=', hexDigits, readByte},
	{"the end of a line of quoted-printable", '=', "\r\n", readBreak},
	{"a number in HTML, as &#83; and &#83", '&', "#", readNumber},
	{"a name in HTML, as &quot;", '&', nameLetters, readName},
}

const (
	hexDigits   = "0123456789abcdefABCDEF"
	nameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// known are the escapes, ready to be looked up.
var known = newTable(escapes)

// A table finds escapes by their bytes.
type table struct {
	escapers [256]bool // their first bytes
	// readers are those of an escape, by its first byte and its second one.
	readers [256][256][]func(t *text, i, depth int, out []reading) []reading
}

func newTable(all []escape) *table {
	t := new(table)
	for _, e := range all {
		t.escapers[e.begins] = true
		for c := range 256 {
			if e.next == "" || strings.IndexByte(e.next, byte(c)) >= 0 {
				t.readers[e.begins][c] = append(t.readers[e.begins][c], e.read)
			}
		}
	}
	return t
}

// nothing is the value of an escape that stands for no character.
const nothing rune = -1

// reading is what an escape may stand for: a code point, or a byte of one.
type reading struct {
	value rune
	raw   bool // a byte
	end   int
}

// bytes appends what it stands for.
func (r reading) bytes(b []byte) []byte {
	switch {
	case r.value == nothing:
		return b
	case r.raw:
		return append(b, byte(r.value)) //nolint:gosec // G115: a byte
	default:
		return utf8.AppendRune(b, r.value)
	}
}

// text is what is read, and more is whether it would matter what comes behind it.
type text struct {
	*table

	b    []byte
	more bool
	deep bool // at has read an escape
}

// dull reports whether no escape at i can stand for a first character. It says so
// at once for nearly all that there are in a text.
func (t *text) dull(i int, first *[256]bool) bool {
	if i+2 >= len(t.b) || t.escapers[t.b[i+1]] {
		return false
	}
	next := t.b[i+1]
	switch t.b[i] {
	case '\\':
		if len(t.readers['\\'][next]) > 1 {
			return false // a number
		}
		return !first[next] && (!isAlphanumeric(next) || !first[letters[next]])
	case '%', '=':
		high, low := digit(next), digit(t.b[i+2])
		if high >= 0 && low < 0 && t.escapers[t.b[i+2]] {
			return false
		}
		if high < 0 || low < 0 {
			return len(t.readers[t.b[i]][next]) == 0
		}
		c := byte(high<<4 | low) //nolint:gosec // G115: two digits
		return c < utf8.RuneSelf && !first[c] && !t.escapers[c]
	default:
		return len(t.readers[t.b[i]][next]) == 0
	}
}

// escaped adds what the escape at i stands for, with up to depth layers over it.
func (t *text) escaped(i, depth int, out []reading) []reading {
	if i >= len(t.b) {
		t.more = true
		return out
	}
	if !t.escapers[t.b[i]] {
		return out
	}
	from, most := len(out), depth
	out = t.behind(t.b[i], i+1, depth, out)
	// What begins an escape may be the first byte of another one.
	for ; depth > 0 && from < len(out); depth-- {
		last := out[from:]
		from = len(out)
		for _, r := range last {
			if r.value > 0 && r.value < utf8.RuneSelf && t.escapers[r.value] {
				out = t.behind(byte(r.value), r.end, most, out)
			}
		}
	}
	return out
}

// behind adds what escapes stand for that have begun with a byte before i.
func (t *text) behind(first byte, i, depth int, out []reading) []reading {
	outer := t.deep
	t.deep = false
	next, _ := t.at(i, depth)
	for _, read := range t.readers[first][next] {
		out = read(t, i, depth, out)
	}
	if t.deep && i < len(t.b) { // what is escaped may as well be behind it
		for _, read := range t.readers[first][t.b[i]] {
			out = read(t, i, 0, out)
		}
	}
	t.deep = outer
	return out
}

// at returns the character of an escape at i, which may be escaped itself, and
// where it ends; 0 where the text ends. What begins an escape is the last choice:
// no escape has it inside, but for those that read it by themselves.
func (t *text) at(i, depth int) (c byte, end int) {
	if i >= len(t.b) {
		t.more = true
		return 0, i
	}
	if c = t.b[i]; depth == 0 || !t.escapers[c] {
		return c, i + 1
	}
	all := t.escaped(i, depth-1, nil)
	t.deep, end = true, i+1
	for _, r := range all {
		if r.value <= 0 || r.value >= utf8.RuneSelf {
			continue
		}
		if !t.escapers[r.value] {
			return byte(r.value), r.end
		}
		if end == i+1 {
			c, end = byte(r.value), r.end
		}
	}
	return c, end
}

// digits reads a number of at most so many digits behind any number of zeros. Its
// value is that of nothing if there are no digits.
func (t *text) digits(i, depth int, base rune, most int) (value rune, end int) {
	value = nothing
	for n := 0; n < most; {
		c, next := t.at(i, depth)
		d := digit(c)
		if d < 0 || d >= base {
			break
		}
		value, i = max(value, 0)*base+d, next
		if value > 0 {
			n++
		}
	}
	return value, i
}

// exactly reads a number of digits.
func (t *text) exactly(i, depth, n int) (value rune, end int, ok bool) {
	for range n {
		c, next := t.at(i, depth)
		d := digit(c)
		if d < 0 {
			return 0, i, false
		}
		value, i = value<<4|d, next
	}
	return value, i, true
}

// digit is the value of a hexadecimal digit, or negative.
func digit(c byte) rune {
	switch {
	case c >= '0' && c <= '9':
		return rune(c - '0')
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return rune(c|0x20-'a') + 10
	default:
		return -1
	}
}

// add adds a number that may be a byte, a code point, or both.
func add(out []reading, value rune, end int) []reading {
	if value < 0 || value > utf8.MaxRune {
		return out
	}
	if value >= utf8.RuneSelf && value <= 0xff {
		out = append(out, reading{value, true, end})
	}
	return append(out, reading{value, false, end})
}

// codeMax is how many digits a code point has after its zeros: in the decimals of
// HTML one more than in hexadecimal.
const codeMax = 7

// braced reads a number in braces.
func (t *text) braced(i, depth int, base rune, out []reading) []reading {
	c, i := t.at(i, depth)
	if c != '{' {
		return out
	}
	value, i := t.digits(i, depth, base, codeMax)
	if c, end := t.at(i, depth); c == '}' {
		out = add(out, value, end)
	}
	return out
}

func readOctal(t *text, i, depth int, out []reading) []reading {
	if c, next := t.at(i, depth); c == 'o' {
		return t.braced(next, depth, 8, out)
	}
	const digits = 3
	value, short, n := rune(0), i, 0
	for ; n < digits; n++ {
		c, next := t.at(short, depth)
		d := digit(c)
		if d < 0 || d > 7 || value<<3|d > 0xff {
			break
		}
		value, short = value<<3|d, next
	}
	if n > 0 {
		out = add(out, value, short)
	}
	if value, long := t.digits(i, depth, 8, digits); value <= 0xff && long != short {
		out = add(out, value, long)
	}
	return out
}

func readHex(t *text, i, depth int, out []reading) []reading {
	c, i := t.at(i, depth)
	if c|0x20 != 'x' {
		return out
	}
	const digits = 2
	value, short, ok := t.exactly(i, depth, digits)
	if ok {
		out = add(out, value, short)
	}
	if value, long := t.digits(i, depth, 16, digits); !ok || long != short {
		out = add(out, value, long)
	}
	return t.braced(i, depth, 16, out)
}

func readUnit(t *text, i, depth int, out []reading) []reading {
	i, ok := t.us(i, depth)
	if !ok {
		return out
	}
	out = t.braced(i, depth, 16, out)
	unit, end, ok := t.exactly(i, depth, 4)
	if !ok {
		return out
	}
	if !utf16.IsSurrogate(unit) {
		return add(out, unit, end)
	}
	if end >= len(t.b) {
		t.more = true
		return out
	}
	out = t.pair(unit, t.b[end], end+1, depth, out)
	if depth > 0 {
		for _, r := range t.escaped(end, depth-1, nil) {
			if r.value == '\\' || r.value == '%' {
				out = t.pair(unit, byte(r.value), r.end, depth, out)
			}
		}
	}
	return out
}

// us reads one u or more: Java takes any number.
func (t *text) us(i, depth int) (end int, ok bool) {
	c, next := t.at(i, depth)
	if c|0x20 != 'u' {
		return i, false
	}
	for c|0x20 == 'u' {
		i = next
		c, next = t.at(i, depth)
	}
	return i, true
}

// pair adds the character of a unit and the one behind it, which has begun with a
// byte before i.
func (t *text) pair(unit rune, first byte, i, depth int, out []reading) []reading {
	i, ok := t.us(i, depth)
	if first != '\\' && first != '%' || !ok {
		return out
	}
	low, end, ok := t.exactly(i, depth, 4)
	if r := utf16.DecodeRune(unit, low); ok && r != utf8.RuneError {
		out = add(out, r, end)
	}
	return out
}

func readWide(t *text, i, depth int, out []reading) []reading {
	c, i := t.at(i, depth)
	if c != 'U' {
		return out
	}
	if value, end, ok := t.exactly(i, depth, 8); ok {
		out = add(out, value, end)
	}
	return out
}

// letters are the escapes of a backslash and a letter, of all languages together.
var letters = map[byte]rune{'a': '\a', 'b': '\b', 'e': 0x1b, 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t', 'v': '\v', '0': 0}

func readShort(t *text, i, depth int, out []reading) []reading {
	if i >= len(t.b) {
		t.more = true
		return out
	}
	out = short(rune(t.b[i]), i+1, out)
	if depth > 0 && t.escapers[t.b[i]] {
		for _, r := range t.escaped(i, depth-1, nil) {
			out = short(r.value, r.end, out)
		}
	}
	return out
}

// short adds what a backslash and a character stand for.
func short(c rune, end int, out []reading) []reading {
	if c <= ' ' || c >= 0x7f {
		return out
	}
	if r, ok := letters[byte(c)]; ok {
		return append(out, reading{r, false, end})
	}
	if !isAlphanumeric(byte(c)) {
		out = append(out, reading{c, false, end})
	}
	return out
}

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}

func readByte(t *text, i, depth int, out []reading) []reading {
	if value, end, ok := t.exactly(i, depth, 2); ok {
		out = append(out, reading{value, value >= utf8.RuneSelf, end})
	}
	return out
}

func readSpace(_ *text, i, _ int, out []reading) []reading {
	return append(out, reading{' ', false, i})
}

func readBreak(t *text, i, depth int, out []reading) []reading {
	c, i := t.at(i, depth)
	if c == '\r' {
		c, i = t.at(i, depth)
	}
	if c == '\n' {
		out = append(out, reading{nothing, false, i})
	}
	return out
}

func readNumber(t *text, i, depth int, out []reading) []reading {
	c, i := t.at(i, depth)
	if c != '#' {
		return out
	}
	base := rune(10)
	if c, next := t.at(i, depth); c|0x20 == 'x' {
		base, i = 16, next
	}
	value, end := t.digits(i, depth, base, codeMax)
	return t.terminated(value, end, depth, out)
}

// terminated adds a character of HTML, with the semicolon behind it if there is one.
func (t *text) terminated(value rune, end, depth int, out []reading) []reading {
	if value < 0 || value > utf8.MaxRune {
		return out
	}
	c, next := t.at(end, depth)
	if c == ';' {
		out = append(out, reading{value, false, next})
	}
	if c != ';' || next > end+1 {
		out = append(out, reading{value, false, end})
	}
	return out
}

// names are those that HTML has for characters of ASCII. Each may end with a
// semicolon.
var names = map[string]rune{
	"Tab": '\t', "NewLine": '\n', "excl": '!', "quot": '"', "QUOT": '"', "num": '#', "dollar": '$', "percnt": '%',
	"amp": '&', "AMP": '&', "apos": '\'', "lpar": '(', "rpar": ')', "ast": '*', "midast": '*', "plus": '+', "comma": ',',
	"period": '.', "sol": '/', "colon": ':', "semi": ';', "lt": '<', "LT": '<', "equals": '=', "gt": '>', "GT": '>',
	"quest": '?', "commat": '@', "lsqb": '[', "lbrack": '[', "bsol": '\\', "rsqb": ']', "rbrack": ']', "Hat": '^',
	"lowbar": '_', "UnderBar": '_', "grave": '`', "DiacriticalGrave": '`', "lcub": '{', "lbrace": '{', "verbar": '|',
	"vert": '|', "VerticalLine": '|', "rcub": '}', "rbrace": '}',
}

// nameMax is the length of the longest name.
const nameMax = len("DiacriticalGrave")

func readName(t *text, i, depth int, out []reading) []reading {
	var name [nameMax]byte
	for n := range name {
		c, next := t.at(i, depth)
		if c|0x20 < 'a' || c|0x20 > 'z' {
			break
		}
		name[n], i = c, next
		if value, ok := names[string(name[:n+1])]; ok {
			out = t.terminated(value, i, depth, out)
		}
	}
	return out
}
