package contract_test

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/authority"
	"github.com/dozehq/doze/internal/testkit/freeport"
)

// alertRow is a row of the table of alerts in the page about previews.
var alertRow = regexp.MustCompile("(?m)^\\| `([a-z ]+)` \\| ")

// TestAlerts: each refusal of a connection to a port is the alert that the documentation
// names.
func TestAlerts(t *testing.T) {
	const domain = "doze.example"
	cert, key, roots := authority.SelfSigned(t, domain, "*.local."+domain, "*.local.preview."+domain)
	listen, err := freeport.Address(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listen)
	p := launch(t, testkit.Options{Listen: listen, Host: domain, Roots: roots, Args: []string{
		"--pause-after", "1h", "--tls-cert", cert, "--tls-key", key, "--domain", domain, "--public-url", "https://" + net.JoinHostPort(domain, port),
	}})
	c, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	sb := doze.Sandbox{Metadata: doze.Metadata{Name: "db"}, Spec: doze.SandboxSpec{Runtime: doze.Runtime{Memory: 512, Ports: []doze.Port{{Target: 5432, Protocol: doze.ProtocolTCP}}}}}
	if _, err := c.Create(t.Context(), sb, false); err != nil {
		t.Fatal(err)
	}
	for name, public := range map[string]bool{"open": true, "closed": false} {
		v := doze.Preview{Metadata: doze.PreviewMetadata{Name: name}, Spec: doze.PreviewSpec{Port: 5432, Public: public, PrefixURL: name}}
		if _, err := c.CreatePreview(t.Context(), "db", v); err != nil {
			t.Fatal(err)
		}
	}
	var held []string
	for name, e := range map[string]struct {
		host     string
		offers   []string
		postgres bool // it asks for TLS in the words of PostgreSQL
		alert    string
	}{
		"a private preview": {"closed", nil, false, "access denied"},
		"a browser":         {"open", []string{"h2", "http/1.1"}, false, "no application protocol"},
		"nothing listens":   {"open", nil, false, "internal error"},
		"no such preview":   {"none", nil, true, "unrecognized name"},
	} {
		raw, err := net.Dial("tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		if e.postgres {
			answer := make([]byte, 1)
			if _, err := raw.Write([]byte("\x00\x00\x00\x08\x04\xd2\x16\x2f")); err != nil {
				t.Fatal(err)
			}
			if _, err := raw.Read(answer); err != nil || answer[0] != 'S' {
				t.Errorf("%s: %q, %v", name, answer, err)
			}
		}
		conn := tls.Client(raw, &tls.Config{RootCAs: roots, ServerName: e.host + "-main.local.preview." + domain, NextProtos: e.offers})
		if err := conn.HandshakeContext(t.Context()); err == nil || !strings.Contains(err.Error(), e.alert) {
			t.Errorf("%s: %v, want %s", name, err, e.alert)
		}
		held = append(held, e.alert)
	}
	page, err := os.ReadFile(filepath.Join(testkit.Root(), "docs", "api", "previews.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "| Alert |")
	for _, row := range alertRow.FindAllStringSubmatch(table, -1) {
		if !slices.Contains(held, row[1]) {
			t.Errorf("nobody gets the alert %q", row[1])
		}
	}
}
