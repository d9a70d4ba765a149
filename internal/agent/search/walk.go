// Package search finds files by name and by content below a directory. It
// follows no links, skips what it may not read, and is bounded in time and in
// what it returns; an answer that the bounds cut says so.
package search

import (
	"context"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dozehq/doze"
)

const (
	// timeMax is below the minute after which proxies give a call up.
	timeMax = 20 * time.Second
	// resultsCap is the most that a caller may ask for by number.
	resultsCap = 1000
	// resultsMax is what "all" means: an answer is held in memory.
	resultsMax = 100_000
	// entriesMax bounds how many names of one directory are looked at. They are
	// held in memory to be sorted.
	entriesMax = 100_000
)

// skippedDirs are not searched unless the caller says which are not to be.
var skippedDirs = []string{"node_modules", "vendor", ".git", "dist", "build", "target", "__pycache__", ".venv", ".next", "coverage"}

// kernelDirs have no files of anybody, and some that never end. Only those who
// name one as the root see it.
var kernelDirs = []string{"/proc", "/sys", "/dev"}

// The kinds of what is found.
const (
	file      = "file" // links and devices, too
	directory = "directory"
)

// scope is what a walk looks at.
type scope struct {
	skip     []string // names of directories
	hidden   bool
	patterns []string // globs of the base names of files; none means all
	max      int      // results
	all      bool     // the caller wants all of them: max is our bound
}

// parseScope reads the parameters that searches have in common, and adds what is
// wrong with them.
func parseScope(q url.Values, results int, p *doze.Problems) (s scope) {
	s = scope{skip: skippedDirs, max: results, patterns: list(q.Get("patterns"))}
	if q.Has("excludeDirs") { // also to none
		s.skip = list(q.Get("excludeDirs"))
	}
	s.hidden = q.Has("excludeHidden") && q.Get("excludeHidden") != "true" // also if it is empty
	if text := q.Get("maxResults"); text != "" {
		n, err := strconv.Atoi(text)
		switch {
		case err != nil || n < 0:
			p.Add("maxResults", "must be a number from 0, which means all, to %d", resultsCap)
		case n == 0:
			s.max, s.all = resultsMax, true
		default:
			s.max = min(n, resultsCap)
		}
	}
	checkGlobs(p, "patterns", s.patterns)
	return s
}

// take counts one more result, after n others: add says whether it is part of the
// answer, and more whether to look on. A caller that wants all results learns if one is
// left out.
func (s scope) take(n int) (add, more bool) { return n < s.max, n < s.max && (s.all || n+1 < s.max) }

// checkGlobs adds the first pattern of a parameter that is no glob.
func checkGlobs(p *doze.Problems, name string, patterns []string) {
	for _, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil {
			p.Add(name, "has %.80q, which is not a glob like *.go", pattern)
			return
		}
	}
}

// checkLength reports whether a query is short enough, and adds it if not.
func checkLength(p *doze.Problems, query string) bool {
	if len(query) > queryMax {
		p.Add("query", "has %d bytes; at most %d are allowed", len(query), queryMax)
		return false
	}
	return true
}

// list splits at commas and drops what is empty.
func list(s string) []string {
	return slices.DeleteFunc(strings.Split(s, ","), func(part string) bool { return part == "" })
}

func matchesAny(patterns []string, name string) bool {
	return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
		ok, _ := path.Match(strings.TrimPrefix(p, "**/"), name) // checkGlobs has seen it
		return ok
	})
}

// entry is what a walk comes by.
type entry struct {
	rel  string // of the root; "." for itself
	kind string
	mode fs.FileMode // type bits
}

// errEnough ends a walk that has found what it wanted.
var errEnough = errors.New("enough")

// walk calls visit for everything below root in the order of the names, parents
// first, until visit returns an error. It reports whether the bounds kept it
// from seeing all; the end of time is not an error.
func (s scope) walk(ctx context.Context, root string, visit func(entry) error) (cut bool, err error) {
	info, err := os.Stat(root)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return false, doze.Wrap(err, doze.NotFound, "no such directory")
	case err != nil:
		return false, doze.Wrap(err, doze.Unprocessable, "%v", err)
	case !info.IsDir():
		return false, doze.Errorf(doze.Invalid, "path is not a directory")
	}
	limited, cancel := context.WithTimeout(ctx, timeMax)
	defer cancel()
	err = s.descend(limited, root, ".", &cut, visit)
	switch {
	case errors.Is(err, errEnough):
		return cut, nil
	case limited.Err() != nil && ctx.Err() == nil:
		return true, nil
	}
	return cut, err
}

// descend visits one directory and those below it.
func (s scope) descend(ctx context.Context, root, rel string, cut *bool, visit func(entry) error) error {
	dir, err := os.Open(filepath.Join(root, rel))
	if err != nil {
		return nil //nolint:nilerr // it is gone, or not ours to read
	}
	entries, err := dir.ReadDir(entriesMax + 1)
	_ = dir.Close()
	if len(entries) > entriesMax {
		*cut = true
		entries = entries[:entriesMax]
	}
	if err != nil && len(entries) == 0 {
		return nil
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	for _, e := range entries {
		if err := ctx.Err(); err != nil {
			return err
		}
		name := e.Name()
		if !s.hidden && name[0] == '.' || e.IsDir() && (slices.Contains(s.skip, name) || slices.Contains(kernelDirs, filepath.Join(root, rel, name))) {
			continue
		}
		found := entry{rel: path.Join(rel, name), kind: file, mode: e.Type()}
		if e.IsDir() {
			found.kind = directory
		}
		if err := visit(found); err != nil {
			return err
		}
		if e.IsDir() {
			if err := s.descend(ctx, root, found.rel, cut, visit); err != nil {
				return err
			}
		}
	}
	return nil
}
