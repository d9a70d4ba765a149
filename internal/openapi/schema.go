package openapi

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
)

// Schema says what a JSON value may be (JSON Schema 2020-12, as far as we need
// it). The zero Schema is any value.
type Schema struct {
	Ref           string             `json:"$ref,omitempty"`
	Type          string             `json:"type,omitempty"`
	Format        string             `json:"format,omitempty"`
	Description   string             `json:"description,omitempty"`
	Enum          []string           `json:"enum,omitempty"`
	Pattern       string             `json:"pattern,omitempty"`
	MinLength     int                `json:"minLength,omitempty"`
	MaxLength     int                `json:"maxLength,omitempty"`
	Minimum       *int               `json:"minimum,omitempty"`
	Maximum       *int               `json:"maximum,omitempty"`
	Default       any                `json:"default,omitempty"`
	Items         *Schema            `json:"items,omitempty"`
	MaxItems      int                `json:"maxItems,omitempty"`
	Properties    map[string]*Schema `json:"properties,omitempty"`
	Required      []string           `json:"required,omitempty"`
	Values        *Schema            `json:"additionalProperties,omitempty"` // of a map
	MaxProperties int                `json:"maxProperties,omitempty"`
	OneOf         []*Schema          `json:"oneOf,omitempty"`
}

// Describer is a type that says itself what its JSON is. Of gives the schema of
// another type.
type Describer interface {
	Schema(of func(reflect.Type) *Schema) *Schema
}

// A Form is the side from which a type is seen.
type Form int

// What a type is in an answer, and in a request. A request has no members that
// callers cannot set, and needs those alone that [Schemas.Needs] names.
const (
	Answer Form = iota
	Request
)

// Schemas makes schemas of Go types as encoding/json writes them, and collects
// those of structs, which have names. In answers, members with omitempty or
// omitzero need not be there, and others always are. A member whose type has a
// method Reveal is in requests alone. Members that nobody described are allowed.
type Schemas struct {
	// Names of types other than those in Go.
	Names map[reflect.Type]string
	// Types are schemas of types that are not what they look like.
	Types map[reflect.Type]*Schema
	// Members say more of members, by "Type.member".
	Members map[string]Schema
	// Needs are the members that a request must have, by its type.
	Needs map[string][]string
	// Unset are the members that callers cannot set, by "Type.member" or, in any
	// type, "member": requests have none of them.
	Unset []string

	named map[string]*Schema
	seen  map[string]bool // members
}

// Named are the schemas that others refer to, by their names.
func (s *Schemas) Named() map[string]*Schema { return s.named }

// Stale are the rows of the tables that no type had.
func (s *Schemas) Stale() []string {
	keys := slices.AppendSeq(slices.Clone(s.Unset), maps.Keys(s.Members))
	for typ, members := range s.Needs {
		for _, m := range members {
			keys = append(keys, typ+"."+m)
		}
	}
	return slices.DeleteFunc(slices.Sorted(slices.Values(keys)), func(key string) bool { return s.seen[key] })
}

// Of returns the schema of a type in a form. It panics for a type that JSON has
// no form for: that is a mistake in the program.
func (s *Schemas) Of(t reflect.Type, form Form) *Schema {
	if known, ok := s.Types[t]; ok {
		return known
	}
	if d, ok := reflect.TypeAssert[Describer](reflect.Zero(t)); ok {
		return d.Schema(func(t reflect.Type) *Schema { return s.Of(t, form) })
	}
	switch t.Kind() { //nolint:exhaustive // the others have no form
	case reflect.Pointer:
		return s.Of(t.Elem(), form)
	case reflect.Interface:
		return &Schema{}
	case reflect.String:
		return &Schema{Type: "string"}
	case reflect.Bool:
		return &Schema{Type: "boolean"}
	case reflect.Int, reflect.Int64:
		return &Schema{Type: "integer", Format: "int64"}
	case reflect.Uint16:
		return &Schema{Type: "integer", Minimum: new(0), Maximum: new(math.MaxUint16)}
	case reflect.Float64:
		return &Schema{Type: "number", Format: "double"}
	case reflect.Slice:
		return &Schema{Type: "array", Items: s.Of(t.Elem(), form)}
	case reflect.Map:
		return &Schema{Type: "object", Values: s.Of(t.Elem(), form)}
	case reflect.Struct:
		return s.reference(t, form)
	}
	panic(fmt.Sprintf("the type %v has no schema", t))
}

// requests is how types end that are of requests alone; and the names of what
// differs in requests.
const requests = "Request"

// reference names the schema of a struct, and refers to it.
func (s *Schemas) reference(t reflect.Type, form Form) *Schema {
	name := s.name(t)
	object := s.object(t, form)
	if form == Request && !strings.HasSuffix(name, requests) {
		s.reference(t, Answer)
		if !reflect.DeepEqual(object, s.named[name]) {
			name += requests
		}
	}
	if s.named == nil {
		s.named = map[string]*Schema{}
	}
	s.named[name] = object
	return &Schema{Ref: "#/components/schemas/" + name}
}

func (s *Schemas) name(t reflect.Type) string {
	if name, ok := s.Names[t]; ok {
		return name
	}
	return strings.ToUpper(t.Name()[:1]) + t.Name()[1:]
}

func (s *Schemas) object(t reflect.Type, form Form) *Schema {
	o := &Schema{Type: "object", Properties: map[string]*Schema{}}
	s.members(o, t, form)
	return o
}

// members adds the members of a struct to o.
func (s *Schemas) members(o *Schema, t reflect.Type, form Form) {
	typ := s.name(t)
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			s.members(o, f.Type, form)
			continue
		}
		inner, hidden := revealed(f.Type)
		if name == "" || name == "-" || hidden && form == Answer || form == Request && s.unset(typ, name) {
			continue
		}
		o.Properties[name] = s.member(typ, name, s.Of(inner, form))
		always := !strings.Contains(options, "omit")
		if form == Request {
			always = slices.Contains(s.Needs[typ], name)
		}
		if always {
			o.Required = append(o.Required, name)
		}
	}
}

func (s *Schemas) unset(typ, name string) bool {
	return slices.Contains(s.Unset, name) || slices.Contains(s.Unset, typ+"."+name)
}

// member is the schema of a member whose type has the schema is.
func (s *Schemas) member(typ, name string, is *Schema) *Schema {
	if s.seen == nil {
		s.seen = map[string]bool{}
	}
	s.seen[name], s.seen[typ+"."+name] = true, true
	more, ok := s.Members[typ+"."+name]
	if !ok {
		return is
	}
	if len(more.OneOf) > 0 {
		return &more // it says all
	}
	more.Type, more.Format = cmp.Or(more.Type, is.Type), cmp.Or(more.Format, is.Format)
	more.Ref, more.Items, more.Values = cmp.Or(more.Ref, is.Ref), cmp.Or(more.Items, is.Items), cmp.Or(more.Values, is.Values)
	if len(more.Enum) == 0 {
		more.Enum = is.Enum
	}
	return &more
}

// revealed is what a type holds that callers never get back; or the type.
func revealed(t reflect.Type) (inner reflect.Type, hidden bool) {
	if m, ok := t.MethodByName("Reveal"); ok {
		return m.Type.Out(0), true
	}
	return t, false
}
