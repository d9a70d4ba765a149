package engine

import (
	"bytes"
	"cmp"
	"os"

	"github.com/dozehq/doze/internal/buildapi"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
)

// ignoreFile lists what a context is to be without. A Dockerfile may have one of its own
// beside it, with this after its name.
const ignoreFile = ".dockerignore"

// ignoredBy returns the name of the file in a context by which a path is left out, or nothing.
// It looks for that file as BuildKit does.
func ignoredBy(dir, dockerfile, path string) string {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return ""
	}
	defer func() { _ = root.Close() }()
	for _, name := range []string{cmp.Or(dockerfile, defaultDockerfile) + ignoreFile, ignoreFile} {
		st, err := root.Stat(name)
		if err != nil {
			continue
		}
		if !st.Mode().IsRegular() || st.Size() > buildapi.DockerfileMax {
			return ""
		}
		raw, err := root.ReadFile(name)
		if err != nil {
			return ""
		}
		patterns, err := ignorefile.ReadAll(bytes.NewReader(raw))
		if err != nil {
			return ""
		}
		m, err := patternmatcher.New(patterns)
		if err != nil {
			return ""
		}
		if out, err := m.MatchesOrParentMatches(path); err != nil || !out {
			return ""
		}
		return name
	}
	return ""
}
