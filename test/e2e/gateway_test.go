package e2e_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/authority"
	"github.com/dozehq/doze/internal/testkit/dnstest"
	"github.com/dozehq/doze/internal/testkit/freeport"
)

// gateway is a platform that the world knows as doze.test, whose certificates
// are those of a real authority, next to a real DNS server.
type gateway struct {
	*testkit.Platform
	client *client.Client
	zone   *dnstest.Zone
	*authority.Authority
	port  string // of TLS
	plain string // address of plain HTTP
}

func startGateway(t *testing.T) *gateway {
	t.Helper()
	free := func() (address string, port int) {
		address, err := freeport.Address(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ := net.SplitHostPort(address)
		port, err = strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		return address, port
	}
	listen, tlsPort := free()
	plain, httpPort := free()
	g := &gateway{zone: dnstest.Serve(t), plain: plain, port: ":" + strconv.Itoa(tlsPort)}
	g.Authority = authority.Serve(t, authority.Options{Resolver: g.zone.Address, TLSPort: tlsPort, HTTPPort: httpPort, Life: authority.Long})
	for _, name := range []string{"doze.test", "local.preview.doze.test", "sbx-web-main.local.doze.test"} {
		g.zone.A(name, [4]byte{127, 0, 0, 1})
	}
	g.Platform, g.client = launch(t, nil, testkit.Options{
		Listen: listen, Host: "doze.test", Roots: g.Roots,
		Args: []string{
			"--acme", "--acme-directory", g.Directory, "--acme-ca", g.File, "--http-listen", plain, "--resolver", g.zone.Address,
			"--domain", "doze.test", "--public-url", "https://doze.test" + g.port,
		},
	})
	return g
}

// ask sends a request that begins with https:// and follows no redirect.
func (g *gateway) ask(t *testing.T, address string, header ...string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := g.Transport().RoundTrip(r)
	if err == nil {
		t.Cleanup(func() { _ = resp.Body.Close() })
	}
	return resp, err
}

// TestGateway goes through TLS as the world does: certificates for names that
// are ours, HTTP/2, streams and sockets, on the platform's domain and on one
// of a customer.
func TestGateway(t *testing.T) {
	t.Parallel()
	g := startGateway(t)
	sb, agent := create(t, g.client, named("web", 512))
	if want := "https://sbx-web-main.local.doze.test" + g.port; sb.Metadata.URL != want {
		t.Fatalf("its address is %s, not %s", sb.Metadata.URL, want)
	}
	put(t, agent, "/root/servers.js", servers)
	if _, err := agent.Start(t.Context(), client.Command{Command: "exec node /root/servers.js"}); err != nil {
		t.Fatal(err)
	}
	d, err := g.client.CreateDomain(t.Context(), "shop.example")
	if err != nil {
		t.Fatal(err)
	}
	shop := "https://www.preview.shop.example" + g.port
	g.zone.A("www.preview.shop.example", [4]byte{127, 0, 0, 1})
	asked := g.Orders()
	if _, err := g.ask(t, shop); err == nil || g.Orders() != asked {
		t.Fatalf("a domain that is not verified has a certificate, or the authority was asked: %v", err)
	}
	for name, value := range d.Spec.TXTRecords {
		g.zone.TXT(name, value)
	}
	g.zone.CNAME("doze-probe.preview.shop.example", d.Spec.CNAMERecords)
	if d, err = g.client.VerifyDomain(t.Context(), "shop.example"); err != nil || d.Spec.Status != doze.DomainVerified {
		t.Fatalf("%+v, %v", d.Spec, err)
	}
	p := doze.Preview{
		Metadata: doze.PreviewMetadata{Name: "shop"},
		Spec:     doze.PreviewSpec{Port: 9000, Public: true, PrefixURL: "www", CustomDomain: "shop.example"},
	}
	if p, err = g.client.CreatePreview(t.Context(), "web", p); err != nil || p.Spec.URL != shop {
		t.Fatalf("%+v, %v", p.Spec, err)
	}

	until(t, "the servers listen", func() bool {
		resp, err := g.ask(t, shop+"/")
		return err == nil && resp.StatusCode == http.StatusOK
	})
	resp, err := g.ask(t, shop+"//a/%2e%2E/b%2f?x=%zz&&", "Authorization", "Bearer "+g.Key, "Cookie", "doze_preview=x; own=1")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.ProtoMajor != 2 || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %d %s, %v", resp.Proto, resp.StatusCode, body, err)
	}
	if !strings.Contains(string(body), `"url":"//a/%2e%2E/b%2f?x=%zz&&"`) || strings.Contains(string(body), g.Key) || strings.Contains(string(body), "doze_preview") {
		t.Errorf("the sandbox saw %s", body)
	}
	if resp, err = g.ask(t, shop+"/events"); err != nil {
		t.Fatal(err)
	}
	events := bufio.NewScanner(resp.Body)
	for want := range 3 {
		for events.Scan() && events.Text() == "" { // between two of them
		}
		if events.Text() != "data: "+strconv.Itoa(want) {
			t.Fatalf("event %q, %v", events.Text(), events.Err())
		}
	}
	socket, _, err := websocket.Dial(t.Context(), shop, &websocket.DialOptions{HTTPClient: &http.Client{Transport: g.Transport()}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = socket.CloseNow() }()
	if err := socket.Write(t.Context(), websocket.MessageText, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, got, err := socket.Read(t.Context()); err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}

	plain := "http://" + g.plain + "//a/%2e?b"
	call{url: plain, key: none, host: "www.preview.shop.example"}.redirected(t, g.Platform, shop+"//a/%2e?b")
	call{url: plain}.want(t, g.Platform, http.StatusForbidden) // with a key that everybody could read

	// What is got is kept: the next process asks for nothing.
	asked = g.Orders()
	if err := g.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := g.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if resp, err := g.ask(t, shop+"/silent"); err != nil || resp.StatusCode != http.StatusOK || g.Orders() != asked {
		t.Fatalf("after a restart: %v, %d certificates more", err, g.Orders()-asked)
	} else {
		// The owner of the domain takes it back.
		g.zone.ForgetTXT()
		if d, err = g.client.VerifyDomain(t.Context(), "shop.example"); err != nil || d.Spec.Status != doze.DomainFailed {
			t.Fatalf("%+v, %v", d.Spec, err)
		}
		_, _ = io.Copy(io.Discard, resp.Body) // it ends
	}
	until(t, "new connections are refused", func() bool {
		(&http.Client{Transport: g.Transport()}).CloseIdleConnections() // what is open may be used, and leads nowhere
		_, err := g.ask(t, shop)
		return err != nil
	})
}

// redirected sends c and expects to be sent on.
func (c call) redirected(t *testing.T, p *testkit.Platform, to string) {
	t.Helper()
	if got := c.want(t, p, http.StatusPermanentRedirect).header.Get("Location"); got != to {
		t.Errorf("sent on to %q, want %q", got, to)
	}
}
