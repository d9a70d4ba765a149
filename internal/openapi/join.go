package openapi

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// A Part is a document that becomes a part of another one.
type Part struct {
	Document
	// Base is before the paths of the part, and may have variables.
	Base string
	// Variables are those of Base: parameters of each path.
	Variables []Parameter
}

// Join makes one document of parts, whose paths begin at the root of one server. It fails
// if parts disagree: about an operation id, a path, or what a component is.
func Join(info Info, parts ...Part) (Document, error) {
	all := Document{
		OpenAPI: Version, Info: info, Servers: []Server{{URL: "/"}}, Paths: map[string]Path{},
		Components: Components{
			Schemas: map[string]*Schema{}, Parameters: map[string]Parameter{}, Responses: map[string]Response{}, SecuritySchemes: map[string]Scheme{},
		},
	}
	ids := map[string]bool{}
	for _, part := range parts {
		all.Tags = append(all.Tags, part.Tags...)
		for path, operations := range part.Paths {
			if all.Paths[part.Base+path] != nil {
				return all, fmt.Errorf("two parts have the path %s", part.Base+path)
			}
			joined := Path{}
			for method, o := range operations {
				if ids[o.ID] {
					return all, fmt.Errorf("two operations are called %s", o.ID)
				}
				ids[o.ID] = true
				here := *o
				here.Parameters = slices.Concat(part.Variables, o.Parameters)
				joined[method] = &here
			}
			all.Paths[part.Base+path] = joined
		}
		from := part.Components
		if err := add(all.Components.Schemas, from.Schemas); err != nil {
			return all, err
		}
		if err := add(all.Components.Parameters, from.Parameters); err != nil {
			return all, err
		}
		if err := add(all.Components.Responses, from.Responses); err != nil {
			return all, err
		}
		if err := add(all.Components.SecuritySchemes, from.SecuritySchemes); err != nil {
			return all, err
		}
	}
	return all, nil
}

// add adds components, and fails if one of the same name is another.
func add[Component any](to, from map[string]Component) error {
	for name, c := range from {
		if other, taken := to[name]; taken && !reflect.DeepEqual(other, c) {
			return fmt.Errorf("two parts have different components called %s", name)
		}
	}
	maps.Copy(to, from)
	return nil
}
