package roster_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/control"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/crew"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/plane/planetest"
	"github.com/dozehq/doze/internal/roster"
)

// open returns a roster of a platform, whose nodes are those of nodes by their URLs, or the
// node of the platform.
func open(t *testing.T, p *planetest.Platform, change func(*roster.Config)) *roster.Roster {
	t.Helper()
	c, err := crew.Open(t.Context(), plane.Ledger{Store: p.Store}, "", fleet.NewAtlas())
	if err != nil {
		t.Fatal(err)
	}
	config := roster.Config{
		Store: p.Store, Crew: c, Control: control.Link{Server: p.Ctl}, Quotas: p.Quotas, TTL: 30 * time.Second,
		Dial: func(fleet.NodeInfo) fleet.Node { return p.Node }, Met: func(fleet.NodeInfo) {},
	}
	if change != nil {
		change(&config)
	}
	return roster.New(config)
}

// TestRoster: a node joins as often as it starts, unless it opens other secrets than those
// before it; what it counts goes on over its processes.
func TestRoster(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(`{"metadata":{"name":"a"}}`)
	var reached string
	r := open(t, p, func(c *roster.Config) { c.Met = func(n fleet.NodeInfo) { reached = n.URL } })
	info := fleet.NodeInfo{ID: "n1", Incarnation: "1", URL: "https://n1", Memory: 1024}
	for what, wrong := range map[string]fleet.NodeInfo{
		"without an id":       {Incarnation: "1", URL: "x"},
		"without a process":   {ID: "n1", URL: "x"},
		"with a path as id":   {ID: "tokens", Incarnation: "1", URL: "x"},
		"with another path":   {ID: "settle", Incarnation: "1", URL: "x"},
		"without its address": {ID: "n1", Incarnation: "1"},
	} {
		if _, err := r.Join(t.Context(), wrong); doze.Public(err).Kind != doze.Invalid {
			t.Errorf("%s it is %v", what, err)
		}
	}
	if _, err := r.Traffic(t.Context(), "n1", "1", nil); doze.Public(err).Name != "NODE_NOT_JOINED" {
		t.Errorf("before it joined, its traffic is %v", err)
	}
	join := func(n fleet.NodeInfo) {
		t.Helper()
		if _, err := r.Join(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	join(info)
	join(info) // a call may be repeated
	if reached != "https://n1" || !r.Present() {
		t.Errorf("it is reached at %q", reached)
	}
	other := info
	other.ID, other.SealKey = "n2", []byte("other")
	if _, err := r.Join(t.Context(), other); doze.Public(err).Kind != doze.Conflict || reached != "https://n1" {
		t.Errorf("a node that opens other secrets: %v", err)
	}

	traffic := func(incarnation string, bytes uint64) map[string]string {
		t.Helper()
		barred, err := r.Traffic(t.Context(), "n1", incarnation, map[string]uint64{"main": bytes})
		if err != nil {
			t.Fatal(err)
		}
		return barred
	}
	traffic("1", 5<<20)
	traffic("1", 7<<20)
	if n := p.Quotas.EgressOf("main"); n != 7<<20 {
		t.Errorf("%d bytes of 7 MiB are counted", n)
	}
	if _, err := r.Traffic(t.Context(), "n1", "2", nil); err == nil {
		t.Error("another process of the node did not join, and is heard")
	}
	info.Incarnation = "2"
	join(info)
	traffic("2", 3<<20)
	if n := p.Quotas.EgressOf("main"); n != 10<<20 {
		t.Errorf("over a restart, %d bytes of 10 MiB are counted", n)
	}
	p.Quotas.Set("main", doze.Limits{doze.QuotaEgress: 10})
	if why := traffic("2", 3<<20)["main"]; !strings.Contains(why, doze.QuotaEgress) {
		t.Errorf("a workspace that has used up its quota is barred with %q", why)
	}
	if refs, err := r.ImageRefs(t.Context()); err != nil || len(refs) != 0 {
		t.Errorf("%v, %v", refs, err)
	}
}

// TestRosterTellsAgain: control tells each process of a node the limits, the networks
// and the grace periods.
func TestRosterTellsAgain(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(`{"metadata":{"name":"a"},"spec":{"network":{"allowedDomains":["a.example"]},"runtime":{"terminationGracePeriodSeconds":5}}}`)
	r := open(t, p, nil)
	for _, incarnation := range []string{"1", "2"} {
		p.Node.Forget()
		if _, err := r.Join(t.Context(), fleet.NodeInfo{ID: "n", Incarnation: incarnation, URL: "x"}); err != nil {
			t.Fatal(err)
		}
		var m planetest.Machine
		p.Node.With("a", func(_ string, is *planetest.Machine) {
			m = *is
			if _, told := p.Node.Limits[""]; !told {
				t.Errorf("process %s of the node knows no limits", incarnation)
			}
		})
		if n := m.Order.Network; n == nil || !slices.Equal(n.AllowedDomains, []string{"a.example"}) {
			t.Errorf("process %s of the node has the network %+v", incarnation, n)
		}
		if m.Order.Grace != 5*time.Second {
			t.Errorf("process %s of the node has the grace period %s, want 5s", incarnation, m.Order.Grace)
		}
	}
}

// TestOnceAdopted: what changes something waits for the node, what reads does not.
func TestOnceAdopted(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	r := open(t, p, nil)
	h := r.OnceAdopted(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	ask := func(ctx context.Context, method string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, method, "/v0/sandboxes", nil))
		return w.Code
	}
	if got := ask(t.Context(), http.MethodGet); got != http.StatusNoContent {
		t.Errorf("a read is answered %d", got)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v0/platform/nodes/tokens", nil))
	if w.Code != http.StatusNoContent { // or there would never be a first node
		t.Errorf("a token for the first node is answered %d", w.Code)
	}
	answered := make(chan int)
	go func() { answered <- ask(t.Context(), http.MethodPost) }()
	select {
	case got := <-answered:
		t.Fatalf("a change before the node joined is answered %d", got)
	case <-time.After(50 * time.Millisecond):
	}
	if _, err := r.Join(t.Context(), fleet.NodeInfo{ID: "n", Incarnation: "1", URL: "x"}); err != nil {
		t.Fatal(err)
	}
	if got := <-answered; got != http.StatusNoContent {
		t.Errorf("a change that waited is answered %d", got)
	}
}
