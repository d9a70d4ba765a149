package peer

import (
	"crypto/sha256"
	"sync"
	"time"
)

// Preview is where the edge finds a port of a sandbox for who has no
// credential of the platform.
type Preview struct {
	ID              string
	Label           string // the first label of its host
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

// Previews maps the label of a preview's host to it, in memory. It is safe for
// concurrent use.
type Previews struct {
	mu      sync.RWMutex
	byLabel map[string]Preview // guarded by mu; what is in it is not changed
}

// NewPreviews returns no previews yet.
func NewPreviews() *Previews { return &Previews{byLabel: map[string]Preview{}} }

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

// Find returns the preview of a label.
func (ps *Previews) Find(label string, now time.Time) (Preview, bool) {
	ps.mu.RLock()
	defer ps.mu.RUnlock()
	p, ok := ps.byLabel[label]
	return p, ok && (p.Expires.IsZero() || now.Before(p.Expires))
}
