package mtls_test

import (
	"net"
	"net/http"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet/mtls"
)

// TestForget: a way that was forgotten ends when its requests do, and the next one is another.
func TestForget(t *testing.T) {
	t.Parallel()
	dir := made(t)
	_, keys := joined(t, dir, "goodgood")
	at := serve(t, open(t, keys, mtls.Node), mtls.Control)
	nodes := open(t, dir, mtls.Control).Nodes()
	first := nodes.To("goodgood")
	if nodes.To("goodgood") != first {
		t.Error("there are two ways to one node")
	}
	nodes.Forget("goodgood")
	nodes.Forget("nobody")
	now := nodes.To("goodgood")
	if now == first {
		t.Error("the way is still known")
	}
	for _, to := range []http.RoundTripper{first, now} { // a caller may still have it
		if status, _, err := ask(t.Context(), to, at); err != nil || status != http.StatusOK {
			t.Errorf("%d, %v", status, err)
		}
	}
}

// TestNodes: a way to a node leads to no other one, whatever its address is.
func TestNodes(t *testing.T) {
	t.Parallel()
	dir := made(t)
	_, good := joined(t, dir, "goodgood")
	_, hostile := joined(t, dir, "hostile1")
	at := serve(t, open(t, good, mtls.Node), mtls.Control, mtls.Edge)
	elsewhere := serve(t, open(t, hostile, mtls.Node), mtls.Control, mtls.Edge)
	shared := serve(t, open(t, dir, mtls.Node), mtls.Control, mtls.Edge)
	free, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "https://" + free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	for _, role := range []mtls.Role{mtls.Control, mtls.Edge} {
		nodes := open(t, dir, role).Nodes()
		for _, tt := range []struct {
			id, url string
			may     bool
		}{
			{"goodgood", at, true},
			{"hostile1", elsewhere, true},
			{"goodgood", elsewhere, false},
			{"hostile1", at, false},
			{"goodgood", shared, true},
			{"", at, true},
			{"other", at, false},
		} {
			status, _, err := ask(t.Context(), nodes.To(tt.id), tt.url)
			if (err == nil && status == http.StatusOK) != tt.may {
				t.Errorf("%s asks the node %q: %d, %v", role, tt.id, status, err)
			}
			if err := nodes.Check(t.Context(), tt.id, tt.url); (err == nil) != tt.may || !tt.may && doze.Public(err).Kind != doze.Forbidden {
				t.Errorf("%s looks for the node %q: %v", role, tt.id, err)
			}
		}
		for url, want := range map[string]doze.Kind{nobody: doze.Unavailable, "": doze.Invalid, "http://127.0.0.1:1": doze.Invalid, "https://127.9.9.9": doze.Unavailable, "https://%zz:1": doze.Invalid} {
			if err := nodes.Check(t.Context(), "goodgood", url); doze.Public(err).Kind != want {
				t.Errorf("at %q: %v", url, err)
			}
		}
	}
}
