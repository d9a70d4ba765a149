package settings

import (
	"strings"
	"testing"
)

// TestWherePreviewsAre: never at the origin of the API.
func TestWherePreviewsAre(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]struct{ listen, url, wrong string }{
		"":                                        {"127.0.0.1:7081", "http://127.0.0.1:7081", ""},
		"--listen :80":                            {":81", "http://127.0.0.1:81", ""},
		"--listen [::1]:80":                       {"[::1]:81", "http://[::1]:81", ""},
		"--listen 127.0.0.1:0":                    {"127.0.0.1:0", "http://127.0.0.1:0", ""},
		"--preview-listen :9000":                  {":9000", "http://127.0.0.1:9000", ""},
		"--public-url https://doze.test":          {"127.0.0.1:7081", "https://doze.test:7081", ""},
		"--preview-url https://previews.test":     {"127.0.0.1:7081", "https://previews.test", ""},
		"--tls-cert c --tls-key k":                {"127.0.0.1:7081", "https://127.0.0.1:7081", ""},
		"--domain doze.test":                      {"", "", ""},
		"--domain doze.test --preview-listen :90": {":90", "", "previewListen"},
		"--domain d.test --preview-url http://a":  {"", "http://a", "previewListen"},
		"--listen :65535":                         {":65536", "http://127.0.0.1:65536", "previewListen"},
		"--listen :90 --preview-listen :90":       {":90", "http://127.0.0.1:90", "previewListen"},
		"--preview-listen x":                      {"x", "", "previewListen"},
	} {
		c, _, err := load(strings.Fields(args))
		if err != nil {
			t.Fatal(err)
		}
		if c.PreviewListen != want.listen || c.PreviewURL != want.url {
			t.Errorf("%q: %s, %s", args, c.PreviewListen, c.PreviewURL)
		}
		if err := c.Validate(); (err != nil) != (want.wrong != "") || err != nil && !strings.Contains(err.Error(), want.wrong) {
			t.Errorf("%q: %v", args, err)
		}
	}
}
