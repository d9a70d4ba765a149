package e2e_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
	"github.com/dozehq/doze/internal/testkit"
)

// A call is one request, as raw as a test needs it.
type call struct {
	method string // GET, if empty
	url    string // sent as it is: %2F and // stay
	host   string // of the Host header, if not that of the URL
	header map[string]string
	body   string
	key    string // the admin key, if empty; none sends no credential
}

const none = "-"

// An answer is what came back.
type answer struct {
	status int
	header http.Header
	body   string
}

// into decodes the body of a.
func (a answer) into(t *testing.T, out any) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), out); err != nil {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
}

// open sends c and returns the response with its body unread.
func (c call) open(ctx context.Context, p *testkit.Platform) (*http.Response, error) {
	method := c.method
	if method == "" {
		method = http.MethodGet
	}
	r, err := http.NewRequestWithContext(ctx, method, c.url, strings.NewReader(c.body))
	if err != nil {
		return nil, err
	}
	if c.host != "" {
		r.Host = c.host
	}
	for k, v := range c.header {
		r.Header.Set(k, v)
	}
	switch c.key {
	case "":
		r.Header.Set("Authorization", "Bearer "+p.Key)
	case none:
	default:
		r.Header.Set("Authorization", "Bearer "+c.key)
	}
	return callers.Do(r)
}

// callers follow no redirect: there must never be one.
var callers = &http.Client{
	Transport:     &http.Transport{MaxIdleConnsPerHost: 16},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// do sends c and reads the whole answer.
func (c call) do(t *testing.T, p *testkit.Platform) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp, err := c.open(ctx, p)
	if err != nil {
		t.Fatalf("%s %s: %v", c.method, c.url, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%s %s: %v", c.method, c.url, err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// want sends c and expects a status.
func (c call) want(t *testing.T, p *testkit.Platform, status int) answer {
	t.Helper()
	a := c.do(t, p)
	if a.status != status {
		t.Fatalf("%s %s: status %d, want %d\n%s", c.method, c.url, a.status, status, a.body)
	}
	return a
}

// encode writes v as JSON.
func encode(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// awaitTier waits until a sandbox is in a tier, without waking it.
func awaitTier(t *testing.T, p *testkit.Platform, name, tier string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.AwaitTier(ctx, name, tier); err != nil {
		t.Fatalf("%v\n%s", err, p.Tail())
	}
}

// stays fails if a sandbox is in another tier at any time within d.
func stays(t *testing.T, p *testkit.Platform, name, tier string, d time.Duration) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		now, err := p.TierOf(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if now != tier {
			t.Fatalf("the sandbox %s is %s and should stay %s", name, now, tier)
		}
	}
}

// until calls ok until it is true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	var pause pauses
	for end := time.Now().Add(patience); !ok(); pause.next() {
		if time.Now().After(end) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// pauses are those between two looks at something. They grow: a look that comes too often
// takes the processors from what it waits for, and from the tests beside it.
type pauses time.Duration

const (
	pauseFirst = 10 * time.Millisecond
	pauseMost  = 50 * time.Millisecond // states that a test must see last longer
)

// next waits for the next pause.
func (p *pauses) next() {
	*p = pauses(min(max(time.Duration(*p)*5/4, pauseFirst), pauseMost))
	time.Sleep(time.Duration(*p))
}

// sleeps waits until the API says that a sandbox sleeps: the engine knows a
// moment before the node.
func sleeps(t *testing.T, c *client.Client, name string) {
	t.Helper()
	until(t, name+" is DEPLOYED and STANDBY", func() bool {
		sb, err := c.Sandbox(t.Context(), name)
		return err == nil && sb.Status == "DEPLOYED" && sb.State == "STANDBY"
	})
}

// spawn starts a process that goes on.
func spawn(t *testing.T, agent *client.Agent, c client.Command) client.Process {
	t.Helper()
	proc, err := agent.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return proc
}

// put writes a file.
func put(t *testing.T, agent *client.Agent, name, content string) {
	t.Helper()
	if _, err := agent.WriteFile(t.Context(), name, strings.NewReader(content), ""); err != nil {
		t.Fatal(err)
	}
}

// kind is the kind of an error of the API.
func kind(err error) doze.Kind { return doze.Public(err).Kind }
