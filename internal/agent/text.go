package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/dozehq/doze"
)

const (
	// textAhead is what is read of a body at once. Small ones need less.
	textAhead = 32 << 10
	// textDepth is how deep in a body texts are, at most.
	textDepth = 2
	// anyMember is every name, where texts are.
	anyMember = "*"
)

// textBody reads a JSON object as it comes, with texts that may be large. Read
// returns these, decoded, one after the other; the end is io.EOF only if finish
// took what is beside them.
type textBody struct {
	at     []string                            // the names of the members that lead to a text
	begin  func(name string, from int64) error // a text begins, behind so many bytes
	finish func(beside []byte) error           // the body, with empty texts
	most   int                                 // bytes beside the texts
	cost   int64                               // what each of these takes, if they count among what bodies hold

	src   *bufio.Reader
	in    *incoming // what src reads; nil if nobody counts
	ready []byte    // of a text, decoded; valid until the next look at src
	n     int64     // bytes of all texts until now
	err   error     // the end, for good
	char  [utf8.UTFMax]byte

	inside bool   // the next byte belongs to a text
	beside []byte // what was read, with empty texts

	// Of what is beside them:
	depth           int // of objects and lists
	quoted, escaped bool
	from            int               // where the last string begins in beside
	names           [textDepth]string // the last one at each depth
	values          [textDepth]bool   // the colon was there: what follows is no name
}

// open begins to read the body of a request. It is TooLarge if its sender says so.
func (c *textBody) open(w http.ResponseWriter, r *http.Request) error {
	src, err := limited(w, r, bodyMax)
	if err != nil {
		return err
	}
	ahead := textAhead
	if n := r.ContentLength; n >= 0 && n < textAhead {
		ahead = int(n)
	}
	c.in, _ = r.Body.(*incoming)
	c.read(src, ahead)
	return nil
}

func (c *textBody) read(src io.Reader, ahead int) { c.src = bufio.NewReaderSize(src, ahead) }

// Read returns what has come, and waits only if that is nothing.
func (c *textBody) Read(p []byte) (n int, err error) {
	for n < len(p) && c.err == nil {
		if len(c.ready) == 0 {
			if n > 0 && c.src.Buffered() == 0 {
				break
			}
			c.ready, c.err = c.next()
			c.n += int64(len(c.ready))
		}
		k := copy(p[n:], c.ready)
		c.ready = c.ready[k:]
		n += k
	}
	if n > 0 || len(p) == 0 {
		return n, nil
	}
	return 0, c.err
}

// next returns the next stretch of a text, which may be empty.
func (c *textBody) next() ([]byte, error) {
	for !c.inside {
		b, err := c.src.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
			if err := c.finish(c.beside); err != nil {
				return nil, err
			}
			return nil, io.EOF
		case err != nil:
			return nil, err
		case len(c.beside) >= c.most:
			return nil, doze.Errorf(doze.TooLarge, "the body has more than %d KiB besides %s; leave out what is not needed", c.most>>10, c.at[0])
		case !c.room():
			return nil, errCrowded
		}
		c.inside = c.begins(b)
		c.beside = append(c.beside, b) // of a text, the quotes
		if c.inside {
			if err := c.begin(c.names[len(c.at)-1], c.n); err != nil {
				return nil, err
			}
		}
	}
	return c.decode()
}

// room reports whether there is memory for a byte more beside the texts. It is
// asked for when beside grows, by up to its size.
func (c *textBody) room() bool {
	n := len(c.beside)
	return n < cap(c.beside) || c.cost == 0 || c.in == nil || c.in.take(int64(2*n)*c.cost)
}

// begins takes in a byte of what is beside the texts, and reports whether it is
// the quote with which one begins. What is not JSON is left to finish.
func (c *textBody) begins(b byte) bool {
	in := c.depth - 1
	near := in >= 0 && in < len(c.at)
	switch {
	case c.escaped:
		c.escaped = false
	case c.quoted && b == '\\':
		c.escaped = true
	case c.quoted && b == '"':
		c.quoted = false
		if near && !c.values[in] && json.Unmarshal(append(c.beside[c.from:], b), &c.names[in]) != nil {
			c.names[in] = ""
		}
	case c.quoted:
	case b == '"' && in == len(c.at)-1 && c.there():
		return true
	case b == '"':
		c.quoted, c.from = true, len(c.beside)
	case b == '{' || b == '[':
		c.depth++
		if c.depth <= len(c.at) && c.depth > 0 {
			c.values[c.depth-1] = false
		}
	case b == '}' || b == ']':
		c.depth--
	case near && b == ':':
		c.values[in] = true
	case near && b == ',':
		c.values[in] = false
	}
	return false
}

// there reports whether a value is where the texts are.
func (c *textBody) there() bool {
	for i, name := range c.at {
		if !c.values[i] || name != anyMember && !strings.EqualFold(c.names[i], name) {
			return false
		}
	}
	return true
}

// size returns how many bytes all texts had until now.
func (c *textBody) size() int64 { return c.n }

// name is what an error calls the text.
func (c *textBody) name() string { return clip(c.names[len(c.at)-1]) }

// decode returns the next stretch inside of a text.
func (c *textBody) decode() ([]byte, error) {
	if _, err := c.src.Peek(1); err != nil {
		return nil, c.cut(err)
	}
	b, _ := c.src.Peek(c.src.Buffered())
	n := literal(b)
	switch {
	case n > 0:
		return c.take(b[:n])
	case b[0] == '"':
		c.inside = false
		c.beside = append(c.beside, '"')
		return c.skip(1, nil)
	case b[0] == '\\':
		return c.escape()
	case b[0] < ' ':
		return nil, notJSON("%s has the control character %q, which must be escaped", c.name(), b[0])
	}
	b, _ = c.src.Peek(utf8.UTFMax) // fewer at the end
	if _, n = utf8.DecodeRune(b); n > 1 {
		return c.take(b[:n]) // not all of it had come
	}
	return nil, notJSON("%s is not UTF-8; send other bytes as multipart/form-data", c.name())
}

// literal returns how many bytes at the beginning of b stand for themselves.
func literal(b []byte) (n int) {
	for n < len(b) {
		switch one := b[n]; {
		case one < ' ' || one == '"' || one == '\\':
			return n
		case one < utf8.RuneSelf:
			n++
		default:
			_, size := utf8.DecodeRune(b[n:])
			if size == 1 {
				return n
			}
			n += size
		}
	}
	return n
}

// A byte of escapes, after a backslash, stands for the one in its place in escaped.
const (
	escapes = `"\/bfnrt`
	escaped = "\"\\/\b\f\n\r\t"
)

// escape returns what stands for a backslash and what follows it.
func (c *textBody) escape() ([]byte, error) {
	b, err := c.src.Peek(len(`\n`))
	if err != nil {
		return nil, c.cut(err)
	}
	if i := strings.IndexByte(escapes, b[1]); i >= 0 {
		return c.skip(len(b), c.encode(rune(escaped[i])))
	}
	const long = len(`\u0000`)
	if b, err = c.src.Peek(long); err != nil {
		return nil, c.cut(err)
	}
	char, ok := hex(b)
	if !ok {
		return nil, notJSON("%s has the escape %q, which is none", c.name(), b)
	}
	if utf16.IsSurrogate(char) { // the first half of two, if it is well
		both, _ := c.src.Peek(2 * long) // fewer at the end
		second, _ := hex(both[long:])
		whole := utf16.DecodeRune(char, second)
		if whole == utf8.RuneError {
			return nil, notJSON("%s has \\u%04x, half of a character", c.name(), char)
		}
		return c.skip(2*long, c.encode(whole))
	}
	return c.skip(long, c.encode(char))
}

// hex returns the number of an escape like \u00e4; 0 and false if it is none.
func hex(b []byte) (rune, bool) {
	digits, ok := strings.CutPrefix(string(b), `\u`)
	n, err := strconv.ParseUint(digits, 16, 16)
	if !ok || err != nil || len(digits) != 4 {
		return 0, false
	}
	return rune(n), true
}

// encode returns a character until the next one.
func (c *textBody) encode(char rune) []byte { return utf8.AppendRune(c.char[:0], char) }

// take moves on behind b, which src is at, and returns it.
func (c *textBody) take(b []byte) ([]byte, error) { return c.skip(len(b), b) }

// skip moves on behind n bytes, which stand for b.
func (c *textBody) skip(n int, b []byte) ([]byte, error) {
	_, err := c.src.Discard(n) // they have been looked at
	return b, err
}

// cut says why there is no more of a text.
func (c *textBody) cut(err error) error {
	if errors.Is(err, io.EOF) {
		return notJSON("it ends within %s", c.name())
	}
	return err
}

// notJSON says why a body cannot be read.
func notJSON(format string, args ...any) error {
	return doze.Errorf(doze.Invalid, "the body is not the JSON object we expect: "+format, args...)
}
