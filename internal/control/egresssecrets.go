package control

import (
	"fmt"
	"slices"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/seal"
)

// sealRouting seals the secrets of routing rules that were checked. From here on
// nobody but who carries requests can read them, control included.
func (s *Server) sealRouting(sb *doze.Sandbox) error {
	if sb.Spec.Network == nil || sb.Spec.Network.Proxy == nil {
		return nil
	}
	var sealer *seal.Sealer
	for i := range sb.Spec.Network.Proxy.Routing {
		rule := &sb.Spec.Network.Proxy.Routing[i]
		for name, value := range rule.Secrets.Reveal() {
			if sealer == nil {
				var err error
				if sealer, err = s.sealer(); err != nil {
					return err
				}
			}
			sealed, err := sealer.Seal([]byte(value), fleet.SecretPlace(sb.Metadata.Workspace))
			if err != nil {
				return fmt.Errorf("seal the secrets of a routing rule: %w", err)
			}
			if rule.Sealed == nil {
				rule.Sealed = map[string][]byte{}
			}
			rule.Sealed[name] = sealed
		}
		rule.Secrets = doze.WriteOnly[map[string]string]{}
	}
	return nil
}

// sealer returns what seals for the node, which alone opens secrets of routing
// rules.
func (s *Server) sealer() (*seal.Sealer, error) {
	key := s.node.Load().SealKey
	if len(key) == 0 {
		return nil, fleet.ErrNoNode
	}
	return seal.NewSealer(key)
}

// carrySecrets gives each routing rule that came back without secrets those that
// are stored: no answer shows them. Of rules with the same destinations, the nth
// stands for the nth.
func carrySecrets(was, now *doze.Network) {
	if was == nil || was.Proxy == nil || now == nil || now.Proxy == nil {
		return
	}
	stored := slices.Clone(was.Proxy.Routing)
	for i := range now.Proxy.Routing {
		rule := &now.Proxy.Routing[i]
		at := slices.IndexFunc(stored, func(old doze.ProxyTarget) bool { return slices.Equal(old.Destinations, rule.Destinations) })
		if at < 0 {
			continue
		}
		if rule.Secrets.Reveal() == nil {
			rule.Sealed = stored[at].Sealed
		}
		stored = slices.Delete(stored, at, at+1)
	}
}
