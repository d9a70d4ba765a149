// Package text handles text that comes in pieces: JSON bodies with large strings,
// and characters that are cut in two.
package text

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
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/mistake"
)

const (
	// Ahead is what is read of a body at once. Small ones need less.
	Ahead = 32 << 10
	// depthMax is how deep in a body texts are, at most.
	depthMax = 2
	// AnyName is every name, where texts are.
	AnyName = "*"
)

// Body reads a JSON object as it comes, with texts that may be large. Read
// returns these, decoded, one after the other; the end is io.EOF only if Finish
// took what is beside them.
type Body struct {
	At     []string                            // the names of the members that lead to a text
	Begin  func(name string, from int64) error // a text begins, behind so many bytes
	Finish func(beside []byte) error           // the body, with empty texts
	Most   int                                 // bytes beside the texts
	Cost   int64                               // what each of these takes, if they count among what bodies hold

	src   *bufio.Reader
	in    *body.Incoming // what src reads; nil if nobody counts
	ready []byte         // of a text, decoded; valid until the next look at src
	n     int64          // bytes of all texts until now
	err   error          // the end, for good
	char  [utf8.UTFMax]byte

	inside bool   // the next byte belongs to a text
	beside []byte // what was read, with empty texts

	// Of what is beside them:
	depth           int // of objects and lists
	quoted, escaped bool
	from            int              // where the last string begins in beside
	names           [depthMax]string // the last one at each depth
	values          [depthMax]bool   // the colon was there: what follows is no name
}

// Open begins to read the body of a request. It is TooLarge if its sender says so.
func (c *Body) Open(w http.ResponseWriter, r *http.Request) error {
	src, err := body.Limited(w, r, body.Max)
	if err != nil {
		return err
	}
	ahead := Ahead
	if n := r.ContentLength; n >= 0 && n < Ahead {
		ahead = int(n)
	}
	c.in, _ = r.Body.(*body.Incoming)
	c.From(src, ahead)
	return nil
}

// From begins to read a body that comes from src, so many bytes at once.
func (c *Body) From(src io.Reader, ahead int) { c.src = bufio.NewReaderSize(src, ahead) }

// Read returns what has come, and waits only if that is nothing.
func (c *Body) Read(p []byte) (n int, err error) {
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
func (c *Body) next() ([]byte, error) {
	for !c.inside {
		b, err := c.src.ReadByte()
		switch {
		case errors.Is(err, io.EOF):
			if err := c.Finish(c.beside); err != nil {
				return nil, err
			}
			return nil, io.EOF
		case err != nil:
			return nil, err
		case len(c.beside) >= c.Most:
			return nil, doze.Errorf(doze.TooLarge, "the body has more than %d KiB besides %s; leave out what is not needed", c.Most>>10, c.At[0])
		case !c.room():
			return nil, body.ErrCrowded
		}
		c.inside = c.begins(b)
		c.beside = append(c.beside, b) // of a text, the quotes
		if c.inside {
			if err := c.Begin(c.names[len(c.At)-1], c.n); err != nil {
				return nil, err
			}
		}
	}
	return c.decode()
}

// room reports whether there is memory for a byte more beside the texts. It is
// asked for when beside grows, by up to its size.
func (c *Body) room() bool {
	n := len(c.beside)
	return n < cap(c.beside) || c.Cost == 0 || c.in == nil || c.in.Take(int64(2*n)*c.Cost)
}

// begins takes in a byte of what is beside the texts, and reports whether it is
// the quote with which one begins. What is not JSON is left to finish.
func (c *Body) begins(b byte) bool {
	in := c.depth - 1
	near := in >= 0 && in < len(c.At)
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
	case b == '"' && in == len(c.At)-1 && c.there():
		return true
	case b == '"':
		c.quoted, c.from = true, len(c.beside)
	case b == '{' || b == '[':
		c.depth++
		if c.depth <= len(c.At) && c.depth > 0 {
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
func (c *Body) there() bool {
	for i, name := range c.At {
		if !c.values[i] || name != AnyName && !strings.EqualFold(c.names[i], name) {
			return false
		}
	}
	return true
}

// Size returns how many bytes all texts had until now.
func (c *Body) Size() int64 { return c.n }

// name is what an error calls the text.
func (c *Body) name() string { return mistake.Clip(c.names[len(c.At)-1]) }

// decode returns the next stretch inside of a text.
func (c *Body) decode() ([]byte, error) {
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
func (c *Body) escape() ([]byte, error) {
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
func (c *Body) encode(char rune) []byte { return utf8.AppendRune(c.char[:0], char) }

// take moves on behind b, which src is at, and returns it.
func (c *Body) take(b []byte) ([]byte, error) { return c.skip(len(b), b) }

// skip moves on behind n bytes, which stand for b.
func (c *Body) skip(n int, b []byte) ([]byte, error) {
	_, err := c.src.Discard(n) // they have been looked at
	return b, err
}

// cut says why there is no more of a text.
func (c *Body) cut(err error) error {
	if errors.Is(err, io.EOF) {
		return notJSON("it ends within %s", c.name())
	}
	return err
}

// notJSON says why a body cannot be read.
func notJSON(format string, args ...any) error {
	return doze.Errorf(doze.Invalid, "the body must be a JSON object: "+format, args...)
}
