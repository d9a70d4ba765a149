package doze

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Limits of the network of a sandbox; those of one list are of each list.
const (
	DomainsMax        = 256 // entries of a list of domains
	RulesMax          = 64  // routing rules of a sandbox
	RuleEntriesMax    = 64  // headers, body members or secrets of one of them
	RuleValueMax      = 8 << 10
	EgressPoliciesMax = 64
)

// DefaultSubnet is the subnet that every VPC has.
const DefaultSubnet = "default"

// Rulesets of a firewall. RulesetProxy leaves the proxy as the only way out,
// for what is in bypass too.
const (
	RulesetDefault   = "default"
	RulesetProxy     = "proxy"
	RulesetDedicated = "dedicated-ip"
)

// Modes of [Egress] and [EgressPolicy].
const (
	EgressDedicated = "dedicated"
	EgressShared    = "shared"
)

// TrustFile has the certificates of all authorities that a sandbox behind the proxy
// should trust. These are the authorities of its image, and the one that signs for
// intercepted connections.
const TrustFile = "/etc/doze/ca-bundle.pem"

// Network is what a sandbox may reach and how (spec 2.6).
type Network struct {
	Subnet           string    `json:"subnet,omitempty"`
	Egress           *Egress   `json:"egress,omitempty"`
	Firewall         *Firewall `json:"firewall,omitempty"`
	Proxy            *Proxy    `json:"proxy,omitempty"`
	AllowedDomains   []string  `json:"allowedDomains,omitempty"`   // deprecated: counts if Proxy has none
	ForbiddenDomains []string  `json:"forbiddenDomains,omitempty"` // likewise

	// Segment names the subnet among those of all workspaces, and is set by the
	// platform. Sandboxes of one segment reach each other; an empty one has none.
	Segment string `json:"-"`
}

// Egress routes outbound traffic through a dedicated address: that of the gateway.
type Egress struct {
	Gateway  string         `json:"gateway,omitempty"`
	Mode     string         `json:"mode,omitempty"`
	Policies []EgressPolicy `json:"policies,omitempty"`

	// Source is that address, which no caller sets. Without one, what is to leave
	// from it does not leave.
	Source netip.Addr `json:"-"`
}

// EgressPolicy chooses the way out for some destinations: [DomainPattern]s, and
// networks as [ParseNetwork] reads them. Of several that match, the first counts.
type EgressPolicy struct {
	Destinations []string `json:"destinations"`
	Mode         string   `json:"mode"`
	Name         string   `json:"name,omitempty"`
}

// Firewall names network lockdown rulesets: default, proxy, dedicated-ip.
type Firewall struct {
	Rulesets []string `json:"rulesets,omitempty"`
}

// Proxy are the settings of the platform's egress proxy. The lists hold
// [DomainPattern]s. Bypass holds what [ParseBypass] reads.
type Proxy struct {
	AllowedDomains   []string      `json:"allowedDomains,omitempty"`
	ForbiddenDomains []string      `json:"forbiddenDomains,omitempty"`
	Bypass           []string      `json:"bypass,omitempty"`
	Routing          []ProxyTarget `json:"routing,omitempty"`
}

// ProxyTarget is one rule of a sandbox's egress proxy.
type ProxyTarget struct {
	Destinations []string                     `json:"destinations"` // each a [Destination]
	Headers      map[string]string            `json:"headers,omitempty"`
	Body         map[string]string            `json:"body,omitempty"`
	Secrets      WriteOnly[map[string]string] `json:"secrets,omitzero"`
	// GuestReferences resolves references to Secrets in requests to Destinations that
	// the sandbox wrote itself. Without it they are sent as they are.
	GuestReferences *bool `json:"guestReferences,omitempty"` // nil is the platform's default
	// MaskResponses masks Secrets in what Destinations answer.
	MaskResponses *bool `json:"maskResponses,omitempty"` // likewise
	// Sealed are the secrets of a rule that is recorded: only who carries the
	// requests of sandboxes can open them. There are no Secrets then.
	Sealed map[string][]byte `json:"-"`
}

// Has reports whether t has a secret, in either form.
func (t *ProxyTarget) Has(secret string) bool {
	_, plain := t.Secrets.Reveal()[secret]
	_, sealed := t.Sealed[secret]
	return plain || sealed
}

// IsZero reports whether n says nothing at all.
func (n *Network) IsZero() bool {
	return n == nil || n.Subnet == "" && n.Egress == nil && n.Firewall == nil && n.Proxy == nil &&
		n.AllowedDomains == nil && len(n.ForbiddenDomains) == 0 // an empty list is a mistake: see check
}

// Has reports whether the firewall names a ruleset.
func (n *Network) Has(ruleset string) bool {
	return n != nil && n.Firewall != nil && slices.Contains(n.Firewall.Rulesets, ruleset)
}

// Proxied reports whether traffic goes through the platform's proxy.
func (n *Network) Proxied() bool {
	return n != nil && (n.Proxy != nil || len(n.AllowedDomains) > 0 || len(n.ForbiddenDomains) > 0 || n.Has(RulesetProxy))
}

// Led reports whether what the sandbox sends is led to the platform, which
// decides where it leaves.
func (n *Network) Led() bool {
	return n.Proxied() || n != nil && n.Egress != nil || n.Has(RulesetDedicated)
}

// Heir is what a fork gets of n: everything but routing rules that have secrets,
// of which it says how many there are.
func (n *Network) Heir() (_ *Network, withheld int) {
	if n == nil || n.Proxy == nil {
		return n, 0
	}
	network, proxy := *n, *n.Proxy
	proxy.Routing = slices.DeleteFunc(slices.Clone(proxy.Routing), func(t ProxyTarget) bool { return len(t.Sealed) > 0 })
	network.Proxy = &proxy
	return &network, len(n.Proxy.Routing) - len(proxy.Routing)
}

// Source is the dedicated address that something leaves from, if there is one.
func (n *Network) Source() netip.Addr {
	if n == nil || !n.Egress.NeedsGateway() {
		return netip.Addr{}
	}
	return n.Egress.Source
}

// DatagramSource is the dedicated address that UDP leaves from, if it does: where
// nothing but an address decides. Of a name, UDP proves nothing.
func (n *Network) DatagramSource() netip.Addr {
	if n == nil || n.Proxied() || !n.Egress.Dedicated() || len(n.Egress.Policies) > 0 {
		return netip.Addr{}
	}
	return n.Egress.Source
}

// Dedicated reports whether e sends what no policy is about through the
// dedicated address: if it says so, or names a gateway and nothing else.
func (e *Egress) Dedicated() bool {
	return e != nil && (e.Mode == EgressDedicated || e.Gateway != "" && len(e.Policies) == 0)
}

// NeedsGateway reports whether anything of e leaves through a dedicated address.
func (e *Egress) NeedsGateway() bool {
	return e.Dedicated() || e != nil && slices.ContainsFunc(e.Policies, func(p EgressPolicy) bool { return p.Mode == EgressDedicated })
}

// Rules are the settings of the proxy that are in force, with the deprecated
// lists in the place of those that are missing.
func (n *Network) Rules() (p Proxy) {
	if n == nil {
		return p
	}
	if n.Proxy != nil {
		p = *n.Proxy
	}
	if len(p.AllowedDomains) == 0 {
		p.AllowedDomains = n.AllowedDomains
	}
	if len(p.ForbiddenDomains) == 0 {
		p.ForbiddenDomains = n.ForbiddenDomains
	}
	return p
}

// check adds what is wrong with a network; none is fine.
func (n *Network) check(p *Problems) {
	if n == nil {
		return
	}
	const at = "spec.network."
	if n.Subnet != "" {
		CheckName(p, at+"subnet", n.Subnet)
	}
	checkAllowed(p, at+"allowedDomains", n.AllowedDomains)
	checkDomains(p, at+"forbiddenDomains", n.ForbiddenDomains)
	n.Egress.check(p, at+"egress.")
	if n.Has(RulesetDedicated) && !n.Egress.NeedsGateway() {
		p.Add(at+"firewall.rulesets", "has %s, which leaves no way out without egress.gateway and egress.mode", RulesetDedicated)
	}
	if n.Firewall != nil {
		for _, r := range n.Firewall.Rulesets {
			if r != RulesetDefault && r != RulesetProxy && r != RulesetDedicated {
				p.Add(at+"firewall.rulesets", "has %q; known are %s, %s and %s", clip(r), RulesetDefault, RulesetProxy, RulesetDedicated)
			}
		}
	}
	n.Proxy.check(p, at+"proxy.")
}

func (e *Egress) check(p *Problems, at string) {
	if e == nil {
		return
	}
	if e.Gateway != "" {
		CheckName(p, at+"gateway", e.Gateway)
	}
	if e.Mode != "" && e.Mode != EgressDedicated {
		p.Add(at+"mode", "must be %s", EgressDedicated)
	}
	if e.Gateway == "" && e.NeedsGateway() {
		p.Add(at+"gateway", "is required: it has the address to leave from")
	}
	if len(e.Policies) > EgressPoliciesMax {
		p.Add(at+"policies", "has %d entries; at most %d are allowed", len(e.Policies), EgressPoliciesMax)
	}
	for i, policy := range e.Policies {
		at := fmt.Sprintf("%spolicies[%d].", at, i)
		checkEgressDestinations(p, at+"destinations", policy.Destinations)
		if policy.Mode != EgressDedicated && policy.Mode != EgressShared {
			p.Add(at+"mode", "must be %s or %s", EgressDedicated, EgressShared)
		}
	}
}

func (x *Proxy) check(p *Problems, at string) {
	if x == nil {
		return
	}
	checkAllowed(p, at+"allowedDomains", x.AllowedDomains)
	checkDomains(p, at+"forbiddenDomains", x.ForbiddenDomains)
	checkBypass(p, at+"bypass", x.Bypass)
	if len(x.Routing) > RulesMax {
		p.Add(at+"routing", "has %d entries; at most %d are allowed", len(x.Routing), RulesMax)
	}
	for i := range x.Routing {
		x.Routing[i].check(p, fmt.Sprintf("%srouting[%d].", at, i))
	}
}

func (t *ProxyTarget) check(p *Problems, at string) {
	checkDestinations(p, at, t.Destinations)
	secrets := t.Secrets.Reveal()
	for _, m := range []struct {
		field  string
		values map[string]string
	}{{"headers", t.Headers}, {"body", t.Body}, {"secrets", secrets}} {
		if len(m.values) > RuleEntriesMax {
			p.Add(at+m.field, "has %d entries; at most %d are allowed", len(m.values), RuleEntriesMax)
		}
		for name, v := range m.values {
			if name == "" || len(name) > RuleValueMax || len(v) > RuleValueMax {
				p.Add(at+m.field, "needs names of at least 1 byte, and names and values of at most %d", RuleValueMax)
			}
		}
	}
	for name, v := range t.Headers {
		if !headerForm.MatchString(name) || strings.ContainsAny(v, "\r\n\x00") {
			p.Add(at+"headers", "has %q, of which the name or the value cannot be sent in a header", clip(name))
		}
		if slices.Contains(connectionHeaders, strings.ToLower(name)) {
			p.Add(at+"headers", "has %q, which belongs to the connection and cannot be set", clip(name))
		}
		for _, secret := range t.checkTemplate(p, at+"headers", name, v) {
			if strings.ContainsAny(secrets[secret], "\r\n\x00") {
				p.Add(at+"headers", "has %q with the secret %q, whose value cannot be sent in a header", clip(name), secret)
			}
		}
	}
	for name, v := range t.Body {
		t.checkTemplate(p, at+"body", name, v)
	}
	for name := range secrets {
		if !secretNameForm.MatchString(name) {
			p.Add(at+"secrets", "has the name %q; it must be letters, digits, dots, dashes and _", clip(name))
		}
	}
}

// checkTemplate adds what is wrong with a value, and returns the secrets that it
// refers to.
func (t *ProxyTarget) checkTemplate(p *Problems, at, name, value string) []string {
	template, err := ParseTemplate(value)
	if err != nil {
		p.Add(at, "has %q, which %v", clip(name), err)
	}
	all := template.Secrets()
	for _, secret := range all {
		if !t.Has(secret) {
			p.Add(at, "refers to the secret %q, which is not in the secrets of the rule", secret)
		}
	}
	return all
}

// checkDestinations adds what is wrong with the destinations of a rule.
func checkDestinations(p *Problems, at string, all []string) {
	if len(all) == 0 {
		p.Add(at+"destinations", `is required; ["*"] is everything`)
		return
	}
	if len(all) > DomainsMax {
		p.Add(at+"destinations", "has %d entries; at most %d are allowed", len(all), DomainsMax)
		return
	}
	excepts := true
	for _, s := range all {
		d, err := ParseDestination(s)
		if err != nil {
			p.Add(at+"destinations", "has %q: %v", clip(s), err)
		}
		excepts = excepts && err == nil && d.except
	}
	if excepts {
		p.Add(at+"destinations", `has exceptions only: name what the rule is for; "*" is everything`)
	}
}

// checkEgressDestinations adds what is wrong with the destinations of a policy.
func checkEgressDestinations(p *Problems, field string, all []string) {
	var domains []string
	for _, s := range all {
		if _, err := ParseNetwork(s); err != nil {
			domains = append(domains, s)
		}
	}
	switch {
	case len(all) == 0:
		p.Add(field, `is required; ["*"] is everything`)
	case len(all) > DomainsMax:
		p.Add(field, "has %d entries; at most %d are allowed", len(all), DomainsMax)
	default:
		checkDomains(p, field, domains)
	}
}

// checkAllowed is checkDomains for a list that, empty, looks as if nothing were
// allowed and would be none at all.
func checkAllowed(p *Problems, field string, all []string) {
	if all != nil && len(all) == 0 {
		p.Add(field, "is empty: name what may be reached, or leave it out if everything may; to let nothing out, forbid \"*\"")
	}
	checkDomains(p, field, all)
}

// checkDomains adds what is wrong with a list of patterns.
func checkDomains(p *Problems, field string, all []string) {
	if len(all) > DomainsMax {
		p.Add(field, "has %d entries; at most %d are allowed", len(all), DomainsMax)
		return
	}
	for _, s := range all {
		if _, err := ParseDomainPattern(s); err != nil {
			p.Add(field, "has %q: %v", clip(s), err)
		}
	}
}

// ParseBypass reads an entry of a list of what goes past the proxy. It is a domain, as
// [ParseDomainPattern] reads it, with a dot in front for all below it too. Or else it is an
// address or a network of either version of IP. The other result is its zero value.
func ParseBypass(s string) (DomainPattern, netip.Prefix, error) {
	if network, err := parseNetwork(s); err == nil {
		return DomainPattern{}, network, nil
	}
	if below, ok := strings.CutPrefix(s, "."); ok {
		s = "*." + below
	}
	pattern, err := ParseDomainPattern(s)
	return pattern, netip.Prefix{}, err
}

// checkBypass adds what is wrong with a list of what goes past the proxy.
func checkBypass(p *Problems, field string, all []string) {
	if len(all) > DomainsMax {
		p.Add(field, "has %d entries; at most %d are allowed", len(all), DomainsMax)
		return
	}
	for _, s := range all {
		if _, _, err := ParseBypass(s); err != nil {
			p.Add(field, "has %q: must be a domain such as example.com, *.example.com or .example.com, an address such as 203.0.113.7, or a network such as 203.0.113.0/24", clip(s))
		}
	}
}
