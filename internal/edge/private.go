package edge

import (
	"net/url"
	"path"
	"strings"
)

// private is the first segment of the paths by which a node speaks to the
// agent. Nobody else may.
const private = "doze"

// decodesMax is how often a path is unescaped in search of a private one. The
// agent does it once.
const decodesMax = 4

// isPrivate reports whether any reader could take the escaped path of a request to the
// agent for a private one. It ignores additional slashes, dots, escapes and letter
// case.
func isPrivate(escaped string) bool {
	for range decodesMax {
		if beginsPrivate(escaped) {
			return true
		}
		decoded, err := url.PathUnescape(escaped)
		if err != nil || decoded == escaped {
			return false
		}
		escaped = decoded
	}
	return beginsPrivate(escaped)
}

// beginsPrivate looks at the first segment, before and after dots are
// resolved.
func beginsPrivate(p string) bool {
	p = strings.ReplaceAll(p, `\`, "/")
	for _, form := range []string{p, path.Clean("/" + p)} {
		for segment := range strings.SplitSeq(form, "/") {
			if segment == "" || segment == "." || segment == ".." {
				continue
			}
			segment, _, _ = strings.Cut(segment, ";") // path parameters
			if strings.EqualFold(strings.TrimSpace(segment), private) {
				return true
			}
			break
		}
	}
	return false
}
