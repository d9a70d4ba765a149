package host

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/egress"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/intercept"
	"github.com/dozehq/doze/internal/seal"
)

// secrets has what matches the routing rules of a sandbox intercepted. It alone
// opens their secrets, and only while the sandbox has an address.
type secrets struct {
	opener      *seal.Opener
	authorities *intercept.Authorities
	interceptor *intercept.Interceptor
	defaults    intercept.Defaults

	mu    sync.RWMutex
	rules map[netip.Addr]ruled // guarded by mu; by the address of the sandbox
}

// ruled are the rules of one sandbox.
type ruled struct {
	who       egress.Guest
	authority string // that it trusts
	rules     intercept.Rules
}

// openSecrets returns those of the key in a file, which it makes if it is
// not there.
func openSecrets(file string, defaults intercept.Defaults) (*secrets, error) {
	key, err := seal.Key(file)
	if err != nil {
		return nil, err
	}
	opener, err := seal.NewOpener(key)
	if err != nil {
		return nil, err
	}
	authorities, err := intercept.NewAuthorities(key)
	if err != nil {
		return nil, err
	}
	return &secrets{
		opener: opener, authorities: authorities, interceptor: intercept.New(authorities, nil),
		defaults: defaults, rules: map[netip.Addr]ruled{},
	}, nil
}

// admit has the routing rules of a network obeyed from the next request on, with
// certificates of the authority that the sandbox trusts.
func (s *secrets) admit(who egress.Guest, authority string, n *doze.Network) error {
	opened, err := s.open(who.Workspace, n.Rules().Routing)
	if err != nil {
		return err
	}
	rules, err := intercept.Compile(opened, s.defaults)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules[who.IP] = ruled{who, authority, rules}
	return nil
}

// open returns rules with their secrets.
func (s *secrets) open(workspace string, sealed []doze.ProxyTarget) ([]doze.ProxyTarget, error) {
	opened := slices.Clone(sealed)
	for i := range opened {
		plain := map[string]string{}
		for name, value := range opened[i].Sealed {
			text, err := s.opener.Unseal(value, fleet.SecretPlace(workspace))
			if err != nil {
				return nil, fmt.Errorf("the secret %s of a routing rule: %w: restore the file %s that belongs to the records", name, err, EgressFile)
			}
			plain[name] = string(text)
		}
		opened[i].Secrets = doze.Hide(plain)
	}
	return opened, nil
}

// forget drops the rules of the sandbox that has an address.
func (s *secrets) forget(ip netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.rules, ip)
}

// of returns what is in force for a sandbox, or nothing if another one has its
// address by now.
func (s *secrets) of(g egress.Guest) ruled {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if of := s.rules[g.IP]; of.who == g {
		return of
	}
	return ruled{}
}

// Intercept implements [egress.Interceptor].
func (s *secrets) Intercept(ctx context.Context, g egress.Guest, c net.Conn, to egress.Destination, _ []int, dial func(context.Context) (net.Conn, error)) {
	session := s.session(g, to)
	session.Authority, session.Dial = s.of(g).authority, dial
	err := s.interceptor.Serve(ctx, c, session)
	slog.Debug("an intercepted connection ended", "sandbox", g.UID, "host", to.Name, "err", err)
}

// Request implements [egress.Interceptor].
func (s *secrets) Request(w http.ResponseWriter, r *http.Request, g egress.Guest, to egress.Destination, by http.RoundTripper) {
	intercept.Serve(w, r, s.session(g, to), by)
}

// session is that of a sandbox and a destination, for requests of which each has the
// rules of its time.
func (s *secrets) session(g egress.Guest, to egress.Destination) intercept.Session {
	at := doze.Address{Host: to.Name, Port: to.Port, Plain: to.Plain}
	return intercept.Session{To: at, Decide: func() (*intercept.Injection, bool) {
		of := s.of(g)
		return of.rules.For(at), of.who == g
	}}
}
