package httpx

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/dozehq/doze"
)

// escapeLen is the length of an escape such as \ud83d.
const escapeLen = 6

// CheckText is Invalid for JSON that has what no text can have: bytes that are
// not UTF-8 (RFC 8259, section 8.1), and halves of characters (8.2). The decoder
// puts another character in their place, and nobody would know.
func CheckText(b []byte) error {
	if !utf8.Valid(b) {
		return doze.Errorf(doze.Invalid, "the body is not UTF-8, as JSON must be; send other bytes as base64, or in a file")
	}
	for {
		i := bytes.IndexByte(b, '\\')
		if i < 0 || i+1 == len(b) {
			return nil
		}
		first, n := escape(b[i:])
		if b = b[i+n:]; !utf16.IsSurrogate(first) {
			continue
		}
		second, n := escape(b)
		if utf16.DecodeRune(first, second) == utf8.RuneError {
			return doze.Errorf(doze.Invalid, `the body has \u%04x, half of a character; send both halves, or the character itself`, first)
		}
		b = b[n:]
	}
}

// escape reads the character that an escape at the beginning of b stands for, if
// it is one by number, and how long it is.
func escape(b []byte) (r rune, n int) {
	if len(b) < escapeLen || b[0] != '\\' || b[1] != 'u' {
		return 0, min(2, len(b))
	}
	number, err := strconv.ParseUint(string(b[2:escapeLen]), 16, 16)
	if err != nil {
		return 0, 2
	}
	return rune(number), escapeLen
}
