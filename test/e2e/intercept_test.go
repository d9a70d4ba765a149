package e2e_test

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/dnstest"
)

const (
	// routed and spliced are destinations with and without a routing rule. The
	// certificate of package httptest is good for both.
	routed  = "example.com"
	spliced = "plain.example.com"

	// stuck is a path that is not answered.
	stuck = "/stuck"

	// secretOne and secretTwo must be nowhere but in requests to routed.
	secretOne = "canary-one-5d21e77a0c"
	secretTwo = "canary-two-90bb41f3de"
)

// destination is a server that keeps what it got last, and answers with all of
// it.
type destination struct {
	*httptest.Server
	last atomic.Pointer[http.Request]
	body atomic.Pointer[string]
}

func (d *destination) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	text := string(body)
	d.body.Store(&text)
	d.last.Store(r)
	if r.URL.Path == stuck {
		<-r.Context().Done()
	}
	_, _ = fmt.Fprintf(w, "%s %v %s", r.Proto, r.Header, text)
}

// newDestination starts a server in a namespace of its own, which is all of the
// internet, and returns the DNS that knows it.
func newDestination(t *testing.T) (*destination, *dnstest.Zone) {
	t.Helper()
	pid, outside := namespace(t)
	run(t, "ip", "link", "set", "lo", "up")
	run(t, "ip", "link", "add", "wan", "type", "veth", "peer", "name", "wan", "netns", pid)
	run(t, "ip", "addr", "add", "1.2.3.1/24", "dev", "wan")
	run(t, "ip", "link", "set", "wan", "up")
	for _, args := range [][]string{{"addr", "add", publicIP + "/24", "dev", "wan"}, {"link", "set", "wan", "up"}} {
		run(t, "nsenter", append([]string{"--net=" + outside, "ip"}, args...)...)
	}
	run(t, "ip", "route", "add", "default", "via", publicIP)
	z, d := dnstest.Serve(t), &destination{}
	z.A(routed, [4]byte{1, 2, 3, 4})
	z.A(spliced, [4]byte{1, 2, 3, 4})
	within(t, outside, func() error {
		l, err := net.Listen("tcp4", ":443")
		if err != nil {
			return err
		}
		d.Server = &httptest.Server{Listener: l, EnableHTTP2: true, Config: &http.Server{Handler: d}}
		d.StartTLS()
		plain, err := net.Listen("tcp4", ":80")
		if err != nil {
			return err
		}
		s := &httptest.Server{Listener: plain, Config: &http.Server{Handler: d}}
		s.Start()
		t.Cleanup(s.Close)
		return nil
	})
	t.Cleanup(func() { d.CloseClientConnections(); d.Close() })
	return d, z
}

// TestRouting has a sandbox send requests that get secrets on their way, and
// looks for these in everything that the sandbox, the API and the disk have.
func TestRouting(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	d, z := newDestination(t)
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d.Certificate().Raw})
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	p, c := launch(t, nil, testkit.Options{
		Args: []string{"--egress", "open", "--resolver", z.Address, "--pause-after", "1h", "--warm-pool", "1"},
		Env:  []string{"SSL_CERT_FILE=" + roots, "GOTRACEBACK=crash"},
	})
	rule := func(secret string) string {
		return `{"spec":{"network":{"proxy":{"routing":[{"destinations":["` + routed + `"],
			"headers":{"Authorization":"Bearer {{SECRET:key}}","X-Id":"{{FUNC:uuid}}"},"body":{"api_key":"{{SECRET:key}}"}` + secret + `},
			{"destinations":["GET:` + routed + `/clear"],"headers":{"X-Clear":"injected"}}]}}}}`
	}
	one := `,"secrets":{"key":"` + secretOne + `"}`
	answer := ask(t, p, "POST", "/sandboxes", strings.Replace(rule(one), "{", `{"metadata":{"name":"one"},`, 1))
	sb, err := c.Sandbox(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	agent, err := c.Agent(sb)
	if err != nil {
		t.Fatal(err)
	}

	t.Run("requests", func(t *testing.T) { d.requests(t, agent, secretOne) })
	t.Run("elsewhere", func(t *testing.T) {
		if out := sh(t, agent, `curl -sk https://`+spliced+`/ -H 'Authorization: mine'`); strings.Contains(out, "canary") || !strings.Contains(out, "[mine]") {
			t.Errorf("a request elsewhere: %s", out)
		}
		const show = `python3 -c 'import ssl,sys; print(ssl.get_server_certificate((sys.argv[1], 443)))' `
		if got := sh(t, agent, show+spliced); got != strings.TrimSpace(string(certificate)) {
			t.Errorf("TLS that needs no rule is not passed on as it is: %s", got)
		}
		if got := sh(t, agent, show+routed); got == strings.TrimSpace(string(certificate)) {
			t.Error("the one that needs it is")
		}
	})
	t.Run("in clear", func(t *testing.T) {
		for _, to := range []string{routed, publicIP} {
			for path, injected := range map[string]bool{"/": false, "/clear/": true, "/clearer": false} {
				out := sh(t, agent, `curl -s --noproxy '*' http://`+to+path+` -H 'Host: `+routed+`' -H 'Authorization: mine'`)
				if strings.Contains(out, "Bearer") || !strings.Contains(out, "[mine]") || strings.Contains(out, "injected") != injected {
					t.Errorf("a request in clear to %s%s: %s", to, path, out)
				}
			}
		}
	})
	t.Run("refused", func(t *testing.T) {
		for name, command := range map[string]string{
			"another host":   `curl -s -o /dev/null -w '%{http_code}' https://` + routed + `/ -H 'Host: ` + spliced + `'`,
			"broken JSON":    `curl -s -o /dev/null -w '%{http_code}' https://` + routed + `/ -H 'Content-Type: application/json' -d '{'`,
			"an odd path":    `curl -s --path-as-is -o /dev/null -w '%{http_code}' https://` + routed + `//evil.test/../x`,
			"without a name": `curl -sk --noproxy '*' -o /dev/null -w '%{http_code}' https://` + publicIP + `/ || true`,
		} {
			want := map[string]string{"another host": "403", "an odd path": "200", "without a name": "000"}[name]
			if want == "" {
				want = "400"
			}
			if got := sh(t, agent, command); got != want {
				t.Errorf("%s: %s, want %s", name, got, want)
			}
		}
	})
	t.Run("a reference", func(t *testing.T) {
		if out := sh(t, agent, `curl -s https://`+routed+`/ -H 'X-Key: {{SECRET:key}}'`); !strings.Contains(out, "X-Key:[{{SECRET:key}}]") {
			t.Errorf("it is not sent as it is: %s", out)
		}
		resolving := strings.Replace(rule(one), `"headers"`, `"guestReferences":true,"headers"`, 1)
		ask(t, p, "PUT", "/sandboxes/one", resolving)
		out := sh(t, agent, `curl -s https://`+routed+`/ -H 'X-Key: {{SECRET:key}}'`)
		if got := d.last.Load().Header.Get("X-Key"); got != secretOne || strings.Contains(out, secretOne) {
			t.Errorf("%q is sent, and the sandbox sees %s", got, out)
		}
		ask(t, p, "PUT", "/sandboxes/one", rule(one))
	})
	t.Run("changes", func(t *testing.T) {
		answer += ask(t, p, "PUT", "/sandboxes/one", ask(t, p, "GET", "/sandboxes/one", ""))
		d.requests(t, agent, secretOne) // what came back without secrets keeps them
		answer += ask(t, p, "PUT", "/sandboxes/one", rule(`,"secrets":{"key":"`+secretTwo+`"}`))
		d.requests(t, agent, secretTwo)
	})
	t.Run("restart", func(t *testing.T) {
		d.last.Store(nil)
		spawn(t, agent, client.Command{Command: `curl -s https://` + routed + stuck + ` -H 'Content-Type: application/json' -d '{"model":"x"}'`})
		until(t, "a request is under way", func() bool { return d.last.Load() != nil && strings.Contains(*d.body.Load(), secretTwo) })
		if dumped, err := p.Quit(); err != nil || dumped {
			t.Fatalf("it left a core dump: %v, %v", dumped, err)
		}
		p.Arguments("--egress", "open", "--resolver", z.Address, "--pause-after", "1s", "--save-after", "0s", "--disk-after", "2s", "--swap", "off", "--guest-references")
		if err := p.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.requests(t, agent, secretTwo)
		out := sh(t, agent, `curl -s https://`+routed+`/ -H 'X-Key: {{SECRET:key}}'`)
		if got := d.last.Load().Header.Get("X-Key"); got != secretTwo || strings.Contains(out, secretTwo) {
			t.Errorf("by the default of the platform %q is sent, and the sandbox sees %s", got, out)
		}
	})
	t.Run("authorities", func(t *testing.T) { d.authorities(t, p, c, agent, rule(one)) })
	const present = "this-is-to-be-found-8c1f"
	spawn(t, agent, client.Command{Command: "export PRESENT=" + present + "; exec sleep infinity"})
	inside := sh(t, agent, `cat /proc/[0-9]*/environ; env; grep -rl canary- /etc /root /tmp /var /run 2>/dev/null || true`)
	awaitTier(t, p, "one", "disk")
	if !inTree(t, p.Data, present) {
		t.Error("the search does not find what is in the memory of the sandbox")
	}
	log, err := os.ReadFile(p.Log)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(log, []byte(`"secrets":["key"]`)) {
		t.Error("the log does not say which secret was used")
	}
	for _, sign := range []string{"SIGQUIT: quit", "intercept.(*exchange).forward"} {
		if !bytes.Contains(log, []byte(sign)) {
			t.Errorf("the log does not have what the goroutines were doing: no %s", sign)
		}
	}
	_, metrics := get(t, p, p.Address+"/metrics")
	answer += metrics + ask(t, p, "GET", "/sandboxes/one", "") + ask(t, p, "GET", "/sandboxes", "")
	for _, secret := range []string{secretOne, secretTwo} {
		if inTree(t, p.Data, secret) || inTree(t, p.RunDir, secret) {
			t.Errorf("%s is on disk", secret)
		}
		for where, text := range map[string]string{"the sandbox": inside, "an answer": answer, "the log": string(log)} {
			if strings.Contains(text, secret) {
				t.Errorf("%s is in %s: %s", secret, where, text)
			}
		}
	}
	d.requests(t, agent, secretTwo) // after a wake, too
	ask(t, p, "PUT", "/sandboxes/one", `{"spec":{"network":{"proxy":{}}}}`)
	if out := sh(t, agent, `curl -sk https://`+routed+`/`); strings.Contains(out, "Bearer") {
		t.Errorf("without the rule: %s", out)
	}
}

// requests sends requests from a sandbox, in the ways that clients have, and
// looks at what arrives and at what comes back.
func (d *destination) requests(t *testing.T, agent *client.Agent, secret string) {
	t.Helper()
	const post = ` https://` + routed + `/v1 -H 'Content-Type: application/json' -H 'authorization: mine' -d '{"model":"x"}'`
	for name, command := range map[string]string{
		"HTTP/2.0":          "curl -s --http2" + post,
		"HTTP/1.1":          "curl -s --http1.1" + post,
		"HTTP/2.0 no proxy": "curl -s --http2 --noproxy '*'" + post,
		"HTTP/1.1 no variable but one": `env -i PATH=$PATH SSL_CERT_FILE=$SSL_CERT_FILE python3 -c '
import urllib.request as u
print(u.urlopen(u.Request("https://` + routed + `/v1", b"{\"model\":\"x\"}", {"Content-Type": "application/json"})).read().decode())'`,
	} {
		d.last.Store(nil)
		out := sh(t, agent, command)
		got := d.last.Load()
		if got == nil {
			t.Fatalf("%s: nothing arrived: %s", name, out)
		}
		if all := got.Header["Authorization"]; len(all) != 1 || all[0] != "Bearer "+secret || len(got.Header.Get("X-Id")) != 36 {
			t.Errorf("%s: arrived with %v", name, got.Header)
		}
		if body := *d.body.Load(); body != `{"api_key":"`+secret+`","model":"x"}` {
			t.Errorf("%s: arrived with %s", name, body)
		}
		if strings.Contains(out, secret) || !strings.Contains(out, "Bearer *") {
			t.Errorf("%s: the sandbox sees %s", name, out)
		}
	}
}

// authorities looks at whom sandboxes believe. A process that has read the
// certificates of the first one goes on in a fork, which trusts nobody else.
func (d *destination) authorities(t *testing.T, p *testkit.Platform, c *client.Client, one *client.Agent, rule string) {
	t.Helper()
	spawn(t, one, client.Command{Command: `exec python3 -c '
import http.server, ssl, urllib.request
trusted = ssl.create_default_context()
class Handler(http.server.BaseHTTPRequestHandler):
	def do_GET(self):
		self.send_response(200); self.end_headers()
		self.wfile.write(urllib.request.urlopen("https://` + routed + `/", context=trusted).read())
http.server.HTTPServer(("", 7000), Handler).serve_forever()'`})
	const throughIt = `curl -s --retry 30 --retry-delay 1 --retry-connrefused --noproxy '*' http://localhost:7000/`
	if out := sh(t, one, throughIt); !strings.Contains(out, "Bearer *") {
		t.Fatalf("the process of the first one gets %s", out)
	}
	ask(t, p, "POST", "/sandboxes/one/fork", `{"targetName":"fork","targetType":"sandbox"}`)
	ask(t, p, "PUT", "/sandboxes/fork", rule)
	ask(t, p, "POST", "/sandboxes", strings.Replace(rule, "{", `{"metadata":{"name":"two"},`, 1))
	const own = "tac /etc/doze/ca-bundle.pem | sed '/BEGIN/q' | tac" // behind those of the image
	first := sh(t, one, own)
	for name, same := range map[string]bool{"fork": true, "two": false} {
		sb, err := c.Sandbox(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		agent, err := c.Agent(sb)
		if err != nil {
			t.Fatal(err)
		}
		if out := sh(t, agent, "curl -s https://"+routed+"/"); !strings.Contains(out, "Bearer *") {
			t.Errorf("%s gets %s", name, out)
		}
		if got := sh(t, agent, own) == first; got != same {
			t.Errorf("%s believes the same as the first one: %v", name, got)
		}
		if !same {
			sh(t, agent, "echo '"+first+"' > /tmp/first.pem")
			if out := sh(t, agent, "curl -s --capath /tmp --cacert /tmp/first.pem https://"+routed+"/ || echo $?"); out != "60" {
				t.Errorf("it is shown what the first one believes: %s", out)
			}
			continue
		}
		if out := sh(t, agent, throughIt); !strings.Contains(out, "Bearer *") {
			t.Errorf("a process that goes on in it gets %s", out)
		}
	}
}

// ask calls the control API as a client of another language does: what is
// write-only, ours would not send.
func ask(t *testing.T, p *testkit.Platform, method, path, body string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, p.Address+"/v0"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.Key)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !json.Valid(raw) {
		t.Fatalf("%s %s: %s: %s, %v", method, path, resp.Status, raw, err)
	}
	return string(raw)
}

// inTree reports whether a text is in a file below a directory.
func inTree(t *testing.T, dir, text string) (found bool) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || found {
			return nil //nolint:nilerr // files come and go
		}
		raw, err := os.ReadFile(name)
		found = err == nil && bytes.Contains(raw, []byte(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestRoutingLater has a rule come while a process runs that began without one. It
// reaches the destination of the rule without a restart. New processes have the
// variables of the new rules.
func TestRoutingLater(t *testing.T) {
	if !ownNetwork(t) {
		return
	}
	d, z := newDestination(t)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	p, c := launch(t, nil, testkit.Options{
		Args: []string{"--egress", "open", "--resolver", z.Address, "--pause-after", "1h", "--warm-pool", "1"},
		Env:  []string{"SSL_CERT_FILE=" + roots},
	})
	for _, name := range []string{"new", "warm"} { // the second one may be a machine of the warm pool
		ask(t, p, "POST", "/sandboxes", `{"metadata":{"name":"`+name+`"}}`)
		sb, err := c.Sandbox(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		agent, err := c.Agent(sb)
		if err != nil {
			t.Fatal(err)
		}
		if out := sh(t, agent, "env | grep -ciE '^(https?_proxy|no_proxy|ssl_cert_file|node_extra_ca_certs)=' || true"); out != "0" {
			t.Errorf("%s: without a proxy it has %s of its variables", name, out)
		}
		spawn(t, agent, client.Command{Command: `exec python3 -c '
import http.server, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
	def do_GET(self):
		self.send_response(200); self.end_headers()
		self.wfile.write(urllib.request.urlopen("https://` + routed + `/").read())
http.server.HTTPServer(("", 7000), Handler).serve_forever()'`})
		const throughIt = `curl -s --retry 30 --retry-delay 1 --retry-connrefused --noproxy '*' http://localhost:7000/`
		if out := sh(t, agent, throughIt+" || true"); strings.Contains(out, "Bearer") {
			t.Fatalf("%s: without a rule it gets %s", name, out)
		}
		ask(t, p, "PUT", "/sandboxes/"+name, `{"spec":{"network":{"proxy":{"bypass":["bypassed.example"],"routing":[{"destinations":["`+routed+`"],
			"headers":{"Authorization":"Bearer {{SECRET:key}}"},"secrets":{"key":"`+secretOne+`"}}]}}}}`)
		for client, command := range map[string]string{
			"a process that runs":    throughIt,
			"a process without any":  `env -i PATH=$PATH curl -s https://` + routed + `/`,
			"a process of Python":    `env -i PATH=$PATH python3 -c 'import urllib.request as u; print(u.urlopen("https://` + routed + `/").read().decode())'`,
			"one with the variables": `curl -s https://` + routed + `/`,
		} {
			if out := sh(t, agent, command); !strings.Contains(out, "Bearer *") {
				t.Errorf("%s: %s gets %s", name, client, out)
			}
		}
		if out := sh(t, agent, "echo $HTTPS_PROXY $NO_PROXY"); !strings.HasPrefix(out, "http://169.254.88.1:3128 ") || !strings.HasSuffix(out, ",bypassed.example") {
			t.Errorf("%s: new processes have %s", name, out)
		}
		ask(t, p, "PUT", "/sandboxes/"+name, `{"spec":{"network":{}}}`)
		if out := sh(t, agent, "echo $HTTPS_PROXY $NO_PROXY"); out != "" {
			t.Errorf("%s: without rules new processes have %s", name, out)
		}
	}
	if _, err := p.Quit(); err != nil {
		t.Fatal(err)
	}
	p.Arguments("--egress", "open", "--resolver", z.Address, "--pause-after", "1h", "--warm-pool", "0")
	if err := p.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}
