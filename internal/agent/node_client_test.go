package agent_test

import (
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/agent/agenttest"
	"github.com/dozehq/doze/internal/agentapi"
)

// to sends every request to one server, and keeps what the last answer said of
// the version.
type to struct {
	url     string
	version string
}

// RoundTrip implements [http.RoundTripper].
func (o *to) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	u, err := url.Parse(o.url)
	if err != nil {
		return nil, err
	}
	r.URL.Scheme, r.URL.Host = u.Scheme, u.Host
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err == nil {
		o.version = resp.Header.Get(agentapi.VersionHeader)
	}
	return resp, err
}

// TestNodeClient: a node's client and this agent understand each other.
func TestNodeClient(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	target := &to{url: s.URL}
	c := agentapi.Client{Transport: target}
	ctx := t.Context()
	if err := c.Healthy(ctx); err != nil || target.version != "" {
		t.Errorf("what everybody may ask: %v, version %q", err, target.version)
	}
	if err := c.StartProcess(ctx, map[string]any{"name": "app", "command": "sleep 1000", "keepAlive": true}); err != nil {
		t.Error(err)
	}
	if st, err := c.State(ctx); err != nil || st.KeepAlive != 1 {
		t.Errorf("%+v, %v", st, err)
	}
	if target.version != strconv.Itoa(agentapi.Version) {
		t.Errorf("it speaks version %q", target.version)
	}
	if err := c.Woken(ctx); err != nil {
		t.Error(err)
	}
	if err := c.StartProcess(ctx, map[string]any{"name": "say", "command": "echo hello; echo oops >&2", "waitForCompletion": true}); err != nil {
		t.Error(err)
	}
	if err := c.AwaitLogs(ctx, 0); err != nil {
		t.Error(err)
	}
	said := map[string]string{}
	out, err := c.Collect(ctx, 0)
	for _, chunk := range out.Chunks {
		said[chunk.Process+" "+chunk.Stream] += chunk.Text
	}
	if want := map[string]string{"say stdout": "hello\n", "say stderr": "oops\n"}; err != nil || !maps.Equal(said, want) || out.Lost != 0 {
		t.Errorf("it wrote %v, %v", out, err)
	}
	if out, err = c.Collect(ctx, out.Chunks[len(out.Chunks)-1].At); err != nil || len(out.Chunks) != 0 {
		t.Errorf("and then %v, %v", out, err)
	}
	ran, err := c.Quiesce(ctx, 5*time.Second)
	if err != nil || !strings.Contains(string(ran.Processes), `"command":"sleep 1000"`) {
		t.Errorf("%s, %v", ran.Processes, err)
	}
	if err := c.ResumeArchive(ctx); err != nil {
		t.Error(err)
	}
	if err := c.Unpack(ctx, strings.NewReader("")); !agentapi.Refused(err) {
		t.Errorf("files for an agent without a root: %v", err)
	}
	if err := c.Stop(ctx); err != nil {
		t.Error(err)
	}
}
