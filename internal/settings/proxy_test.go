package settings

import (
	"os"
	"path/filepath"
	"testing"
)

func TestProxySettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "proxy")
	if err := os.WriteFile(file, []byte("http://u:hunter2@h:3128\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]secretCase{
		"none":                 {},
		"flag":                 {args: []string{"--upstream-proxy", "http://u@h:3128"}, want: "http://u@h:3128"},
		"environment":          {env: "http://u:hunter2@h", want: "http://u:hunter2@h"},
		"file":                 {args: []string{"--upstream-proxy-file", file, "--upstream-resolves", "--upstream-no-proxy", "a,b"}, want: "http://u:hunter2@h:3128"},
		"password in the flag": {args: []string{"--upstream-proxy", "http://u:hunter2@h"}, want: "--upstream-proxy-file", bad: true},
		"both":                 {args: []string{"--upstream-proxy-file", file}, env: "http://h", want: "give one of them", bad: true},
		"no such file":         {args: []string{"--upstream-proxy-file", file + "x"}, want: "no such file", bad: true},
		"no URL":               {args: []string{"--upstream-proxy", "h:3128"}, want: "must be a URL", bad: true},
		"odd URL":              {env: "http://u:hunter2#@h", want: "must be a URL", bad: true},
		"without a proxy":      {args: []string{"--upstream-resolves"}, want: "is missing", bad: true},
		"direct":               {args: []string{"--upstream-proxy", "http://h", "--egress", "direct"}, want: "UDP", bad: true},
		"dedicated addresses":  {args: []string{"--upstream-proxy", "http://h", "--egress-pool", "203.0.113.1", "--egress-interface", "lo"}, want: "address of the proxy", bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			if got, ok := c.load(t, "DOZED_UPSTREAM_PROXY"); ok && (got.UpstreamProxy != c.want || (got.Proxy() != nil) != (c.want != "")) {
				t.Errorf("it is %q, %v", got.UpstreamProxy, got.Proxy())
			}
		})
	}
}
