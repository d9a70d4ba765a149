package e2e_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/dozehq/doze/client"
)

// TestLargeBodies sends what a sandbox does not take: the answer must arrive, and
// the sandbox must live.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	p, c := start(t)
	sb, agent := create(t, c, named("bodies", 256))
	url := sb.Metadata.URL
	if _, err := agent.Start(t.Context(), client.Command{Command: "sleep 1000", Name: "deaf"}); err != nil {
		t.Fatal(err)
	}
	large := `{"content":"` + strings.Repeat("x", 75<<20) + `"}`
	call{method: "PUT", url: url + "/filesystem//tmp/large", body: large}.want(t, p, http.StatusRequestEntityTooLarge)
	call{method: "POST", url: url + "/process/deaf/stdin", body: large}.want(t, p, http.StatusRequestEntityTooLarge)

	// Many at once, each of which ends only when all have sent nearly all. A command,
	// unlike what is written to files, is held in memory.
	const senders, size = 4, 32 << 20
	var sent, all sync.WaitGroup
	sent.Add(senders)
	answers := make([]int, senders)
	for i := range senders {
		all.Go(func() {
			arrive := sync.OnceFunc(sent.Done)
			defer arrive() // the others do not wait for one that was answered before its end
			end := func() error { arrive(); sent.Wait(); return io.EOF }
			body := io.MultiReader(strings.NewReader(`{"command":"`), io.LimitReader(repeated('x'), size), rendezvous(end), bytes.NewReader([]byte(`"}`)))
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/process", body)
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("Authorization", "Bearer "+p.Key)
			resp, err := callers.Do(r)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if answers[i] = resp.StatusCode; resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") == "" {
				t.Error("a sender is not told when to come again")
			}
		})
	}
	all.Wait()
	crowded := 0
	for _, status := range answers {
		if status == http.StatusTooManyRequests {
			crowded++
		} else if status != http.StatusUnprocessableEntity { // it is too long for a command
			t.Errorf("a sender got %d", status)
		}
	}
	if crowded < senders-2 {
		t.Errorf("of %d senders, only %d were refused", senders, crowded)
	}
	if got := sh(t, agent, "echo lives"); got != "lives" {
		t.Errorf("afterwards: %q", got)
	}
}

// repeated is an endless row of one byte.
type repeated byte

func (r repeated) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(r)
	}
	return len(b), nil
}

// rendezvous reads nothing, when others are there as well.
type rendezvous func() error

func (r rendezvous) Read([]byte) (int, error) { return 0, r() }
