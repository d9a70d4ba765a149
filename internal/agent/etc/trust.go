package etc

import (
	"os"
	"path/filepath"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/environ"
)

// bundles are where distributions keep the certificates of the authorities that
// they trust.
var bundles = []string{
	"etc/ssl/certs/ca-certificates.crt",                // Debian, Alpine, Arch
	"etc/pki/tls/certs/ca-bundle.crt",                  // Fedora, RHEL
	"etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL
	"etc/ssl/ca-bundle.pem",                            // openSUSE
	"etc/ssl/cert.pem",                                 // Alpine without its package
}

// Trust writes [doze.TrustFile] below root: what the image trusts, and more.
func Trust(root, more string) error {
	var all []byte
	for _, name := range bundles {
		if b, err := environ.ReadFile(filepath.Join(root, name)); err == nil && len(b) > 0 {
			all = append(b, '\n')
			break
		}
	}
	name := filepath.Join(root, doze.TrustFile)
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // every user of the image reads it
		return err
	}
	fresh := name + ".new"
	if err := os.WriteFile(fresh, append(all, more...), 0o644); err != nil { //nolint:gosec // likewise
		return err
	}
	return os.Rename(fresh, name)
}
