package httpx

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/dozehq/doze"
)

// RequestIDHeader is what every request of a sandbox gets that the proxy sends on.
const RequestIDHeader = "X-Blaxel-Request-Id"

// Refers reports whether r has a reference to a secret in its header or address,
// which are sent as they are.
func Refers(r *http.Request) bool {
	const to = doze.SecretReference
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
