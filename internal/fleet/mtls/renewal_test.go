package mtls_test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet/mtls"
)

// nodeLife is short: an identity looks at its files each minute, also in the time of a bubble.
const nodeLife = 6 * time.Hour

// joined returns the authority of a directory, and the directory of a node that joined.
func joined(t *testing.T, dir, id string) (*mtls.Authority, string) {
	t.Helper()
	a, err := mtls.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := mtls.ParseTrust(a.PEM(), a.Fingerprint())
	if err != nil {
		t.Fatal(err)
	}
	key, at := newKey(t), filepath.Join(t.TempDir(), "fleet")
	cert, err := a.SignNode(request(t, key), id, nodeLife)
	if err != nil {
		t.Fatal(err)
	}
	if err := trust.Store(at, id, cert, key); err != nil {
		t.Fatal(err)
	}
	return a, at
}

// leafOf returns the certificate in the files of a node, which belongs to the key there.
func leafOf(t *testing.T, dir string) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "node.crt"), filepath.Join(dir, "node.key"))
	if err != nil {
		t.Fatal(err)
	}
	return pair.Leaf
}

// run has an identity live until the test ends it.
func run(t *testing.T, i *mtls.Identity, sign mtls.Signer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = i.Renewing(sign)(ctx) })
	return func() { cancel(); running.Wait() }
}

// TestRenewal: a node has a good certificate for ever, with a new key each time, as long as
// control answers in the last third of a life.
func TestRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const id = "abcdefgh"
		dir := filepath.Join(t.TempDir(), "authority")
		if _, err := mtls.Make(dir); err != nil {
			t.Fatal(err)
		}
		a, at := joined(t, dir, id)
		first := leafOf(t, at)
		asked, away := 0, false
		stop := run(t, open(t, at, mtls.Node), func(_ context.Context, request []byte) ([]byte, error) {
			if asked++; away {
				return nil, errors.New("control is away")
			}
			return a.SignNode(request, id, nodeLife)
		})
		third := first.NotAfter.Sub(first.NotBefore) / 3
		time.Sleep(nodeLife - third - 5*time.Minute)
		if asked != 0 {
			t.Errorf("after less than two thirds of a life, it asked %d times", asked)
		}
		time.Sleep(10 * time.Minute)
		second := leafOf(t, at)
		if asked != 1 || second.NotAfter.Equal(first.NotAfter) || second.SerialNumber.Cmp(first.SerialNumber) == 0 {
			t.Errorf("it asked %d times, and its certificate ends at %s", asked, second.NotAfter)
		}
		if _, err := os.Stat(filepath.Join(at, "node.key.next")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a key is left over: %v", err)
		}
		away = true
		time.Sleep(nodeLife - 30*time.Minute)
		if asked < 5 || asked > 15 {
			t.Errorf("in the last third of a life without control, it asked %d times", asked)
		}
		away = false
		time.Sleep(20 * time.Minute)
		if is := leafOf(t, at); !is.NotAfter.After(second.NotAfter) {
			t.Errorf("when control is back, its certificate ends at %s", is.NotAfter)
		}
		time.Sleep(20 * nodeLife)
		if left := time.Until(leafOf(t, at).NotAfter); left < third-15*time.Minute {
			t.Errorf("after many lives, its certificate is good for %s", left)
		}
		stop()
	})
}

// TestRenewalOfAnother: what control signs for somebody else is not used.
func TestRenewalOfAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "authority")
		if _, err := mtls.Make(dir); err != nil {
			t.Fatal(err)
		}
		a, at := joined(t, dir, "abcdefgh")
		first := leafOf(t, at)
		asked := 0
		stop := run(t, open(t, at, mtls.Node), func(_ context.Context, csr []byte) ([]byte, error) {
			switch asked++; asked % 3 {
			case 0:
				return a.SignNode(csr, "another1", nodeLife)
			case 1:
				return a.SignNode(request(t, newKey(t)), "abcdefgh", nodeLife)
			}
			return []byte("nothing"), nil
		})
		time.Sleep(nodeLife - 10*time.Minute)
		if is := leafOf(t, at); asked < 3 || !is.Equal(first) {
			t.Errorf("after %d answers, the certificate is that of %v", asked, is.DNSNames)
		}
		stop()
	})
}

// TestRolesTakeUpFiles: roles use what dozed certificates makes anew, and nothing else.
func TestRolesTakeUpFiles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "authority")
		if _, err := mtls.Make(dir); err != nil {
			t.Fatal(err)
		}
		i := open(t, dir, mtls.Control)
		stop := run(t, i, nil)
		ends := i.Ends("")
		time.Sleep(time.Hour)
		good, err := os.ReadFile(filepath.Join(dir, "control.crt"))
		if err != nil {
			t.Fatal(err)
		}
		other, err := os.ReadFile(filepath.Join(dir, "edge.crt"))
		if err != nil {
			t.Fatal(err)
		}
		for what, text := range map[string][]byte{"that of another role": other, "nothing": nil} {
			if err := os.WriteFile(filepath.Join(dir, "control.crt"), text, 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2 * time.Minute)
			if !i.Ends("")["control"].Equal(ends["control"]) {
				t.Errorf("%s is used", what)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "control.crt"), good, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := mtls.Make(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		now := i.Ends("")
		if later := now["control"].Sub(ends["control"]); later < time.Hour || !now["roles"].Equal(ends["roles"]) {
			t.Errorf("the next certificate ends %s later", later)
		}
		stop()
	})
}

// TestRenewalCutsNothing: who is connected stays so, and who connects after a renewal
// meets the next certificate, on both sides.
func TestRenewalCutsNothing(t *testing.T) {
	t.Parallel()
	const id = "abcdefgh"
	dir := made(t)
	a, at := joined(t, dir, id)
	node := open(t, at, mtls.Node)
	url := serve(t, node, mtls.Control)
	reused, serial := false, new(big.Int)
	get := func(transport http.RoundTripper) {
		t.Helper()
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
			reused = c.Reused
			serial = c.Conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber
		}})
		if status, body, err := ask(ctx, transport, url); err != nil || status != http.StatusOK {
			t.Fatalf("%d %s %v", status, body, err)
		}
	}
	old := open(t, dir, mtls.Control).Transport(mtls.Node)
	get(old)
	first := serial
	trust, err := mtls.ParseTrust(a.PEM(), a.Fingerprint())
	if err != nil {
		t.Fatal(err)
	}
	key := newKey(t)
	cert, err := a.SignNode(request(t, key), id, nodeLife)
	if err != nil {
		t.Fatal(err)
	}
	if err := trust.Store(at, id, cert, key); err != nil {
		t.Fatal(err)
	}
	stop := run(t, node, nil) // reads the files at once
	next := leafOf(t, at).SerialNumber
	for deadline := time.Now().Add(10 * time.Second); ; {
		get(open(t, dir, mtls.Control).Transport(mtls.Node))
		if serial.Cmp(next) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("new connections have the certificate of before")
		}
	}
	stop()
	if get(old); !reused || serial.Cmp(first) != 0 {
		t.Error("the connection of before is lost")
	}
}

// TestTornRenewal: a process that ends between the two writes of a renewal starts again.
func TestTornRenewal(t *testing.T) {
	t.Parallel()
	const id = "abcdefgh"
	_, at := joined(t, made(t), id)
	file := filepath.Join(at, "node.key")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(newKey(t))
	if err != nil {
		t.Fatal(err)
	}
	other := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})
	// The certificate is not there yet: the next key is good for nothing.
	if err := os.WriteFile(file+".next", other, 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, at, mtls.Node)
	// It is there, and its key is not in its place.
	if err := errors.Join(os.WriteFile(file, other, 0o600), os.WriteFile(file+".next", old, 0o600)); err != nil {
		t.Fatal(err)
	}
	open(t, at, mtls.Node)
	leafOf(t, at)
	// Neither key is that of the certificate.
	if err := errors.Join(os.WriteFile(file, other, 0o600), os.WriteFile(file+".next", other, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := mtls.Open(at, mtls.Node); err == nil {
		t.Error("a certificate without its key is an identity")
	}
}

// TestEnded: a certificate that ended is no identity. The error says what to do.
func TestEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "authority")
		if _, err := mtls.Make(dir); err != nil {
			t.Fatal(err)
		}
		a, at := joined(t, dir, "abcdefgh")
		time.Sleep(6 * 365 * 24 * time.Hour)
		for where, want := range map[string]string{at: "--join", dir: "dozed certificates"} {
			if _, err := mtls.Open(where, mtls.Node); doze.Public(err).Kind != doze.Forbidden || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want to hear of %s", err, want)
			}
		}
		if is, err := mtls.Joined(at); is || err != nil {
			t.Errorf("it counts as joined: %t, %v", is, err)
		}
		if _, key := mtls.Earlier(dir); key != nil {
			t.Error("a key that others have is used again")
		}
		cert, key := mtls.Earlier(at)
		if key == nil || !a.Had(cert, request(t, key), "abcdefgh") {
			t.Error("it does not prove that the node has been here")
		}
		for what, ok := range map[string]bool{
			"with another key": a.Had(cert, request(t, newKey(t)), "abcdefgh"),
			"as another node":  a.Had(cert, request(t, key), "another1"),
			"with nothing":     a.Had(nil, request(t, key), "abcdefgh"),
		} {
			if ok {
				t.Errorf("%s it proves that a node has been here", what)
			}
		}
	})
}

func FuzzHad(f *testing.F) {
	dir := filepath.Join(f.TempDir(), "fleet")
	if _, err := mtls.Make(dir); err != nil {
		f.Fatal(err)
	}
	a, err := mtls.OpenAuthority(dir)
	if err != nil {
		f.Fatal(err)
	}
	key := newKey(f)
	text, err := a.SignNode(request(f, key), "abcdefgh", time.Hour)
	if err != nil {
		f.Fatal(err)
	}
	block, _ := pem.Decode(text)
	// One that nobody signed.
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"node.doze.internal", "abcdefgh.node.doze.internal"}}
	self, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(self, request(f, key), "abcdefgh")
	f.Fuzz(func(t *testing.T, cert, csr []byte, id string) {
		if a.Had(cert, csr, id) && string(cert) != string(block.Bytes) {
			t.Errorf("%q is believed", id)
		}
	})
}
