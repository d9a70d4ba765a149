package attack_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/dnstest"
)

// smallHost are the settings of a platform whose host is small: what an attacker
// may take up is reached in seconds.
// The rates of sources are those of the world: the defaults for the loopback
// interface, where all attackers are, are twenty times as high.
var smallHost = []string{"--egress", "open", "--sandbox-memory-mb", "3072", "--source-rate", "1000:5000", "--source-failure-rate", "10:100"}

// outside is a name that the platform's resolver knows. Nothing is ever sent to
// its address: who connects says nothing, so that nobody knows whether the rules
// allow it.
const outside = "outside.test"

// start runs a platform. When the test ends, its sandboxes are deleted, and
// nothing may be left of them.
func start(t *testing.T) *testkit.Platform {
	t.Helper()
	// Not t.TempDir: unix sockets in it would have too long a name.
	dir, err := os.MkdirTemp("", "doze-attack-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	names := dnstest.Serve(t)
	names.A(outside, [4]byte{203, 0, 113, 7})
	p, err := testkit.Start(t.Context(), testkit.Options{Dir: dir, Args: append(smallHost, "--resolver", names.Address)})
	t.Cleanup(func() {
		if p == nil {
			return
		}
		tidy(t, p)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("what dozed printed:\n%s", p.Tail())
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// tidy deletes every sandbox of both workspaces and looks for what is left.
func tidy(t *testing.T, p *testkit.Platform) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience) // it has ended in a clean-up
	defer cancel()
	for _, workspace := range []string{"main", attackers} {
		c, err := client.New(client.Config{Address: p.Address, Key: p.Key, Workspace: workspace})
		if err != nil {
			t.Fatal(err)
		}
		remove(ctx, t, c)
		c.Close()
	}
	for leaks := p.Leaks(); len(leaks) > 0; leaks = p.Leaks() {
		if ctx.Err() != nil {
			t.Errorf("left over: %v", leaks)
			return
		}
		time.Sleep(poll)
	}
}

// remove deletes every sandbox of a workspace.
func remove(ctx context.Context, t *testing.T, c *client.Client) {
	t.Helper()
	for sb, err := range c.Sandboxes(ctx, client.Filter{}) {
		if err == nil {
			_, err = c.Delete(ctx, sb.Metadata.Name)
		}
		if err != nil && doze.Public(err).Kind != doze.NotFound { // it was on its way

			t.Error(err)
		}
	}
}

// call posts a request that must succeed, and decodes its answer into out.
func (w *world) call(t *testing.T, key, workspace, path string, in, out any) {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.Address+path, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	if workspace != "" {
		r.Header.Set("X-Blaxel-Workspace", workspace)
	}
	answered(t, r, http.StatusOK, out)
}

// submit sends a form, and returns the header of the answer.
func (w *world) submit(t *testing.T, path string, form url.Values, want int, out any) http.Header {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.Address+path, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return answered(t, r, want, out)
}

// answered sends a request whose answer must have a status, and decodes it.
func answered(t *testing.T, r *http.Request, want int, out any) http.Header {
	t.Helper()
	resp, err := http.DefaultTransport.RoundTrip(r) // a redirect is not followed
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != want {
		err = fmt.Errorf("%s %s: %s: %s", r.Method, r.URL.Path, resp.Status, text)
	}
	if err == nil && out != nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return resp.Header
}
