package console_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/console"
)

// get asks the page for a path, with headers in pairs.
func get(method, path string, headers ...string) *httptest.ResponseRecorder {
	r, w := httptest.NewRequest(method, path, nil), httptest.NewRecorder()
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	console.New().ServeHTTP(w, r)
	return w
}

// loads finds the addresses of what the page loads.
var loads = regexp.MustCompile(`(?:src|href)="([^"]+)"`)

func TestPage(t *testing.T) {
	t.Parallel()
	w := get(http.MethodGet, "/")
	h, text := w.Header(), w.Body.String()
	if w.Code != http.StatusOK || h.Get("Content-Type") != "text/html; charset=utf-8" || h.Get("Cache-Control") != "no-cache" {
		t.Fatalf("%d %v", w.Code, h)
	}
	policy := h.Get("Content-Security-Policy")
	if !strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self';") || strings.Contains(policy, "unsafe") ||
		!strings.Contains(policy, "frame-ancestors 'none'") || !strings.Contains(policy, "connect-src 'self'") {
		t.Errorf("the page may load %q", policy)
	}
	if inline := regexp.MustCompile(`(?i)<style|style=|\son\w+=|<script[^>]*>[^<]`).FindString(text); inline != "" {
		t.Errorf("the policy refuses %q", inline)
	}
	tag := h.Get("Etag")
	if again := get(http.MethodGet, "/", "If-None-Match", tag); again.Code != http.StatusNotModified || again.Body.Len() > 0 {
		t.Errorf("the same page again: %d, %d bytes", again.Code, again.Body.Len())
	}
	if head := get(http.MethodHead, "/"); head.Code != http.StatusOK || head.Body.Len() > 0 {
		t.Errorf("HEAD: %d, %d bytes", head.Code, head.Body.Len())
	}
	if w := get(http.MethodPost, "/"); w.Code != http.StatusNotFound || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: %d with %v", w.Code, w.Header())
	}
}

// TestParts: what the page loads is there, for ever at the same address, packed and
// unpacked; and all of it is small.
func TestParts(t *testing.T) {
	t.Parallel()
	const bytesMax = 400 << 10 // of the first view, compressed
	all, bytes := loads.FindAllStringSubmatch(get(http.MethodGet, "/").Body.String(), -1), 0
	if len(all) != 3 {
		t.Fatalf("the page loads %q", all)
	}
	for _, one := range all {
		packed, plain := get(http.MethodGet, one[1], "Accept-Encoding", "gzip"), get(http.MethodGet, one[1])
		h := packed.Header()
		if packed.Code != http.StatusOK || h.Get("Content-Encoding") != "gzip" || plain.Body.Len() <= packed.Body.Len()/2 || plain.Header().Get("Content-Encoding") != "" {
			t.Errorf("%s: %d %v, %d bytes of %d", one[1], packed.Code, h, packed.Body.Len(), plain.Body.Len())
		}
		if !strings.HasSuffix(h.Get("Cache-Control"), "immutable") || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s: %v", one[1], h)
		}
		if again := get(http.MethodGet, one[1], "If-None-Match", h.Get("Etag")); again.Code != http.StatusNotModified {
			t.Errorf("%s again: %d", one[1], again.Code)
		}
		bytes += packed.Body.Len()
	}
	t.Logf("%d KB, compressed", bytes>>10)
	if bytes > bytesMax {
		t.Errorf("the first view has %d bytes, compressed; at most %d are allowed", bytes, bytesMax)
	}
	if w := get(http.MethodGet, "/console/app.old.js"); w.Code != http.StatusNotFound || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("a part of another version: %d %v", w.Code, w.Header())
	}
}
