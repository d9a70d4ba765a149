package doze_test

import (
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

func TestCheckAddress(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"http://127.0.0.1:9000/ports":   "",
		"https://s3.test/b/k?secret=ab": "",
		"":                              "url is required",
		"/path":                         "url must be",
		"http:///secret":                "url must be",
		"http://a b/secret":             "url must be",
		"file:///etc/secret":            "url must be",
		"secret.test":                   "url must be",
	} {
		var p doze.Problems
		doze.CheckAddress(&p, "url", address)
		if got := strings.Join(p, "; "); (want == "") != (got == "") || !strings.HasPrefix(got, want) || strings.Contains(got, "secret") {
			t.Errorf("%q: %q, want %q", address, got, want)
		}
	}
	p := doze.Problems{"url must be a string, not number"}
	if doze.CheckAddress(&p, "url", ""); len(p) != 1 {
		t.Errorf("what cannot be read is missing, too: %q", p)
	}
}
