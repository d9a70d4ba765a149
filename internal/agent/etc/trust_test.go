package etc

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/dozehq/doze"
)

func TestTrust(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		has  map[string]string // files of the image
		want string
	}{
		"an image without any":   {nil, "ours"},
		"of Debian":              {map[string]string{"etc/ssl/certs/ca-certificates.crt": "theirs"}, "theirs\nours"},
		"of Fedora":              {map[string]string{"etc/pki/tls/certs/ca-bundle.crt": "theirs"}, "theirs\nours"},
		"the first that has any": {map[string]string{"etc/ssl/certs/ca-certificates.crt": "", "etc/ssl/cert.pem": "theirs"}, "theirs\nours"},
		"a fork":                 {map[string]string{doze.TrustFile: "of another workspace"}, "ours"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for file, text := range tt.has {
				file = filepath.Join(root, file)
				if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // it is said again in a copy
				if err := Trust(root, "ours"); err != nil {
					t.Fatal(err)
				}
			}
			file := filepath.Join(root, doze.TrustFile)
			got, err := os.ReadFile(file)
			if err != nil || string(got) != tt.want {
				t.Errorf("%q, %v", got, err)
			}
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
}
