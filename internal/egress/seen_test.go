package egress

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
)

// TestSeen: decisions about one destination by one rule are one entry, and the last used
// comes first.
func TestSeen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, began := newSeen(), time.Now()
		add := func(name string, v Verdict) {
			time.Sleep(time.Second)
			s.add("tcp", Destination{Name: name, Port: 443}, v, time.Now())
		}
		at := func(second int) doze.Time { return doze.Time{Time: began.Add(time.Duration(second) * time.Second)} }
		allowed, refused := Verdict{Allow: true, Rule: "allowedDomains[0]"}, Verdict{Rule: ruleUnlisted}
		add("a.test", allowed)
		add("b.test", refused)
		add("a.test", allowed)
		add("a.test", refused) // the rules have changed
		add("a.test", Verdict{Rule: ruleBarred, Why: "its quota is used up"})
		want := doze.EgressSummary{Since: at(0), Destinations: []doze.EgressDestination{
			{Protocol: "tcp", Host: "a.test", Port: 443, Verdict: "deny", Rule: "barred", Reason: "its quota is used up", Count: 1, FirstAt: at(5), LastAt: at(5)},
			{Protocol: "tcp", Host: "a.test", Port: 443, Verdict: "deny", Rule: "allowedDomains", Reason: refused.reason(), Count: 1, FirstAt: at(4), LastAt: at(4)},
			{Protocol: "tcp", Host: "a.test", Port: 443, Verdict: "allow", Rule: "allowedDomains[0]", Count: 2, FirstAt: at(1), LastAt: at(3)},
			{Protocol: "tcp", Host: "b.test", Port: 443, Verdict: "deny", Rule: "allowedDomains", Reason: refused.reason(), Count: 1, FirstAt: at(2), LastAt: at(2)},
		}}
		if d := cmp.Diff(want, s.list()); d != "" {
			t.Error(d)
		}
	})
}

// TestSeenBounds: a sandbox that connects everywhere takes no more memory, and what it uses
// often is not forgotten for what it used once.
func TestSeenBounds(t *testing.T) {
	t.Parallel()
	s, now := newSeen(), time.Now()
	for i := range 10_000 {
		s.add("tcp", Destination{Name: fmt.Sprint("n", i, ".test")}, Verdict{Rule: ruleUnlisted}, now)
		s.add("tcp", Destination{Name: "often.test"}, Verdict{Rule: ruleUnlisted}, now)
	}
	all := s.list().Destinations
	if len(all) != doze.EgressDestinationsMax || all[0].Host != "often.test" || all[0].Count != 10_000 {
		t.Fatalf("of 10001 destinations there are %d, and the first is %+v", len(all), all[0])
	}
	for i, d := range all[1:] {
		if want := fmt.Sprint("n", 9999-i, ".test"); d.Host != want || d.Count != 1 {
			t.Errorf("number %d is %s, %d times, want %s", i+1, d.Host, d.Count, want)
		}
	}
	s.add("tcp", Destination{Name: strings.Repeat("a", 1<<20)}, Verdict{Rule: ruleUnlisted}, now)
	if n := len(s.list().Destinations[0].Host); n != seenHostMax {
		t.Errorf("a name has %d bytes", n)
	}
}

// TestSummary: what was decided about the connections of a sandbox is there for its UID,
// survives a change of its rules, and ends with the sandbox.
func TestSummary(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer s.Close()
	network := allowing(s, "a.test")
	e, proxy := serve(t, network, nil)
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy), DisableKeepAlives: true}}
	for _, name := range []string{"a.test", "evil.test", "a.test"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at(s, name), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	told := func() string {
		var b strings.Builder
		for _, d := range e.Summary("a").Destinations {
			_, _ = fmt.Fprintln(&b, d.Protocol, d.Host, fmt.Sprint(d.Port) == u.Port(), d.Verdict, d.Rule, d.Count, d.Reason != "")
		}
		return b.String()
	}
	want := "tcp a.test true allow allowedDomains[1] 2 false\ntcp evil.test true deny allowedDomains 1 true\n"
	if got := told(); got != want {
		t.Errorf("it is\n%s", got)
	}
	admit(t, e, &doze.Network{})
	if got := told(); got != want {
		t.Errorf("after a change of the rules it is\n%s", got)
	}
	if other := e.Summary("b"); !other.Since.IsZero() || other.Destinations == nil || len(other.Destinations) != 0 {
		t.Errorf("of nobody it is %+v", other)
	}
	e.Forget(home)
	if got := told(); got != "" {
		t.Errorf("forgotten, it is\n%s", got)
	}
}

// BenchmarkSeen is what the table costs a connection: to a known destination, and to a new
// one when there is no room.
func BenchmarkSeen(b *testing.B) {
	for _, names := range []int{1, 4 * doze.EgressDestinationsMax} {
		b.Run(fmt.Sprint(names, " names"), func(b *testing.B) {
			all := make([]Destination, names)
			for i := range all {
				all[i] = Destination{Name: fmt.Sprint("n", i, ".test"), Port: 443}
			}
			s, now := newSeen(), time.Now()
			for i := 0; b.Loop(); i++ {
				s.add("tcp", all[i%names], Verdict{Allow: true, Rule: ruleOpen}, now)
			}
		})
	}
}
