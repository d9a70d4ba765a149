package access

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Told are functions that hear of each change of credentials. Without a value, what
// a key names is gone. They must not block.
type Told struct {
	Principals func(sub string, principal any)
	Keys       func(id string, key any)
	Revoked    func(grant string, until any)
	Verifier   func(issuer string, keys any) // by which tokens are checked
}

// complete returns t with functions that do nothing where there are none.
func (t Told) complete() Told {
	for _, fn := range []*func(string, any){&t.Principals, &t.Keys, &t.Revoked, &t.Verifier} {
		if *fn == nil {
			*fn = func(string, any) {}
		}
	}
	return t
}

// Tell has t told of all that is, and then of each change.
func (c *Credentials) Tell(t Told) {
	t = t.complete()
	c.Keys.tellAll(t.Keys)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = t
	for sub, p := range c.principals {
		t.Principals(sub, p)
	}
	for grant, until := range c.revoked {
		t.Revoked(grant, until)
	}
	if c.Tokens != nil {
		t.Verifier(c.Tokens.issuer, c.Tokens.JWKS())
	}
}

func (k *Keys) tellAll(fn func(id string, key any)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tell = fn
	for id, key := range k.byID {
		fn(id, key)
	}
}

// NewReplica returns credentials of nobody yet, which know what others tell. They
// check, and sign nothing.
func NewReplica() *Credentials { return NewCredentials(newKeys(), nil) }

// ApplyPrincipal takes over what was told of a principal.
func (c *Credentials) ApplyPrincipal(sub string, value json.RawMessage) error {
	if value == nil {
		c.Forget(sub)
		return nil
	}
	var p Principal
	if err := json.Unmarshal(value, &p); err != nil {
		return err
	}
	c.Set(p)
	return nil
}

// ApplyKey takes over what was told of an API key.
func (c *Credentials) ApplyKey(id string, value json.RawMessage) error {
	if value == nil {
		c.RemoveKey(id)
		return nil
	}
	var k Key
	if err := json.Unmarshal(value, &k); err != nil {
		return err
	}
	c.Keys.Add(k)
	return nil
}

// ApplyRevoked takes over what was told of a grant.
func (c *Credentials) ApplyRevoked(grant string, value json.RawMessage) error {
	var until time.Time
	if value != nil {
		if err := json.Unmarshal(value, &until); err != nil {
			return err
		}
	}
	c.change(func() {
		if value == nil {
			delete(c.revoked, grant)
			return
		}
		c.revoked[grant] = until
	})
	return nil
}

// ApplyVerifier takes over by which keys the tokens of an issuer are checked.
func (c *Credentials) ApplyVerifier(issuer string, value json.RawMessage) error {
	var keys jose.JSONWebKeySet
	if value != nil {
		if err := json.Unmarshal(value, &keys); err != nil {
			return err
		}
		for _, k := range keys.Keys {
			if !k.IsPublic() {
				return fmt.Errorf("the key %s that checks tokens is no public key", k.KeyID)
			}
		}
	}
	c.verifier.Store(&Tokens{issuer: issuer, public: keys})
	return nil
}
