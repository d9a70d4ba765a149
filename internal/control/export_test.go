package control

import "context"

// Unfinished is what the reconcile loop has found to do, by the turn that it
// needs.
func (s *Server) Unfinished(ctx context.Context) (map[string]func(context.Context) error, error) {
	work, err := s.unfinished(ctx)
	todo := map[string]func(context.Context) error{}
	for turn, c := range work {
		todo[turn] = c.do
	}
	return todo, err
}

// NameOf is what a body calls the object that it makes.
var NameOf = nameOf

// Flags are the names of all flags.
var Flags = flags[:]

// Stale are the rows of the tables of the description that are of nothing.
func Stale() []string {
	schemas := newSchemas()
	for _, rt := range routes {
		rt.describe(schemas)
	}
	return schemas.Stale()
}
