package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit"
)

// roles starts a platform whose roles are three processes.
func roles(t *testing.T, args ...string) (*testkit.Platform, *rolesClient) {
	t.Helper()
	p, c := launch(t, nil, testkit.Options{Roles: true, Args: args})
	sb, agent := create(t, c, named("a", 256))
	return p, &rolesClient{t: t, p: p, url: sb.Metadata.URL, sh: func(command string) string { return sh(t, agent, command) }}
}

// rolesClient uses one sandbox of such a platform.
type rolesClient struct {
	t   *testing.T
	p   *testkit.Platform
	url string
	sh  func(command string) string
}

// restart kills one role, and starts it again after a while.
func (c *rolesClient) restart(role string, away time.Duration) {
	c.t.Helper()
	if err := c.p.KillRole(role); err != nil {
		c.t.Fatal(err)
	}
	time.Sleep(away)
	if err := c.p.StartRole(role); err != nil {
		c.t.Fatal(err)
	}
}

// ask sends requests to the sandbox until stop, which returns those that failed.
func (c *rolesClient) ask() (stop func() (asked int64, failures []string)) {
	var asked atomic.Int64
	var failures []string
	done := make(chan struct{})
	var run sync.WaitGroup
	run.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
			asked.Add(1)
			resp, err := call{url: c.url + "/health"}.open(c.t.Context(), c.p)
			if err != nil {
				failures = append(failures, err.Error())
				continue
			}
			body, err := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if err != nil || resp.StatusCode != http.StatusOK {
				failures = append(failures, fmt.Sprint(resp.StatusCode, " ", string(body), " ", err))
			}
		}
	})
	return func() (int64, []string) {
		close(done)
		run.Wait()
		return asked.Load(), failures
	}
}

// TestControlRestartsAlone: while control is away, sandboxes sleep, wake and answer.
// When it is back, it knows all of that.
func TestControlRestartsAlone(t *testing.T) {
	t.Parallel()
	p, c := roles(t, "--pause-after", "1s")
	c.sh("echo kept >/tmp/note")
	stop := c.ask()
	if err := p.KillRole(testkit.Control); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	if asked, failures := stop(); asked == 0 || len(failures) > 0 {
		t.Errorf("without control, %d of %d requests failed: %v", len(failures), asked, failures)
	}
	time.Sleep(3 * time.Second) // it falls asleep, and nobody is told
	if note := c.sh("cat /tmp/note"); strings.TrimSpace(note) != "kept" {
		t.Errorf("without control, the sandbox woke with %q", note)
	}
	time.Sleep(3 * time.Second)
	if err := p.StartRole(testkit.Control); err != nil {
		t.Fatal(err)
	}
	client, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	until(t, "control knows that it sleeps", func() bool {
		sb, err := client.Sandbox(t.Context(), "a")
		return err == nil && sb.State == "STANDBY"
	})
	call{method: http.MethodPost, url: p.Address + "/v0/sandboxes", body: `{"metadata":{"name":"b"},"spec":{"runtime":{"memory":256}}}`}.want(t, p, http.StatusOK)
	call{url: p.Address + "/v0/sandboxes/b"}.want(t, p, http.StatusOK)
}

// TestNodeRestartsAlone: a node that starts again has the sandboxes, the limits and the
// network rules that it had, and requests meanwhile wait.
func TestNodeRestartsAlone(t *testing.T) {
	t.Parallel()
	p, c := roles(t, "--pause-after", "10m", "--egress", "open")
	client, err := p.Client()
	if err != nil {
		t.Fatal(err)
	}
	ruled := named("b", 256)
	ruled.Spec.Network = &doze.Network{ForbiddenDomains: []string{"forbidden.test"}}
	_, agent := create(t, client, ruled)
	// Without its rules, a sandbox is denied everything and no answer names a rule.
	denied := func() bool {
		return strings.Contains(sh(t, agent, "curl -s -m 5 http://forbidden.test/ || true"), "forbiddenDomains[0]")
	}
	if !denied() {
		t.Fatal("before a restart, the sandbox b is not denied what its network forbids")
	}
	if _, err := client.SetQuotas(t.Context(), "main", map[string]*int64{doze.QuotaSandboxesAwake: new(int64(2))}); err != nil {
		t.Fatal(err)
	}
	c.sh("echo kept >/tmp/note")
	for range 3 {
		stop := c.ask()
		c.restart(testkit.Node, 100*time.Millisecond)
		if note := c.sh("cat /tmp/note"); strings.TrimSpace(note) != "kept" {
			t.Errorf("after a restart it has %q", note)
		}
		// A request that was on its way to the killed process is lost with it.
		if asked, failures := stop(); asked == 0 || len(failures) > 1 {
			t.Errorf("%d of %d requests failed: %v", len(failures), asked, failures)
		}
	}
	until(t, "the node knows the network rules of a sandbox again", denied)
	until(t, "the node knows its limits again", func() bool {
		a := call{method: http.MethodPost, url: p.Address + "/v0/sandboxes", body: `{"metadata":{"name":"c"},"spec":{"runtime":{"memory":256}}}`}.do(t, p)
		return a.status == http.StatusTooManyRequests && strings.Contains(a.body, doze.QuotaSandboxesAwake)
	})
}

// TestEdgeRestartsAlone: an edge that starts again serves at once, and what it knew is
// what control knows.
func TestEdgeRestartsAlone(t *testing.T) {
	t.Parallel()
	p, c := roles(t)
	c.sh("echo kept >/tmp/note")
	for range 3 {
		stop := c.ask()
		c.restart(testkit.Edge, 0)
		if err := p.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		if a := (call{url: c.url + "/health"}).do(t, p); a.status != http.StatusOK {
			t.Errorf("the first answer is %d %s", a.status, a.body)
		}
		if asked, failures := stop(); asked == 0 || len(failures) > 1 { // as for the node
			t.Errorf("%d of %d requests failed: %v", len(failures), asked, failures)
		}
	}
	if note := c.sh("cat /tmp/note"); strings.TrimSpace(note) != "kept" {
		t.Errorf("it has %q", note)
	}
	call{url: c.url + "/health", key: "dz_wrong"}.want(t, p, http.StatusUnauthorized)
}

// TestRolesAreSeparate: one process has a role, dozed all has all of them, and a node of
// another platform is refused.
func TestRolesAreSeparate(t *testing.T) {
	t.Parallel()
	p, _ := roles(t)
	second := func(role string) string {
		t.Helper()
		err := p.Another(t.Context(), role)
		if err == nil {
			t.Errorf("a second %s runs", role)
			err = errors.New("")
		}
		return err.Error()
	}
	for _, role := range []string{testkit.Control, testkit.Node, "all"} {
		if says := second(role); !strings.Contains(says, "another dozed") && !strings.Contains(says, "in use") {
			t.Errorf("a second %s says %s", role, says)
		}
	}
}
