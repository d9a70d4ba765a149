package drive

import (
	"strings"
	"sync"
	"syscall"
)

const rootID = 1

// names are the numbers by which the kernel knows paths. It never says that it
// needs one no more, so they last as long as the mount.
type names struct {
	mu    sync.Mutex
	last  uint64            // guarded by mu
	paths map[uint64]string // guarded by mu
	ids   map[string]uint64 // guarded by mu
}

func newNames() *names {
	return &names{last: rootID, paths: map[uint64]string{rootID: ""}, ids: map[string]uint64{"": rootID}}
}

// path returns that of a number; ESTALE if its file was removed.
func (n *names) path(id uint64) (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p, ok := n.paths[id]
	if !ok {
		return "", syscall.ESTALE
	}
	return p, nil
}

// below returns the path of a name in a directory.
func (n *names) below(dir uint64, name string) (string, error) {
	p, err := n.path(dir)
	switch {
	case err != nil:
		return "", err
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00"):
		return "", syscall.EINVAL
	case p == "":
		return name, nil
	}
	return p + "/" + name, nil
}

// id returns the number of a path: the same for as long as its file is there.
func (n *names) id(path string) uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id, ok := n.ids[path]; ok {
		return id
	}
	n.last++
	n.ids[path], n.paths[n.last] = n.last, path
	return n.last
}

// known returns the number of a path, if it has one.
func (n *names) known(path string) (id uint64, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	id, ok = n.ids[path]
	return id, ok
}

// forget notes that the file of a path was removed.
func (n *names) forget(path string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(path)
}

// remove is forget. Preconditions: mu is held.
func (n *names) remove(path string) {
	if id, ok := n.ids[path]; ok {
		delete(n.ids, path)
		delete(n.paths, id)
	}
}

// move notes that a file has another path.
func (n *names) move(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.remove(to)
	if id, ok := n.ids[from]; ok {
		delete(n.ids, from)
		n.ids[to], n.paths[id] = id, to
	}
}
