package edge

import (
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dozehq/doze"
)

// TestOneWorkspaceIsFull has many callers open the last connection of a
// workspace: one gets it, no refused one reaches a sandbox, and other workspaces
// do not notice.
func TestOneWorkspaceIsFull(t *testing.T) {
	t.Parallel()
	const limit, callers = 5, 20
	end := make(chan struct{})
	finish := sync.OnceFunc(func() { close(end) })
	w := newWorld(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stay" {
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-end
		}
	}))
	t.Cleanup(finish) // before the server waits for its handlers
	w.quotas.Set("acme", doze.Limits{doze.QuotaConnections: limit})
	for range limit - 1 {
		if resp := w.do(t, "GET", host, "/stay", "acme", nil); resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
	var won, refused atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			resp := w.do(t, "GET", host, "/stay", "acme", nil)
			if resp.StatusCode == http.StatusOK {
				won.Add(1)
				return
			}
			refused.Add(1)
			var b struct {
				Error struct {
					Code, Quota string
					Used, Limit int
					Retryable   bool
				}
			}
			err := json.NewDecoder(resp.Body).Decode(&b)
			e := b.Error
			if err != nil || resp.StatusCode != http.StatusTooManyRequests || e.Code != doze.NameQuotaExceeded || e.Quota != doze.QuotaConnections || e.Used != limit || e.Limit != limit || !e.Retryable ||
				resp.Header.Get("X-Blaxel-Error-Code") != doze.NameQuotaExceeded || resp.Header.Get("X-Should-Retry") != "" {
				t.Errorf("%v: %d %+v %v", err, resp.StatusCode, e, resp.Header)
			}
		})
	}
	all.Wait()
	if n := w.gate.wakes.Load(); won.Load() != 1 || refused.Load() != callers-1 || n != limit {
		t.Errorf("%d got the last place, %d were refused, the sandbox had %d requests", won.Load(), refused.Load(), n)
	}
	if resp := w.do(t, "GET", "open"+previewDomain, "/", "", nil); resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("by a preview of the workspace: %s", resp.Status)
	}
	if resp := w.do(t, "GET", "sbx-web-corp.eu-1.localhost", "/", "corp", nil); resp.StatusCode != http.StatusOK {
		t.Errorf("another workspace: %s", resp.Status)
	}
	finish()
	w.gate.awaitHeld(t, 0)
	if resp := w.do(t, "GET", host, "/", "acme", nil); resp.StatusCode != http.StatusOK {
		t.Errorf("when the others have ended: %s", resp.Status)
	}
}

// TestRequestsOfAWorkspace: what a workspace may not send reaches nothing, and says
// when it may.
func TestRequestsOfAWorkspace(t *testing.T) {
	t.Parallel()
	w := newWorld(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	w.quotas.Set("acme", doze.Limits{doze.QuotaRequests: 1})
	refused := 0
	for range 10 {
		resp := w.do(t, "GET", host, "/", "acme", nil)
		switch {
		case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != "" && resp.Header.Get("X-Blaxel-Source") == "platform":
			refused++
		case resp.StatusCode != http.StatusOK || resp.Header.Get("RateLimit-Limit") != "":
			t.Errorf("%s %v", resp.Status, resp.Header)
		}
	}
	if n := w.gate.wakes.Load(); refused == 0 || int(n) != 10-refused {
		t.Errorf("%d of 10 were refused, and %d reached the sandbox", refused, n)
	}
	if resp := w.do(t, "GET", "sbx-web-corp.eu-1.localhost", "/", "corp", nil); resp.StatusCode != http.StatusOK {
		t.Errorf("another workspace: %s", resp.Status)
	}
}
