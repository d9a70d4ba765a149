package doctor

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFix(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for name, text := range map[string]string{a: "always within_size [advise] never\n", b: "65530\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	found := []Finding{
		{Check: "pages", Fix: &Setting{File: a, Value: "never"}}, {Check: "maps", Fix: &Setting{File: b, Value: "262144"}}, {Check: "user"},
	}
	for _, tc := range []struct{ only, a, b, said string }{
		{"pages", "never", "65530\n", "changed: pages, until the next reboot; to undo: echo advise > " + a + "\n"},
		{"", "never", "262144", "echo 65530 > " + b + "\n"},
	} {
		var out bytes.Buffer
		if err := fix(&out, found, tc.only); err != nil {
			t.Error(err)
		}
		for name, want := range map[string]string{a: tc.a, b: tc.b} {
			if got, err := os.ReadFile(name); string(got) != want || err != nil {
				t.Errorf("only %q: %s is %q, %v", tc.only, name, got, err)
			}
		}
		if !strings.HasSuffix(out.String(), tc.said) {
			t.Errorf("only %q: it said %q", tc.only, out.String())
		}
	}
	if err := fix(io.Discard, []Finding{{Check: "gone", Fix: &Setting{File: filepath.Join(dir, "c")}}}, ""); err == nil {
		t.Error("a file that is not there was changed")
	}
}
