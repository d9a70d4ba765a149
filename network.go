package doze

// Network is what a sandbox may reach and how (spec 2.6).
type Network struct {
	Subnet           string    `json:"subnet,omitempty"`
	Egress           *Egress   `json:"egress,omitempty"`
	Firewall         *Firewall `json:"firewall,omitempty"`
	Proxy            *Proxy    `json:"proxy,omitempty"`
	AllowedDomains   []string  `json:"allowedDomains,omitempty"`
	ForbiddenDomains []string  `json:"forbiddenDomains,omitempty"`
}

// Egress routes outbound traffic through a dedicated address.
type Egress struct {
	Gateway  string         `json:"gateway,omitempty"`
	Mode     string         `json:"mode,omitempty"`
	Policies []EgressPolicy `json:"policies,omitempty"`
}

// EgressPolicy chooses the way out for some destinations.
type EgressPolicy struct {
	Destinations []string `json:"destinations"`
	Mode         string   `json:"mode"`
	Name         string   `json:"name,omitempty"`
}

// Firewall names network lockdown rulesets: default, proxy, dedicated-ip.
type Firewall struct {
	Rulesets []string `json:"rulesets,omitempty"`
}

// Proxy are the settings of the platform's egress proxy.
type Proxy struct {
	AllowedDomains   []string      `json:"allowedDomains,omitempty"`
	ForbiddenDomains []string      `json:"forbiddenDomains,omitempty"`
	Bypass           []string      `json:"bypass,omitempty"`
	Routing          []ProxyTarget `json:"routing,omitempty"`
}

// ProxyTarget is one rule of a sandbox's egress proxy.
type ProxyTarget struct {
	Destinations []string                     `json:"destinations"`
	Headers      map[string]string            `json:"headers,omitempty"`
	Body         map[string]string            `json:"body,omitempty"`
	Secrets      WriteOnly[map[string]string] `json:"secrets,omitzero"`
}

// IsZero reports whether n asks for nothing beyond the default network.
func (n *Network) IsZero() bool {
	if n == nil {
		return true
	}
	plain := n.Firewall == nil
	if n.Firewall != nil {
		plain = true
		for _, r := range n.Firewall.Rulesets {
			plain = plain && r == "default"
		}
	}
	return plain && (n.Subnet == "" || n.Subnet == "default") &&
		n.Egress == nil && n.Proxy == nil && len(n.AllowedDomains) == 0 && len(n.ForbiddenDomains) == 0
}
