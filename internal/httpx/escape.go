package httpx

import (
	"fmt"
	"net/url"
	"strings"
)

// Escape returns the path of u as it was sent, but for bytes that no path may
// have, which are escaped. Nothing is decoded: [url.URL.EscapedPath] turns %2f
// into a slash as soon as there is one such byte.
func Escape(u *url.URL) string {
	if u.RawPath == "" {
		return u.EscapedPath()
	}
	var out strings.Builder
	for _, c := range []byte(u.RawPath) {
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-_.~!$&'()*+,;=:@[]%/", c) >= 0 {
			out.WriteByte(c)
		} else {
			fmt.Fprintf(&out, "%%%02X", c)
		}
	}
	return out.String()
}
