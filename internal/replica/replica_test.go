package replica_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/desk"
	"github.com/dozehq/doze/internal/quota"
	"github.com/dozehq/doze/internal/replica"
)

// node is a [fleet.Dialer] that says that nobody listens.
type node struct{}

func (node) Dial(context.Context, string, uint16) (net.Conn, error) {
	return nil, doze.Errorf(doze.Unavailable, "nobody listens")
}

func (node) StateAge(string) (time.Duration, bool) { return 0, false }

func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s
}

// TestReplica: what control tells is known when Follow returns, and a control that is
// new takes no address away.
func TestReplica(t *testing.T) {
	t.Parallel()
	feed, directory, credentials := fleet.NewFeed(), fleet.NewDirectory(), access.NewReplica()
	secret, id, hash := access.NewSecret()
	credentials.Set(access.Principal{Sub: "ann", Type: doze.SubUser, Roles: map[string]string{"main": doze.RoleAdmin}})
	credentials.Keys.Add(access.Key{ID: id, Workspace: "main", Sub: "ann", SubType: doze.SubUser, Scopes: []string{access.Admin}, Hash: hash})
	limits := quota.New(quota.Options{Defaults: doze.Limits{doze.QuotaConnections: 7}})
	limits.Tell(feed.Topic(fleet.TopicLimits))
	directory.Tell(feed.Topic(fleet.TopicUpstreams))
	credentials.Tell(access.Told{Principals: feed.Topic(fleet.TopicPrincipals), Keys: feed.Topic(fleet.TopicKeys), Revoked: feed.Topic(fleet.TopicRevoked), Verifier: feed.Topic(fleet.TopicVerifier)})
	directory.Put(fleet.Upstream{UID: "u", Workspace: "main", Name: "web", Enabled: true})

	mux := http.NewServeMux()
	fleet.NewServer(nil, node{}).RegisterTunnels(mux)
	nodes := serve(t, mux)
	control := serve(t, desk.Control{Feed: feed, Seen: func(desk.Seen) {}}.Handler())
	book, forgotten := quota.New(quota.Options{}), make(chan string, 1)
	r, err := replica.New(replica.Options{
		Control: control.URL, Controls: control.Client().Transport, Nodes: func(string) http.RoundTripper { return nodes.Client().Transport }, Forget: func(id string) { forgotten <- id }, Edge: "e", Quotas: book,
		Metrics: func(others []byte) ([]byte, error) { return others, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	less := make(chan struct{}, 100)
	r.OnLess(func() { less <- struct{}{} })
	stop, err := r.Follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	if _, ok := r.Directory.Find("main", "web", time.Now()); !ok {
		t.Error("it knows no route")
	}
	ask := httptest.NewRequest(http.MethodGet, "/", nil)
	ask.Header.Set("Authorization", "Bearer "+secret.Reveal())
	if c, err := r.Credentials.Authenticate(ask); err != nil || c.Sub != "ann" {
		t.Errorf("a key is that of %+v, %v", c, err)
	}
	if n := book.Limit("main", doze.QuotaConnections); n != 7 {
		t.Errorf("a limit is %d", n)
	}
	dial := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := r.Ports.Dial(ctx, "u", 80)
		return err
	}
	feed.Tell(fleet.TopicNodes, "n", nodes.URL)
	if err := dial(); err == nil || !strings.Contains(err.Error(), "nobody listens") {
		t.Errorf("the node says %v", err)
	}
	feed.Tell(fleet.TopicNodes, "off", nodes.URL)
	feed.Tell(fleet.TopicNodes, "off", "")
	if id := <-forgotten; id != "off" {
		t.Errorf("the way to %s is forgotten", id)
	}
	feed.Tell(fleet.TopicNodes, "n", nil)
	credentials.RemoveKey(id)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := r.Credentials.Authenticate(ask); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a removed key still opens")
		}
	}
	if len(less) == 0 {
		t.Error("nobody heard that somebody may do less")
	}
	if err := dial(); err == nil || !strings.Contains(err.Error(), "nobody listens") {
		t.Errorf("a control that does not name the node takes it away: %v", err)
	}
}

// TestEachTopicIsToldAndFollowed: a topic that one side forgot would be a change that
// no edge sees.
func TestEachTopicIsToldAndFollowed(t *testing.T) {
	t.Parallel()
	f, err := parser.ParseFile(token.NewFileSet(), "../fleet/feed.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, file := range []string{"../plane/remote.go", "replica.go"} {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(at ast.Node) bool {
			if v, ok := at.(*ast.ValueSpec); ok && strings.HasPrefix(v.Names[0].Name, "Topic") {
				n++
				if !strings.Contains(string(raw), "fleet."+v.Names[0].Name) {
					t.Errorf("%s does not know %s", file, v.Names[0].Name)
				}
			}
			return true
		})
	}
	if n < 10 {
		t.Errorf("%d topics were found", n)
	}
}
