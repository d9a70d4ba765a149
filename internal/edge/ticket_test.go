package edge

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/access"
	"github.com/dozehq/doze/internal/page"
)

// ticket makes one with a key for a sandbox in the workspace of the same name.
func (w *world) ticket(t *testing.T, key, sandbox string) string {
	t.Helper()
	text, _, err := w.tickets.Issue(t.Context(), access.Pass{Sub: "sub-" + key, Credential: key, Workspace: key, Sandbox: sandbox}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestTicketsOpenWhatTheyAreFor: once, at the terminal of one sandbox, and nothing
// else.
func TestTicketsOpenWhatTheyAreFor(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		key, sandbox, host, path string
		header                   []string
		status                   int
	}{
		"the page":            {"acme", "web", host, "/terminal?token=%s", nil, 200},
		"by path":             {"acme", "web", "doze.example.com", "/run/acme/sandboxes/web/terminal/?token=%s", nil, 200},
		"the socket":          {"acme", "web", host, "/terminal/ws?token=%s", nil, 200},
		"other path":          {"acme", "web", host, "/process?token=%s", nil, 401},
		"a port":              {"acme", "web", host, "/port/3000/terminal?token=%s", nil, 401},
		"in a header":         {"acme", "web", host, "/terminal", []string{"Authorization", "Bearer %s"}, 401},
		"another sandbox":     {"acme", "off", host, "/terminal?token=%s", nil, 404},
		"another workspace":   {"corp", "web", host, "/terminal?token=%s", nil, 404},
		"names another":       {"acme", "web", host, "/terminal?token=%s", []string{"X-Blaxel-Workspace", "corp"}, 200},
		"a key in the page":   {"acme", "web", host, "/terminal?token=acme", nil, 401},
		"a key in the socket": {"acme", "web", host, "/terminal/ws?token=acme", nil, 200}, // of clients that have no other way
		"nonsense":            {"acme", "web", host, "/terminal?token=" + access.TicketPrefix + "x", nil, 401},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, echo)
			ticket := w.ticket(t, tt.key, tt.sandbox)
			path := strings.Replace(tt.path, "%s", ticket, 1)
			var header []string
			for _, h := range tt.header {
				header = append(header, strings.Replace(h, "%s", ticket, 1))
			}
			resp := w.do(t, http.MethodGet, tt.host, path, "", nil, header...)
			body := text(t, resp)
			if resp.StatusCode != tt.status {
				t.Errorf("status %d: %.200s", resp.StatusCode, body)
			}
			if strings.Contains(body, ticket) {
				t.Error("the answer has the ticket")
			}
			if !strings.Contains(tt.path, "token=%s") || tt.status == http.StatusUnauthorized {
				return
			}
			if resp := w.do(t, http.MethodGet, tt.host, path, "", nil, header...); resp.StatusCode != http.StatusUnauthorized {
				t.Errorf("twice: %d", resp.StatusCode)
			}
		})
	}
}

func TestTicketsEndWithTheirCredential(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echo)
	ticket := w.ticket(t, "acme", "web")
	w.revoked.Store("acme", true)
	if resp := w.do(t, http.MethodGet, host, "/terminal?token="+ticket, "", nil); resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// TestThePageGetsTickets: for its socket, once each, and as many as it needs,
// until its credential is void. None of them is in an address that is shown.
func TestThePageGetsTickets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, echo)
	body := text(t, w.do(t, http.MethodGet, host, "/terminal?token="+w.ticket(t, "acme", "web"), "", nil))
	found := regexp.MustCompile(`const pass = (\{.*\});`).FindStringSubmatch(body)
	var pass page.Pass
	if found == nil || json.Unmarshal([]byte(found[1]), &pass) != nil || pass.Ticket == "" || pass.Lease == "" {
		t.Fatalf("the page has %q", found)
	}
	opens := func(ticket string) int {
		return w.do(t, http.MethodGet, host, "/terminal/ws?token="+ticket, "", nil).StatusCode
	}
	if first, again := opens(pass.Ticket), opens(pass.Ticket); first != 200 || again != 401 {
		t.Errorf("its ticket opens: %d, %d", first, again)
	}
	if got := opens(pass.Lease); got != 401 {
		t.Errorf("a lease in an address: %d", got)
	}
	if got := w.do(t, http.MethodGet, host, "/health", pass.Lease, nil).StatusCode; got != 401 {
		t.Errorf("a lease elsewhere: %d", got)
	}
	wakes := w.gate.wakes.Load()
	for range 2 {
		resp := w.do(t, http.MethodPost, host, "/terminal/ticket", pass.Lease, nil)
		var next page.Pass
		if err := json.NewDecoder(resp.Body).Decode(&next); err != nil || resp.Header.Get("Cache-Control") != "no-store" {
			t.Fatalf("%d %v, %v", resp.StatusCode, resp.Header, err)
		}
		if w.gate.wakes.Load() != wakes {
			t.Error("a ticket wakes the sandbox")
		}
		if got := opens(next.Ticket); got != 200 {
			t.Errorf("another ticket: %d", got)
		}
		wakes = w.gate.wakes.Load()
	}
	if got := w.do(t, http.MethodPost, host, "/terminal/ticket", w.ticket(t, "acme", "web"), nil).StatusCode; got != 401 {
		t.Errorf("a ticket as a lease: %d", got)
	}
	w.revoked.Store("acme", true)
	if got := w.do(t, http.MethodPost, host, "/terminal/ticket", pass.Lease, nil).StatusCode; got != 401 {
		t.Errorf("of a credential that is void: %d", got)
	}
}
