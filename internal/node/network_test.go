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
