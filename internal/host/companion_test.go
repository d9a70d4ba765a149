package host_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dozehq/doze/internal/host"
)

// TestCompanion finds a program in each place, and prefers the one beside dozed.
func TestCompanion(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		there []string // files below the prefix; one that ends with / is a directory
		want  string
	}{
		"beside":            {[]string{"bin/doze-agent"}, "bin/doze-agent"},
		"packaged":          {[]string{"lib/doze/doze-agent"}, "lib/doze/doze-agent"},
		"both":              {[]string{"bin/doze-agent", "lib/doze/doze-agent"}, "bin/doze-agent"},
		"nowhere":           {nil, "bin/doze-agent"},
		"a directory":       {[]string{"bin/doze-agent/", "lib/doze/doze-agent"}, "lib/doze/doze-agent"},
		"another's program": {[]string{"lib/doze-agent"}, "bin/doze-agent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := t.TempDir()
			for _, f := range test.there {
				path := filepath.Join(prefix, f)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				var err error
				if f[len(f)-1] == '/' {
					err = os.MkdirAll(path, 0o700)
				} else {
					err = os.WriteFile(path, nil, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if got := host.Companion(filepath.Join(prefix, "bin/dozed"), "doze-agent"); got != filepath.Join(prefix, test.want) {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}
