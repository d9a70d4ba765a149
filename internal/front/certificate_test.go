package front

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// writeCertificate makes a certificate with a serial number.
func writeCertificate(t *testing.T, cert, key string, serial int64) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"localhost"}, NotAfter: time.Unix(4e9, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCertificatesAreRenewed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if _, err := openPair(cert, key); err == nil {
		t.Error("opened without files")
	}
	writeCertificate(t, cert, key, 1)
	synctest.Test(t, func(t *testing.T) {
		c, err := openPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		serial := func() int64 {
			t.Helper()
			pair, err := c.get(nil)
			if err != nil {
				t.Fatal(err)
			}
			leaf, err := x509.ParseCertificate(pair.Certificate[0])
			if err != nil {
				t.Fatal(err)
			}
			return leaf.SerialNumber.Int64()
		}
		writeCertificate(t, cert, key, 1000)
		if got := serial(); got != 1 {
			t.Errorf("serial %d before a look", got)
		}
		time.Sleep(certificateCheck)
		if got := serial(); got != 1000 {
			t.Errorf("serial %d after it was renewed", got)
		}
		if err := os.WriteFile(cert, []byte("half of it"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(certificateCheck)
		if got := serial(); got != 1000 {
			t.Errorf("serial %d while it is being written", got)
		}
		writeCertificate(t, cert, key, 1_000_000)
		time.Sleep(certificateCheck)
		if got := serial(); got != 1_000_000 {
			t.Errorf("serial %d after that", got)
		}
	})
}
