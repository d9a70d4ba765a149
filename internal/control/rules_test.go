package control_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestMisspeltRules: what would be no rule at all is said, with its path, and the
// rules that there are stay.
func TestMisspeltRules(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		p.Create(`{"metadata":{"name":"a"},"spec":{"network":{"allowedDomains":["a.example"]}}}`)
		for name, tt := range map[string]struct{ network, want string }{
			"a list":         {`{"allowedDomain":["a.example"]}`, "spec.network.allowedDomain is not known here, only allowedDomains, egress, firewall, forbiddenDomains, proxy, subnet"},
			"its case":       {`{"alloweddomains":["a.example"]}`, "spec.network.alloweddomains is not known"},
			"in the proxy":   {`{"proxy":{"allowed":["a.example"]}}`, "spec.network.proxy.allowed is not known here"},
			"in a rule":      {`{"proxy":{"routing":[{"destinations":["a.example"]},{"destinations":["a.example"],"header":{"A":"b"}}]}}`, "spec.network.proxy.routing[1].header is not known here"},
			"in a policy":    {`{"egress":{"gateway":"g","policies":[{"destination":["a.example"],"mode":"shared"}]}}`, "spec.network.egress.policies[0].destination is not known here"},
			"an empty list":  {`{"allowedDomains":[]}`, "spec.network.allowedDomains is empty"},
			"one of a proxy": {`{"proxy":{"allowedDomains":[]}}`, "spec.network.proxy.allowedDomains is empty"},
		} {
			for route, body := range map[string]string{
				"PUT /sandboxes/a": `{"spec":{"network":` + tt.network + `}}`,
				"POST /sandboxes":  `{"metadata":{"name":"b"},"spec":{"network":` + tt.network + `}}`,
			} {
				method, path, _ := strings.Cut(route, " ")
				if w := p.Do(method, path, body); w.Code != 400 || !strings.Contains(w.Body.String(), tt.want) {
					p.T.Errorf("%s: %s: %d %s", name, route, w.Code, w.Body)
				}
			}
		}
		if n := p.Network(); len(n.AllowedDomains) != 1 {
			p.T.Errorf("it has %+v", n)
		}
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"network":{"allowedDomains":null,"proxy":{"routing":[{"destinations":["*"],"headers":{"A":"b"},"secrets":{"any":"name"}}]}}}}`)
	})
}

// TestNetworkIsObeyed: the node has the rules of the record, when a sandbox is
// made, after each change, and after a start.
func TestNetworkIsObeyed(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a"},"spec":{"network":{"proxy":{"allowedDomains":["a.example"],"bypass":["b.example"]}}}}`)
		if n := p.Network(); n == nil || n.Proxy.AllowedDomains[0] != "a.example" || n.Proxy.Bypass[0] != "b.example" {
			t.Errorf("a new sandbox has %+v", n)
		}
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"network":{"forbiddenDomains":["c.example"]}}}`)
		if n := p.Network(); n.Proxy != nil || n.ForbiddenDomains[0] != "c.example" {
			t.Errorf("changed, it has %+v", n)
		}

		// What the node refused is repeated by the next change, whatever it is of.
		p.Node.Set("network", errors.New("no"))
		planetest.Want[any](p, 500, "PUT", "/sandboxes/a", `{"spec":{"network":{"forbiddenDomains":["d.example"]}}}`)
		p.Node.Set("network", nil)
		p.Node.Forget()
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"metadata":{"labels":{"k":"v"}}}`)
		if n := p.Network(); n.ForbiddenDomains[0] != "d.example" {
			t.Errorf("after a failure it has %+v", n)
		}

		p.Node.Forget()
		p.Node.Set("network", errors.New("no")) // which keeps nothing else from starting
		p.Reopen()
		if n := p.Network(); n != nil {
			t.Errorf("the node refused, and has %+v", n)
		}
		p.Node.Set("network", nil)
		p.Reopen()
		if n := p.Network(); n == nil || n.ForbiddenDomains[0] != "d.example" {
			t.Errorf("after a start it has %+v", n)
		}
		if sb := planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"network":{}}}`); sb.Spec.Network != nil || !p.Network().IsZero() {
			t.Errorf("cleared, it has %+v, and the node %+v", sb.Spec.Network, p.Network())
		}
	})
}

// TestRulesStay: only a body that names the network changes its rules.
func TestRulesStay(t *testing.T) {
	t.Parallel()
	const rules = `{"proxy":{"routing":[{"destinations":["a.example"],"headers":{"A":"{{SECRET:k}}"},"secrets":{"k":"v"}}]}}`
	for name, tt := range map[string]struct {
		body string
		stay bool
	}{
		"no spec":           {`{"metadata":{"labels":{"k":"v"}}}`, true},
		"an empty spec":     {`{"spec":{}}`, true},
		"another member":    {`{"spec":{"lifecycle":null}}`, true},
		"what redeploys it": {`{"spec":{"runtime":{"memory":2048}}}`, true},
		"what disables it":  {`{"spec":{"enabled":false}}`, true},
		"null":              {`{"spec":{"network":null}}`, false},
		"an empty object":   {`{"spec":{"network":{}}}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planetest.InBubble(t, func(p *planetest.Platform) {
				p.Create(`{"metadata":{"name":"a"},"spec":{"network":` + rules + `}}`)
				sb := planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", tt.body)
				if shown := sb.Spec.Network != nil; shown != tt.stay {
					p.T.Errorf("the answer shows rules: %v", shown)
				}
				n := p.Network()
				if obeyed := !n.IsZero(); obeyed != tt.stay {
					p.T.Errorf("the node has rules: %v", obeyed)
				}
				if tt.stay && !n.Proxy.Routing[0].Has("k") {
					p.T.Error("the rule lost its secret")
				}
			})
		})
	}
}

// TestRulesOfWhatDoesNotRun: a change counts for a sandbox that sleeps, is
// disabled or archived, and wakes nobody.
func TestRulesOfWhatDoesNotRun(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		away, back  func(*planetest.Platform)
		phase, then doze.Phase
	}{
		"asleep": {
			func(p *planetest.Platform) {
				p.Node.With("a", func(uid string, _ *planetest.Machine) { p.Node.Move(uid, doze.Standby, "") })
			},
			func(*planetest.Platform) {}, doze.Standby, doze.Standby,
		},
		"disabled": {
			func(p *planetest.Platform) {
				planetest.Want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":false,"network":{}}}`)
			},
			func(p *planetest.Platform) {
				planetest.Want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":true,"network":{"forbiddenDomains":["b.example"]}}}`)
			},
			doze.Disabled, doze.Standby,
		},
		"archived": {
			func(p *planetest.Platform) { planetest.Want[any](p, 200, "POST", "/sandboxes/a/archive", "") },
			func(p *planetest.Platform) { planetest.Want[any](p, 200, "POST", "/sandboxes/a/unarchive", "") }, doze.Archived, doze.Running,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planetest.InBubble(t, func(p *planetest.Platform) {
				t := p.T
				phase := func() (now doze.Phase) {
					planetest.After(time.Second)
					sb, err := p.Store.SandboxByName(t.Context(), "main", "a")
					if err != nil {
						t.Fatal(err)
					}
					return sb.Phase
				}
				p.Create(`{"metadata":{"name":"a"},"spec":{"network":{"proxy":{"allowedDomains":["a.example"]}}}}`)
				tt.away(p)
				if got := phase(); got != tt.phase {
					t.Fatalf("it is %v", got)
				}
				planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"network":{"forbiddenDomains":["b.example"]}}}`)
				if got := phase(); got != tt.phase {
					t.Errorf("changed, it is %v", got)
				}
				tt.back(p)
				if got := phase(); got != tt.then {
					t.Errorf("then it is %v", got)
				}
				if n := p.Network(); n == nil || n.Proxy != nil || !slices.Equal(n.ForbiddenDomains, []string{"b.example"}) {
					t.Errorf("it has %+v", n)
				}
			})
		})
	}
}

// TestRulesOfAFork: those of a fork are its own from then on, and so are those of
// its source.
func TestRulesOfAFork(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a"},"spec":{"network":{"proxy":{"allowedDomains":["a.example"]}}}}`)
		planetest.Want[any](p, 200, "POST", "/sandboxes/a/fork", `{"targetName":"b","targetType":"sandbox"}`)
		allowed := func(name string) (recorded, obeyed []string) {
			t.Helper()
			p.Node.With(name, func(_ string, m *planetest.Machine) { obeyed = m.Order.Network.Rules().AllowedDomains })
			return planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/"+name, "").Spec.Network.Rules().AllowedDomains, obeyed
		}
		for _, step := range []struct{ of, to, a, b string }{{"b", "b.example", "a.example", "b.example"}, {"a", "c.example", "c.example", "b.example"}} {
			planetest.Want[any](p, 200, "PUT", "/sandboxes/"+step.of, `{"spec":{"network":{"proxy":{"allowedDomains":["`+step.to+`"]}}}}`)
			for name, only := range map[string]string{"a": step.a, "b": step.b} {
				recorded, obeyed := allowed(name)
				if all := []string{only}; !slices.Equal(recorded, all) || !slices.Equal(obeyed, all) {
					t.Errorf("after a change of %s: %s is said to allow %q, and allows %q", step.of, name, recorded, obeyed)
				}
			}
		}
	})
}

// TestRulesOfClosedPlatform: where egress is closed, an answer that sets rules says so
// in an event, once for each change.
func TestRulesOfClosedPlatform(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		warnings := func(sb planetest.Sandbox) (all []string) {
			for _, e := range sb.Events {
				if e.Type == doze.EventNotice && strings.HasPrefix(e.Message, doze.WarningPrefix) {
					all = append(all, e.Message)
				}
			}
			return all
		}
		const rules = `{"network":{"allowedDomains":["a.example"]}}`
		made := planetest.Want[planetest.Sandbox](p, 200, "POST", "/sandboxes", `{"metadata":{"name":"a"},"spec":`+rules+`}`)
		if all := warnings(made); len(all) != 1 || !strings.Contains(all[0], "--egress open") {
			t.Errorf("a create with rules answers with %q", all)
		}
		for _, step := range []struct {
			name, body string
			want       int
		}{
			{"the same rules", rules, 1},
			{"labels alone", `{}`, 1},
			{"other rules", `{"network":{"forbiddenDomains":["b.example"]}}`, 2},
			{"no rules", `{"network":{}}`, 2},
			{"a subnet", `{"network":{"subnet":"back"}}`, 2},
		} {
			got := planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":`+step.body+`}`)
			if all := warnings(got); len(all) != step.want {
				t.Errorf("%s: %q", step.name, all)
			}
		}
		if made := planetest.Want[planetest.Sandbox](p, 200, "POST", "/sandboxes", `{"metadata":{"name":"b"}}`); len(warnings(made)) > 0 {
			t.Errorf("without rules: %q", warnings(made))
		}
		p.Pool = doze.AddressPool{netip.MustParsePrefix("203.0.113.1/32")} // its egress is open
		p.Reopen()
		if made := planetest.Want[planetest.Sandbox](p, 200, "POST", "/sandboxes", `{"metadata":{"name":"c"},"spec":`+rules+`}`); len(warnings(made)) > 0 {
			t.Errorf("with egress open: %q", warnings(made))
		}
	})
}
