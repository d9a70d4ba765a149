package api

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/dozehq/doze"
)

// match finds the row of a request, or -1 and the methods that its path has.
func (s *Server) match(method, path string) (row int, values map[string]string, allowed []string) {
	rest, ok := strings.CutPrefix(path, Prefix+"/")
	if !ok {
		return -1, nil, nil
	}
	segments := strings.Split(rest, "/")
	if method == http.MethodHead {
		method = http.MethodGet
	}
	for i, rt := range s.routes {
		values, ok := fit(rt.Pattern, segments)
		if ok && rt.Method == method {
			return i, values, nil
		}
		if ok && !slices.Contains(allowed, rt.Method) {
			allowed = append(allowed, rt.Method)
		}
	}
	return -1, nil, allowed
}

// fit compares the segments of an escaped path with a pattern.
func fit(pattern string, segments []string) (map[string]string, bool) {
	want := strings.Split(pattern[1:], "/")
	if len(want) != len(segments) {
		return nil, false
	}
	values := map[string]string{}
	for i, w := range want {
		name, isValue := strings.CutPrefix(w, "{")
		if !isValue {
			if segments[i] != w {
				return nil, false
			}
			continue
		}
		v, err := url.PathUnescape(segments[i])
		if err != nil || v == "" {
			return nil, false
		}
		values[strings.TrimSuffix(name, "}")] = v
	}
	return values, true
}

// Siblings are, for each path of a table up to a value, the segments that other rows have
// in its place. Values are {} in it.
type Siblings map[string][]string

// SiblingsOf returns the siblings of a table.
func SiblingsOf[T any](rows []Row[T]) Siblings {
	names := Siblings{}
	for _, row := range rows {
		path := ""
		for segment := range strings.SplitSeq(row.Pattern[1:], "/") {
			if !strings.HasPrefix(segment, "{") {
				names[path+"/{}"] = append(names[path+"/{}"], segment)
				path += "/" + segment
				continue
			}
			path += "/{}"
		}
	}
	return names
}

// Have reports whether a name is that of a sibling at a path.
func (s Siblings) Have(at, name string) bool { return slices.Contains(s[at], name) }

// Check adds that a new resource at a path of the table has the name of a sibling: some of
// its paths would be taken for those of that.
func (s Siblings) Check(p *doze.Problems, field, at, name string) {
	if s.Have(at, name) {
		p.Add(field, "is %q, which paths of this API have in that place: choose another name", name)
	}
}
