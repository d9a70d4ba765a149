package page_test

import (
	"bytes"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/page"
)

func TestTerminal(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	if err := page.Terminal(w, page.Pass{Ticket: "</script>one", Lease: "two"}); err != nil {
		t.Fatal(err)
	}
	b, h := w.Body, w.Header()
	if h.Get("Referrer-Policy") != "no-referrer" || h.Get("Cache-Control") != "no-cache, no-store, must-revalidate" || !strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
		t.Errorf("a credential in its address may leak: %v", h)
	}
	for _, want := range []string{`{"ticket":"\u003c/script\u003eone","lease":"two"}`, ".xterm-viewport", "FitAddon", "new WebSocket", "</html>"} {
		if !bytes.Contains(b.Bytes(), []byte(want)) {
			t.Errorf("there is no %s", want)
		}
	}
	if bytes.Contains(b.Bytes(), []byte("{{"+"s")) || bytes.Contains(b.Bytes(), []byte("{{pass")) {
		t.Error("a place was not filled")
	}
	// It loads nothing: neither from here nor from anywhere else.
	if loads := regexp.MustCompile(`(?i)<(script|link|img|iframe)[^>]* (src|href)=|@import|url\(\s*["']?(https?:)?//`).Find(b.Bytes()); loads != nil {
		t.Errorf("it loads something: %s", loads)
	}
	if n := bytes.Count(b.Bytes(), []byte("</script>")); n != 2 {
		t.Errorf("%d ends of a script: the emulator breaks the page", n)
	}
}
