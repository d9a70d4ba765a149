package api

import (
	"reflect"
	"slices"
)

// Strange returns what is wrong with the members of a body of a type.
func (s *Server) Strange(method string, of reflect.Type, body map[string]any) []string {
	return s.strangers(&Route{Method: method, shape: shape{in: of}}, body)
}

// Tolerated returns what all sections tolerate.
func (s *Server) Tolerated() (all []Tolerated) {
	for _, section := range s.sections {
		all = append(all, section.Tolerated...)
	}
	return all
}

// Intolerant returns s without anything that it tolerates.
func (s *Server) Intolerant() *Server {
	sections := slices.Clone(s.sections)
	for i := range sections {
		sections[i].Tolerated = nil
	}
	return &Server{sections: sections, unread: s.unread}
}
