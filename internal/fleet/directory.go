package fleet

import (
	"sync"
	"time"
)

// Route is where the edge finds a sandbox.
type Route struct {
	UID       string
	Workspace string
	Name      string
	Enabled   bool
	Failed    bool      // it has no machine that could say why
	Until     time.Time // from then on it leads nowhere, whether it is still here or not; zero is never
}

// Directory maps the address of a sandbox to its route, in memory. Control
// writes it, the edge reads it; nothing on the way of a request waits for a
// database. It is safe for concurrent use.
type Directory struct {
	mu     sync.RWMutex
	byName map[[2]string]Route // guarded by mu; key: workspace, name
}

// NewDirectory returns an empty directory.
func NewDirectory() *Directory { return &Directory{byName: map[[2]string]Route{}} }

// Put adds r, or replaces the route of the same workspace and name.
func (d *Directory) Put(r Route) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byName[[2]string{r.Workspace, r.Name}] = r
}

// Drop removes the route of a name if it still leads to uid: a name that was
// reused meanwhile keeps its new route.
func (d *Directory) Drop(workspace, name, uid string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := [2]string{workspace, name}
	if d.byName[key].UID == uid {
		delete(d.byName, key)
	}
}

// Find returns the route of a name.
func (d *Directory) Find(workspace, name string, now time.Time) (Route, bool) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	r, ok := d.byName[[2]string{workspace, name}]
	return r, ok && (r.Until.IsZero() || now.Before(r.Until))
}

// Has reports whether there is a sandbox whose name and workspace, with a
// hyphen between them, are label.
func (d *Directory) Has(label string) bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for i := range len(label) {
		if label[i] != '-' {
			continue
		}
		if _, ok := d.byName[[2]string{label[i+1:], label[:i]}]; ok {
			return true
		}
	}
	return false
}
