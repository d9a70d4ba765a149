// Package e2e_test drives the built binaries as their users do.
package e2e_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// patience is for one move of a sandbox, on a busy machine.
const patience = 60 * time.Second

// start runs a platform for one test. When the test ends, its sandboxes are
// deleted, and nothing may be left of them.
func start(t *testing.T, args ...string) (*testkit.Platform, *client.Client) {
	t.Helper()
	return startIn(t, nil, args...)
}

// startIn is start with a directory that mount, if it is there, mounts
// something on.
func startIn(t *testing.T, mount func(dir string) error, args ...string) (*testkit.Platform, *client.Client) {
	t.Helper()
	return launch(t, mount, testkit.Options{Args: args})
}

// launch is startIn with all options but the directory.
func launch(t *testing.T, mount func(dir string) error, o testkit.Options) (*testkit.Platform, *client.Client) {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIPPED: real sandboxes, in short mode")
	}
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: real sandboxes need root")
	}
	// Not t.TempDir: unix sockets in it would have too long a name.
	dir, err := os.MkdirTemp("", "doze-e2e-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	if mount != nil {
		if err := mount(dir); err != nil {
			t.Fatal(err)
		}
	}
	o.Dir = dir
	p, err := testkit.Start(t.Context(), o)
	t.Cleanup(func() {
		if p == nil {
			return
		}
		leaveNothing(t, p)
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("what dozed printed:\n%s", p.Tail())
		}
		if mount != nil {
			// Processes that other tests start have it for a moment too.
			if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
				t.Error(err)
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	return p, c
}

// leaveNothing deletes every sandbox and snapshot and looks for what is left of
// them.
func leaveNothing(t *testing.T, p *testkit.Platform) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience) // it has ended in a clean-up
	defer cancel()
	c, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	for sb, err := range c.Sandboxes(ctx, client.Filter{}) {
		if err != nil {
			t.Error(err)
			break
		}
		if _, err := c.Delete(ctx, sb.Metadata.Name); err != nil && kind(err) != doze.NotFound { // one that was ending has ended
			t.Error(err)
		}
	}
	for n, err := range c.Snapshots(ctx) {
		if err == nil {
			err = c.DeleteSnapshot(ctx, n.ID)
		}
		if err != nil {
			t.Error(err)
			break
		}
	}
	for pause := pauses(0); ; pause.next() {
		endWorkspaces(ctx, c)
		leaks := p.Leaks()
		if len(leaks) == 0 {
			return
		}
		if ctx.Err() != nil {
			t.Errorf("left over:\n%s", strings.Join(leaks, "\n"))
			return
		}
	}
}

// endWorkspaces deletes the workspaces of a test whose sandboxes have ended. Their builders
// end with them. What cannot be deleted yet shows in what is left over.
func endWorkspaces(ctx context.Context, c *client.Client) {
	all, err := c.Workspaces(ctx)
	if err != nil {
		return
	}
	for _, w := range all {
		if w.Name != "main" {
			_ = c.DeleteWorkspace(ctx, w.Name) // see above
		}
	}
}

// create makes a sandbox and returns a handle to what is inside.
func create(t *testing.T, c *client.Client, sb doze.Sandbox) (doze.Sandbox, *client.Agent) {
	t.Helper()
	sb, err := c.Create(t.Context(), sb, false)
	if err != nil {
		t.Fatal(err)
	}
	agent, err := c.Agent(sb)
	if err != nil {
		t.Fatal(err)
	}
	return sb, agent
}

func named(name string, memory doze.Megabytes) doze.Sandbox {
	return doze.Sandbox{Metadata: doze.Metadata{Name: name}, Spec: doze.SandboxSpec{Runtime: doze.Runtime{Memory: memory}}}
}

// sh runs a command to its end and returns its standard output.
func sh(t *testing.T, agent *client.Agent, command string) string {
	t.Helper()
	p, err := agent.Start(t.Context(), client.Command{Command: command, Wait: true})
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	if p.ExitCode != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", command, p.ExitCode, p.Stdout, p.Stderr)
	}
	return strings.TrimSpace(p.Stdout)
}

func await(t *testing.T, p *testkit.Platform, tier string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Await(ctx, tier); err != nil {
		t.Fatalf("%v\n%s", err, p.Tail())
	}
}

// get asks a sandbox through the edge and returns the status and the body.
func get(t *testing.T, p *testkit.Platform, url string) (int, string) {
	t.Helper()
	resp := request(t, p, http.MethodGet, url)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func request(t *testing.T, p *testkit.Platform, method, url string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.Key)
	resp, err := (&http.Client{Timeout: patience}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// holder is a server in a sandbox that holds random memory, a counter, an open
// file that has no name any more, and a timer.
const holder = `
import hashlib, http.server, os, tempfile, threading, time
memory = os.urandom(%d << 20)
nameless = tempfile.TemporaryFile(dir="/root")
nameless.write(b"still open")
nameless.flush()
started, fired = time.time(), []
threading.Timer(%d, lambda: fired.append(time.time())).start()
asked = [0]
class H(http.server.BaseHTTPRequestHandler):
    def log_message(self, *a): pass
    def do_GET(self):
        asked[0] += 1
        nameless.seek(0)
        body = {
            "/bytes": lambda: memory,
            "/count": lambda: str(asked[0]).encode(),
            "/file": lambda: nameless.read(),
            "/time": lambda: repr(time.time()).encode(),
            "/fired": lambda: repr(fired).encode(),
            "/random": lambda: os.urandom(16).hex().encode(),
            "/pid": lambda: str(os.getpid()).encode(),
        }[self.path]()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("0.0.0.0", 9000), H).serve_forever()
`

// hold starts a holder of mb megabytes whose timer fires after that many
// seconds, and returns its address through the edge.
func hold(t *testing.T, p *testkit.Platform, sb doze.Sandbox, agent *client.Agent, mb, seconds int) string {
	t.Helper()
	if _, err := agent.WriteFile(t.Context(), "/root/holder.py", strings.NewReader(fmt.Sprintf(holder, mb, seconds)), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := agent.Start(t.Context(), client.Command{Command: "python3 /root/holder.py", Name: "holder"}); err != nil {
		t.Fatal(err)
	}
	url := sb.Metadata.URL + "/port/9000"
	for deadline := time.Now().Add(patience); ; {
		status, body := get(t, p, url+"/count")
		if status == http.StatusOK {
			return url
		}
		if time.Now().After(deadline) {
			t.Fatalf("the holder does not answer: %d %s", status, body)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// sum reads everything from url and returns its length and digest.
func sum(t *testing.T, p *testkit.Platform, url string) string {
	t.Helper()
	resp := request(t, p, http.MethodGet, url)
	defer resp.Body.Close()
	digest := sha256.New()
	n, err := io.Copy(digest, resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, resp.Status, err)
	}
	return fmt.Sprintf("%d bytes, %s", n, hex.EncodeToString(digest.Sum(nil)))
}
