package agent

import (
	"maps"
	"net/http"
	"os"
	"path"
	"slices"
	"strings"

	"doze"
	"doze/internal/agent/subtree"
)

// treePrefix is where trees are. Their paths are always absolute.
const treePrefix = "/filesystem/tree"

// treeWrite maps paths below the tree's root to contents.
type treeWrite struct {
	Files map[string]string `json:"files"`
}

func (a *Agent) readTree(_ *http.Request, arg string) (directory, error) {
	at, err := a.place(arg)
	if err != nil {
		return directory{}, err
	}
	info, err := os.Stat(at.abs)
	if err != nil || !info.IsDir() {
		return directory{}, doze.Wrap(err, doze.Invalid, "path is not a directory")
	}
	return list(at)
}

// writeTree creates the root and writes files below it, and nowhere else: a
// name or a link that leads out of the root is refused. Files before the first
// one that fails stay.
func (a *Agent) writeTree(arg string, in treeWrite) (directory, error) {
	at, err := a.place(arg)
	if err != nil {
		return directory{}, err
	}
	names := map[string]string{} // clean → as sent
	for _, sent := range slices.Sorted(maps.Keys(in.Files)) {
		name, err := treeName(sent)
		if err != nil {
			return directory{}, err
		}
		names[name] = sent
	}
	own := a.who.owner()
	if err := own.mkdirAll(whole{}, at.abs, dirMode); err != nil {
		return directory{}, writeError(err)
	}
	root, err := os.OpenRoot(at.abs)
	if err != nil {
		return directory{}, writeError(err)
	}
	defer func() { _ = root.Close() }()
	if err := ordinary(root); err != nil {
		return directory{}, err
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := own.mkdirAll(root, path.Dir(name), dirMode); err != nil {
			return directory{}, writeError(err)
		}
		if err := own.replace(root, name, fileMode, strings.NewReader(in.Files[names[name]])); err != nil {
			return directory{}, err
		}
	}
	return list(at)
}

// ordinary refuses a root whose links lead out of it even if they are not
// followed.
func ordinary(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return writeError(err)
	}
	defer func() { _ = dir.Close() }()
	if subtree.Kernel(dir) {
		return doze.Errorf(doze.Unprocessable, "%s is the kernel's: no tree can be written there", root.Name())
	}
	return nil
}

// treeName returns the clean path below the root that a caller's name means.
func treeName(sent string) (string, error) {
	name := strings.TrimPrefix(collapse(sent), "/")
	switch {
	case slices.Contains(strings.Split(name, "/"), ".."):
		return "", doze.Errorf(doze.Invalid, "the file %q leads out of the tree; use names without ..", clip(sent))
	case strings.ContainsRune(name, 0) || len(name) > pathMax:
		return "", doze.Errorf(doze.Invalid, "the file %q has a NUL byte or more than %d bytes", clip(sent), pathMax)
	case path.Clean(name) == ".", strings.HasSuffix(name, "/"):
		return "", doze.Errorf(doze.Invalid, "the file %q has no name", clip(sent))
	}
	return path.Clean(name), nil
}

func (a *Agent) deleteTree(r *http.Request, arg string) (success, error) {
	at, err := a.place(arg)
	if err != nil {
		return success{}, err
	}
	if info, err := os.Stat(at.abs); err != nil || !info.IsDir() {
		return success{}, doze.Wrap(err, doze.Unprocessable, "path is not a directory")
	}
	return a.deleteFile(r, arg)
}
