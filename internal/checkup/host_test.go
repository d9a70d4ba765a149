package checkup

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/instance"
	"github.com/dozehq/doze/internal/settings"
)

// made returns settings with the certificates of a new authority.
func made(t *testing.T) settings.Settings {
	t.Helper()
	data := t.TempDir()
	s := settings.Settings{Data: data, FleetKeys: filepath.Join(data, "fleet")}
	if _, err := mtls.Make(s.FleetKeys); err != nil {
		t.Fatal(err)
	}
	return s
}

// put copies a certificate and its key over those of another role.
func put(t *testing.T, from settings.Settings, role string, to settings.Settings, as string) {
	t.Helper()
	for _, kind := range []string{".crt", ".key"} {
		raw, err := os.ReadFile(filepath.Join(from.FleetKeys, role+kind))
		if err := errors.Join(err, os.WriteFile(filepath.Join(to.FleetKeys, as+kind), raw, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCertificates: the doctor sees whose a certificate is, who signed it, and when it ends.
func TestCertificates(t *testing.T) {
	t.Parallel()
	if all := certificates(settings.Settings{Data: t.TempDir(), FleetKeys: t.TempDir()}, time.Now()); len(all) > 0 {
		t.Errorf("without certificates: %+v", all)
	}
	s := made(t)
	for _, c := range certificates(s, time.Now()) {
		if c.Err != nil || c.Soon || c.Ends.IsZero() {
			t.Errorf("new ones: %+v", c)
		}
	}
	for _, c := range certificates(s, time.Now().AddDate(4, 11, 0)) {
		if !c.Soon {
			t.Errorf("a month before the end: %+v", c)
		}
	}
	for name, harm := range map[string]func(t *testing.T, s settings.Settings){
		"of another role": func(t *testing.T, s settings.Settings) {
			t.Helper()
			put(t, s, "edge", s, "node")
		},
		"of another authority": func(t *testing.T, s settings.Settings) {
			t.Helper()
			put(t, made(t), "node", s, "node")
		},
		"without a key": func(t *testing.T, s settings.Settings) {
			t.Helper()
			if err := os.Remove(filepath.Join(s.FleetKeys, "node.key")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := made(t)
			harm(t, s)
			for _, c := range certificates(s, time.Now()) {
				if (c.Err != nil) != (c.Role == "node") {
					t.Errorf("%+v", c)
				}
			}
		})
	}
}

// TestCertificateOfAnotherNode: a node that joined has a certificate of its id alone.
func TestCertificateOfAnotherNode(t *testing.T) {
	t.Parallel()
	s := made(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	authority, err := mtls.OpenAuthority(s.FleetKeys)
	if err != nil {
		t.Fatal(err)
	}
	id, err := instance.NodeID(s.Data)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for of, wrong := range map[string]bool{id: false, "another1": true} {
		cert, err := authority.SignNode(request, of, time.Hour)
		err = errors.Join(err, os.WriteFile(filepath.Join(s.FleetKeys, "node.crt"), cert, 0o600),
			os.WriteFile(filepath.Join(s.FleetKeys, "node.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range certificates(s, time.Now()) {
			if c.Role == "node" && (c.Soon || (c.Err != nil) != wrong || wrong && !strings.Contains(c.Err.Error(), "another1")) {
				t.Errorf("that of %s: %+v", of, c)
			}
		}
	}
}
