package etc

import (
	"os"
	"path/filepath"
	"sync"

	"github.com/dozehq/doze/internal/agent/environ"
)

// Names are what the files in etc say of this sandbox.
type Names struct {
	root string // empty means that there are none

	mu           sync.Mutex
	host, resolv string // guarded by mu: what is, or would be, in them
}

// New returns what the files below root say when a sandbox starts with env. An
// empty root has none.
func New(root string, env environ.List) *Names {
	if root == "" {
		return &Names{}
	}
	return &Names{root: root, host: Hostname(), resolv: nameservers(root, env)}
}

// Change makes the files say what is true now, as far as they say what was. What
// somebody else wrote into them stays.
func (n *Names) Change(host string, env environ.List) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.root == "" {
		return
	}
	resolv := nameservers(n.root, env)
	etc := filepath.Join(n.root, "etc")
	for name, was := range map[string][2]string{
		"hostname":    {n.host + "\n", host + "\n"},
		"hosts":       {selfLine(n.host), selfLine(host)},
		"resolv.conf": {n.resolv, resolv},
	} {
		replaceIn(filepath.Join(etc, name), was[0], was[1])
	}
	n.host, n.resolv = host, resolv
}

// Hostname is the sandbox's own name.
func Hostname() string {
	if host, err := os.Hostname(); err == nil && host != "" {
		return host
	}
	return "sandbox"
}
