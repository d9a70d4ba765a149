package fleet

import (
	"encoding/json"
	"strings"
	"sync"
	"time"
)

// Upstream is where the edge finds a sandbox.
type Upstream struct {
	UID       string
	Workspace string
	Name      string
	Enabled   bool
	Failed    bool      // it has no machine that could say why
	Why       string    // why it failed, for callers with a credential; empty if only its events say
	Building  bool      // its first image is being built, so it has no machine yet
	Until     time.Time // from then on it leads nowhere, even if it is still here; zero is never
	// Streams are the ports that its previews serve without HTTP, and their protocols:
	// see [doze.Runtime.Streams].
	Streams map[int]string `json:",omitempty"`
}

// Directory maps the address of a sandbox to its upstream, in memory. Control
// writes it, and the edge reads it: no request waits for a database. It is safe for
// concurrent use.
type Directory struct {
	mu     sync.RWMutex
	byName map[[2]string]Upstream      // guarded by mu; key: workspace, name
	tell   func(key string, value any) // guarded by mu
}

// NewDirectory returns an empty directory.
func NewDirectory() *Directory {
	return &Directory{byName: map[[2]string]Upstream{}, tell: func(string, any) {}}
}

// Tell calls fn for every upstream, and then for each change. Without a value, an
// upstream is gone. fn must not block.
func (d *Directory) Tell(fn func(key string, value any)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.tell = fn
	for _, r := range d.byName {
		fn(r.key(), r)
	}
}

// Apply takes over what another directory told.
func (d *Directory) Apply(key string, value json.RawMessage) error {
	workspace, name := splitKey(key)
	if value == nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.byName, [2]string{workspace, name})
		return nil
	}
	var r Upstream
	if err := json.Unmarshal(value, &r); err != nil {
		return err
	}
	d.Put(r)
	return nil
}

// key names an upstream where it is told. A workspace has no slash in its name.
func (r Upstream) key() string { return r.Workspace + "/" + r.Name }

func splitKey(key string) (workspace, name string) {
	workspace, name, _ = strings.Cut(key, "/")
	return workspace, name
}

// Put adds r, or replaces the upstream of the same workspace and name.
func (d *Directory) Put(r Upstream) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.byName[[2]string{r.Workspace, r.Name}] = r
	d.tell(r.key(), r)
}

// Drop removes the upstream of a name if it still leads to uid: a name that was
// reused meanwhile keeps its new upstream.
func (d *Directory) Drop(workspace, name, uid string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := [2]string{workspace, name}
	if r := d.byName[key]; r.UID == uid && uid != "" {
		delete(d.byName, key)
		d.tell(r.key(), nil)
	}
}

// Find returns the upstream of a name.
func (d *Directory) Find(workspace, name string, now time.Time) (Upstream, bool) {
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
