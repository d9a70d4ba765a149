package client

import "github.com/dozehq/doze"

// outgoing is a sandbox as a server gets it: with the secrets of its routing
// rules, which it would not show to anybody else.
type outgoing struct {
	doze.Sandbox
	Spec outgoingSpec `json:"spec"`
}

type outgoingSpec struct {
	doze.SandboxSpec
	Network *outgoingNetwork `json:"network,omitempty"`
}

// outgoingNetwork has lists that are empty: a server refuses those, where one that
// is left out lets everything through.
type outgoingNetwork struct {
	doze.Network
	AllowedDomains []string       `json:"allowedDomains,omitzero"`
	Proxy          *outgoingProxy `json:"proxy,omitempty"`
}

type outgoingProxy struct {
	doze.Proxy
	AllowedDomains []string         `json:"allowedDomains,omitzero"`
	Routing        []outgoingTarget `json:"routing,omitempty"`
}

type outgoingTarget struct {
	doze.ProxyTarget
	Secrets map[string]string `json:"secrets,omitzero"` // an empty one takes all away
}

// revealed is s for a server. It is for nothing else.
func revealed(s doze.Sandbox) outgoing {
	out := outgoing{Sandbox: s, Spec: outgoingSpec{SandboxSpec: s.Spec}}
	if s.Spec.Network == nil {
		return out
	}
	out.Spec.Network = &outgoingNetwork{Network: *s.Spec.Network, AllowedDomains: s.Spec.Network.AllowedDomains}
	if s.Spec.Network.Proxy == nil {
		return out
	}
	proxy := &outgoingProxy{Proxy: *s.Spec.Network.Proxy, AllowedDomains: s.Spec.Network.Proxy.AllowedDomains}
	for _, t := range proxy.Proxy.Routing {
		proxy.Routing = append(proxy.Routing, outgoingTarget{t, t.Secrets.Reveal()})
	}
	out.Spec.Network.Proxy = proxy
	return out
}
