package control

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/dozehq/doze"
)

// tolerated are members that clients of the specification send and that have no
// effect here. Every other member that a body of their type does not have is a
// mistake.
var tolerated = []struct {
	of     reflect.Type
	method string // empty is any
	paths  []string
	why    string
}{
	{
		reflect.TypeFor[doze.Sandbox](), "",
		[]string{"spec.runtime.generation", "spec.runtime.snapshotEnabled"},
		"the clients send them with each create; every sandbox has what they ask for",
	},
	{
		reflect.TypeFor[doze.Sandbox](), "",
		[]string{"dockerConfig", "skipBuild"},
		"the command line of the clients sends them with an image that is built already",
	},
	{
		reflect.TypeFor[doze.Sandbox](), http.MethodPut,
		[]string{"enabled", "lifecycle", "network", "region", "runtime", "volumes", "vpc"},
		"updates of the clients have the members of spec at the top too: those in spec count",
	},
	{
		reflect.TypeFor[doze.Sandbox](), "",
		[]string{"errors"},
		"the type of the clients has it, for what went wrong with a host",
	},
	{
		reflect.TypeFor[doze.ImageRequest](), "",
		[]string{"generation", "dockerConfig"},
		"the clients send them for builds, and with images that are built already",
	},
	{
		reflect.TypeFor[doze.Policy](), "",
		[]string{"usage"},
		"the type of the clients has it, for who refers to a policy",
	},
	{
		reflect.TypeFor[doze.Volume](), "",
		[]string{"terminatedAt"},
		"the type of the clients has it, for a volume that is gone",
	},
	{
		reflect.TypeFor[doze.NetworkResource](), "",
		[]string{"metadata.labels", "metadata.externalId", "metadata.plan", "metadata.url"},
		"the metadata of a VPC has them in the type of the clients; nothing looks for a VPC by them",
	},
	{
		reflect.TypeFor[doze.Preview](), "",
		[]string{"events"},
		"the type of the clients has it, for what happened to a preview",
	},
	{
		reflect.TypeFor[shareRequest](), "",
		[]string{"targetAccountId"},
		"the clients name the account of the other workspace: a platform is one account",
	},
}

// readOnly are members that only we set, with all that is in them. Clients read
// a resource, change a part and send the whole back: what they send there is
// not read.
var readOnly = func() []string {
	return slices.DeleteFunc(slices.Clone(newSchemas().Unset), func(name string) bool { return strings.Contains(name, ".") })
}

// echoed are what clients send back in an update whose request is of a type of
// its own. Its handler compares that with what is: see [echoes].
var echoed = map[reflect.Type]reflect.Type{
	reflect.TypeFor[workspaceRequest](): reflect.TypeFor[doze.Workspace](),
	reflect.TypeFor[accountRequest]():   reflect.TypeFor[doze.ServiceAccount](),
	reflect.TypeFor[roleRequest]():      reflect.TypeFor[doze.User](),
}

type strangersKey struct{}

// strangers are the members of a body of a type that are not known, at any
// depth, under their paths. Nothing that a caller sends is ignored, but for what
// the tables here say.
func strangers(method string, of reflect.Type, body map[string]any) (p doze.Problems) {
	s, types := strictness{unread: readOnly()}, []reflect.Type{of}
	if also, ok := echoed[of]; ok && method == http.MethodPut {
		types = append(types, also)
		s.unread = nil
	}
	for _, row := range tolerated {
		if row.of == of && (row.method == "" || row.method == method) {
			s.paths = append(s.paths, row.paths...)
		}
	}
	s.object(body, types, "", &p)
	return p
}

// strangersOf are those in the body of a request whose handler may ignore the
// body as a whole.
func strangersOf(ctx context.Context) doze.Problems {
	p, _ := ctx.Value(strangersKey{}).(doze.Problems)
	return p
}

type strictness struct {
	unread []string // by name
	paths  []string
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
			if fields[name] == nil && !slices.Contains(readOnly(), name) {
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
			p.Add(strings.TrimPrefix(path+"."+clip(name), "."), "is not known here, only %s", strings.Join(known, ", "))
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

// echoes adds each member of the body of an update that a caller may not set, a
// field of current and not of in, if it is not as it is: clients send back what
// they got, and nothing else is ignored.
func echoes(body map[string]any, in, current any, p *doze.Problems) {
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
			p.Add(clip(name), "cannot be set: leave it out, or send back what it is")
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
