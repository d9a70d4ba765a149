package node_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/machine/machinetest"
)

func listed(domain string) *doze.Network { return &doze.Network{AllowedDomains: []string{domain}} }

// proxyVariables are the five that the specification names.
var proxyVariables = []string{"HTTP_PROXY=", "HTTPS_PROXY=", "NO_PROXY=", "SSL_CERT_FILE=", "NODE_EXTRA_CA_CERTS="}

// TestVariablesFollowRules: a sandbox without a proxy trusts its authority and has no
// variables of a proxy. A change reaches the agent once: at once if it is awake, and
// otherwise with the wake.
func TestVariablesFollowRules(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.startWith(h.options())
		o := order("a")
		o.Network, o.Env = &doze.Network{}, []string{"DENO_CERT=/mine"}
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		first := h.identity("a")
		for _, want := range []string{"REQUESTS_CA_BUNDLE=" + doze.TrustFile, "NODE_USE_SYSTEM_CA=1", "DENO_CERT=/mine"} {
			if !slices.Contains(first, want) {
				t.Errorf("%s is not in %q", want, first)
			}
		}
		for _, never := range proxyVariables {
			if slices.ContainsFunc(first, func(kv string) bool { return strings.HasPrefix(strings.ToUpper(kv), never) }) {
				t.Errorf("%s is in %q", never, first)
			}
		}
		h.set(func() {
			if platform := h.platform["a"]; !slices.Contains(platform, "REQUESTS_CA_BUNDLE") || slices.Contains(platform, "DENO_CERT") {
				t.Errorf("the agent may change %q", platform)
			}
			if h.trusted["a"] == "" {
				t.Error("it trusts nobody")
			}
		})
		told := func() (n int, last string) {
			h.set(func() {
				for _, call := range h.asked["a"] {
					if strings.HasPrefix(call, "/doze/variables") {
						n, last = n+1, call
					}
				}
			})
			return n, last
		}
		change := func(n *doze.Network) {
			t.Helper()
			if err := p.SetNetwork(t.Context(), "a", n); err != nil {
				t.Fatal(err)
			}
		}
		bypassing := func(domain string) *doze.Network { return &doze.Network{Proxy: &doze.Proxy{Bypass: []string{domain}}} }
		if n, _ := told(); n != 0 {
			t.Errorf("a create tells it %d times more", n)
		}
		change(bypassing("a.example"))
		if n, last := told(); n != 1 || !strings.Contains(last, ",a.example\"") || !strings.Contains(last, "HTTPS_PROXY=") {
			t.Errorf("awake it is told %d times: %s", n, last)
		}
		change(bypassing("a.example"))
		time.Sleep(pauseAfter + time.Second)
		p.in("a", doze.Standby, "paused")
		change(bypassing("*.b.example"))
		if n, _ := told(); n != 1 {
			t.Errorf("asleep, or of the same, it is told %d times", n)
		}
		p.hello("a")
		if n, last := told(); n != 2 || !strings.Contains(last, ",.b.example\"") {
			t.Errorf("woken it is told %d times: %s", n, last)
		}
		change(&doze.Network{})
		if n, last := told(); n != 3 || strings.Contains(last, "PROXY") || !strings.Contains(last, "REQUESTS_CA_BUNDLE=") {
			t.Errorf("without a proxy it is told %d times: %s", n, last)
		}
		time.Sleep(pauseAfter + time.Second)
		p.in("a", doze.Standby, "paused")
		p.hello("a")
		if n, _ := told(); n != 3 {
			t.Errorf("a wake after no change tells it: %d times", n)
		}
	})
}

// obeyed is the network that was last admitted for a lease.
func (h *host) obeyed(id string) (n *doze.Network) {
	h.set(func() { n = h.networks[id] })
	return n
}

// TestNetwork: no machine runs before its rules are obeyed, whatever it comes
// from, and they change while it runs.
func TestNetwork(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		options := h.spare(1)
		next := options.Admit
		options.Admit = func(id string, o fleet.Order) error {
			if o.Network != nil && h.obeyed(id) == nil && h.Count(id, machinetest.OpResume) > 0 {
				t.Errorf("%s ran before its rules were obeyed", id)
			}
			return next(id, o)
		}
		handler := h.Handler
		h.Handler = func(c machine.Config, port uint16) http.Handler { // of a machine that begins to run
			if !strings.HasPrefix(c.ID, "spare-") && h.obeyed(c.ID) == nil {
				t.Errorf("%s is booted before its rules are obeyed", c.ID)
			}
			return handler(c, port)
		}
		p := h.startWith(options)
		o := order("a")
		o.Network = listed("a.example")
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if got := h.obeyed("a"); got != o.Network {
			t.Errorf("a new machine has %+v", got)
		}
		for name, value := range map[string]string{
			"HTTP_PROXY": "http://192.0.2.7:3128", "https_proxy": "http://192.0.2.7:3128", "DOZE_NAMESERVERS": "192.0.2.7",
			"SSL_CERT_FILE": doze.TrustFile, "NODE_EXTRA_CA_CERTS": doze.TrustFile,
			"NO_PROXY": "localhost,127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,169.254.169.254,.local,.internal",
		} {
			if !slices.Contains(h.identity("a"), name+"="+value) {
				t.Errorf("%s is not in %q", name, h.identity("a"))
			}
		}

		h.set(func() {
			if got := h.trusted["a"]; got != "authority of "+o.Workspace { // as one from before there were others
				t.Errorf("it trusts %q", got)
			}
		})

		// A change needs neither a machine that runs nor its turn.
		time.Sleep(pauseAfter + time.Second)
		p.in("a", doze.Standby, "paused")
		tighter := listed("b.example")
		if err := p.SetNetwork(t.Context(), "a", tighter); err != nil || h.obeyed("a") != tighter {
			t.Errorf("asleep it has %+v, %v", h.obeyed("a"), err)
		}
		h.set(func() { h.failing["admit"] = errors.New("no") })
		if err := p.SetNetwork(t.Context(), "a", listed("c.example")); err == nil {
			t.Error("a failure is not told")
		}
		if err := p.SetNetwork(t.Context(), "nobody", tighter); doze.Public(err).Kind != doze.NotFound {
			t.Errorf("of no sandbox: %v", err)
		}

		// A spare machine has none before it is somebody's.
		spare := h.machines("a")[0]
		if got := h.obeyed(spare); got != nil {
			t.Errorf("a spare machine has %+v", got)
		}
		o = order("b")
		o.Network, o.Authority = listed("d.example"), "another"
		if err := p.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		h.set(func() {
			if got := h.trusted[spare]; got != "authority of another" {
				t.Errorf("the machine that was spare trusts %q", got)
			}
		})
		if got := h.obeyed(spare); got != o.Network {
			t.Errorf("the machine that was spare has %+v", got)
		}

		// The next process is told anew: until then nothing is open.
		p.stop()
		h.set(func() { clear(h.networks); clear(h.issuers) })
		h.Handler = handler
		p = h.startWith(h.spare(0))
		if got := h.obeyed("a"); got != nil {
			t.Errorf("adopted, it has %+v", got)
		}
		for _, uid := range []string{"a", "b"} {
			if err := p.SetNetwork(t.Context(), uid, tighter); err != nil {
				t.Fatal(err)
			}
		}
		if h.obeyed("a") != tighter || h.obeyed(spare) != tighter {
			t.Errorf("told again, they have %+v and %+v", h.obeyed("a"), h.obeyed(spare))
		}
		h.set(func() {
			if h.issuers["a"] != o.Workspace || h.issuers[spare] != "another" {
				t.Errorf("told again, who signs for them is %v", h.issuers)
			}
		})
		p.hello("a")
	})
}

// TestRemark: what the proxy says of a sandbox reaches control as a note, in each
// phase, and changes nothing.
func TestRemark(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.startWith(h.options())
		if err := p.Create(t.Context(), order("a")); err != nil {
			t.Fatal(err)
		}
		notes := func() (n int) {
			h.set(func() {
				for _, r := range h.reports {
					if r.Note && r.UID == "a" && r.Message == "egress is refused" {
						n++
					}
				}
			})
			return n
		}
		p.Remark("a", "egress is refused")
		p.Remark("nobody", "egress is refused")
		time.Sleep(pauseAfter + time.Second)
		p.in("a", doze.Standby, "paused")
		p.Remark("a", "egress is refused")
		time.Sleep(time.Second)
		if n := notes(); n != 2 {
			t.Errorf("control hears it %d times", n)
		}
		p.in("a", doze.Standby, "paused")
	})
}
