package roster_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/enroll"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/plane/planetest"
	"github.com/dozehq/doze/internal/roster"
	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/store"
)

// gatehouse is a control that machines may join, over a real connection.
type gatehouse struct {
	p    *planetest.Platform
	r    *roster.Roster
	dir  string // of certificates
	url  string
	sent atomic.Int64 // requests with a body
}

func openGatehouse(t *testing.T) *gatehouse {
	t.Helper()
	g := &gatehouse{p: planetest.Start(t, false), dir: filepath.Join(t.TempDir(), "fleet")}
	if _, err := mtls.Make(g.dir); err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g.url = "https://" + l.Addr().String()
	g.r = open(t, g.p, func(c *roster.Config) {
		c.Enrollment = roster.Enrollment{Keys: g.dir, Egress: filepath.Join(t.TempDir(), "egress.key"), URL: g.url, Life: time.Hour}
	})
	g.p.Rooms.Nodes.Roster = g.r
	calls := http.NewServeMux()
	fleet.NewControlServer(g.r, mtls.NodeID).Register(calls)
	joins := g.r.Enroll()
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			g.sent.Add(1)
		}
		joins.ServeHTTP(w, r)
	})
	id, err := mtls.Open(g.dir, mtls.Control)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() {
		if err := id.ServeStrangers(ctx, l, mtls.WithStrangers(enroll.Path, counted, mtls.ByRole(map[mtls.Role]http.Handler{mtls.Node: calls}))); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); served.Wait() })
	return g
}

// token returns one that is good for an hour.
func (g *gatehouse) token(t *testing.T) string {
	t.Helper()
	return planetest.Want[doze.NodeToken](g.p, 200, "POST", "/platform/nodes/tokens", `{"ttl":"1h"}`).Token
}

// join has a new machine join, and returns its directory of certificates.
func (g *gatehouse) join(t *testing.T, token, id string) (keys string, err error) {
	t.Helper()
	parsed, err := enroll.ParseToken(token)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	keys = filepath.Join(dir, "fleet")
	return keys, enroll.Join(t.Context(), g.url, parsed, enroll.Place{Keys: keys, Egress: filepath.Join(dir, "egress.key"), Node: id})
}

// as returns control as the node with these certificates calls it.
func (g *gatehouse) as(t *testing.T, keys string) *fleet.ControlClient {
	t.Helper()
	id, err := mtls.Open(keys, mtls.Node)
	if err != nil {
		t.Fatal(err)
	}
	transport := id.Transport(mtls.Control)
	t.Cleanup(transport.CloseIdleConnections)
	return fleet.NewControlClient(g.url, transport)
}

const (
	good    = "goodgoodgood"
	hostile = "hostilehostile"
)

// TestToken: an operator gets a token for a time, and others get none.
func TestToken(t *testing.T) {
	t.Parallel()
	g := openGatehouse(t)
	for body, want := range map[string]time.Duration{`{}`: 24 * time.Hour, `{"ttl":"1m"}`: time.Minute, `{"ttl":"7d"}`: 7 * 24 * time.Hour} {
		got := planetest.Want[doze.NodeToken](g.p, 200, "POST", "/platform/nodes/tokens", body)
		if left := time.Until(got.ExpiresAt.Time); left > want || left < want-time.Minute || got.Control != g.url {
			t.Errorf("%s gives a token for %s, to join %s", body, left, got.Control)
		}
		if _, err := enroll.ParseToken(got.Token); err != nil {
			t.Error(err)
		}
	}
	for _, body := range []string{`{"ttl":"59s"}`, `{"ttl":"8d"}`, `{"ttl":"soon"}`, `{"ttl":7}`, `{"other":1}`} {
		if w := g.p.Do("POST", "/platform/nodes/tokens", body); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", body, w.Code, w.Body)
		}
	}
	other := planetest.As(g.p.KeyFor("other", time.Time{}, "admin"))
	if w := g.p.Do("POST", "/platform/nodes/tokens", `{}`, other...); w.Code != http.StatusForbidden {
		t.Errorf("an admin of another workspace gets %d %s", w.Code, w.Body)
	}
	if err := os.Remove(filepath.Join(g.dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if w := g.p.Do("POST", "/platform/nodes/tokens", `{}`); w.Code != http.StatusNotImplemented {
		t.Errorf("without the key of the authority: %d %s", w.Code, w.Body)
	}
}

// TestEnroll: a machine with a token becomes a node, which opens the same secrets as others.
func TestEnroll(t *testing.T) {
	t.Parallel()
	g := openGatehouse(t)
	token := g.token(t)
	keys, err := g.join(t, token, good)
	if err != nil {
		t.Fatal(err)
	}
	if joined, err := mtls.Joined(keys); !joined || err != nil {
		t.Errorf("it has a certificate: %v, %v", joined, err)
	}
	for file, mode := range map[string]os.FileMode{"node.key": 0o600, "../egress.key": 0o600, "node.crt": 0o644, "ca.crt": 0o644} {
		if is, err := os.Stat(filepath.Join(keys, file)); err != nil || is.Mode() != mode {
			t.Errorf("%s: %v, %v", file, is, err)
		}
	}
	own, err := seal.Key(filepath.Join(keys, "../egress.key"))
	if err != nil {
		t.Fatal(err)
	}
	opener, err := seal.NewOpener(own)
	if err != nil {
		t.Fatal(err)
	}
	info := fleet.NodeInfo{ID: good, Incarnation: "1", URL: "https://good", SealKey: opener.Sealer().Key()}
	if _, err := g.as(t, keys).Join(t.Context(), info); err != nil {
		t.Fatal(err)
	}
	// Another one joins with the same token, and has the same key.
	keys, err = g.join(t, token, hostile)
	if err != nil {
		t.Fatal(err)
	}
	if other, err := seal.Key(filepath.Join(keys, "../egress.key")); err != nil || !bytes.Equal(other, own) {
		t.Errorf("another node opens other secrets: %v", err)
	}
	if _, err := g.join(t, token, good); doze.Public(err).Kind != doze.Conflict {
		t.Errorf("a machine becomes a node that is there: %v", err)
	}
	for _, id := range []string{"", "short", "UPPERCASE", "a.b.c.d.e", strings.Repeat("a", 41), "node.doze.internal"} {
		if _, err := g.join(t, token, id); doze.Public(err).Kind != doze.Invalid {
			t.Errorf("the id %q: %v", id, err)
		}
	}
}

// TestEgressKeyOfOthers: control never gives away a key that its nodes do not have.
func TestEgressKeyOfOthers(t *testing.T) {
	t.Parallel()
	g := openGatehouse(t)
	if _, err := g.r.Join(t.Context(), fleet.NodeInfo{ID: "old", Incarnation: "1", URL: "https://old", SealKey: []byte("another")}); err != nil {
		t.Fatal(err)
	}
	if w := g.p.Do("POST", "/platform/nodes/tokens", `{}`); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "does not have the egress.key") {
		t.Errorf("without the key: %d %s", w.Code, w.Body)
	}
	if _, err := seal.Key(g.r.Enrollment.Egress); err != nil { // makes one
		t.Fatal(err)
	}
	if w := g.p.Do("POST", "/platform/nodes/tokens", `{}`); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "another egress.key") {
		t.Errorf("with another key: %d %s", w.Code, w.Body)
	}
}

// TestNodeSpeaksForItself: a node with an id in its certificate is that node alone. One that
// dozed certificates made may be any.
func TestNodeSpeaksForItself(t *testing.T) {
	t.Parallel()
	g := openGatehouse(t)
	token := g.token(t)
	var clients []*fleet.ControlClient
	key, err := seal.Key(g.r.Enrollment.Egress)
	if err != nil {
		t.Fatal(err)
	}
	opener, err := seal.NewOpener(key)
	if err != nil {
		t.Fatal(err)
	}
	info := func(id string) fleet.NodeInfo {
		return fleet.NodeInfo{ID: id, Incarnation: "1", URL: "https://" + id, SealKey: opener.Sealer().Key()}
	}
	for _, id := range []string{good, hostile} {
		keys, err := g.join(t, token, id)
		if err != nil {
			t.Fatal(err)
		}
		c := g.as(t, keys)
		if _, err := c.Join(t.Context(), info(id)); err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	calls := func(c *fleet.ControlClient, id string) map[string]error {
		errs := map[string]error{}
		_, errs["Join"] = c.Join(t.Context(), info(id))
		_, errs["Reclaim"] = c.Reclaim(t.Context(), id, nil, nil)
		_, errs["Renew"] = c.Renew(t.Context(), fleet.Renewal{Node: id, Incarnation: "1", Epoch: 1})
		errs["Record"] = c.Record(t.Context(), id, nil)
		_, errs["Claim"] = c.Claim(t.Context(), id, "machine")
		_, errs["FileKey"] = c.FileKey(t.Context(), id, "file-"+strings.Repeat("a", 64))
		_, errs["FileMark"] = c.FileMark(t.Context(), id, "file-"+strings.Repeat("a", 64))
		_, errs["Certify"] = c.Certify(t.Context(), id, request(t, newKey(t)))
		_, errs["Traffic"] = c.Traffic(t.Context(), id, "1", nil)
		return errs
	}
	for call, err := range calls(clients[1], good) {
		if doze.Public(err).Kind != doze.Forbidden {
			t.Errorf("a node speaks for another one: %s: %v", call, err)
		}
	}
	role := g.as(t, g.dir)
	for caller, c := range map[string]*fleet.ControlClient{"the node itself": clients[0], "a certificate of the role": role} {
		for call, err := range calls(c, good) {
			if refused := doze.Public(err).Kind == doze.Forbidden; refused != (c == role && call == "Certify") {
				t.Errorf("%s speaks for the node: %s: %v", caller, call, err)
			}
		}
	}
	if _, err := clients[1].Certify(t.Context(), "", request(t, newKey(t))); doze.Public(err).Kind != doze.Forbidden {
		t.Errorf("nobody gets a certificate: %v", err)
	}
}

// TestCertify: a node gets the next certificate for its own id, as long as it is on record.
func TestCertify(t *testing.T) {
	t.Parallel()
	g := openGatehouse(t)
	keys, err := g.join(t, g.token(t), good)
	if err != nil {
		t.Fatal(err)
	}
	c, csr := g.as(t, keys), request(t, newKey(t))
	if _, err := c.Certify(t.Context(), good, csr); doze.Public(err).Kind != doze.Forbidden {
		t.Errorf("a node that is not on record: %v", err)
	}
	if _, err := g.p.Store.PutNode(t.Context(), good, store.NodeBody{}, time.Now()); err != nil {
		t.Fatal(err)
	}
	text, err := c.Certify(t.Context(), good, csr)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil || !slices.Contains(leaf.DNSNames, good+".node.doze.internal") || time.Until(leaf.NotAfter) > time.Hour {
		t.Errorf("it is that of %v until %s: %v", leaf.DNSNames, leaf.NotAfter, err)
	}
	for what, bad := range map[string][]byte{"nothing": nil, "text": []byte("hello")} {
		if _, err := c.Certify(t.Context(), good, bad); doze.Public(err).Kind != doze.Invalid {
			t.Errorf("for %s: %v", what, err)
		}
	}
	if _, err := c.Certify(t.Context(), good, make([]byte, enroll.RequestMax+1)); doze.Public(err).Kind != doze.TooLarge {
		t.Errorf("for a large request: %v", err)
	}
}

// TestJoinAgain: a node whose certificate ended joins again with a token, and stays the node
// that it was. Nobody else becomes that node.
func TestJoinAgain(t *testing.T) {
	t.Parallel()
	g := openGatehouse(t)
	token := g.token(t)
	again := func(keys, token string) error {
		t.Helper()
		parsed, err := enroll.ParseToken(token)
		if err != nil {
			t.Fatal(err)
		}
		return enroll.Join(t.Context(), g.url, parsed, enroll.Place{Keys: keys, Egress: filepath.Join(keys, "../egress.key"), Node: good})
	}
	var dirs []string
	for _, id := range []string{good, hostile} {
		keys, err := g.join(t, token, id)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.p.Store.PutNode(t.Context(), id, store.NodeBody{}, time.Now()); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, keys)
		end(t, g.dir, keys)
	}
	elsewhere := filepath.Join(t.TempDir(), "fleet")
	if _, err := mtls.Make(elsewhere); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(t.TempDir(), "fleet")
	if err := os.CopyFS(foreign, os.DirFS(dirs[0])); err != nil {
		t.Fatal(err)
	}
	end(t, elsewhere, foreign)
	for what, keys := range map[string]string{
		"another node": dirs[1], "a new machine": filepath.Join(t.TempDir(), "fleet"), "one with a certificate of another authority": foreign,
	} {
		if err := again(keys, token); doze.Public(err).Kind != doze.Conflict {
			t.Errorf("%s becomes the node: %v", what, err)
		}
	}
	if err := again(dirs[0], strings.Replace(token, "dzj_", "dzj_a", 1)); doze.Public(err).Kind != doze.Forbidden {
		t.Errorf("without a good token: %v", err)
	}
	if _, err := mtls.Open(dirs[0], mtls.Node); doze.Public(err).Kind != doze.Forbidden {
		t.Errorf("before it joins again: %v", err)
	}
	if err := again(dirs[0], token); err != nil {
		t.Fatal(err)
	}
	if _, err := g.as(t, dirs[0]).Certify(t.Context(), good, request(t, newKey(t))); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// end has the certificate of a node be one that ended an hour ago, of the authority in a
// directory.
func end(t *testing.T, authority, keys string) {
	t.Helper()
	ca, err := tls.LoadX509KeyPair(filepath.Join(authority, "ca.crt"), filepath.Join(authority, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	node, err := tls.LoadX509KeyPair(filepath.Join(keys, "node.crt"), filepath.Join(keys, "node.key"))
	if err != nil {
		t.Fatal(err)
	}
	was := *node.Leaf
	was.NotBefore, was.NotAfter = time.Now().Add(-2*time.Minute), time.Now().Add(-time.Minute)
	der, err := x509.CreateCertificate(rand.Reader, &was, ca.Leaf, node.Leaf.PublicKey, ca.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(keys, "node.crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func request(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	raw, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestNodeTakesNoAddress: a node cannot say that it is where another one is, and what is for
// another one never reaches it, also if it takes over the address.
func TestNodeTakesNoAddress(t *testing.T) {
	t.Parallel()
	g := openGatehouse(t)
	control, err := mtls.Open(g.dir, mtls.Control)
	if err != nil {
		t.Fatal(err)
	}
	g.r.Check = control.Nodes().Check
	token := g.token(t)
	key, err := seal.Key(g.r.Enrollment.Egress)
	if err != nil {
		t.Fatal(err)
	}
	opener, err := seal.NewOpener(key)
	if err != nil {
		t.Fatal(err)
	}
	var got atomic.Int64 // requests that reach the hostile node
	at, clients := map[string]string{}, map[string]*fleet.ControlClient{}
	for _, id := range []string{good, hostile} {
		keys, err := g.join(t, token, id)
		if err != nil {
			t.Fatal(err)
		}
		clients[id] = g.as(t, keys)
		identity, err := mtls.Open(keys, mtls.Node)
		if err != nil {
			t.Fatal(err)
		}
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var served sync.WaitGroup
		served.Go(func() {
			_ = identity.Serve(ctx, l, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				if id == hostile {
					got.Add(1)
				}
			}))
		})
		t.Cleanup(func() { cancel(); served.Wait() })
		at[id] = "https://" + l.Addr().String()
	}
	join := func(id, url string) error {
		_, err := clients[id].Join(t.Context(), fleet.NodeInfo{ID: id, Incarnation: "1", URL: url, SealKey: opener.Sealer().Key()})
		return err
	}
	for _, id := range []string{good, hostile} {
		if err := join(id, at[id]); err != nil {
			t.Fatal(err)
		}
	}
	if err := join(hostile, at[good]); doze.Public(err).Kind != doze.Forbidden {
		t.Errorf("a node says that it is where another one is: %v", err)
	}
	if err := join(hostile, "http://127.0.0.1:1"); doze.Public(err).Kind != doze.Invalid {
		t.Errorf("a node has an address without TLS: %v", err)
	}
	for _, n := range []string{good, hostile} {
		if is, err := g.p.Store.Node(t.Context(), n); err != nil || is.Body.URL != at[n] {
			t.Errorf("the node %s is at %s: %v", n, is.Body.URL, err)
		}
	}
	// The hostile node has the address of the good one now, as after a forged route.
	for _, role := range []mtls.Role{mtls.Control, mtls.Edge} {
		identity, err := mtls.Open(g.dir, role)
		if err != nil {
			t.Fatal(err)
		}
		to := identity.Nodes().To(good)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, at[hostile]+fleet.Prefix+"Create", strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := to.RoundTrip(r)
		if err == nil {
			_ = resp.Body.Close()
		}
		if doze.Public(err).Kind != doze.Forbidden {
			t.Errorf("%s sends what is for the good node: %v", role, err)
		}
	}
	if got.Load() != 0 {
		t.Errorf("the hostile node gets %d requests for the good one", got.Load())
	}
}

// TestEnrollRefuses: nobody becomes a node without a good token, and a token reaches nobody
// but its platform.
func TestEnrollRefuses(t *testing.T) {
	t.Parallel()
	g := openGatehouse(t)
	token := g.token(t)
	mark := token[strings.LastIndex(token, "_")+1:]
	code := strings.TrimSuffix(token, "_"+mark)
	last := code[len(code)-1]
	wrong := code[:len(code)-1] + string("ab"[(last-'a'+1)%2])
	for what, bad := range map[string]string{
		"another secret": wrong + "_" + mark,
		"another id":     strings.Replace(code, "dzj_", "dzj_a", 1) + "_" + mark,
	} {
		keys, err := g.join(t, bad, good)
		if doze.Public(err).Kind != doze.Forbidden {
			t.Errorf("%s: %v", what, err)
		}
		if joined, _ := mtls.Joined(keys); joined {
			t.Errorf("%s: it has a certificate", what)
		}
	}
	now := time.Now()
	if err := g.p.Store.PutJoinToken(t.Context(), "later", "", now.Add(9*24*time.Hour), now.Add(8*24*time.Hour)); err != nil { // forgets what is over by then
		t.Fatal(err)
	}
	if _, err := g.join(t, token, good); doze.Public(err).Kind != doze.Forbidden {
		t.Errorf("a token that is over: %v", err)
	}
	sent := g.sent.Load()
	if _, err := g.join(t, code+"_"+strings.Repeat("0", 64), good); doze.Public(err).Kind != doze.Forbidden || g.sent.Load() != sent {
		t.Errorf("the token of another platform: %v, after %d requests with it", err, g.sent.Load()-sent)
	}
	// Strangers reach one path, with small requests, some at a time.
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	ask := func(method, path, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, g.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(resp.Body)
		if err := resp.Body.Close(); err != nil {
			t.Error(err)
		}
		if err != nil {
			t.Error(err)
		}
		return resp.StatusCode, string(raw)
	}
	for _, path := range []string{"/", fleet.Prefix + "Join", enroll.Path + "/", fleet.Prefix + "Claim"} {
		if status, body := ask("POST", path, "{}"); status != http.StatusForbidden {
			t.Errorf("a stranger posts to %s: %d %s", path, status, body)
		}
	}
	if status, body := ask("POST", enroll.Path, `{"code":"`+strings.Repeat("a", enroll.RequestMax)+`"}`); status != http.StatusBadRequest {
		t.Errorf("a large request: %d %s", status, body)
	}
	limited := false
	for range 40 {
		status, _ := ask("GET", enroll.Path, "")
		limited = limited || status == http.StatusTooManyRequests
	}
	if !limited {
		t.Error("one source may try as often as it likes")
	}
	// A certificate of another authority is none.
	elsewhere := filepath.Join(t.TempDir(), "fleet")
	if _, err := mtls.Make(elsewhere); err != nil {
		t.Fatal(err)
	}
	foreign, err := tls.LoadX509KeyPair(filepath.Join(elsewhere, "node.crt"), filepath.Join(elsewhere, "node.key"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.Dial("tcp", strings.TrimPrefix(g.url, "https://"), &tls.Config{
		InsecureSkipVerify: true, Certificates: []tls.Certificate{foreign}, NextProtos: []string{"h2"},
	})
	if err == nil {
		_, err = c.Read(make([]byte, 1)) // the server sends a setting, or an alert
		_ = c.Close()
	}
	if err == nil {
		t.Error("a certificate of another authority is believed")
	}
}
