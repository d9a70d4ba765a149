package api

import (
	"context"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/dozehq/doze"
)

// Tolerated are members that clients of the specification send and that have no effect
// here. Every other member that a body of their type does not have is a mistake.
type Tolerated struct {
	Of     reflect.Type
	Method string // empty is any
	Paths  []string
	Why    string
}

type strangersKey struct{}

// strangers are the members of the body of a request that are not known, at any depth,
// under their paths. Nothing that a caller sends is ignored, but for what the tables of the
// sections say. What is read only is not read: clients read a resource, change a part and
// send the whole back.
func (s *Server) strangers(rt *Route, body map[string]any) (p doze.Problems) {
	v, types := strictness{readOnly: s.unread, unread: s.unread}, []reflect.Type{rt.in}
	if rt.echoes != nil {
		types = append(types, rt.echoes)
		v.unread = nil
	}
	for _, section := range s.sections {
		for _, row := range section.Tolerated {
			if row.Of == rt.in && (row.Method == "" || row.Method == rt.Method) {
				v.paths = append(v.paths, row.Paths...)
			}
		}
	}
	v.object(body, types, "", &p)
	return p
}

// Strangers are those in the body of a request whose handler may ignore the
// body as a whole.
func Strangers(ctx context.Context) doze.Problems {
	p, _ := ctx.Value(strangersKey{}).(doze.Problems)
	return p
}

type strictness struct {
	readOnly []string // members that only the platform sets, by name
	unread   []string // those of them that may be in a body, and are not read
	paths    []string
}

// object adds the members of v that no struct of types has.
func (s *strictness) object(v map[string]any, types []reflect.Type, path string, p *doze.Problems) {
	fields := map[string][]reflect.Type{}
	var known []string
	for _, t := range types {
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		// Networks are looked at where they are read, with their other mistakes.
		if t.Kind() != reflect.Struct || t == reflect.TypeFor[doze.Network]() || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
			continue
		}
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}
			if fields[name] == nil && !slices.Contains(s.readOnly, name) {
				known = append(known, name)
			}
			fields[name] = append(fields[name], f.Type)
		}
	}
	if len(fields) == 0 {
		return // any object
	}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		at := strings.TrimPrefix(path+"."+name, ".")
		switch of, ok := fields[name]; {
		case slices.Contains(s.paths, at), ok && slices.Contains(s.unread, name):
		case ok:
			s.value(v[name], of, at, p)
		default:
			slices.Sort(known)
			p.Add(strings.TrimPrefix(path+"."+Clip(name), "."), "is not known here, only %s", strings.Join(known, ", "))
		}
	}
}

func (s *strictness) value(v any, types []reflect.Type, path string, p *doze.Problems) {
	switch v := v.(type) {
	case map[string]any:
		s.object(v, types, path, p)
	case []any:
		var elems []reflect.Type
		for _, t := range types {
			if t.Kind() == reflect.Slice {
				elems = append(elems, t.Elem())
			}
		}
		for i, e := range v {
			s.value(e, elems, path+"["+strconv.Itoa(i)+"]", p)
		}
	}
}

// Echoes reports each read-only member whose value differs from current. A member is
// read-only if it is a field of current and not of in. Clients may send read-only
// members back unchanged.
func Echoes(body map[string]any, in, current any, p *doze.Problems) {
	settable, is := map[string]bool{}, map[string]any{}
	for _, f := range reflect.VisibleFields(reflect.TypeOf(in)) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		settable[name] = true
	}
	raw, err := json.Marshal(current)
	if err == nil {
		err = json.Unmarshal(raw, &is)
	}
	for _, name := range slices.Sorted(maps.Keys(body)) {
		if !settable[name] && !slices.Contains(volatile, name) && (err != nil || !same(body[name], is[name])) {
			p.Add(Clip(name), "cannot be set: leave it out, or send back what it is")
		}
	}
}

// same compares members that are texts or booleans. All others cannot be sent back.
func same(given, is any) bool {
	switch given.(type) {
	case string, bool:
		return given == is
	}
	return false
}

// volatile are members that may have changed since a client read them.
var volatile = []string{"updatedAt", "updatedBy", "updated_at", "resourceCounts", "status"}
