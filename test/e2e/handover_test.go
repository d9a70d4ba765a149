package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/testkit"
)

// caller makes requests, each over a connection of its own, and sorts their
// ends: what dozed had not accepted when it was killed is answered by the next
// one.
type caller struct {
	http          *http.Client
	answered, cut atomic.Int64

	mu      sync.Mutex
	wrong   []string      // guarded by mu
	longest time.Duration // guarded by mu
}

func newCaller() *caller {
	return &caller{http: &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}}
}

func (c *caller) ask(ctx context.Context, p *testkit.Platform, url string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		c.note(err.Error())
		return
	}
	r.Header.Set("Authorization", "Bearer "+p.Key)
	start := time.Now()
	resp, err := c.http.Do(r)
	switch {
	case ctx.Err() != nil:
		if err == nil {
			_ = resp.Body.Close()
		}
	case errors.Is(err, syscall.ECONNREFUSED):
		c.note(err.Error())
	case err != nil: // it was accepted, and dozed killed
		if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
			c.note("nobody answers: " + err.Error())
			return
		}
		c.cut.Add(1)
	default:
		_ = resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusOK:
		case http.StatusServiceUnavailable: // it was accepted, and dozed stopped
			c.cut.Add(1)
			return
		default:
			c.note(url + ": " + resp.Status)
			return
		}
		c.answered.Add(1)
		c.mu.Lock()
		c.longest = max(c.longest, time.Since(start))
		c.mu.Unlock()
	}
}

func (c *caller) note(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, what)
}

// TestNobodyIsRefused kills dozed, and replaces it, under the hands of many
// callers. Whoever comes while there is none waits for the next.
func TestNobodyIsRefused(t *testing.T) {
	t.Parallel()
	const callers, kills = 20, 3
	p, c := start(t, "--pause-after", "60s")
	sb, _ := create(t, c, named("busy", 2048))
	urls := []string{p.Address + "/health", sb.Metadata.URL + "/health"}
	all := newCaller()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var tasks sync.WaitGroup
	for i := range callers {
		tasks.Go(func() {
			for ctx.Err() == nil {
				all.ask(ctx, p, urls[i%len(urls)])
			}
		})
	}
	for i := range kills + 1 {
		before := all.answered.Load()
		until(t, "there are answers", func() bool { return all.answered.Load() > before+callers })
		end := p.Kill
		if i == kills {
			end = p.Replace
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		revive(t, p)
	}
	before := all.answered.Load()
	until(t, "there are answers", func() bool { return all.answered.Load() > before+callers })
	stop()
	tasks.Wait()
	t.Logf("%d answered, the last of them after %v; %d cut off by %d kills", all.answered.Load(), all.longest.Round(time.Millisecond), all.cut.Load(), kills)
	for _, w := range all.wrong {
		t.Error(w)
	}
	// Every kill cuts off at most what each caller had under way.
	if n := all.cut.Load(); n > callers*(kills+1) {
		t.Errorf("%d requests were cut off", n)
	}
}

// execute sends a command to a sandbox over a connection of its own, and returns the
// whole answer when the command has ended.
func execute(ctx context.Context, p *testkit.Platform, url, command string) (answer, error) {
	body := fmt.Sprintf(`{"command":%q,"waitForCompletion":true,"timeout":0}`, command)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/process", strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	r.Header.Set("Authorization", "Bearer "+p.Key)
	resp, err := newCaller().http.Do(r)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(raw)}, err
}

// TestReplacedLetsFinish replaces dozed while a sandbox runs a command for
// somebody: it goes on, and so does everything else, until it has ended, or the
// operator does not want to wait.
func TestReplacedLetsFinish(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "60s")
	sb, _ := create(t, c, named("busy", 2048))
	url := sb.Metadata.URL
	command := func(name string) (ended chan answer) { // an answer has the command, whose quotes keep what it prints out of that
		t.Helper()
		ended = make(chan answer, 1)
		go func() {
			a, err := execute(t.Context(), p, url, "touch /tmp/"+name+"; while [ -e /tmp/"+name+" ]; do sleep 0.1; done; echo 'fin'ished")
			if err != nil {
				a.body = err.Error()
			}
			ended <- a
		}()
		until(t, "the command runs", func() bool {
			a, err := execute(t.Context(), p, url, "test -e /tmp/"+name+" && echo it 'runs'")
			return err == nil && strings.Contains(a.body, "it runs")
		})
		return ended
	}
	replace := func(said string) {
		t.Helper()
		n := strings.Count(p.Printed(), said)
		if err := syscall.Kill(p.PID(), syscall.SIGUSR2); err != nil {
			t.Fatal(err)
		}
		until(t, said, func() bool { return strings.Count(p.Printed(), said) > n })
	}
	const waits, cuts = "to be replaced as soon as no request is under way", "requests are cut off"

	ended := command("young")
	replace(waits)
	if a, err := execute(t.Context(), p, url, "rm /tmp/young"); err != nil || a.status != http.StatusOK {
		t.Errorf("meanwhile: %d %s, %v", a.status, a.body, err)
	}
	if a := <-ended; a.status != http.StatusOK || !strings.Contains(a.body, "finished") {
		t.Errorf("the command that was under way: %d %s", a.status, a.body)
	}
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	if printed := p.Printed(); strings.Contains(printed, cuts) {
		t.Errorf("somebody was cut off: %s", p.Tail())
	}
	revive(t, p)

	ended = command("stubborn")
	replace(waits)
	replace(cuts)
	a := <-ended
	var said refusal
	a.into(t, &said)
	if a.status != http.StatusServiceUnavailable || said.Error.Retryable || !strings.Contains(said.Error.Message, "may have run") {
		t.Errorf("the command that was cut off: %d %s", a.status, a.body)
	}
	if err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	revive(t, p)
	if a, err := execute(t.Context(), p, url, "ls /tmp; rm /tmp/stub*"); err != nil || !strings.Contains(a.body, "stubborn") {
		t.Errorf("the sandbox after it: %d %s, %v", a.status, a.body, err)
	}
}

// A service that was stopped is closed, and does not let callers wait.
func TestStoppedIsClosed(t *testing.T) {
	t.Parallel()
	p, _ := start(t)
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(p.Address, "http://")
	waiting, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal("after a kill:", err)
	}
	defer waiting.Close()
	revive(t, p)
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if again, err := new(net.Dialer).DialContext(t.Context(), "tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		if err == nil {
			_ = again.Close()
		}
		t.Errorf("after a stop: %v, want that it is refused", err)
	}
	revive(t, p)
}

// TestManyAreAdopted says how long that takes.
func TestManyAreAdopted(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: many sandboxes, in short mode")
	}
	const many = 12
	p, c := start(t, "--pause-after", "2s", "--save-after", "1h", "--disk-after", "2h")
	for i := range many {
		create(t, c, named(fmt.Sprintf("one-%d", i), 256))
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	revive(t, p)
	took := time.Since(began)
	for i := range many {
		name := fmt.Sprintf("one-%d", i)
		sb, err := c.Sandbox(t.Context(), name)
		if err != nil || sb.Status != "DEPLOYED" {
			t.Errorf("%s is %s, %v", name, sb.Status, err)
		}
	}
	t.Logf("dozed was killed with %d sandboxes and answered %v after it was started again", many, took.Round(time.Millisecond))
	if got := strings.Count(p.Printed(), `"msg":"adopted"`); got < many {
		t.Errorf("%d were adopted, in %s", got, filepath.Base(p.Log))
	}
}
