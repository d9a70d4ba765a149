// Package enroll lets a new machine become a node of a platform, with a token of an
// operator. It has the form of the token, the exchange, and the end of the node. Control
// decides, in package roster.
package enroll

import (
	"regexp"
	"strings"

	"github.com/dozehq/doze"
)

const (
	// Prefix begins a token.
	Prefix = "dzj_"
	// tokenMax bounds the text of a token, in bytes. It has about 130.
	tokenMax = 256
)

// A Token is what an operator gives to a new node. It cannot print.
type Token struct {
	code  doze.WriteOnly[string]
	print string
}

// NewToken returns the token of a code and of an authority. The code has the id of the token,
// as access.NewCode makes it with [Prefix].
func NewToken(code, fingerprint string) Token { return Token{doze.Hide(code), fingerprint} }

// Text is the token as people copy it.
func (t Token) Text() string { return t.code.Reveal() + "_" + t.print }

// tokenForm is that of a token: prefix, id, secret, and the fingerprint of the authority.
var tokenForm = regexp.MustCompile(`^(` + Prefix + `[A-Za-z0-9]+_[A-Za-z0-9]+)_([0-9a-f]{64})$`)

// ParseToken reads a token. It is Invalid if the text is none. The error does not have the
// text.
func ParseToken(text string) (Token, error) {
	if len(text) <= tokenMax {
		if m := tokenForm.FindStringSubmatch(strings.TrimSpace(text)); m != nil {
			return NewToken(m[1], m[2]), nil
		}
	}
	return Token{}, doze.Errorf(doze.Invalid, "the token for joining cannot be read: copy it whole from doze node token")
}
