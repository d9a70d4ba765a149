package api

import "reflect"

// Strange returns what is wrong with the members of a body of a type.
func (s *Server) Strange(method string, of reflect.Type, body map[string]any) []string {
	return s.strangers(&Route{Method: method, shape: shape{in: of}}, body)
}

// Sections returns what s was made of.
func (s *Server) Sections() []Section { return s.sections }
