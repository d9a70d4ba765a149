package plane_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/ingress"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestRefusedBeforeTheBody is made from the route table: whoever may not call a
// route is told so although the body that was promised does not come.
func TestRefusedBeforeTheBody(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, true)
	lacking := p.KeyFor("main", time.Time{}, "agents:list")
	in, err := ingress.New(ingress.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: p.HTTP}
	in.Configure(server)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(in.Listen(raw, nil, nil))
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-ended
	})
	call := func(method, path, key string) int {
		c, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		_, _ = fmt.Fprintf(c, "%s /v0%s HTTP/1.1\r\nHost: x\r\nAuthorization: %s\r\nContent-Length: 1000\r\n\r\n", method, path, key)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("%s %s: %v", method, path, err)
			return 0
		}
		_ = resp.Body.Close()
		return resp.StatusCode
	}
	for _, rt := range plane.Describe().Routes() {
		path := strings.NewReplacer("{", "", "}", "").Replace(rt.Pattern)
		if rt.Scope == "" {
			continue // the body may be the credential
		}
		if status := call(rt.Method, path, "Bearer dz_nonsense"); status != http.StatusUnauthorized {
			t.Errorf("%s %s without a key: %d", rt.Method, path, status)
		}
		if rt.Pattern == "/password" || rt.Pattern == "/whoami" {
			continue // every caller may change their own, and hear who they are
		}
		if status := call(rt.Method, path, "Bearer "+lacking); status != http.StatusForbidden {
			t.Errorf("%s %s without the scope: %d", rt.Method, path, status)
		}
	}
	if status := call("POST", "/nothing", "Bearer "+p.Key); status != http.StatusNotFound {
		t.Errorf("no route: %d", status)
	}
}
