package httpx

import (
	"net/http"
	"net/url"
	"strings"
)

// Refers reports whether r has something in its header or address, which is sent as
// it is.
func Refers(r *http.Request, to string) bool {
	for _, all := range r.Header {
		for _, v := range all {
			if strings.Contains(v, to) {
				return true
			}
		}
	}
	address, err := url.QueryUnescape(r.URL.RawQuery)
	return strings.Contains(r.URL.Path, to) || strings.Contains(r.URL.RawQuery, to) || err == nil && strings.Contains(address, to)
}
