package httpx

import (
	"net/url"
	"strings"
)

// hidden replaces a value that must not be logged.
const hidden = "[hidden]"

// secretWords mark a query parameter as secret wherever they appear in it.
var secretWords = []string{
	"token", "key", "secret", "pass", "pwd", "auth", "jwt", "bearer", "cred", "sig", "session", "code", "bl_", "dz_",
}

// decodesMax is how often what a parameter says is unescaped in search of a
// secret.
const decodesMax = 4

// Redact returns a query, with its question mark, in which the values of
// secret-looking parameters are replaced, for a log. Values are searched too:
// they may be addresses with a query of their own.
func Redact(query string) string {
	query, ok := strings.CutPrefix(query, "?")
	if !ok {
		return ""
	}
	pairs := strings.FieldsFunc(query, func(c rune) bool { return c == '&' || c == ';' })
	for i, pair := range pairs {
		if name, _, ok := strings.Cut(pair, "="); !ok && looksSecret(pair) {
			pairs[i] = hidden
		} else if ok && looksSecret(pair) {
			pairs[i] = name + "=" + hidden
		}
	}
	return "?" + strings.Join(pairs, "&")
}

func looksSecret(pair string) bool {
	for range decodesMax {
		lower := strings.ToLower(pair)
		for _, word := range secretWords {
			if strings.Contains(lower, word) {
				return true
			}
		}
		decoded, err := url.QueryUnescape(pair)
		if err != nil {
			return true // nobody knows what it says
		}
		if decoded == pair {
			return false
		}
		pair = decoded
	}
	return true // nested deeper than anybody writes by accident
}
