package search

import (
	"context"
	"net/url"
	"path"
	"path/filepath"
	"slices"

	"github.com/dozehq/doze"
)

const findDefault = 20 // results

// Find looks for files or directories by name. Its zero value finds nothing:
// make it with [ParseFind].
type Find struct {
	scope
	kind string
}

// Found is what a [Find] found.
type Found struct {
	Matches    []FoundMatch `json:"matches"` // in the order of a walk
	Total      int          `json:"total"`   // of matches here
	Incomplete bool         `json:"incomplete,omitzero"`
}

// FoundMatch is one file or directory.
type FoundMatch struct {
	Path string `json:"path"` // relative to the root; "." for the root
	Type string `json:"type"` // "file" or "directory"
}

// ParseFind reads a query: type, patterns, maxResults, excludeDirs and
// excludeHidden. Errors are Invalid.
func ParseFind(q url.Values) (f Find, err error) {
	var p doze.Problems
	f.scope = parseScope(q, findDefault, &p)
	switch f.kind = q.Get("type"); f.kind {
	case "":
		f.kind = file
	case file, directory:
	default:
		p.Add("type", "must be %s or %s", file, directory)
	}
	return f, p.Err()
}

// In searches root, absolute. A root that is hidden or excluded itself yields
// nothing. NotFound means there is no root, Invalid that it is no directory.
func (f Find) In(ctx context.Context, root string) (Found, error) {
	out := Found{Matches: []FoundMatch{}}
	name := filepath.Base(root)
	barred := !f.hidden && name[0] == '.' || slices.Contains(f.skip, name)
	cut, err := f.walk(ctx, root, func(e entry) error {
		if barred {
			return errEnough
		}
		if e.kind == f.kind && (e.kind == directory || matchesAny(f.patterns, path.Base(e.rel))) {
			return out.add(FoundMatch{e.rel, e.kind}, f.scope)
		}
		return nil
	})
	if err == nil && !barred && f.kind == directory {
		out.Matches = slices.Insert(out.Matches, 0, FoundMatch{".", directory})
		if len(out.Matches) > f.max {
			out.Matches, cut = out.Matches[:f.max], cut || f.all
		}
	}
	out.Total, out.Incomplete = len(out.Matches), out.Incomplete || cut
	return out, err
}

// add takes a match in, and ends the walk with the last one that was asked for.
func (f *Found) add(m FoundMatch, s scope) error {
	add, more := s.take(len(f.Matches))
	if add {
		f.Matches = append(f.Matches, m)
	}
	f.Incomplete = !add
	if !more {
		return errEnough
	}
	return nil
}
