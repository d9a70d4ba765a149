package httpx_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

func TestCheckText(t *testing.T) {
	t.Parallel()
	for text, good := range map[string]bool{
		`{"a":"plain, \"quoted\" \\ \n é 😀"}`: true, `{"a":"\ud83d\ude00"}`: true, `{"a":"\\ud83d"}`: true, `{"a":"\\\\ud83d"}`: true,
		`{"a":"\ud83d"}`: false, `{"a":"\ude00"}`: false, `{"a":"\ud83d\ud83d\ude00"}`: false, `{"a":"\ud83dx"}`: false, `{"\udfff":1}`: false,
		`{"a":"\\\ud83d"}`: false, "{\"a\":\"x\xffy\"}": false, "{\"a\":\"\xed\xa0\x80\"}": false, "": true, `\`: true, `"\u12`: true,
	} {
		if err := httpx.CheckText([]byte(text)); (err == nil) != good || err != nil && doze.Public(err).Kind != doze.Invalid {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzCheckText: JSON with good text comes back as it was.
func FuzzCheckText(f *testing.F) {
	f.Add(`"\ud83d\ude00"`)
	f.Add(`"\\ud83d"`)
	f.Add("\"\xff\"")
	f.Fuzz(func(t *testing.T, text string) {
		var got string
		if json.Unmarshal([]byte(text), &got) != nil {
			return
		}
		if strings.ContainsRune(text, utf8.RuneError) && utf8.ValidString(text) || strings.Contains(strings.ToLower(text), `\ufffd`) {
			return // then nobody knows what was put in a place
		}
		replaced := strings.ContainsRune(got, utf8.RuneError)
		if good := httpx.CheckText([]byte(text)) == nil; good == replaced {
			t.Errorf("%q is %q", text, got)
		}
	})
}
