package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze"
)

// Preview is where the edge finds a port of a sandbox for callers without a
// credential of the platform.
type Preview struct {
	ID              string
	Label           string // the first label of its host; the whole host on a custom domain
	Domain          string // the custom domain, or empty
	Workspace       string
	Sandbox         string // name
	Port            int
	Public          bool
	Expires         time.Time // zero is never
	RequestHeaders  map[string]string
	ResponseHeaders map[string]string
	Tokens          map[TokenHash]time.Time // until when, zero is for ever
}

// A TokenHash is what is kept of the token of a preview: its SHA-256.
type TokenHash [sha256.Size]byte

// HashToken returns what is kept of a token.
func HashToken(token string) TokenHash { return sha256.Sum256([]byte(token)) }

// MarshalText implements [encoding.TextMarshaler].
func (h TokenHash) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, h[:]), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (h *TokenHash) UnmarshalText(text []byte) error {
	if n, err := hex.Decode(h[:], text[:min(len(text), hex.EncodedLen(len(h)))]); err != nil || 2*n != len(text) || n != len(h) {
		return fmt.Errorf("%.80q is no SHA-256 in hexadecimal", text)
	}
	return nil
}

// Opens reports whether a token opens p at now. Public ones need none.
func (p Preview) Opens(token string, now time.Time) bool {
	if p.Public {
		return true
	}
	until, ok := p.Tokens[HashToken(token)]
	return ok && token != "" && (until.IsZero() || now.Before(until))
}

// Domain is a custom domain that is verified.
type Domain struct {
	Name      string
	Workspace string   // that verified it
	Shared    []string // other workspaces that may serve previews on it; DomainEverybody is all
	Fallback  string   // the label of the preview that serves names which no preview has, or empty
}

// Serves reports whether previews of a workspace are served on d.
func (d Domain) Serves(workspace string) bool {
	return workspace == d.Workspace || slices.Contains(d.Shared, workspace) || slices.Contains(d.Shared, doze.DomainEverybody)
}

// Previews maps the label of a preview's host to it, in memory, and knows the
// custom domains. It is safe for concurrent use.
type Previews struct {
	mu      sync.RWMutex
	byLabel map[string]Preview // guarded by mu; what is in it is not changed
	domains map[string]Domain  // guarded by mu; by name; the same

	tell, tellDomain func(key string, value any) // guarded by mu
}

// NewPreviews returns no previews yet.
func NewPreviews() *Previews {
	none := func(string, any) {}
	return &Previews{byLabel: map[string]Preview{}, domains: map[string]Domain{}, tell: none, tellDomain: none}
}

// Tell has two functions told of every preview by its label, and of every domain by
// its name, and then of each change. Without a value, one is gone. They must not
// block.
func (ps *Previews) Tell(previews, domains func(key string, value any)) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.tell, ps.tellDomain = previews, domains
	for label, p := range ps.byLabel {
		previews(label, p)
	}
	for name, d := range ps.domains {
		domains(name, d)
	}
}

// Apply takes over what was told of a preview.
func (ps *Previews) Apply(label string, value json.RawMessage) error {
	return take(ps, ps.byLabel, label, value)
}

// ApplyDomain takes over what was told of a domain.
func (ps *Previews) ApplyDomain(name string, value json.RawMessage) error {
	return take(ps, ps.domains, name, value)
}

func take[T any](ps *Previews, all map[string]T, key string, value json.RawMessage) error {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if value == nil {
		delete(all, key)
		return nil
	}
	var is T
	if err := json.Unmarshal(value, &is); err != nil {
		return err
	}
	all[key] = is
	return nil
}

// Put adds p, or replaces the one with its label.
func (ps *Previews) Put(p Preview) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.byLabel[p.Label] = p
	ps.tell(p.Label, p)
}

// Drop removes the preview of a label if it still has the id.
func (ps *Previews) Drop(label, id string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p, ok := ps.byLabel[label]; ok && p.ID == id {
		delete(ps.byLabel, label)
		ps.tell(label, nil)
	}
}

// Find returns the preview of a label. One on a custom domain is served while
// its workspace may use the domain.
func (ps *Previews) Find(label string, now time.Time) (Preview, bool) {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	p, ok := ps.byLabel[label]
	return p, ok && (p.Expires.IsZero() || now.Before(p.Expires)) && (p.Domain == "" || ps.domains[p.Domain].Serves(p.Workspace))
}

// PutDomain serves previews on a domain as d says.
func (ps *Previews) PutDomain(d Domain) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.domains[d.Name] = d
	ps.tellDomain(d.Name, d)
}

// DropDomain ends that for a domain, if it is still that of the workspace.
func (ps *Previews) DropDomain(name, workspace string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if d, ok := ps.domains[name]; ok && d.Workspace == workspace {
		delete(ps.domains, name)
		ps.tellDomain(name, nil)
	}
}

// Domain returns the custom domain of a name.
func (ps *Previews) Domain(name string) (Domain, bool) {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	d, ok := ps.domains[name]
	return d, ok
}
