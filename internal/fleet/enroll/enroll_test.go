package enroll_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/fleet/enroll"
)

// TestToken: a token is read as it was written, and does not print.
func TestToken(t *testing.T) {
	t.Parallel()
	code, mark := access.NewCode(enroll.Prefix, "id"), strings.Repeat("0a", 32)
	text := enroll.NewToken(code, mark).Text()
	for _, given := range []string{text, " " + text + "\n"} {
		got, err := enroll.ParseToken(given)
		if err != nil || got.Text() != text {
			t.Errorf("%q is %v", given, err)
		}
		for _, shown := range []string{fmt.Sprint(got), fmt.Sprintf("%+v", got), fmt.Sprintf("%#v", got)} {
			if strings.Contains(shown, code) {
				t.Errorf("a token prints as %s", shown)
			}
		}
	}
	for what, bad := range map[string]string{
		"nothing": "", "a key": "dz_id_secret", "no fingerprint": code, "a short fingerprint": code + "_0a", "another prefix": "dzs_" + strings.TrimPrefix(text, enroll.Prefix),
		"two lines": text + "\n" + text, "a long one": text + strings.Repeat(" ", 300), "capitals": strings.ToUpper(text),
	} {
		_, err := enroll.ParseToken(bad)
		if doze.Public(err).Kind != doze.Invalid || err != nil && strings.Contains(err.Error(), code) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(enroll.NewToken(access.NewCode(enroll.Prefix, "id"), strings.Repeat("0a", 32)).Text())
	f.Add("dzj_a_b_c")
	f.Fuzz(func(t *testing.T, text string) {
		if got, err := enroll.ParseToken(text); err == nil && got.Text() != strings.TrimSpace(text) {
			t.Errorf("%q is read as %q", text, got.Text())
		}
	})
}
