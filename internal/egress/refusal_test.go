package egress

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dozehq/doze"
)

// TestRefusals: the owner of a sandbox is told once of a destination, and seldom of
// many. No refusal is lost, and none counts twice.
func TestRefusals(t *testing.T) {
	t.Parallel()
	r, now := newRefusals(), time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	add := func(name string) string {
		return r.add("tcp", Destination{Name: name, Port: 443}, Verdict{Rule: ruleUnlisted}, now)
	}
	if got := add("a.test"); !strings.HasPrefix(got, "egress by tcp to a.test:443 is refused (allowedDomains): ") || strings.Contains(got, ";") {
		t.Errorf("the first is told as %q", got)
	}
	for range 17 {
		if got := add("a.test"); got != "" {
			t.Errorf("the next one is told as %q", got)
		}
	}
	told := 1
	for i := range 1000 {
		if add(fmt.Sprint("n", i, ".test")) != "" {
			told++
		}
	}
	if told != refusalBurst || len(r.known) > refusalsMax {
		t.Errorf("of 1001 destinations %d are told, and %d known", told, len(r.known))
	}
	now = now.Add(refusalPause)
	if got := add("z.test"); !strings.HasSuffix(got, "; 993 refusals of other destinations are in the log of the platform alone") {
		t.Errorf("the next destination is told as %q", got)
	}
	now = now.Add(refusalMemory)
	if got := add("a.test"); !strings.HasSuffix(got, "; 17 times more since 2030-01-01T00:00:00Z") {
		t.Errorf("much later it is told as %q", got)
	}
	if r.add("tcp", Destination{Name: "a.test", Port: 443}, Verdict{Rule: ruleClosed}, now) == "" {
		t.Error("another reason is not told")
	}
	day := 0
	for i := range 24 * 60 {
		now = now.Add(time.Minute)
		if add(fmt.Sprint("m", i, ".test")) != "" {
			day++
		}
	}
	if day > 60 || len(r.known) > refusalsMax {
		t.Errorf("in a day %d are told, and %d are known", day, len(r.known))
	}
}

// TestRefusedOnce: each connection and each request is one decision, whatever finds out
// that it may not go.
func TestRefusedOnce(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	defer s.Close()
	var mu sync.Mutex
	count, told := map[bool]int{}, []string{}
	network := allowing(s, "a.test", "private.test", "nowhere.test")
	network.Proxy.Routing = []doze.ProxyTarget{{Destinations: []string{"routed.test"}}}
	e, proxy := serveWith(t, network, func(o *Options) {
		o.Decided = func(allow bool) {
			mu.Lock()
			defer mu.Unlock()
			count[allow]++
		}
		o.Refused = func(g Guest, message string) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, g.UID+": "+message)
		}
	})
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}}
	defer client.CloseIdleConnections()
	for _, step := range []struct {
		to              string
		allowed, denied int
	}{
		{"http://" + at(s, "a.test"), 1, 0},
		{"http://" + at(s, "nowhere.test"), 1, 0}, // there is no such name
		{"http://" + at(s, "private.test"), 0, 1}, // found out when it is dialled
		{"http://" + at(s, "evil.test"), 0, 1},
		{"https://" + at(s, "private.test"), 0, 1},
		{"https://" + at(s, "evil.test"), 0, 1},
	} {
		mu.Lock()
		clear(count)
		mu.Unlock()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, step.to, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := client.Do(r); err == nil {
			_ = resp.Body.Close()
		}
		mu.Lock()
		if count[true] != step.allowed || count[false] != step.denied {
			t.Errorf("%s: %d allowed and %d denied, want %d and %d", step.to, count[true], count[false], step.allowed, step.denied)
		}
		mu.Unlock()
	}
	e.Note(home, Packet{Protocol: "udp", To: netip.MustParseAddrPort("127.0.0.1:443")})
	e.Note(home, Packet{Protocol: "udp", To: netip.MustParseAddrPort("127.0.0.1:443")})
	mu.Lock()
	defer mu.Unlock()
	if len(told) != 3 || !strings.HasPrefix(told[0], "a: egress by tcp to private.test:") || !strings.HasPrefix(told[1], "a: egress by tcp to evil.test:") ||
		!strings.HasPrefix(told[2], "a: egress by udp to 127.0.0.1:443 is refused (transport): ") {
		t.Errorf("the owner is told %q", told)
	}
}
