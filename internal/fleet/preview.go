package fleet

import (
	"crypto/sha256"
	"slices"
	"sync"
	"time"

	"github.com/dozehq/doze"
)

// Preview is where the edge finds a port of a sandbox for who has no
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
	Tokens          map[[sha256.Size]byte]time.Time // by hash; until when, zero is for ever
}

// Opens reports whether a token opens p at now. Public ones need none.
func (p Preview) Opens(token string, now time.Time) bool {
	if p.Public {
		return true
	}
	until, ok := p.Tokens[sha256.Sum256([]byte(token))]
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
}

// NewPreviews returns no previews yet.
func NewPreviews() *Previews {
	return &Previews{byLabel: map[string]Preview{}, domains: map[string]Domain{}}
}

// Put adds p, or replaces the one with its label.
func (ps *Previews) Put(p Preview) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.byLabel[p.Label] = p
}

// Drop removes the preview of a label if it still has the id.
func (ps *Previews) Drop(label, id string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.byLabel[label].ID == id {
		delete(ps.byLabel, label)
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
}

// DropDomain ends that for a domain, if it is still that of the workspace.
func (ps *Previews) DropDomain(name, workspace string) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.domains[name].Workspace == workspace {
		delete(ps.domains, name)
	}
}

// Domain returns the custom domain of a name.
func (ps *Previews) Domain(name string) (Domain, bool) {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	d, ok := ps.domains[name]
	return d, ok
}
