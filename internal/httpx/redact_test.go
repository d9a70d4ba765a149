package httpx_test

import (
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/httpx"
)

func TestRedact(t *testing.T) {
	cases := map[string][2]string{
		"nothing":       {"", ""},
		"plain":         {"?a=1&b=2", "?a=1&b=2"},
		"token":         {"?cols=80&token=abc", "?cols=80&token=[hidden]"},
		"capitals":      {"?API_KEY=abc", "?API_KEY=[hidden]"},
		"encoded name":  {"?%74oken=abc", "?%74oken=[hidden]"},
		"semicolon":     {"?a=1;jwt=abc", "?a=1&jwt=[hidden]"},
		"nested":        {"?next=%2Fx%3Ftoken%3Dabc", "?next=[hidden]"},
		"without value": {"?mytokenabc", "?[hidden]"},
		"not a query":   {"?%zz=abc", "?%zz=[hidden]"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := httpx.Redact(c[0]); got != c[1] {
				t.Errorf("got %s, want %s", got, c[1])
			}
		})
	}
}

func FuzzRedact(f *testing.F) {
	f.Add("a=1&b", "c=2")
	f.Add("%", ";%3d")
	f.Fuzz(func(t *testing.T, before, after string) {
		const secret = "hunter2hunter2"
		if strings.Contains(before+after, "hunter") {
			return
		}
		for _, name := range []string{"token", "%74oken", "X-API-Key", "bl_preview_token"} {
			got := httpx.Redact("?" + before + "&" + name + "=" + secret + "&" + after)
			if strings.Contains(got, secret) {
				t.Errorf("%q shows it", got)
			}
		}
	})
}
