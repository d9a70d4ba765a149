package egress

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/outproxy"
)

// Destination is where a connection of a sandbox wants to go. It has a name,
// as [doze.ParseHost] returns it, or else an address.
type Destination struct {
	Name string
	IP   netip.Addr
	Port uint16
	// Plain says that the destination gets a request in clear. Routing rules differ
	// between HTTP and HTTPS.
	Plain bool
}

// address is d as routing rules know it.
func (d Destination) address() doze.Address {
	return doze.Address{Host: d.Name, Port: d.Port, Plain: d.Plain}
}

// host is what an audit calls d.
func (d Destination) host() string {
	if d.Name != "" {
		return d.Name
	}
	if d.IP.IsValid() {
		return d.IP.String()
	}
	return "unknown"
}

// Verdict is what a policy says about a destination.
type Verdict struct {
	Allow bool
	// Rule is what decided: the member of the network of the sandbox, such as
	// allowedDomains[2], or the name of a rule that always holds.
	Rule string
	// Rules are the routing rules that match, by position. Without any the
	// bytes are passed on untouched. Secrets are the names of theirs.
	Rules   []int
	Secrets []string
	// Why says more than the rule, where the rule alone does not say what to do.
	Why string
}

// A exit is the way out of some destinations.
type exit struct {
	names     []entry
	networks  []netip.Prefix
	dedicated bool
}

// Rules that hold whatever a sandbox asks for, and what holds if nothing else
// decides.
const (
	ruleClosed    = "closed"         // the platform lets nothing out
	ruleMail      = "mail"           // port 25
	ruleNoName    = "no-name"        // the lists are about names, and there is none
	rulePrivate   = "private"        // a name or an address that is not of the public internet
	ruleMismatch  = "name-mismatch"  // the connection names two destinations
	ruleProtocol  = "protocol"       // a message that cannot be understood
	ruleTransport = "transport"      // neither TCP nor a question of the DNS
	ruleResolver  = "resolver"       // a question of the DNS that is not for us
	ruleBusy      = "too-many"       // the sandbox has too many connections
	ruleBarred    = "barred"         // Options.Barred says so, and why
	ruleNoSource  = "no-address"     // it would leave from a dedicated address, and there is none
	ruleShared    = "dedicated-ip"   // it would leave from the address of the platform, which is closed
	ruleUnlisted  = "allowedDomains" // there is a list, and the name is not in it
	ruleThrough   = "upstream-proxy" // the proxy of this host carries it not, and why
	// ruleUnresolved is a question of the DNS about a name that the sandbox may not connect to.
	ruleUnresolved = "unreachable-name"
	ruleOpen       = "default"
)

// reasons tell a sandbox why a rule refuses its request, and what to do about it.
// The other rules are lists of its own, or nobody is answered.
var reasons = map[string]string{
	ruleClosed:    "egress is closed on this platform: its operator can start it with --egress open",
	ruleMail:      "port 25 is closed: send mail through port 465 or 587",
	ruleNoName:    "this sandbox has lists of domains: connect by name, not by address",
	rulePrivate:   "sandboxes reach public addresses only; the operator opens a private network with --egress-allow, and sandboxes of one subnet reach each other without the proxy",
	ruleMismatch:  "the request and its connection name different hosts: use one connection per host",
	ruleProtocol:  "send the proxy CONNECT or a request for an http:// URL",
	ruleResolver:  "port 853 (DNS over TLS) is closed, because the platform answers DNS: use the sandbox's resolver, or add host:853 to allowedDomains",
	ruleNoSource:  "the egress gateway has no address: create an egress IP in it",
	ruleTransport: "UDP and other protocols than TCP are dropped: use TCP, or a dedicated address for UDP",
	ruleBusy:      "the sandbox has too many connections: close some first",
	ruleShared:    "the ruleset dedicated-ip forbids the shared address: change spec.network.egress.policies, or the ruleset",
}

// reason is that of a refusal.
func (v Verdict) reason() string {
	return cmp.Or(v.Why, reasons[v.Rule], "the network rules of this sandbox deny this destination: change spec.network")
}

// mailPort is closed everywhere.
const mailPort = 25

// dnsTLSPort is closed where no entry of a list names it: questions of the DNS are
// for us.
const dnsTLSPort = 853

// httpPort is where requests in clear go.
const httpPort = 80

// webPorts are those at which a client says which name it wants, and those of a routing
// rule that names none.
var webPorts = []uint16{httpPort, 443}

// privateDomains are names of private networks.
var privateDomains = []string{".local", ".internal", ".localhost"}

// entry is a pattern of a list.
type entry struct {
	doze.DomainPattern
	rule string
}

// A network is an entry of a list that is no domain.
type network struct {
	netip.Prefix
	rule string
}

// Policy decides where a sandbox may connect to. It never changes.
type Policy struct {
	closed                     bool
	private                    bool // names of private networks are resolved, too
	bypass, allowed, forbidden []entry
	past                       []network // of bypass
	rules                      []doze.Destinations
	secrets                    [][]string // that the rules use, by name

	egress    *doze.Egress // as it was compiled
	exits     []exit       // the first that matches counts
	dedicated bool         // what no way is about leaves from source
	exclusive bool         // nothing leaves from anywhere else
}

// Compile makes the policy of a network; nil has no rules. A closed one allows
// nothing.
func Compile(n *doze.Network, closed bool) (*Policy, error) {
	p, rules := &Policy{closed: closed}, n.Rules()
	var err error
	list := func(name string, patterns []string) (all []entry) {
		for i, s := range patterns {
			pattern, bad := doze.ParseDomainPattern(s)
			if bad != nil {
				err = fmt.Errorf("%s: %q %w", name, s, bad)
			}
			all = append(all, entry{pattern, fmt.Sprintf("%s[%d]", name, i)})
		}
		return all
	}
	p.allowed, p.forbidden = list("allowedDomains", rules.AllowedDomains), list("forbiddenDomains", rules.ForbiddenDomains)
	if !n.Has(doze.RulesetProxy) { // with it, nothing goes past the rules of the proxy
		for i, s := range rules.Bypass {
			rule := fmt.Sprintf("bypass[%d]", i)
			pattern, addresses, bad := doze.ParseBypass(s)
			switch {
			case bad != nil:
				err = fmt.Errorf("%s: %q %w", rule, s, bad)
			case addresses.IsValid():
				p.past = append(p.past, network{addresses, rule})
			default:
				p.bypass = append(p.bypass, entry{pattern, rule})
			}
		}
	}
	for i, r := range rules.Routing {
		destinations, bad := r.ParseDestinations()
		if bad != nil {
			err = fmt.Errorf("routing[%d]: %w", i, bad)
		}
		p.rules = append(p.rules, destinations)
		p.secrets = append(p.secrets, slices.Sorted(maps.Keys(r.Sealed)))
	}
	p.exclusive = n.Has(doze.RulesetDedicated)
	if n == nil || n.Egress == nil {
		return p, err
	}
	p.egress, p.dedicated = n.Egress, n.Egress.Dedicated()
	for i, policy := range n.Egress.Policies {
		w := exit{dedicated: policy.Mode == doze.EgressDedicated}
		var domains []string
		for _, s := range policy.Destinations {
			if network, bad := doze.ParseNetwork(s); bad == nil {
				w.networks = append(w.networks, network)
			} else {
				domains = append(domains, s)
			}
		}
		w.names = list(fmt.Sprintf("egress.policies[%d]", i), domains)
		p.exits = append(p.exits, w)
	}
	return p, err
}

// Source is the address that a connection leaves from, which goes to d by the
// address ip: an invalid one is that of the platform. It is the rule that was
// broken if it may not leave at all.
func (p *Policy) Source(d Destination, ip netip.Addr) (netip.Addr, error) {
	dedicated := p.dedicated
	for _, w := range p.exits {
		if find(w.names, d) != nil || slices.ContainsFunc(w.networks, func(n netip.Prefix) bool { return n.Contains(ip) }) {
			dedicated = w.dedicated
			break
		}
	}
	switch {
	case dedicated && !p.egress.Source.IsValid():
		return netip.Addr{}, broken(ruleNoSource)
	case dedicated:
		return p.egress.Source, nil
	case p.exclusive:
		return netip.Addr{}, broken(ruleShared)
	default:
		return netip.Addr{}, nil
	}
}

// leavesLike reports whether the same connections leave from the same addresses.
func (p *Policy) leavesLike(o *Policy) bool {
	return p.exclusive == o.exclusive && reflect.DeepEqual(p.egress, o.egress)
}

// broken is a rule that turned out to be broken when an address was dialled.
type broken string

func (b broken) Error() string { return "the rule " + string(b) + " does not allow it" }

// crowded is why a sandbox may have no connection more.
type crowded string

func (c crowded) Error() string { return string(c) }

// after is the verdict about a destination that was allowed and dialled, with what came
// of it. Each connection and request counts once, when that is known.
func (v Verdict) after(err error) Verdict {
	if rule, is := errors.AsType[broken](err); is {
		return Verdict{Rule: string(rule)}
	}
	if why, is := errors.AsType[crowded](err); is {
		return Verdict{Rule: ruleBusy, Why: string(why)}
	}
	if refused, is := errors.AsType[*outproxy.Error](err); is && !refused.Unreached {
		return Verdict{Rule: ruleThrough, Why: refused.Why}
	}
	return v
}

// Named reports whether a verdict depends on the name of a destination.
func (p *Policy) Named() bool {
	return len(p.allowed)+len(p.forbidden)+len(p.rules) > 0 || slices.ContainsFunc(p.exits, func(w exit) bool { return len(w.names) > 0 })
}

// Routed reports whether a routing rule is about d, by HTTP or by HTTPS.
func (p *Policy) Routed(d Destination) bool {
	at := d.address()
	return slices.ContainsFunc(p.rules, func(rule doze.Destinations) bool {
		at.Plain = false
		if rule.Reach(at) {
			return true
		}
		at.Plain = true
		return rule.Reach(at)
	})
}

// Decide says whether a sandbox may connect to d. Of the lists, bypass goes
// first; if there are allowed domains, the forbidden ones do not count. An entry without
// a port is for all ports, and in a routing rule for those of the web.
func (p *Policy) Decide(d Destination) Verdict {
	switch {
	case p.closed:
		return Verdict{Rule: ruleClosed}
	case d.Port == mailPort:
		return Verdict{Rule: ruleMail}
	case d.Name == "":
		return p.decideUnnamed(d)
	case !p.private && isPrivate(d.Name):
		return Verdict{Rule: rulePrivate}
	}
	if e := find(p.bypass, d); e != nil {
		return Verdict{Allow: true, Rule: e.rule}.unlessDNS(d, e)
	}
	v := Verdict{Allow: true, Rule: ruleOpen}
	if len(p.allowed) > 0 {
		e := find(p.allowed, d)
		if e == nil {
			return Verdict{Rule: ruleUnlisted}
		}
		v.Rule = e.rule
		v = v.unlessDNS(d, e)
	} else if e := find(p.forbidden, d); e != nil {
		return Verdict{Rule: e.rule}
	} else {
		v = v.unlessDNS(d, nil)
	}
	if !v.Allow {
		return v
	}
	for i := range p.rules {
		if p.rules[i].Reach(d.address()) {
			v.Rules, v.Secrets = append(v.Rules, i), append(v.Secrets, p.secrets[i]...)
		}
	}
	return v
}

// unlessDNS is v, or a refusal at the port of DNS by TLS: questions are for us. An entry
// that decided and names that port is for it. There may be none.
func (v Verdict) unlessDNS(d Destination, e *entry) Verdict {
	if d.Port == dnsTLSPort && (e == nil || e.Port() != dnsTLSPort) {
		return Verdict{Rule: ruleResolver}
	}
	return v
}

// passes returns the entry of bypass that an address is in, or nil.
func (p *Policy) passes(ip netip.Addr) *network {
	for i := range p.past {
		if p.past[i].Contains(ip) {
			return &p.past[i]
		}
	}
	return nil
}

// Resolves reports whether the DNS may be asked about a name: if the sandbox may
// connect to it at any port. So a question tells nobody what a connection could not.
func (p *Policy) Resolves(name string) bool {
	covers := func(e entry) bool { return e.Covers(name) }
	switch {
	case p.closed, !p.private && isPrivate(name):
		return false
	case slices.ContainsFunc(p.bypass, covers):
		return true
	case len(p.allowed) > 0:
		return slices.ContainsFunc(p.allowed, covers)
	default:
		return !slices.ContainsFunc(p.forbidden, func(e entry) bool { return covers(e) && e.Port() == 0 })
	}
}

// isPrivate reports whether a name is of a private network.
func isPrivate(name string) bool {
	return slices.ContainsFunc(privateDomains, func(s string) bool { return strings.HasSuffix(name, s) })
}

// decideUnnamed is Decide for a destination without a name. Behind an address
// there may be any name: only a sandbox without lists may connect to one, or one that
// lists the address in bypass.
func (p *Policy) decideUnnamed(d Destination) Verdict {
	if n := p.passes(d.IP); n != nil {
		return Verdict{Allow: true, Rule: n.rule}.unlessDNS(d, nil)
	}
	if !d.IP.IsValid() || len(p.allowed)+len(p.forbidden) > 0 {
		return Verdict{Rule: ruleNoName}
	}
	if d.Port == dnsTLSPort {
		return Verdict{Rule: ruleResolver}
	}
	return Verdict{Allow: true, Rule: ruleOpen}
}

// find returns the first entry that covers d, or nil. An entry without a port is for
// all.
func find(all []entry, d Destination) *entry {
	for i := range all {
		e := &all[i]
		if e.Covers(d.Name) && (e.Port() == d.Port || e.Port() == 0) {
			return e
		}
	}
	return nil
}
