package page_test

import (
	"bytes"
	"regexp"
	"testing"

	"doze/internal/agent/page"
)

func TestTerminal(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	if err := page.Terminal(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".xterm-viewport", "FitAddon", "new WebSocket", "</html>"} {
		if !bytes.Contains(b.Bytes(), []byte(want)) {
			t.Errorf("there is no %s", want)
		}
	}
	if bytes.Contains(b.Bytes(), []byte("{{s")) {
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
