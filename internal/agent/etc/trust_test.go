package etc

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
)

const debian = "etc/ssl/certs/ca-certificates.crt"

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for file, text := range files {
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestTrust(t *testing.T) {
	t.Parallel()
	const ours = begin + "ours" + end
	for name, tt := range map[string]struct {
		has  map[string]string // files of the image
		want string
	}{
		"an image without any":   {nil, string(public()) + ours},
		"of Debian":              {map[string]string{debian: "theirs"}, "theirs\n" + ours},
		"of Fedora":              {map[string]string{"etc/pki/tls/certs/ca-bundle.crt": "theirs"}, "theirs\n" + ours},
		"the first that has any": {map[string]string{debian: "", "etc/ssl/cert.pem": "theirs"}, "theirs\n" + ours},
		"not prepared":           {map[string]string{debian: "theirs"}, "theirs\n" + ours},
		"a fork":                 {map[string]string{doze.TrustFile: "of another workspace", ownFile: "of another workspace", debian: "theirs"}, "theirs\n" + ours},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			write(t, root, tt.has)
			if name != "not prepared" {
				Prepare(root, nil)
			}
			for _, authority := range []string{"of the sandbox that was copied", "ours"} { // it is said again in a copy
				if err := Trust(root, authority); err != nil {
					t.Fatal(err)
				}
			}
			file := filepath.Join(root, doze.TrustFile)
			if got := read(t, file); got != tt.want {
				t.Errorf("%q", got)
			}
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
				t.Errorf("%v, %v", info, err)
			}
			for name, text := range tt.has {
				if text == "theirs" && read(t, filepath.Join(root, name)) != tt.want {
					t.Errorf("%s has %q", name, read(t, filepath.Join(root, name)))
				}
			}
		})
	}
}

// TestPublic: an image without authorities trusts those that everybody does.
func TestPublic(t *testing.T) {
	t.Parallel()
	pool := x509.NewCertPool()
	if n := bytes.Count(public(), []byte("BEGIN CERTIFICATE")); n < 100 || !pool.AppendCertsFromPEM(public()) {
		t.Errorf("there are %d", n)
	}
}

// TestTrustOfOpenSSL: OpenSSL believes what our authority has signed by each of the
// ways in which it looks for one, and no more what the one of before has signed.
func TestTrustOfOpenSSL(t *testing.T) {
	t.Parallel()
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("there is no openssl")
	}
	root := t.TempDir()
	_, theirs := signed(t, "theirs")
	write(t, root, map[string]string{debian: theirs.authority, "usr/local/share/x": ""})
	old, before := signed(t, "Doze  Egress of another")
	leaf, now := signed(t, "Doze Egress of this")
	for _, authority := range []string{before.authority, now.authority} {
		if err := Trust(root, authority); err != nil {
			t.Fatal(err)
		}
	}
	for name, looks := range map[string][]string{
		"the bundle":    {"-CAfile", filepath.Join(root, debian)},
		"our bundle":    {"-CAfile", filepath.Join(root, doze.TrustFile)},
		"the directory": {"-CApath", filepath.Join(root, "etc/ssl/certs")},
		"the anchor":    {"-CAfile", filepath.Join(root, anchors[0], anchorName)},
	} {
		for pem, want := range map[string]bool{leaf: true, old: false} {
			file := filepath.Join(t.TempDir(), "leaf.pem")
			if err := os.WriteFile(file, []byte(pem), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), openssl, append(append([]string{"verify"}, looks...), "-no-CAstore", file)...).CombinedOutput()
			if (err == nil) != want {
				t.Errorf("%s: trusted: %v, want %v: %s", name, err == nil, want, out)
			}
		}
	}
}

type issuer struct{ authority string }

// signed returns a certificate, in PEM, and the authority that has signed it.
func signed(t *testing.T, name string) (leaf string, by issuer) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(c, parent *x509.Certificate) string {
		raw, err := x509.CreateCertificate(rand.Reader, c, parent, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}))
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{Organization: []string{"Doze  egress "}, CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	host := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "host"}, DNSNames: []string{"host"},
		NotBefore: authority.NotBefore, NotAfter: authority.NotAfter,
	}
	return sign(host, authority), issuer{strings.TrimSpace(sign(authority, authority)) + "\n"}
}
